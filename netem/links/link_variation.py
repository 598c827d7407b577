"""Plans by which a link changes: a random on/off process, or a trace of given times."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

from penstock.netem.links.profiles import Profile

LEAST_SECONDS: Final = 0.001
"""Minimum mean length of a state, and minimum pause before a trace repeats. A link that changed
without a pause would carry no packets."""


@dataclass(frozen=True, slots=True)
class OnOff:
    """A link that alternates between good and bad, for exponentially distributed times, good first.

    Attributes:
        good: the profile while the link is good.
        bad: the profile while it is bad.
        mean_good_seconds: the mean length of a good state, at least `LEAST_SECONDS`.
        mean_bad_seconds: the mean length of a bad state, at least `LEAST_SECONDS`.
        seed: the seed of the times; equal seeds give equal times. For independent links, the seed
            holds the link's name.
    """

    good: Profile
    bad: Profile
    mean_good_seconds: float
    mean_bad_seconds: float
    seed: int | str = 0

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
        """The profiles to which the link may change."""
        return self.good, self.bad

    def steps(self) -> Iterator[tuple[float, Profile]]:
        """Yield, without end, seconds since the beginning and the profile from then on."""
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
        at_seconds: the times of the changes, seconds after the beginning, from 0, ascending.
        repeat_seconds: the period after which the trace repeats, at least `LEAST_SECONDS` after the
            last change; None if it does not repeat.
    """

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
        # This form of the comparison refuses NaN too.
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
        """Yield seconds since the beginning and the profile from then on."""
        begin = 0.0
        while True:
            for at, profile in zip(self.at_seconds, self.profiles, strict=True):
                yield begin + at, profile
            if self.repeat_seconds is None:
                return
            begin += self.repeat_seconds


Changes: TypeAlias = OnOff | Trace
"""A plan by which a link changes."""
