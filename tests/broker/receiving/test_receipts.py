"""What a client's publishes are owed, on a virtual clock: how much of it, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import Disconnect, PubAck, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.receiving.receipts import PublishReceipt, acknowledgement
from tests.broker.receiving.test_publishing import Sink
from tests.helpers.virtual import VirtualBroker


def test_the_last_of_its_answers_settles_a_receipt() -> None:
    """One refusal among them counts, whichever it is."""
    connection = VirtualBroker().connect().connection
    for answers, expected in (((0, 0, 0), 0), ((0x97, 0, 0), 0x97), ((0, 0x80, 0), 0x80)):
        receipt = PublishReceipt(connection, 7, 1, 1)
        receipt.wait_for(2)
        for answer in answers:
            assert not receipt.is_settled
            receipt.settle(answer)
        assert receipt.is_settled
        assert acknowledgement(receipt) == PubAck(7, expected)


def test_a_settled_receipt_is_acknowledged_with_its_reason() -> None:
    """PUBACK or PUBREC, with the words for it."""
    connection = VirtualBroker().connect().connection
    receipt = PublishReceipt(connection, 7, 2, 1)
    receipt.reason_code = ReasonCode.QUOTA_EXCEEDED
    receipt.reason = "no room"
    expected = PubRec(7, ReasonCode.QUOTA_EXCEEDED, {"reason_string": "no room"})
    assert acknowledgement(receipt) == expected


@pytest.mark.mqtt5("4.6.0-2", "4.6.0-3")
def test_acknowledgements_wait_for_those_before_them() -> None:
    """Answers come in any order; PUBACK and PUBREC go in the order of the publishes."""
    sink = Sink()
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
