"""When bytes that enter one direction of a link come out of it: pure, the caller has the clock.

Theory of operation. A link sends one chunk at a time. A chunk of n bytes occupies it for
``n / rate`` seconds and comes out ``delay`` seconds after its last byte was sent. While the
link is occupied nothing more is taken from the sender, so what waits does so at the sender:
that is the backpressure. What is *under way* has been sent and has not come out yet; in a
link that flows it is ``rate * delay`` bytes.
"""

from __future__ import annotations

from typing import Final

from penstock.netem.links.profiles import Direction

CHUNK_SECONDS: Final = 0.01
"""What one chunk occupies the link for: as fine as a change of profile takes effect."""

CATCH_UP_SECONDS: Final = 0.002
"""A caller that wakes late by this much loses no rate; clocks of event loops are that coarse."""

MIN_CHUNK_BYTES: Final = 256
MAX_CHUNK_BYTES: Final = 64 * 1024

SLACK_BYTES: Final = 64 * 1024
"""What may be under way beyond ``rate * delay``: a far side that takes nothing stops the link
after so much."""

UNLIMITED_BYTES: Final = 1024 * 1024
"""What may be under way on a link without a rate."""


class Pacer:
    """One direction of a link.

    Attributes:
        free_at: monotonic seconds at which the chunk that was last begun has been sent.
    """

    __slots__ = ("_direction", "free_at")

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self.free_at = 0.0

    @property
    def chunk_bytes(self) -> int:
        """Most bytes to begin at a time."""
        rate = self._direction.rate
        if rate is None:
            return MAX_CHUNK_BYTES
        return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, int(rate * CHUNK_SECONDS)))

    @property
    def max_under_way_bytes(self) -> int:
        """Bytes under way at which nothing more may begin."""
        rate = self._direction.rate
        if rate is None:
            return UNLIMITED_BYTES
        return int(rate * self._direction.delay) + SLACK_BYTES

    @property
    def arrives_at(self) -> float:
        """Monotonic seconds at which the chunk that was last begun comes out.

        To be read once `free_at` has come: a change of profile before that moves it.
        """
        return self.free_at + self._direction.delay

    def begin(self, n_bytes: int, now: float) -> None:
        """Send a chunk; the next may begin at `free_at`.

        Args:
            n_bytes: its length.
            now: monotonic seconds, not before `free_at`.
        """
        rate = self._direction.rate
        start = max(self.free_at, now - CATCH_UP_SECONDS)
        self.free_at = now if rate is None else start + n_bytes / rate

    def change(self, direction: Direction, now: float) -> None:
        """Take another delay and rate: they hold for the rest of the chunk that is being sent.

        What is under way keeps its time of arrival.
        """
        rate = self._direction.rate
        if rate is not None and self.free_at > now:
            rest_bytes = (self.free_at - now) * rate
            self.free_at = now + (0 if direction.rate is None else rest_bytes / direction.rate)
        self._direction = direction
