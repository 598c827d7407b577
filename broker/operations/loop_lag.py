"""How late the event loop is: a timer that measures itself, and costs nothing per message."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.counters import Histogram

LOOK_SECONDS: Final = 0.25
"""Time between two looks."""

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds. uvloop has timers of whole milliseconds."""


class LoopLag:
    """Measures by how much a timer is late."""

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, on the running loop."""
        loop = asyncio.get_running_loop()
        due = loop.time() + LOOK_SECONDS

        def look() -> None:
            self.seconds.observe(max(0.0, loop.time() - due))
            self.start()

        self._timer = loop.call_at(due, look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
