"""Deadlines without a clock: a heap that is told the time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    """One deadline; `cancel` it any number of times, at any time."""

    __slots__ = ("action", "at")

    def __init__(self, at: float, action: Callable[[float], None]) -> None:
        self.at = at
        self.action: Callable[[float], None] | None = action

    def cancel(self) -> None:
        """Make sure that the action is not called any more."""
        self.action = None


class Timers:
    """All deadlines of one broker or proxy, in monotonic seconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[float], None]) -> Timer:
        """Call ``action(now)`` at the first `run` whose `now` is `when` or later."""
        timer = Timer(when, action)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        return timer

    def next_deadline(self) -> float | None:
        """Return when `run` has work next, or None for never."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now: float) -> None:
        """Call every action that is due; actions may set timers, which wait for the next run."""
        due = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            due.append(heapq.heappop(heap)[2])
        for timer in due:
            action, timer.action = timer.action, None
            if action is not None:
                action(now)
