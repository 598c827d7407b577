from __future__ import annotations

import pytest

from penstock.broker.errors import ProtocolError
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.short_packets import ALL_PUBACK, ALL_PUBCOMP, ALL_PUBREC, packets_from
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.inflight import Inflight
from penstock.broker.outbox.message_run import MessageRun


def delivery(qos: int = 1) -> Delivery:
    """Return a delivery of a message of its own."""
    return Delivery(Message("t", b""), qos)


@pytest.mark.mqtt5("2.2.1-4", "4.3.2-1", "4.3.3-1")
@pytest.mark.mqtt311("2.3.1-4")
def test_packet_ids_are_not_reused_while_inflight() -> None:
    """[MQTT-2.2.1-4]: a packet identifier in use is skipped when the numbers come round."""
    inflight = Inflight()
    first = inflight.start(delivery())
    assert first == 1
    for _ in range(MAX_PACKET_ID - 1):
        inflight.finish(inflight.start(delivery()), 1)
    assert inflight.start(delivery()) == 2
    assert len(inflight) == 2


def test_an_acknowledgement_of_nothing_finishes_nothing() -> None:
    """It may be late: its message was acknowledged before, or was of a session that has ended."""
    inflight = Inflight()
    one = inflight.start(delivery(1))
    assert inflight.finish(99, 1) is None
    assert inflight.finish(99, 2) is None
    assert inflight.release(99) is None
    assert inflight.finish(one, 1) is not None
    assert inflight.finish(one, 1) is None
    inflight.check_invariants()


def test_pubrec_moves_a_qos2_delivery_on() -> None:
    """[MQTT-4.3.3-4]: after PUBREC only PUBREL is sent, and a second PUBREC is answered too."""
    inflight = Inflight()
    packet_id = inflight.start(delivery(2))
    assert not inflight.is_released(packet_id)
    assert inflight.release(packet_id) is not None
    assert inflight.release(packet_id) is not None
    assert inflight.is_released(packet_id)
    assert inflight.finish(packet_id, 2) is not None
    assert not inflight.is_released(packet_id)


@pytest.mark.parametrize("in_runs", [False, True])
def test_an_acknowledgement_that_is_not_owed_is_an_error(*, in_runs: bool) -> None:
    """It says what was read and what is owed, and the delivery stays."""
    inflight = Inflight()
    if in_runs:
        one, two = inflight.start_run(run_of(1)), inflight.start_run(run_of(1, qos=2))
    else:
        one, two = inflight.start(delivery(1)), inflight.start(delivery(2))
    with pytest.raises(ProtocolError, match=r"PUBREC of packet id 1; allowed: PUBACK, .* QoS 1"):
        inflight.release(one)
    with pytest.raises(ProtocolError, match=r"PUBCOMP of packet id 1; allowed: PUBACK, .* QoS 1"):
        inflight.finish(one, 2)
    with pytest.raises(ProtocolError, match=r"PUBACK of packet id 2; allowed: PUBREC, .* QoS 2"):
        inflight.finish(two, 1)
    with pytest.raises(ProtocolError, match=r"PUBCOMP of packet id 2; allowed: PUBREC, .* QoS 2"):
        inflight.finish(two, 2)
    inflight.release(two)
    with pytest.raises(ProtocolError, match=r"PUBACK of packet id 2; allowed: PUBCOMP, .* QoS 2"):
        inflight.finish(two, 1)
    assert len(inflight) == 2
    inflight.check_invariants()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_could_not_be_sent_owes_nothing(qos: int) -> None:
    """Its packet identifier is free."""
    inflight = Inflight()
    sent = delivery(qos)
    inflight.start(sent)
    inflight.drop(sent)
    assert not inflight.holds(sent)
    inflight.check_invariants()


def test_what_is_inflight_comes_oldest_first() -> None:
    """[MQTT-4.6.0-1]: what is sent again goes in the order in which it was sent."""
    inflight = Inflight()
    sent = [delivery() for _ in range(5)]
    for one in sent:
        inflight.start(one)
    inflight.finish(sent[1].packet_id, 1)
    assert list(inflight) == [sent[0], *sent[2:]]
    assert inflight.clear() == 4
    assert len(inflight) == 0


def test_a_delivery_is_held_until_it_is_acknowledged() -> None:
    """Nor is it held once another has its packet identifier."""
    inflight = Inflight()
    sent = delivery()
    packet_id = inflight.start(sent)
    assert inflight.holds(sent)
    inflight.finish(packet_id, 1)
    assert not inflight.holds(sent)


def run_of(n_messages: int, qos: int = 1) -> MessageRun:
    """Return a run of messages with a payload of two bytes."""
    packet = write_packet(Publish("t", b"xy", qos=qos, packet_id=1), 4)
    segment = (n_messages, 0, len(packet), len(packet) - 4, 2, ("t", b"t"))
    return MessageRun(packet * n_messages, [segment], qos, 4, "p", arrived_at=0.0, now=0.0)


