from __future__ import annotations

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import (
    REASON_CODES,
    Connect,
    Publish,
    SubscriptionRequest,
    Will,
)


def test_subscriptions_cannot_be_changed() -> None:
    """A subscription is kept by the session and the tree: neither changes the other's."""
    subscription = SubscriptionRequest("a")
    with pytest.raises(AttributeError):
        subscription.qos = 1  # type: ignore[misc]  # what the test is about


def test_secrets_and_payloads_stay_out_of_logs() -> None:
    """The text of a packet has neither password nor payload."""
    texts = [
        repr(Connect(username="u", password=b"hidden", will=Will("t", b"hidden"))),
        repr(Publish("t", b"hidden")),
    ]
    assert all("hidden" not in text and "'t'" in text for text in texts)


@pytest.mark.parametrize("packet_type", list(REASON_CODES))
def test_reason_codes_of_each_packet_are_those_that_a_client_knows(packet_type: PacketType) -> None:
    """Our sets are those that paho-mqtt has of section 2.4."""
    known = {
        code
        for code, names in PahoReasonCode(PacketTypes.CONNACK).names.items()
        if any(packet_type in packet_types for packet_types in names.values())
    }
    if packet_type == PacketType.CONNACK:
        # The Will Payload may be found not to have its format (Table 3-1); paho lacks it.
        known.add(0x99)
    assert REASON_CODES[packet_type] == known
