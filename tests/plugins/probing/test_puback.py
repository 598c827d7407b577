from __future__ import annotations

from plugins.probing.puback import SPACING_SECONDS, PubackSample, PubackTimer


def timer_with_packet(packet_id: int = 7, *, at: float = 100.0) -> PubackTimer:
    """Return a timer that times this packet of 500 bytes, and gives up after 10 s."""
    timer = PubackTimer(10.0)
    timer.sent(packet_id, 500, at)
    return timer


def test_acknowledgement_of_the_timed_packet_is_a_sample() -> None:
    """RTT from hand-over to PUBACK, with the payload size it was timed on."""
    assert timer_with_packet().acknowledged(7, 100.25) == PubackSample(0.25, 500)


def test_acknowledgement_of_another_packet_is_none() -> None:
    """Samples are matched by packet id, whatever the order of acknowledgements."""
    timer = timer_with_packet()
    assert timer.acknowledged(8, 100.1) is None
    assert timer.acknowledged(7, 100.25) == PubackSample(0.25, 500)


def test_acknowledgement_without_timed_packet_is_none() -> None:
    """A second PUBACK of the same packet id, or packet id 0, says nothing."""
    timer = timer_with_packet()
    timer.acknowledged(7, 100.25)
    assert timer.acknowledged(7, 100.5) is None
    assert PubackTimer(10.0).acknowledged(0, 1.0) is None


def test_one_packet_is_timed_at_a_time() -> None:
    """What is sent while one is timed gives no sample of its own."""
    timer = timer_with_packet()
    assert timer.sent(8, 900, 100.1) is None
    assert timer.acknowledged(8, 100.2) is None
    assert timer.acknowledged(7, 100.3) is not None


def test_next_packet_is_timed_after_the_spacing() -> None:
    """Right after a sample no packet is timed, a spacing later one is."""
    timer = timer_with_packet()
    timer.acknowledged(7, 101.0)
    timer.sent(8, 500, 101.0)
    assert timer.packet_id == 0
    timer.sent(9, 500, 101.0 + SPACING_SECONDS)
    assert timer.packet_id == 9


def test_unanswered_packet_makes_way_and_its_age_counts() -> None:
    """A packet id that is never acknowledged ends as a sample of the least its RTT can be."""
    timer = timer_with_packet()
    assert timer.sent(8, 300, 109.9) is None
    assert timer.sent(9, 300, 110.0) == PubackSample(10.0, 500)
    assert timer.acknowledged(7, 110.1) is None
    assert timer.acknowledged(9, 110.5) == PubackSample(0.5, 300)


def test_void_forgets_the_packet_of_a_lost_connection() -> None:
    """After a reconnect the packet id may be acknowledged, but its time means nothing."""
    timer = timer_with_packet()
    timer.void()
    assert timer.acknowledged(7, 105.0) is None
    assert timer.sent(7, 500, 105.0) is None
    assert timer.acknowledged(7, 105.5) == PubackSample(0.5, 500)
