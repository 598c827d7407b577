"""Lines of the log that are repeated once in a while only, however often their cause comes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MOST_CAUSES: Final = 1_000
"""Causes that are remembered; of more, the one told of first is forgotten."""


class Told:
    """The causes that the log was told of lately."""

    def __init__(self, seconds: float) -> None:
        """Begin with nothing."""
        self._seconds = seconds
        self._told: OrderedDict[str, float] = OrderedDict()

    def is_due(self, cause: str, now: float) -> bool:
        """Say whether to write a line about a cause; it is taken for written then."""
        told = self._told
        if now - told.get(cause, -self._seconds) < self._seconds:
            return False
        told.pop(cause, None)
        told[cause] = now
        if len(told) > MOST_CAUSES:
            told.popitem(last=False)
        return True
