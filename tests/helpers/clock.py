"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """Monotonic seconds that pass when the test says so.

    They begin at a round number: the size of a clock decides how sums with it are rounded.

    Attributes:
        now: the time; a test may set it.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
