from __future__ import annotations

import pytest

from penstock.broker.errors import ProtocolError
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.delivery import Delivery
from penstock.edge_proxy.sidecar.ack_map import AckMap, Outcome

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP


def held(acks: AckMap, packet_id: int, qos: int = 1, expires_at: float | None = None) -> Delivery:
    """Let a message wait."""
    delivery = Delivery(Message("t", b"x", expires_at=expires_at), qos)
    delivery.packet_id = packet_id
    assert not acks.is_repeat(packet_id, is_dup=False)
    acks.hold(delivery, is_dup=False)
    return delivery


def test_puback_of_what_was_sent_ends_it() -> None:
    """QoS 1: PUBACK frees the packet id; a second one is the broker's to judge."""
    acks = AckMap()
    acks.pass_on(7, 1)
    assert (len(acks), acks.n_inflight) == (1, 1)
    assert acks.acknowledge(PUBACK, 7, 0) is Outcome.DELIVERED
    assert acks.acknowledge(PUBACK, 7, 0) is Outcome.UNKNOWN
    assert len(acks) == 0
    assert not acks.is_repeat(7, is_dup=False)


def test_an_acknowledgement_of_what_waits_is_held_back() -> None:
    """The client has never seen the message: the broker must not hear that it has."""
    acks = AckMap()
    held(acks, 7)
    assert acks.n_inflight == 0
    for packet_type in (PUBACK, PUBREC, PUBCOMP):
        assert acks.acknowledge(packet_type, 7, 0) is Outcome.HELD
    assert acks.sent(7) is False
    assert acks.acknowledge(PUBACK, 7, 0) is Outcome.DELIVERED


def test_qos_2_is_delivered_by_pubcomp() -> None:
    """PUBREC, however often, then PUBCOMP, whatever its reason code."""
    acks = AckMap()
    acks.pass_on(7, 2)
    assert acks.acknowledge(PUBREC, 7, 0) is Outcome.RECEIVED
    assert acks.acknowledge(PUBREC, 7, ReasonCode.NO_MATCHING_SUBSCRIBERS) is Outcome.RECEIVED
    code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    assert acks.acknowledge(PUBCOMP, 7, code) is Outcome.DELIVERED
    assert len(acks) == 0


def test_a_pubcomp_before_the_pubrec_delivers_nothing() -> None:
    """[MQTT-4.3.3-3]: it is the broker's to judge; the message stays inflight."""
    acks = AckMap()
    acks.pass_on(7, 2)
    assert acks.acknowledge(PUBCOMP, 7, 0) is Outcome.UNKNOWN
    assert acks.n_inflight == 1
    assert acks.acknowledge(PUBREC, 7, 0) is Outcome.RECEIVED
    assert acks.acknowledge(PUBCOMP, 7, 0) is Outcome.DELIVERED


@pytest.mark.parametrize(("packet_type", "qos"), [(PUBACK, 1), (PUBREC, 2)])
def test_a_reason_code_of_refusal_ends_it(packet_type: int, qos: int) -> None:
    """[MQTT-4.4.0-2]: 0x80 or above ends the exchange, undelivered."""
    acks = AckMap()
    acks.pass_on(7, qos)
    assert acks.acknowledge(packet_type, 7, ReasonCode.QUOTA_EXCEEDED) is Outcome.REFUSED
    assert len(acks) == 0


@pytest.mark.parametrize(("packet_type", "qos"), [(PUBACK, 2), (PUBREC, 1), (PUBCOMP, 1)])
def test_an_answer_of_another_qos_changes_nothing(packet_type: int, qos: int) -> None:
    """It is the broker's to judge; the message stays inflight."""
    acks = AckMap()
    acks.pass_on(7, qos)
    assert acks.acknowledge(packet_type, 7, 0) is Outcome.UNKNOWN
    assert acks.n_inflight == 1


def test_a_repeat_is_recognised_and_reuse_is_refused() -> None:
    """DUP of what is on its way is no new message; the same id without DUP is an error."""
    acks = AckMap()
    acks.pass_on(7, 1)
    assert acks.is_repeat(7, is_dup=True)
    with pytest.raises(ProtocolError, match="packet id 7") as caught:
        acks.is_repeat(7, is_dup=False)
    assert caught.value.reason_code == ReasonCode.PACKET_IDENTIFIER_IN_USE


def test_the_dup_flag_of_a_held_message_is_kept() -> None:
    """[MQTT-3.3.1-1]: a repeat after a reconnect reaches the client as one."""
    acks = AckMap()
    delivery = Delivery(Message("t", b"x"), 1)
    delivery.packet_id = 7
    acks.hold(delivery, is_dup=True)
    assert acks.sent(7) is True


def test_what_expired_while_it_waited_is_returned_once() -> None:
    """Only waiting messages expire here, at their time and not before."""
    acks = AckMap()
    early, late = held(acks, 1, expires_at=5.0), held(acks, 2, expires_at=9.0)
    held(acks, 3, expires_at=5.0)
    acks.sent(3)
    held(acks, 4)
    assert acks.take_expired(4.9) == []
    assert acks.take_expired(5.0) == [early]
    assert acks.take_expired(5.0) == []
    assert acks.take_expired(9.0) == [late]
    assert (acks.n_waiting, acks.n_inflight) == (1, 1)


def test_a_packet_id_that_is_used_again_expires_with_its_new_message() -> None:
    """However often: the times of messages that have left do not pile up."""
    acks = AckMap()
    for number in range(500):
        held(acks, 7, expires_at=5.0 + number)
        acks.sent(7)
        acks.acknowledge(PUBACK, 7, 0)
    assert len(acks._expiring) < 100
    last = held(acks, 7, expires_at=900.0)
    assert acks.take_expired(899.0) == []
    assert acks.take_expired(900.0) == [last]


def ids(*packet_ids: int) -> bytes:
    """Return Packet Identifiers as they stand in packets."""
    return b"".join(packet_id.to_bytes(2) for packet_id in packet_ids)


def test_a_run_is_recorded_whole_or_not_at_all() -> None:
    """A packet id of 0, one that is in use and one that comes twice are for the way of each."""
    acks = AckMap()
    held(acks, 5)
    acks.pass_on(6, 1)
    for wrong in (ids(1, 0), ids(1, 5), ids(1, 6), ids(1, 2, 1)):
        assert not acks.pass_run_on(wrong, 1)
        assert acks.n_inflight == 1
    assert acks.pass_run_on(ids(1, 2, 65_535), 1)
    assert (acks.n_inflight, acks.n_waiting) == (4, 1)
    with pytest.raises(ProtocolError, match="packet id 65535"):
        acks.is_repeat(65_535, is_dup=False)


def test_a_run_of_pubacks_ends_at_the_first_that_is_out_of_the_ordinary() -> None:
    """Unknown, of QoS 2 or of a message that waits: those are for the way of each."""
    for odd in (99, 4, 5):
        acks = AckMap()
        acks.pass_run_on(ids(1, 2, 3), 1)
        acks.pass_on(4, 2)
        held(acks, 5)
        assert acks.finish_run(ids(2, 1, odd, 3)) == 2
        assert (acks.n_inflight, acks.n_waiting) == (2, 1)
