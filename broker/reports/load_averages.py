"""Rates per minute, averaged over the last 1, 5 and 15 minutes as mosquitto does it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

WINDOWS: Final = {"1min": 60.0, "5min": 300.0, "15min": 900.0}
"""Name of each average, to its seconds."""


class LoadAverages:
    """Exponentially weighted moving averages of counters that only go up.

    As the load averages of Unix: an older rate counts for ``exp(-seconds / window)``.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._counted: Mapping[str, float] = {}
        self._averages: dict[tuple[str, str], float] = {}

    def update(self, counted: Mapping[str, float], now: float) -> Iterator[tuple[str, float]]:
        """Yield (``NAME/WINDOW``, rate per minute) for each counter and window.

        At the first call, all are 0. The names are the same each time, and the time is later.
        """
        seconds = now - self._at
        for name, value in counted.items():
            before = self._counted.get(name, value)
            rate = (value - before) * 60.0 / seconds if seconds > 0 else 0.0
            for window, length in WINDOWS.items():
                last = self._averages.get((name, window), 0.0)
                average = rate + math.exp(-seconds / length) * (last - rate)
                self._averages[name, window] = average
                yield f"{name}/{window}", average
        self._counted, self._at = dict(counted), now
