from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.probing.puback import (
    EveryPacketTimer,
    OnePacketTimer,
    PubackSample,
    PubackTimer,
)

SPACING = 0.1


def one_packet_timer() -> PubackTimer:
    """Return one that gives up after 10 s."""
    return OnePacketTimer(10.0, SPACING)


def every_packet_timer() -> PubackTimer:
    """Return one that gives up after 10 s."""
    return EveryPacketTimer(10.0)


BOTH = pytest.mark.parametrize("make", [one_packet_timer, every_packet_timer])


def with_packet(make: Callable[[], PubackTimer]) -> PubackTimer:
    """Return a timer that times packet 7, of 500 bytes, since second 100."""
    timer = make()
    timer.sent(7, 1, 500, 100.0)
    return timer


@BOTH
def test_acknowledgement_of_a_timed_packet_is_a_sample(make: Callable[[], PubackTimer]) -> None:
    """RTT from hand-over to PUBACK, with the payload size it was timed on."""
    timer = with_packet(make)
    assert (timer.sent_at, timer.payload_bytes) == (100.0, 500)
    assert list(timer.acknowledged(7, 1, 100.25)) == [PubackSample(0.25, 500)]
    assert timer.sent_at is None


@BOTH
def test_acknowledgement_of_another_packet_is_none(make: Callable[[], PubackTimer]) -> None:
    """Samples are matched by packet id, whatever the order of acknowledgements."""
    timer = with_packet(make)
    assert not timer.acknowledged(8, 100, 100.1)
    assert not timer.acknowledged(1, 6, 100.1)
    assert list(timer.acknowledged(1, 7, 100.25)) == [PubackSample(0.25, 500)]


@BOTH
def test_acknowledgement_without_timed_packet_is_none(make: Callable[[], PubackTimer]) -> None:
    """A second PUBACK of the same packet id, or packet id 0, says nothing."""
    timer = with_packet(make)
    timer.acknowledged(7, 1, 100.25)
    assert not timer.acknowledged(7, 1, 100.5)
    assert not make().acknowledged(0, 1, 1.0)


@BOTH
def test_unanswered_packet_makes_way_and_its_age_counts(make: Callable[[], PubackTimer]) -> None:
    """A packet id that is never acknowledged ends as a sample of the least its RTT can be."""
    timer = with_packet(make)
    assert timer.sent(9, 1, 300, 110.0) == PubackSample(10.0, 500)
    assert not timer.acknowledged(7, 1, 110.1)
    assert list(timer.acknowledged(9, 1, 110.5)) == [PubackSample(0.5, 300)]


@BOTH
def test_void_forgets_the_packets_of_a_lost_connection(make: Callable[[], PubackTimer]) -> None:
    """After a reconnect the packet id may be acknowledged, but its time means nothing."""
    timer = with_packet(make)
    timer.void()
    assert timer.sent_at is None
    assert not timer.acknowledged(7, 1, 105.0)
    assert timer.sent(7, 1, 500, 105.0) is None
    assert list(timer.acknowledged(7, 1, 105.5)) == [PubackSample(0.5, 500)]


def test_one_packet_timer_takes_the_first_of_a_burst() -> None:
    """A burst behind one loss is one sample, and no packet is to be told of until its answer."""
    timer = one_packet_timer()
    timer.sent(7, 100, 500, 100.0)
    assert timer.next_at == 110.0
    assert list(timer.acknowledged(7, 100, 103.0)) == [PubackSample(3.0, 500)]


def test_next_packet_is_timed_after_the_spacing() -> None:
    """After a sample none is to be told of until a spacing later."""
    timer = with_packet(one_packet_timer)
    timer.acknowledged(7, 1, 101.0)
    assert timer.next_at == 101.0 + SPACING


def test_every_packet_on_its_way_is_timed_with_its_size() -> None:
    """Several are in flight; each answer is a sample, and the oldest unanswered one is known."""
    timer = every_packet_timer()
    for packet_id, payload_bytes, at in ((7, 100, 1.0), (8, 9_000, 1.25), (9, 50, 1.5)):
        assert timer.next_at <= at
        assert timer.sent(packet_id, 1, payload_bytes, at) is None
    assert list(timer.acknowledged(8, 1, 2.0)) == [PubackSample(0.75, 9_000)]
    assert (timer.sent_at, timer.payload_bytes) == (1.0, 100)
    assert list(timer.acknowledged(7, 1, 2.5)) == [PubackSample(1.5, 100)]
    assert (timer.sent_at, timer.payload_bytes) == (1.5, 50)


def test_packets_that_left_and_came_together_are_one_sample() -> None:
    """Of a run there is one for each acknowledgement of a part; of two runs one each, in order."""
    timer = every_packet_timer()
    timer.sent(1, 100, 500, 1.0)
    timer.sent(101, 100, 500, 2.0)
    assert list(timer.acknowledged(1, 60, 3.0)) == [PubackSample(2.0, 500)]
    both = [PubackSample(3.0, 500), PubackSample(2.0, 500)]
    assert list(timer.acknowledged(61, 140, 4.0)) == both
    assert timer.sent_at is None


def test_all_packets_that_are_too_old_make_way_at_once() -> None:
    """What a client never acknowledges is not kept; the younger ones are."""
    timer = every_packet_timer()
    timer.sent(1, 50, 500, 100.0)
    timer.sent(51, 1, 400, 101.0)
    timer.sent(52, 1, 300, 105.0)
    assert timer.sent(53, 1, 200, 111.0) == PubackSample(10.0, 400)
    assert (timer.sent_at, timer.payload_bytes) == (105.0, 300)
    assert not timer.acknowledged(1, 51, 111.5)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.floats(0.001, 4)), max_size=80))
def test_oldest_unanswered_packet_is_always_known(steps: list[tuple[bool, int, float]]) -> None:
    """Whatever is sent and acknowledged in whatever order, against a list of all packets."""
    timer, now, next_id = every_packet_timer(), 0.0, 1
    unanswered: dict[int, float] = {}
    for is_sent, number, gap in steps:
        now += gap
        if is_sent:
            unanswered = {key: at for key, at in unanswered.items() if now - at < 10.0}
            timer.sent(next_id, number, 100, now)
            unanswered.update(dict.fromkeys(range(next_id, next_id + number), now))
            next_id += number
        else:
            first = max(1, next_id - 2 * number)
            answered = [unanswered.pop(key, None) for key in range(first, first + number)]
            expected = sorted({at for at in answered if at is not None})
            samples = [sample.rtt for sample in timer.acknowledged(first, number, now)]
            assert samples == [now - at for at in expected]
        assert timer.sent_at == min(unanswered.values(), default=None)
