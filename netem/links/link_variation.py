"""Plans by which a link changes: a random on/off process, several that overlap, or a trace."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Final, TypeAlias

from penstock.netem.links.profiles import Bursts, Direction, Profile

LEAST_SECONDS: Final = 0.001
"""Minimum mean length of a state, and minimum pause before a trace repeats. A link that changed
without a pause would carry no packets."""

MAX_CAUSES: Final = 6
"""Causes of bad times that one link may have: any of them may coincide, which makes 64 profiles."""


@dataclass(frozen=True, slots=True)
class OnOff:
    """A link that alternates between good and bad, for exponentially distributed times, good first.

    Attributes:
        good: the profile while the link is good.
        bad: the profile while it is bad.
        mean_good_seconds: mean time for which it is good, at least `LEAST_SECONDS`.
        mean_bad_seconds: mean time for which it is bad, at least `LEAST_SECONDS`.
        seed: of the times: the same seed gives the same times. Whoever has links that are bad at
            times of their own puts their names into their seeds.
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
        at_seconds: times of the changes in seconds since the beginning, from 0, rising.
        profiles: the profile from each time on, one for each time.
        repeat_seconds: period after which the trace repeats, at least `LEAST_SECONDS` after the
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


@dataclass(frozen=True, slots=True)
class Overlapping:
    """A link with several causes of bad times, each with times of its own.

    While several are bad, their impairments add: see `add`.

    Attributes:
        causes: two to `MAX_CAUSES`, with the same good profile.
    """

    causes: tuple[OnOff, ...]

    def __post_init__(self) -> None:
        """Check the causes.

        Raises:
            ValueError: there are too few or too many, their good profiles differ, or some of their
                impairments do not add.
        """
        if not 1 < len(self.causes) <= MAX_CAUSES:
            raise ValueError(f"read {len(self.causes)}; allowed: 2 to {MAX_CAUSES}")
        if len({cause.good for cause in self.causes}) > 1:
            names = ", ".join(cause.good.name for cause in self.causes)
            raise ValueError(f"read the good profiles {names}; allowed: the same for all")
        _ = self.profiles

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles to which the link may change: one for each set of bad causes."""
        return tuple(
            self._profile(states)
            for states in itertools.product((False, True), repeat=len(self.causes))
        )

    def steps(self) -> Iterator[tuple[float, Profile]]:
        """Yield, without end, seconds since the beginning and the profile from then on."""
        states = [False] * len(self.causes)
        changes = heapq.merge(*map(_states, itertools.count(), self.causes))
        yield 0.0, self.causes[0].good
        for at, number, is_bad in changes:
            if states[number] != is_bad:
                states[number] = is_bad
                yield at, self._profile(states)

    def _profile(self, states: Sequence[bool]) -> Profile:
        good = self.causes[0].good
        return add(good, [c.bad for c, is_bad in zip(self.causes, states, strict=True) if is_bad])


def _states(number: int, cause: OnOff) -> Iterator[tuple[float, int, bool]]:
    """Yield seconds, the number of a cause, and whether it is bad from then on."""
    for at, profile in cause.steps():
        yield at, number, profile is cause.bad


def add(good: Profile, bad: Sequence[Profile]) -> Profile:
    """Return a link that several causes make bad at the same moment.

    What each adds to the delay and the jitter of the good link adds up. A packet is lost, reordered
    or duplicated if any of the causes does that. The rate and the queue are the least of all.

    Args:
        good: the profile without any cause.
        bad: the profile under each cause alone, as many as there are.

    Returns:
        A profile whose name joins those of `bad` with ``+``.

    Raises:
        ValueError: a loss in bursts meets another loss, or the sum is out of range.
    """
    if not bad:
        return good
    if len(bad) == 1:
        return bad[0]
    name = "+".join(profile.name for profile in bad)
    try:
        return Profile(
            name,
            _add_directions(good.upstream, [profile.upstream for profile in bad]),
            _add_directions(good.downstream, [profile.downstream for profile in bad]),
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _add_directions(good: Direction, bad: Sequence[Direction]) -> Direction:
    every = [good, *bad]
    rates = [each.rate for each in every if each.rate is not None]
    queues = [each.queue_bytes for each in every if each.queue_bytes is not None]
    return Direction(
        delay=good.delay + sum(each.delay - good.delay for each in bad),
        rate=min(rates, default=None),
        jitter=good.jitter + sum(each.jitter - good.jitter for each in bad),
        loss=_loss_of_any(every),
        queue_bytes=min(queues, default=None),
        reorder=_share_of_any(good.reorder, [each.reorder for each in bad]),
        duplicate=_share_of_any(good.duplicate, [each.duplicate for each in bad]),
    )


def _loss_of_any(every: Sequence[Direction]) -> float | Bursts:
    good, *bad = (each.loss for each in every)
    if not any(isinstance(loss, Bursts) for loss in (good, *bad)):
        return _share_of_any(every[0].mean_loss, [each.mean_loss for each in every[1:]])
    losses = {loss for loss in (good, *bad) if loss}
    if len(losses) > 1:
        raise ValueError("loss: read bursts beside another loss; allowed: one of both")
    return losses.pop()


def _share_of_any(good: float, bad: Sequence[float]) -> float:
    """Return the share of packets that any of several causes takes, where each alone takes one."""
    if good == 1:
        return 1.0
    return 1 - (1 - good) * prod((1 - each) / (1 - good) for each in bad)


Changes: TypeAlias = OnOff | Overlapping | Trace
