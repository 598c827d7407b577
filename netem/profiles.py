"""Named links: how long each direction takes and how much it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link.

    Attributes:
        delay: seconds from the last bit sent to the last bit received, at least 0.
        rate: bytes per second, above 0; None for no limit.
    """

    delay: float = 0.0
    rate: float | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one is out of range.
        """
        if self.delay < 0:
            raise ValueError(f"delay: read {self.delay}; allowed: seconds from 0")
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"rate: read {self.rate}; allowed: bytes per second above 0, or None")


@dataclass(frozen=True, slots=True)
class Profile:
    """A link in a certain state.

    Attributes:
        name: as on the command line.
        upstream: towards the server.
        downstream: towards the client.
    """

    name: str
    upstream: Direction
    downstream: Direction

    def __str__(self) -> str:
        """Return name, round trip and rate towards the client in words."""
        round_trip = 1000 * (self.upstream.delay + self.downstream.delay)
        rate = self.downstream.rate
        carries = "any rate" if rate is None else f"{rate / 1000:,.0f} kB/s"
        return f"{self.name}: {round_trip:,.0f} ms round trip, {carries}"


OPEN: Final = Profile("open", Direction(), Direction())
"""No link at all: bytes pass as fast as they are taken."""

GOOD: Final = Profile("good", Direction(0.02, 2_500_000), Direction(0.02, 2_500_000))
"""A mobile link with nobody else on it: 20 Mbit/s, 40 ms round trip."""

BAD: Final = Profile("bad", Direction(1.0, 125_000), Direction(1.0, 125_000))
"""The same link in congestion: 1 Mbit/s, and two seconds that bytes wait in buffers on the way.
The bursts of congestion in paper 002 (figure 8) add 3.3 s to a round trip on average."""

PROFILES: Final = {profile.name: profile for profile in (OPEN, GOOD, BAD)}
"""By name."""
