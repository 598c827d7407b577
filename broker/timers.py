"""Deadlines without a clock: a heap that gets the time as an argument."""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

MIN_CANCELLED: Final = 100
"""The heap is not cleaned of fewer cancelled timers than this."""


class Timer:
    """One deadline; `cancel` may be called repeatedly, at any time."""

    __slots__ = ("_timers", "action", "at")

    def __init__(self, at: float, action: Callable[[float], None] | None, timers: Timers) -> None:
        self.at = at
        self.action = action
        self._timers = timers

    def cancel(self) -> None:
        """Prevent the call of the action."""
        if self.action is not None:
            self.action = None
            self._timers.count_cancelled()


class Timers:
    """All deadlines of one broker or proxy, in monotonic seconds.

    A cancelled timer stays in the heap until its deadline, or until half of the heap may be
    cancelled: clients that come and go leave keep-alive timers that are due a day ahead.

    Attributes:
        next_at: no timer is due before it; infinite where there is none. It may be too early,
            because of a cancelled timer, until `next_deadline` is called.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._n_cancelled = 0
        self.next_at = math.inf

    def __len__(self) -> int:
        """Timers in the heap, including cancelled ones."""
        return len(self._heap)

    def at(self, when: float, action: Callable[[float], None]) -> Timer:
        """Call ``action(now)`` at the first `run` whose `now` is `when` or later."""
        timer = Timer(when, action, self)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        if when < self.next_at:  # noqa: PLR1730 (in a third of the time of a call of `min`)
            self.next_at = when
        return timer

    def count_cancelled(self) -> None:
        """Count a cancelled timer; clean the heap once more than half may be cancelled."""
        self._n_cancelled += 1
        heap = self._heap
        if self._n_cancelled >= MIN_CANCELLED and self._n_cancelled * 2 > len(heap):
            heap[:] = [entry for entry in heap if entry[2].action is not None]
            heapq.heapify(heap)
            self._n_cancelled = 0

    def next_deadline(self) -> float | None:
        """Return when `run` next has work, or None if there is no timer."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
        self.next_at = heap[0][0] if heap else math.inf
        return heap[0][0] if heap else None

    def run(self, now: float, most: int = sys.maxsize) -> None:
        """Call every action that is due; timers that actions set wait for the next call.

        Raises:
            Exception: an action's; the due actions after it run at the next call.
        """
        due: deque[Timer] = deque()
        heap = self._heap
        while heap and heap[0][0] <= now and len(due) < most:
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
