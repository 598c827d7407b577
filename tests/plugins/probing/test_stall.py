from __future__ import annotations

from penstock.plugins.probing.stall import StallDetector


def test_estimate_is_new_only_while_bytes_are_acknowledged() -> None:
    """The kernel keeps its last RTT for ever; acknowledged bytes tell when it is news."""
    stall = StallDetector()
    assert stall.look(0, is_waiting=False, now=0.0)
    assert not stall.look(0, is_waiting=False, now=1.0)
    assert stall.look(10, is_waiting=False, now=2.0)


def test_stall_begins_at_the_first_look_that_saw_the_waiting_byte() -> None:
    """Two looks without progress prove that the oldest byte waits since the first of them."""
    stall = StallDetector()
    since = []
    for now in (5.0, 6.0, 7.0):
        stall.look(10, is_waiting=True, now=now)
        since.append(stall.stalled_since)
    assert since == [None, 5.0, 5.0]


def test_bytes_sent_after_an_idle_look_wait_since_the_next_look() -> None:
    """What was sent between two looks has an unknown age: none is claimed."""
    stall = StallDetector()
    stall.look(10, is_waiting=False, now=5.0)
    since = []
    for now in (6.0, 7.0):
        stall.look(10, is_waiting=True, now=now)
        since.append(stall.stalled_since)
    assert since == [None, 6.0]


def test_progress_ends_a_stall() -> None:
    """A path that acknowledges slowly is slow, not stalled."""
    stall = StallDetector()
    for now in (1.0, 2.0):
        stall.look(10, is_waiting=True, now=now)
    assert stall.look(11, is_waiting=True, now=3.0)
    assert stall.stalled_since is None


def test_nothing_waiting_ends_a_stall() -> None:
    """An idle connection is not stalled."""
    stall = StallDetector()
    for now in (1.0, 2.0):
        stall.look(10, is_waiting=True, now=now)
    stall.look(10, is_waiting=False, now=3.0)
    assert stall.stalled_since is None
