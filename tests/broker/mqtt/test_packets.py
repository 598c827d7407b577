from __future__ import annotations

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import (
    REASON_CODES,
    Connect,
    Packet,
    PubAck,
    Publish,
    PubRec,
    SubscriptionRequest,
    Will,
)


def test_defaults_are_the_usual_packet() -> None:
    """A packet is named by what is unusual in it."""
    assert Publish("a") == Publish("a", b"", 0, retain=False, dup=False, packet_id=0, properties={})
    assert PubAck(1) == PubAck(1, 0, {})
    assert SubscriptionRequest("a") == SubscriptionRequest("a", 0, retain_handling=0)
    connect = Connect()
    assert (connect.client_id, connect.protocol_version, connect.clean_start) == ("", 5, True)
    assert (connect.keep_alive, connect.will, connect.username) == (60, None, None)


def test_packets_of_different_types_differ() -> None:
    """A PUBREC is no PUBACK, even with the same fields."""
    received: Packet = PubRec(1)
    assert received != PubAck(1)
    assert received.packet_type == PacketType.PUBREC


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
