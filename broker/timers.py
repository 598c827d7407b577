"""Deadlines without a clock: a heap that is told the time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Final

MIN_CANCELLED: Final = 100
"""Fewer cancelled timers than this are not worth a look at the heap."""


class Timer:
    """One deadline; `cancel` it any number of times, at any time."""

    __slots__ = ("_timers", "action", "at")

    def __init__(self, at: float, action: Callable[[float], None], timers: Timers) -> None:
        self._timers = timers
        self.at = at
        self.action: Callable[[float], None] | None = action

    def cancel(self) -> None:
        """Make sure that the action is not called any more."""
        if self.action is not None:
            self.action = None
            self._timers.count_cancelled()


class Timers:
    """All deadlines of one broker or proxy, in monotonic seconds.

    A cancelled timer stays in the heap until its deadline, or until half of the heap may be
    such: clients that come and go leave keep-alives behind that lie a day ahead.

    Attributes:
        next_at: no timer is due before it; infinite where there is none. It may be too early, by
            a timer that was cancelled, until `next_deadline` is asked.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._n_cancelled = 0
        self.next_at = math.inf

    def __len__(self) -> int:
        """Timers kept, the cancelled ones among them."""
        return len(self._heap)

    def at(self, when: float, action: Callable[[float], None]) -> Timer:
        """Call ``action(now)`` at the first `run` whose `now` is `when` or later."""
        timer = Timer(when, action, self)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        self.next_at = min(self.next_at, when)
        return timer

    def count_cancelled(self) -> None:
        """Take note that a timer was cancelled; forget those once they may be the most."""
        self._n_cancelled += 1
        heap = self._heap
        if self._n_cancelled >= MIN_CANCELLED and self._n_cancelled * 2 > len(heap):
            heap[:] = [entry for entry in heap if entry[2].action is not None]
            heapq.heapify(heap)
            self._n_cancelled = 0

    def next_deadline(self) -> float | None:
        """Return when `run` has work next, or None for never."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
        self.next_at = heap[0][0] if heap else math.inf
        return heap[0][0] if heap else None

    def run(self, now: float) -> None:
        """Call every action that is due; actions may set timers, which wait for the next run.

        Raises:
            Exception: an action's; those that were due after it come at the next run.
        """
        due: deque[Timer] = deque()
        heap = self._heap
        while heap and heap[0][0] <= now:
            due.append(heapq.heappop(heap)[2])
        try:
            while due:
                timer = due.popleft()
                action, timer.action = timer.action, None
                if action is not None:
                    action(now)
        finally:
            for timer in due:
                heapq.heappush(heap, (timer.at, next(self._order), timer))
            self.next_deadline()
