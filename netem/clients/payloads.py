"""What tells messages apart: the head of a payload, and when messages are due.

Both the runner and the clients know a stream's times: they follow from the scenario and the seed.
Pure; imported by every client, so it brings nothing with it.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

MARK: Final = b"pnst"
"""At the beginning of each payload: a broker's own messages have something else there."""

_HEAD: Final = struct.Struct("!4sHHId")

HEAD_BYTES: Final = _HEAD.size


class Head(NamedTuple):
    """What a message says of itself.

    Attributes:
        publisher: its number in the run, 0 to 65,535.
        stream: its number in the scenario, 0 to 65,535.
        number: of the message in the stream of this publisher, from 0.
        due_at: monotonic seconds at which it was to be published.
    """

    publisher: int
    stream: int
    number: int
    due_at: float


def write_payload(head: Head, filling: bytes) -> bytes:
    """Return a payload: the head, and what makes it as long as it is to be."""
    return _HEAD.pack(MARK, *head) + filling


def read_head(payload: bytes) -> Head | None:
    """Return the head of a payload; None where it is none of ours."""
    if len(payload) < HEAD_BYTES:
        return None
    mark, *values = _HEAD.unpack_from(payload)
    return Head(*values) if mark == MARK else None


@dataclass(frozen=True, slots=True)
class Times:
    """When the messages of a stream are due.

    Attributes:
        first_seconds: after the beginning, of the first.
        period_seconds: between two, or the mean of it.
        arrivals: ``periodic``, or ``poisson``: exponential times between two.
        until_seconds: after the beginning; none is due then or later.
        chance: seed of times that come at random.
    """

    first_seconds: float
    period_seconds: float
    arrivals: Literal["periodic", "poisson"]
    until_seconds: float
    chance: str

    def due_seconds(self) -> list[float]:
        """Return the seconds since the beginning at which each message is due."""
        times = []
        rng = random.Random(self.chance)  # noqa: S311 - no secret
        at = self.first_seconds
        while at < self.until_seconds:
            times.append(at)
            if self.arrivals == "poisson":
                at += rng.expovariate(1 / self.period_seconds)
            else:
                # Not by adding up, which would add up its errors too.
                at = self.first_seconds + len(times) * self.period_seconds
        return times
