"""An event loop that can skip its waits: hours pass at once, and its wake-ups are counted."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Waits(selectors.DefaultSelector):
    """The waits of a loop.

    Attributes:
        is_skipping: whether a wait for a timer is over at once, and moves the loop's clock.
        skipped_seconds: the time by which the clock was moved.
        wake_ups: the number of skipped waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_skipping = False
        self.skipped_seconds = 0.0
        self.wake_ups = 0

    def select(self, timeout: float | None = None) -> Any:
        """Wait for sockets, or let the time pass until the next timer."""
        if not self.is_skipping:
            return super().select(timeout)
        found = super().select(0)
        if timeout and not found:
            self.skipped_seconds += timeout
            self.wake_ups += 1
        return found


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop as any other, until `skip` is called."""

    def __init__(self) -> None:
        self._waits = _Waits()
        super().__init__(self._waits)

    def time(self) -> float:
        """Return the seconds that have passed or were skipped."""
        return super().time() + self._waits.skipped_seconds

    async def skip(self, seconds: float) -> int:
        """Let time pass at once; return how often timers have ended a wait meanwhile."""
        waits = self._waits
        before = waits.wake_ups
        waits.is_skipping = True
        try:
            await asyncio.sleep(seconds)
        finally:
            waits.is_skipping = False
        return waits.wake_ups - before
