"""Finds out for all who ask at once, and seldom where it costs much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LEAST_SECONDS: Final = 0.9
"""An answer is as old as this at most, as long as it is cheap: who asks each second gets a new one.
"""

MOST_SECONDS: Final = 5.0

SHARE_OF_A_CORE: Final = 0.02
"""An answer that costs more is kept longer, so that watching takes no more than this."""


class Shared(Generic[T]):
    """An answer for all who ask within a second.

    Args:
        make: finds the answer out, and lets other tasks run in between.
        clock: returns monotonic seconds.
        name: of the task.
    """

    def __init__(
        self, make: Callable[[], Awaitable[T]], clock: Callable[[], float], name: str
    ) -> None:
        self._make = make
        self._clock = clock
        self._name = name
        self._task: asyncio.Task[T] | None = None
        self._stale_at = 0.0

    async def get(self) -> T:
        """Return the answer; others who ask meanwhile wait for the same one."""
        task = self._task
        if task is None or (task.done() and self._is_stale(task)):
            task = self._task = asyncio.create_task(self._measured(), name=self._name)
        # One who leaves does not end it for the others.
        return await asyncio.shield(task)

    def _is_stale(self, task: asyncio.Task[T]) -> bool:
        failed = task.cancelled() or task.exception() is not None
        return failed or self._clock() >= self._stale_at

    async def _measured(self) -> T:
        began = time.thread_time()
        found = await self._make()
        # What other tasks have done meanwhile counts, too: a busy program is watched less.
        cost = time.thread_time() - began
        kept = min(max(LEAST_SECONDS, cost / SHARE_OF_A_CORE), MOST_SECONDS)
        self._stale_at = self._clock() + kept
        return found

    def forget(self) -> None:
        """Find it out again for the next who asks: something was changed."""
        self._stale_at = 0.0

    def close(self) -> None:
        """End what runs."""
        if self._task is not None:
            self._task.cancel()
