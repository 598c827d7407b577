"""The impairments of a scenario's links, and the changes that follow from them with a seed.

Theory of operation. A link's random times come from the seed of the run and the name of the link.
So they are equal for each broker, which makes comparisons paired, and independent of those of other
links, which makes each link of each seed an independent unit. The random parameters of a profile
(`penstock.netem.runs.profile_plan`) come from the seed, the link's name and the profile's name.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT
from penstock.netem.checked_yaml import Mistake, MistakesError, Place
from penstock.netem.links.link_variation import LEAST_SECONDS, Changes, OnOff, Trace
from penstock.netem.links.profiles import Profile
from penstock.netem.runs.profile_plan import ProfilePlan


@dataclass(frozen=True, slots=True)
class OnOffPlan:
    """An `OnOff` of `link_variation` that names profiles; its seed is given apart."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    good: str
    bad: str
    mean_good_seconds: float
    mean_bad_seconds: float


@dataclass(frozen=True, slots=True)
class TracePlan:
    """A `penstock.netem.links.link_variation.Trace` that names profiles."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    at_seconds: tuple[float, ...]
    profiles: tuple[str, ...]
    repeat_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RedrawnPlan:
    """A profile whose random parameters are drawn again and again.

    Attributes:
        profile: its name; it has parameters to draw.
        mean_seconds: the mean of the exponential times between two changes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    profile: str
    mean_seconds: float


@dataclass(frozen=True, slots=True)
class Impairment:
    """The changes of one link, from the beginning of the traffic to its end.

    Exactly one of `on_off`, `trace` and `redrawn` is given.

    Attributes:
        link: the name of the link, which has the topology's profile again when the traffic ends.
        on_off: random times of a good and a bad profile in turn; or None.
        trace: changes at given times; or None.
        redrawn: a profile that is drawn anew at random times; or None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: str
    on_off: OnOffPlan | None = None
    trace: TracePlan | None = None
    redrawn: RedrawnPlan | None = None

    def changes(self, ways: Mapping[str, ProfilePlan], seed: int, until_seconds: float) -> Changes:
        """Return the changes of the link in the run with a seed.

        Raises:
            MistakesError: the plan is impossible.
        """
        given = [key for key in _PLANS if getattr(self, key) is not None]
        if len(given) != 1:
            read = " and ".join(given) or "none"
            words = f"read {read} of {', '.join(_PLANS)}; allowed: one of them"
            raise MistakesError([Mistake((), words)])
        if self.redrawn is not None:
            return _redrawn(self.redrawn, ways, f"{seed} {self.link}", until_seconds)
        profiles = draw_profiles(ways, seed, self.link)
        changes = make_changes(self.on_off, self.trace, profiles, f"{seed} {self.link}")
        if changes is None:
            raise AssertionError("one of on_off and trace is given")
        return changes


_PLANS: Final = ("on_off", "trace", "redrawn")
"""The keys of `Impairment`, exactly one of which is given."""


def draw_profiles(ways: Mapping[str, ProfilePlan], seed: int, link: str) -> dict[str, Profile]:
    """Return the states of one link in the run with a seed, by name; equal for each broker."""
    return {
        name: each.draw(name, random.Random(f"{seed} {link} {name}"))  # noqa: S311 - no secret
        for name, each in ways.items()
    }


def _redrawn(
    plan: RedrawnPlan, ways: Mapping[str, ProfilePlan], chance: str, until_seconds: float
) -> Trace:
    if plan.profile not in ways or not ways[plan.profile].drawn:
        allowed = ", ".join(name for name, each in ways.items() if each.drawn)
        words = f"read {plan.profile!r}; allowed: a profile with drawn parameters ({allowed})"
        raise MistakesError([Mistake(("redrawn", "profile"), words)])
    if not LEAST_SECONDS <= plan.mean_seconds < inf:
        words = f"read {plan.mean_seconds}; allowed: from {LEAST_SECONDS:g}"
        raise MistakesError([Mistake(("redrawn", "mean_seconds"), words)])
    rng = random.Random(chance)  # noqa: S311 - no secret
    at = 0.0
    times: list[float] = []
    profiles: list[Profile] = []
    while at < until_seconds or not times:
        times.append(at)
        profiles.append(ways[plan.profile].draw(plan.profile, rng))
        at += rng.expovariate(1 / plan.mean_seconds)
    return Trace(tuple(times), tuple(profiles))


def make_changes(
    on_off: OnOffPlan | None,
    trace: TracePlan | None,
    profiles: Mapping[str, Profile],
    seed: int | str,
) -> Changes | None:
    """Return the changes that a plan stands for; None where there is none.

    Raises:
        MistakesError: a name is unknown, or times are out of range; places begin with ``on_off``
            or ``trace``.
    """
    if on_off is not None:
        return _on_off(on_off, profiles, seed)
    if trace is None:
        return None
    states = _find(
        {("trace", "profiles", n): name for n, name in enumerate(trace.profiles)}, profiles
    )
    try:
        return Trace(trace.at_seconds, states, trace.repeat_seconds)
    except ValueError as error:
        raise _mistake(("trace",), error) from error


def _on_off(plan: OnOffPlan, profiles: Mapping[str, Profile], seed: int | str) -> OnOff:
    good, bad = _find({("on_off", "good"): plan.good, ("on_off", "bad"): plan.bad}, profiles)
    if good is bad:
        words = f"read {plan.bad!r}; allowed: another profile than good"
        raise MistakesError([Mistake(("on_off", "bad"), words)])
    try:
        return OnOff(good, bad, plan.mean_good_seconds, plan.mean_bad_seconds, seed)
    except ValueError as error:
        raise _mistake(("on_off",), error) from error


def _find(names: Mapping[Place, str], profiles: Mapping[str, Profile]) -> tuple[Profile, ...]:
    allowed = ", ".join(profiles)
    unknown = [
        Mistake(place, f"read {name!r}; allowed: {allowed}")
        for place, name in names.items()
        if name not in profiles
    ]
    if unknown:
        raise MistakesError(unknown)
    return tuple(profiles[name] for name in names.values())


def _mistake(place: Place, error: ValueError) -> MistakesError:
    """Return the mistake of a plan whose error begins with the key."""
    key, _, words = str(error).partition(": ")
    return MistakesError([Mistake((*place, key), words)])
