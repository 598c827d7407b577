from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import PubAck, PubRec
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.proxied_clients import VirtualClient, publish


@pytest.mark.parametrize(("qos", "answers"), [(0, []), (1, [PubAck]), (2, [PubRec])])
@pytest.mark.parametrize("many", [[("", "")] * 257, [("", "x" * 60_000)] * 3])
def test_a_message_with_more_properties_than_are_read_is_refused_to_the_broker(
    many: list[tuple[str, str]], qos: int, answers: list[type[PubAck | PubRec]]
) -> None:
    """To read 209,000 of them would hold all clients up; the broker need not send it again."""
    proxied = VirtualClient.connected()
    message = publish("a", qos=qos, packet_id=1 if qos else 0, properties={"user_property": many})
    proxied.broker_sends(message, publish("b"))
    assert proxied.topics() == ["b"]
    assert proxied.to_broker() == [kind(1, ReasonCode.QUOTA_EXCEEDED) for kind in answers]
    client = proxied.proxied.client
    assert client.ledger.dropped == {"properties": 1}
    client.check_invariants()


def test_subscription_identifiers_are_no_user_properties() -> None:
    """A broker adds one for each subscription that matches, however many there are."""
    proxied = VirtualClient.connected()
    many = {"subscription_identifier": list(range(1, 1001))}
    proxied.broker_sends(publish("a", packet_id=1, properties=many))
    assert proxied.topics() == ["a"]
    assert not proxied.proxied.client.ledger.dropped
