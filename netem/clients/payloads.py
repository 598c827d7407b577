"""The head of a payload, which identifies its message, and the times at which messages are due.

The runner and the clients compute a stream's times from the scenario and the seed.
This module is pure, and imports little because every client imports it.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

MARK: Final = b"pnst"
"""The first bytes of each payload; messages of the broker itself do not have them."""

SOUNDING: Final = 0xFFFFFFFF
"""The number of test messages, which only try the way from a publisher to its subscribers."""

_HEAD: Final = struct.Struct("!4sHHId")

HEAD_BYTES: Final = _HEAD.size


class Head(NamedTuple):
    """The identity of a message, from the head of its payload.

    Attributes:
        publisher: its number in the run, 0 to 65,535.
        stream: its number in the scenario, 0 to 65,535.
        number: the number of the message in the stream of this publisher, from 0; or `SOUNDING`.
        due_at: the time at which it was due to be published, monotonic seconds.
    """

    publisher: int
    stream: int
    number: int
    due_at: float


def write_payload(head: Head, filling: bytes) -> bytes:
    """Return a payload: the head, padded to the length of the message."""
    return _HEAD.pack(MARK, *head) + filling


def read_head(payload: bytes) -> Head | None:
    """Return the head of a payload; None if the payload has no such head."""
    if len(payload) < HEAD_BYTES:
        return None
    mark, *values = _HEAD.unpack_from(payload)
    return Head(*values) if mark == MARK else None


@dataclass(frozen=True, slots=True)
class Times:
    """The times at which the messages of a stream are due.

    Attributes:
        first_seconds: the time of the first message, in seconds after the beginning. With
            ``random`` the time is drawn: anywhere in the first period, or for ``poisson`` like any
            time between two messages.
        period_seconds: the time between two messages; with ``poisson``, its mean.
        arrivals: ``periodic``, or ``poisson`` (exponential inter-arrival times).
        until_seconds: the end of the stream, exclusive, in seconds after the beginning.
    """

    first_seconds: float | Literal["random"]
    period_seconds: float
    arrivals: Literal["periodic", "poisson"]
    until_seconds: float
    chance: str

    def due_seconds(self) -> list[float]:
        """Return the seconds since the beginning at which each message is due."""
        times = []
        rng = random.Random(self.chance)  # noqa: S311 - no secret
        if self.first_seconds != "random":
            first = self.first_seconds
        elif self.arrivals == "poisson":
            first = rng.expovariate(1 / self.period_seconds)
        else:
            first = rng.uniform(0.0, self.period_seconds)
        at = first
        while at < self.until_seconds:
            times.append(at)
            if self.arrivals == "poisson":
                at += rng.expovariate(1 / self.period_seconds)
            else:
                # A running sum would accumulate rounding errors.
                at = first + len(times) * self.period_seconds
        return times
