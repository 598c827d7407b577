"""What somebody may wait for."""

from __future__ import annotations

from collections.abc import Callable


class Waited:
    """A queue, or a group.

    Attributes:
        arrivals: how often something may have become visible.
        on_arrival: is called each time.
        used_at: the engine's time of its newest request.
    """

    def __init__(self) -> None:
        self.arrivals = 0
        self.on_arrival: Callable[[Waited], None] = _ignore
        self.used_at = 0.0

    def arrived(self) -> None:
        """Note that something may have become visible."""
        self.arrivals += 1
        self.on_arrival(self)

    def expire(self, _now: float) -> None:
        """Make visible what time has made so; call `arrived` where there is any."""

    def next_deadline(self) -> float | None:
        """Return the engine's time at which `expire` has something to do; None for never."""
        return None


def _ignore(_source: Waited) -> None:
    """Do nothing."""
