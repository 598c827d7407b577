"""Times: together, at once, and how long."""

from __future__ import annotations

from penstock.netem.figures.intervals import intersection, total_seconds, union


def test_times_that_touch_or_overlap_are_one() -> None:
    """Order does not matter, and no time is not there."""
    assert union([(5, 6), (1, 2), (2, 3), (1, 1.5), (8, 8)]) == [(1, 3), (5, 6)]
    assert union([]) == []


def test_times_at_once_are_those_in_both() -> None:
    """One long time is cut by several short ones, and the other way round."""
    assert intersection([(0, 10)], [(1, 2), (4, 12)]) == [(1, 2), (4, 10)]
    assert intersection([(1, 2), (4, 12)], [(0, 10)]) == [(1, 2), (4, 10)]
    assert intersection([(0, 1)], [(1, 2)]) == []


def test_a_second_that_is_twice_there_counts_once() -> None:
    """How long it was so, not how often it is said."""
    assert total_seconds([(0, 2), (1, 3), (5, 5.5)]) == 3.5
