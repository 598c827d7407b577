"""When a link is which: a random on/off process, or a trace."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final, TypeAlias

from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT
from penstock.netem.links.profiles import Profile

LEAST_SECONDS: Final = 0.001
"""Mean length of a state, and how long before a trace begins again: of links that change without a
pause, nothing else would ever be carried."""


@dataclass(frozen=True, slots=True)
class OnOff:
    """A link that is good and bad in turn, for exponentially distributed times, good first.

    Attributes:
        good: the one state.
        bad: the other.
        mean_good_seconds: how long the one lasts on average, from `LEAST_SECONDS`.
        mean_bad_seconds: how long the other does.
        seed: of the times: the same seed is bad at the same times.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    good: Profile
    bad: Profile
    mean_good_seconds: float
    mean_bad_seconds: float
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a mean is out of range.
        """
        for name in ("mean_good_seconds", "mean_bad_seconds"):
            if not LEAST_SECONDS <= getattr(self, name) < inf:
                raise ValueError(
                    f"{name}: read {getattr(self, name)}; allowed: from {LEAST_SECONDS:g}"
                )

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """What the link may become."""
        return self.good, self.bad

    def steps(self) -> Iterator[tuple[float, Profile]]:
        """Yield seconds since the beginning and what the link becomes then, without an end."""
        rng = random.Random(self.seed)  # noqa: S311 - no secret
        at = 0.0
        while True:
            yield at, self.good
            at += rng.expovariate(1 / self.mean_good_seconds)
            yield at, self.bad
            at += rng.expovariate(1 / self.mean_bad_seconds)


@dataclass(frozen=True, slots=True)
class Trace:
    """A link that changes at given times.

    Attributes:
        at_seconds: of each change, from 0, since the beginning; rising.
        profiles: what the link becomes, one for each time.
        repeat_seconds: when it begins again, `LEAST_SECONDS` or more after the last change; None
            for never.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    at_seconds: tuple[float, ...]
    profiles: tuple[Profile, ...]
    repeat_seconds: float | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: there are no times, they do not rise, or their number is not that of the
                profiles.
        """
        times = self.at_seconds
        # Written so that what is not a number is refused as well.
        is_rising = all(a < b for a, b in itertools.pairwise(times))
        if not times or not is_rising or not 0 <= times[0] <= times[-1] < inf:
            raise ValueError(f"at_seconds: read {list(times)}; allowed: rising seconds from 0")
        if len(times) != len(self.profiles):
            raise ValueError(f"profiles: read {len(self.profiles)}; allowed: one for each time")
        repeat = self.repeat_seconds
        if repeat is not None and not times[-1] + LEAST_SECONDS <= repeat < inf:
            raise ValueError(
                f"repeat_seconds: read {repeat}; allowed: from the last time and "
                f"{LEAST_SECONDS:g} more"
            )

    def steps(self) -> Iterator[tuple[float, Profile]]:
        """Yield seconds since the beginning and what the link becomes then."""
        begin = 0.0
        while True:
            for at, profile in zip(self.at_seconds, self.profiles, strict=True):
                yield begin + at, profile
            if self.repeat_seconds is None:
                return
            begin += self.repeat_seconds


Changes: TypeAlias = OnOff | Trace
