"""One client's connection: what it is owed, and what it is told at its end, on a virtual clock."""

from __future__ import annotations

from penstock.broker.mqtt.packets import PubAck, PubRec
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.client import PublishReceipt
from tests.helpers.virtual import VirtualBroker


def test_the_last_of_its_answers_settles_a_receipt() -> None:
    """One refusal among them counts, whichever it is."""
    connection = VirtualBroker().connect().connection
    for answers, expected in (((0, 0, 0), 0), ((0x97, 0, 0), 0x97), ((0, 0x80, 0), 0x80)):
        receipt = PublishReceipt(connection.client, 7, 1, 1)
        receipt.wait_for(2)
        for answer in answers:
            assert not receipt.is_settled
            receipt.settle(answer)
        assert receipt.is_settled
        assert receipt.acknowledgement() == PubAck(7, expected)


def test_a_settled_receipt_is_acknowledged_with_its_reason() -> None:
    """PUBACK or PUBREC, with the words for it."""
    connection = VirtualBroker().connect().connection
    receipt = PublishReceipt(connection.client, 7, 2, 1)
    receipt.reason_code = ReasonCode.QUOTA_EXCEEDED
    receipt.reason = "no room"
    expected = PubRec(7, ReasonCode.QUOTA_EXCEEDED, {"reason_string": "no room"})
    assert receipt.acknowledgement() == expected
