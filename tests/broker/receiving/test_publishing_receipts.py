"""What a client's publishes are owed, on a virtual clock: how much of it, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import Disconnect, PubAck, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker


@pytest.mark.mqtt5("4.6.0-2", "4.6.0-3")
def test_acknowledgements_wait_for_those_before_them() -> None:
    """Answers come in any order; PUBACK and PUBREC go in the order of the publishes."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    client = broker.connect("p")
    for packet_id, qos in ((5, 1), (3, 2), (4, 1)):
        client.publish("q/a", b"x", qos=qos, packet_id=packet_id)
    for receipt in reversed(sink.receipts):
        assert client.inbox == []
        assert receipt is not None
        receipt.settle(0)
        broker.settle()
    assert client.inbox == [PubAck(5), PubRec(3), PubAck(4)]


@pytest.mark.mqtt5("3.3.4-7")
def test_what_an_earlier_connection_left_is_not_of_the_new_ones_quota() -> None:
    """MQTT 5.0, 4.9: the quota begins anew; more than Receive Maximum on one connection is 0x93."""
    broker = VirtualBroker(Limits(receive_maximum=2))
    keep: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    publisher = broker.connect("p", **keep)
    for packet_id in (1, 2):
        publisher.publish("t", b"x", qos=2, packet_id=packet_id)
    publisher.lose()
    publisher = broker.connect("p", **keep)
    for packet_id in (3, 4):
        publisher.publish("t", b"x", qos=2, packet_id=packet_id)
    assert [packet.packet_id for packet in publisher.take_all(PubRec)] == [3, 4]
    publisher.send(PubRel(1), PubRel(3))
    publisher.publish("t", b"x", qos=2, packet_id=5)
    assert not publisher.is_lost
    publisher.publish("t", b"x", qos=2, packet_id=6)
    assert publisher.take_all(Disconnect)[0].reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
