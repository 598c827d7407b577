"""The publish rate of one client: two token buckets, of messages and of bytes.

Theory of operation. A bucket fills at its rate up to what a client may send at once after a
silence. A PUBLISH is handled once its tokens are there; one of more bytes than the bucket holds,
once it is full, and leaves a debt. What comes sooner is not dropped: the connection keeps it,
handles nothing that came after it, and is not read from until its time has come, so that TCP
slows the client down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.receive_buffer import read_remaining_length

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits

_ROUNDING: Final = 1e-6
"""The part of a token that may be missing, as fractions are added up with rounding errors."""

_MIN_WAIT_SECONDS: Final = 0.001
"""The shortest wait. Rounding could end a shorter one before its tokens are there."""


class _Bucket:
    """Tokens that come at a rate, up to a number; without a rate, there is no end of them."""

    __slots__ = ("_capacity", "_filled_at", "_rate", "tokens")

    def __init__(self, rate: float | None, burst_seconds: float, now: float) -> None:
        self._rate = rate or 1.0
        self._capacity = math.inf if rate is None else max(1, rate * burst_seconds)
        self.tokens = self._capacity
        self._filled_at = now

    def fill(self, now: float) -> None:
        tokens = self.tokens + (now - self._filled_at) * self._rate
        self.tokens = min(self._capacity, tokens)
        self._filled_at = now

    def wait(self, n_tokens: int) -> float:
        """Return the seconds until so many tokens may be taken; 0 for none."""
        missing = min(n_tokens, self._capacity) - self.tokens
        return missing / self._rate if missing > _ROUNDING else 0.0


class RateLimit:
    """One publisher's buckets.

    Attributes:
        wait_seconds: from the last `take` to when the packet it stopped at may be handled.
    """

    __slots__ = ("_bytes", "_messages", "wait_seconds")

    def __init__(self, limits: Limits, now: float) -> None:
        """Start with full buckets."""
        burst = limits.publish_burst_seconds
        self._messages = _Bucket(limits.publish_messages_per_second, burst, now)
        self._bytes = _Bucket(limits.publish_bytes_per_second, burst, now)
        self.wait_seconds = 0.0

    def take(self, data: bytes, now: float) -> int:
        """Take the tokens of the packets that may be handled now.

        Returns:
            Where the first packet begins that may not be handled yet; ``len(data)`` for none.
        """
        self._messages.fill(now)
        self._bytes.fill(now)
        for position, size in _publishes(data):
            wait = max(self._messages.wait(1), self._bytes.wait(size))
            if wait:
                self.wait_seconds = max(_MIN_WAIT_SECONDS, wait)
                return position
            self._messages.tokens -= 1
            self._bytes.tokens -= size
        return len(data)

    def give_back(self, data: bytes) -> None:
        """Return the tokens of packets that were not handled after all."""
        for _position, size in _publishes(data):
            self._messages.tokens += 1
            self._bytes.tokens += size


def n_publishes(data: bytes) -> int:
    """Return how many whole PUBLISH packets there are in bytes that begin with a packet."""
    return sum(1 for _ in _publishes(data))


def _publishes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (position, size) of each whole PUBLISH packet, up to one that is malformed."""
    position = 0
    end = len(data)
    while end - position >= 2:
        start, length = position + 2, data[position + 1]
        if length > 0x7F:
            try:
                start, length = read_remaining_length(data, position)
            except MalformedPacketError:  # the scan raises it again
                return
        stop = start + length
        if not start or stop > end:
            return
        if data[position] >> 4 == PacketType.PUBLISH:
            yield position, stop - position
        position = stop
