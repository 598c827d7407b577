"""Sets of time intervals: their union, their intersection and their length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]
"""The begin and the end of an interval, seconds; the end is not before the begin."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the times that are in any of them: ascending, and none touches another."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif end > begin:
            joined.append((begin, end))
    return joined


def intersection(ones: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Return the times that are in one of the former and in one of the latter."""
    left, right = union(ones), union(others)
    shared: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            shared.append((begin, end))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return shared


def total_seconds(intervals: Iterable[Interval]) -> float:
    """Return how long it was so in all."""
    return sum(end - begin for begin, end in union(intervals))
