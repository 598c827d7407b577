"""The inflight window of runs: acknowledged in their order, or unfolded."""

from __future__ import annotations

from penstock.broker.fast_paths.message_run import MessageRun
from penstock.broker.fast_paths.run_window import RunWindow
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.short_packets import ALL_PUBACK, ALL_PUBCOMP, ALL_PUBREC, packets_from
from penstock.broker.mqtt.writer import write_packet
from tests.broker.outbox.test_inflight import delivery, not_owed


def run_of(n_messages: int, qos: int = 1) -> MessageRun:
    """Return a run of messages with a payload of two bytes."""
    packet = write_packet(Publish("t", b"xy", qos=qos, packet_id=1), 4)
    segment = (n_messages, 0, len(packet), len(packet) - 4, 2, ("t", b"t"))
    return MessageRun(packet * n_messages, [segment], qos, 4, "p", arrived_at=0.0, now=0.0)


def test_an_acknowledgement_that_is_not_owed_for_a_run_is_an_error() -> None:
    """It says what was read and what is owed, and the delivery stays."""
    inflight = RunWindow()
    not_owed(inflight, inflight.start_run(run_of(1)), inflight.start_run(run_of(1, qos=2)))


def test_a_run_is_acknowledged_in_its_order() -> None:
    """In as many parts as the client likes."""
    inflight = RunWindow()
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
    inflight = RunWindow()
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
    inflight = RunWindow()
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
    inflight = RunWindow()
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
    inflight = RunWindow()
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
    inflight = RunWindow()
    for _ in range(MAX_PACKET_ID - 9):
        inflight.finish(inflight.start(delivery()), 1)
    assert inflight.start_run(run_of(5)) == MAX_PACKET_ID - 8
    assert inflight.start_run(run_of(4)) == MAX_PACKET_ID - 3
    assert inflight.start_run(run_of(4)) == 0
    assert list(inflight)  # one by one from here on
    assert inflight.start(delivery()) == 1
    inflight.check_invariants()


def lone(inflight: RunWindow, payload: bytes = b"xy") -> int:
    """Start a lone message; return its Packet Identifier."""
    packet = write_packet(Publish("t", payload, qos=1, packet_id=1), 4)
    return inflight.start_lone(packet, len(payload), ("t", b"t"), "p", 0.125)


def test_lone_messages_and_runs_are_acknowledged_in_one_order() -> None:
    """Each by itself or together, whatever went alone."""
    inflight = RunWindow()
    assert lone(inflight) == 1
    assert inflight.start_run(run_of(2)) == 2
    assert [lone(inflight), inflight.start_run(run_of(1)), lone(inflight)] == [4, 5, 6]
    inflight.check_invariants()
    data = packets_from(ALL_PUBACK, 1, 6)
    assert not inflight.finish_alone(2)
    assert inflight.finish_run(2, packets_from(ALL_PUBCOMP, 1, 1), 0) == (0, 0)
    assert inflight.finish_run(1, data, 4) == (1, 0)
    assert inflight.finish_run(1, data[:3], 0) == (1, 0)
    assert inflight.finish_alone(1)
    assert not inflight.finish_alone(2)  # of a run of two
    assert inflight.finish_run(1, data, 4) == (2, 2)
    assert inflight.finish_run(1, data, 12) == (4, 1)
    inflight.check_invariants()
    assert inflight.finish_alone(5)
    assert inflight.finish_alone(6)
    assert not inflight.finish_alone(7)
    assert (len(inflight), inflight.n_bytes) == (0, 0)
    inflight.check_invariants()


def test_a_lone_message_is_a_delivery_for_whoever_asks() -> None:
    """It has all that was published, an empty payload too."""
    inflight = RunWindow()
    ids = [lone(inflight), lone(inflight, b"")]
    inflight.check_invariants()
    first, second = list(inflight)
    inflight.check_invariants()
    assert [first.packet_id, second.packet_id] == ids
    assert [first.message.payload, second.message.payload] == [b"xy", b""]
    message = first.message
    assert (message.topic, message.topic_bytes, message.publisher) == ("t", b"t", "p")
    assert (message.qos, message.arrived_at, message.retain) == (1, 0.125, False)
    assert inflight.finish(2, 1) is second
    assert (len(inflight), inflight.n_bytes) == (1, 2)


def test_a_lone_message_gets_no_packet_id_that_is_in_use() -> None:
    """Neither the last one again, nor one of a delivery."""
    inflight = RunWindow()
    inflight.restore(delivery(), 3, is_released=False)
    inflight.restore(delivery(), 2, is_released=False)
    assert lone(inflight) == 0
    inflight.restore(delivery(), MAX_PACKET_ID, is_released=False)
    assert lone(inflight) == 0
    assert (len(inflight), inflight.n_bytes) == (3, 0)
    inflight.check_invariants()