def test_a_run_is_acknowledged_in_its_order() -> None:
    """In as many parts as the client likes."""
    inflight = Inflight()
    assert inflight.start_run(run_of(3)) == 1
    assert inflight.start_run(run_of(2)) == 4
    assert (len(inflight), inflight.n_bytes) == (5, 10)
    data = packets_from(ALL_PUBACK, 1, 5)
    assert inflight.finish_run(1, data[:9], 0) == (1, 2)
    assert inflight.finish_run(1, data, 8) == (3, 1)
    assert inflight.finish_run(1, data, 12) == (4, 2)
    assert inflight.finish_run(1, data, 12) == (0, 0)
    assert (len(inflight), inflight.n_bytes) == (0, 0)
    inflight.check_invariants()


def test_messages_that_went_alone_are_acknowledged_one_by_one() -> None:
    """A PUBACK counts when all of it is there, and for the oldest message."""
    inflight = Inflight()
    assert [inflight.start_run(run_of(1)) for _ in range(3)] == [1, 2, 3]
    data = packets_from(ALL_PUBACK, 1, 3)
    assert inflight.finish_run(1, data[:3], 0) == (1, 0)
    assert inflight.finish_run(1, data, 4) == (1, 0)
    inflight.check_invariants()
    assert [inflight.finish_run(1, data, position) for position in (0, 4)] == [(1, 1), (2, 1)]
    assert (len(inflight), inflight.n_bytes) == (1, 2)
    assert inflight.finish_run(2, packets_from(ALL_PUBCOMP, 3, 1), 0) == (0, 0)
    assert inflight.finish_run(1, data, 8) == (3, 1)
    assert (len(inflight), inflight.n_bytes) == (0, 0)
    inflight.check_invariants()


def test_a_qos2_run_is_received_and_then_completed() -> None:
    """[MQTT-4.3.3-4]: no PUBCOMP is taken before its PUBREC."""
    inflight = Inflight()
    first = inflight.start_run(run_of(3, qos=2))
    completions = packets_from(ALL_PUBCOMP, first, 3)
    assert inflight.finish_run(2, completions, 0)[1] == 0
    assert inflight.release_run(packets_from(ALL_PUBREC, first, 2), 0) == (first, 2)
    assert inflight.finish_run(2, completions, 0) == (first, 2)
    inflight.check_invariants()
    (left,) = inflight
    assert (left.packet_id, inflight.is_released(3)) == (3, False)
    assert inflight.release_run(packets_from(ALL_PUBREC, 3, 1), 0) == (0, 0)
    assert inflight.release(3) is left


def test_an_acknowledgement_out_of_order_is_taken_all_the_same() -> None:
    """What is left of a run keeps its order and its Packet Identifiers [MQTT-4.6.0-1]."""
    inflight = Inflight()
    inflight.start_run(run_of(2, qos=2))
    inflight.release_run(packets_from(ALL_PUBREC, 1, 1), 0)
    inflight.start_run(run_of(2))
    assert inflight.finish_run(1, packets_from(ALL_PUBACK, 3, 1), 0) == (0, 0)
    assert inflight.finish(4, 1) is not None
    inflight.check_invariants()
    assert [(one.packet_id, one.qos) for one in inflight] == [(1, 2), (2, 2), (3, 1)]
    assert [inflight.is_released(packet_id) for packet_id in (1, 2)] == [True, False]
    inflight.start_run(run_of(1))
    assert inflight.start(delivery()) == 6
    assert [one.packet_id for one in inflight] == [1, 2, 3, 5, 6]
    inflight.start_run(run_of(1))
    assert inflight.clear() == 6
    inflight.check_invariants()


def test_a_run_gets_no_packet_id_that_is_in_use() -> None:
    """[MQTT-2.2.1-4]: nor do the numbers of a run come round in its middle."""
    inflight = Inflight()
    kept = inflight.start_run(run_of(5))
    last = MAX_PACKET_ID - 10
    for first in range(6, last + 1, 5):  # the run before is acknowledged, that one is not
        assert inflight.start_run(run_of(5)) == first
        for packet_id in range(first, first + 5):
            inflight.finish(packet_id, 1)
        inflight.check_invariants()
    assert inflight.start_run(run_of(20)) == 0
    assert inflight.start_run(run_of(10)) == last + 1
    assert inflight.start_run(run_of(1)) == 0
    assert inflight.start(delivery()) == kept + 5
    assert len(inflight) == 16


def test_a_run_that_comes_round_stops_before_the_oldest() -> None:
    """Once the numbers have come round, those of the oldest run are the first in use."""
    inflight = Inflight()
    for _ in range(MAX_PACKET_ID - 9):
        inflight.finish(inflight.start(delivery()), 1)
    assert inflight.start_run(run_of(5)) == MAX_PACKET_ID - 8
    assert inflight.start_run(run_of(4)) == MAX_PACKET_ID - 3
    assert inflight.start_run(run_of(4)) == 0
    assert list(inflight)  # one by one from here on
    assert inflight.start(delivery()) == 1
    inflight.check_invariants()
