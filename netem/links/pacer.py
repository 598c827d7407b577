"""The pacer of one direction of a relayed link, which says when bytes leave it. Pure.

Theory of operation. A link sends one chunk at a time. A chunk of n bytes occupies it for
``n / rate`` seconds and arrives ``delay`` seconds after its last byte was sent. While the link is
occupied, nothing more is read from the sender: that is the back-pressure. Bytes that are *under
way* have been sent and have not arrived yet; in steady state they are ``rate * delay`` bytes.
"""

from __future__ import annotations

from typing import Final

from penstock.netem.links.profiles import Direction

CHUNK_SECONDS: Final = 0.01
"""The time for which one chunk occupies the link: the granularity of a change of profile."""

CATCH_UP_SECONDS: Final = 0.002
"""A caller that is late by at most this time loses no rate, seconds: the resolution of an event
loop's clock."""

MIN_CHUNK_BYTES: Final = 256
MAX_CHUNK_BYTES: Final = 64 * 1024

SLACK_BYTES: Final = 64 * 1024
"""The bytes that may be under way beyond ``rate * delay``: the link stops after them if the far
side takes nothing."""

UNLIMITED_BYTES: Final = 1024 * 1024
"""The bytes that may be under way on a link without a rate."""


class Pacer:
    """One direction of a link.

    Attributes:
        free_at: the time at which the last chunk has been sent, monotonic seconds.
    """

    __slots__ = ("_direction", "free_at")

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self.free_at = 0.0

    @property
    def chunk_bytes(self) -> int:
        """Most bytes of the next chunk."""
        rate = self._direction.rate
        if rate is None:
            return MAX_CHUNK_BYTES
        return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, int(rate * CHUNK_SECONDS)))

    @property
    def max_under_way_bytes(self) -> int:
        """Bytes under way at which no further chunk may be sent."""
        rate = self._direction.rate
        if rate is None:
            return UNLIMITED_BYTES
        return int(rate * self._direction.delay) + SLACK_BYTES

    @property
    def arrives_at(self) -> float:
        """Monotonic seconds at which the last chunk arrives.

        Read it at `free_at` or later: an earlier change of profile moves it.
        """
        return self.free_at + self._direction.delay

    def begin(self, n_bytes: int, now: float) -> None:
        """Send a chunk; the next may be sent at `free_at`."""
        rate = self._direction.rate
        start = max(self.free_at, now - CATCH_UP_SECONDS)
        self.free_at = now if rate is None else start + n_bytes / rate

    def change(self, direction: Direction, now: float) -> None:
        """Change delay and rate, for the rest of the current chunk too.

        Bytes under way keep their time of arrival.
        """
        rate = self._direction.rate
        if rate is not None and self.free_at > now:
            rest_bytes = (self.free_at - now) * rate
            self.free_at = now + (0 if direction.rate is None else rest_bytes / direction.rate)
        self._direction = direction
