"""Competing flows of a scenario: where they are, and when they send. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT

FIRST_PORT: Final = 5001
"""At which the receiver of the first flow listens; the others follow."""


@dataclass(frozen=True, slots=True)
class BulkFlow:
    """A TCP connection that sends as fast as it can, beside the clients, during the traffic.

    Attributes:
        between: the host that sends, and the one that receives.
        mean_on_seconds: mean time for which it sends; None with `mean_off_seconds` for all the
            time.
        mean_off_seconds: mean time for which it does not. Both are exponential, off first.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    between: tuple[str, str]
    mean_on_seconds: float | None = None
    mean_off_seconds: float | None = None

    def times(self, chance: str, until_seconds: float) -> list[tuple[float, float]]:
        """Return from when to when it sends, seconds since the beginning.

        Args:
            chance: seed of the times: the same seed gives the same times.
            until_seconds: end of the last.
        """
        if self.mean_on_seconds is None or self.mean_off_seconds is None:
            return [(0.0, until_seconds)]
        rng = random.Random(chance)  # noqa: S311 - no secret
        times = []
        at = rng.expovariate(1 / self.mean_off_seconds)
        while at < until_seconds:
            end = at + rng.expovariate(1 / self.mean_on_seconds)
            times.append((at, min(end, until_seconds)))
            at = end + rng.expovariate(1 / self.mean_off_seconds)
        return times
