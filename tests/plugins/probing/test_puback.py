from __future__ import annotations

from penstock.plugins.probing.puback import SPACING_SECONDS, PubackSample, PubackTimer


def with_packet() -> PubackTimer:
    """Return a timer that times packet 7, of 500 bytes, since second 100, for 10 s at most."""
    timer = PubackTimer(10.0)
    timer.sent(7, 500, 100.0)
    return timer


def test_acknowledgement_of_a_timed_packet_is_a_sample() -> None:
    """RTT from hand-over to PUBACK, with the payload size it was timed on."""
    timer = with_packet()
    assert (timer.sent_at, timer.payload_bytes) == (100.0, 500)
    assert timer.acknowledged(7, 1, 100.25) == PubackSample(0.25, 500)
    assert timer.sent_at is None


def test_acknowledgement_of_another_packet_is_none() -> None:
    """Samples are matched by packet id, whatever the order of acknowledgements."""
    timer = with_packet()
    assert timer.acknowledged(8, 100, 100.1) is None
    assert timer.acknowledged(1, 6, 100.1) is None
    assert timer.acknowledged(1, 7, 100.25) == PubackSample(0.25, 500)


def test_acknowledgement_without_timed_packet_is_none() -> None:
    """A second PUBACK of the same packet id, or packet id 0, says nothing."""
    timer = with_packet()
    timer.acknowledged(7, 1, 100.25)
    assert timer.acknowledged(7, 1, 100.5) is None
    assert PubackTimer(10.0).acknowledged(0, 1, 1.0) is None


def test_unanswered_packet_makes_way_and_its_age_counts() -> None:
    """A packet id that is never acknowledged ends as a sample of the least its RTT can be."""
    timer = with_packet()
    assert timer.sent(9, 300, 110.0) == PubackSample(10.0, 500)
    assert timer.acknowledged(7, 1, 110.1) is None
    assert timer.acknowledged(9, 1, 110.5) == PubackSample(0.5, 300)


def test_next_packet_is_timed_after_the_answer_and_the_spacing() -> None:
    """A burst behind one loss is one sample."""
    timer = with_packet()
    assert timer.next_at == 110.0
    timer.acknowledged(7, 1, 101.0)
    assert timer.next_at == 101.0 + SPACING_SECONDS
