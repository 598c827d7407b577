"""What happens to links in a scenario, by names of profiles, and what that means with a seed.

Theory of operation. A link's random times come from the seed of the run and the name of the link.
So they are the same for each broker, and comparisons are paired; and they are independent of those
of other links, so that each link of each seed is an independent unit. Links with `common_times`
draw from the seed alone: those with the same plan are bad at the same times, and are one unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT
from penstock.netem.checked_yaml import Mistake, MistakesError, Place
from penstock.netem.links.link_variation import Changes, OnOff, Overlapping, Trace
from penstock.netem.links.profiles import Profile


@dataclass(frozen=True, slots=True)
class OnOffPlan:
    """`OnOff` of `link_variation` by names of profiles; its seed is given apart."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    good: str
    bad: str
    mean_good_seconds: float
    mean_bad_seconds: float


@dataclass(frozen=True, slots=True)
class TracePlan:
    """`penstock.netem.links.link_variation.Trace` by names of profiles."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    at_seconds: tuple[float, ...]
    profiles: tuple[str, ...]
    repeat_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Impairment:
    """What happens to one link, from the beginning of the traffic to its end.

    One of `on_off`, `overlapping` and `trace` is given.

    Attributes:
        link: its name. The end of the traffic makes it again what the topology says.
        on_off: good and bad in turn, by chance; or None.
        overlapping: several causes of bad times, by chance and independent of each other; their
            impairments add while several are bad; or None.
        trace: changes at given times; or None.
        common_times: whether random times are those of the seed alone: all links with the same plan
            and this key are bad at the same times. Without it each link has times of its own.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: str
    on_off: OnOffPlan | None = None
    overlapping: tuple[OnOffPlan, ...] | None = None
    trace: TracePlan | None = None
    common_times: bool = False

    def changes(self, profiles: Mapping[str, Profile], seed: int) -> Changes:
        """Return what happens to the link in the run with a seed.

        Args:
            profiles: by name.
            seed: of the run.

        Raises:
            MistakesError: it says what cannot be.
        """
        given = [
            key for key in ("on_off", "overlapping", "trace") if getattr(self, key) is not None
        ]
        if len(given) != 1:
            read = " and ".join(given) or "none"
            words = f"read {read} of on_off, overlapping and trace; allowed: one of them"
            raise MistakesError([Mistake((), words)])
        if self.common_times and self.trace is not None:
            words = "read with trace, which has fixed times; allowed: with on_off or overlapping"
            raise MistakesError([Mistake(("common_times",), words)])
        chance = str(seed) if self.common_times else f"{seed} {self.link}"
        if self.overlapping is not None:
            return _overlapping(self.overlapping, profiles, chance)
        changes = make_changes(self.on_off, self.trace, profiles, chance)
        if changes is None:
            raise AssertionError("one of on_off and trace is given")
        return changes


def make_changes(
    on_off: OnOffPlan | None,
    trace: TracePlan | None,
    profiles: Mapping[str, Profile],
    seed: int | str,
) -> Changes | None:
    """Return what a plan means; None where there is none.

    Args:
        on_off: the one kind of plan, or None.
        trace: the other; at most one is given.
        profiles: by name.
        seed: of times that are drawn.

    Raises:
        MistakesError: a name is unknown, or times are out of range; places begin with ``on_off``
            or ``trace``.
    """
    if on_off is not None:
        return _on_off(on_off, profiles, seed, ("on_off",))
    if trace is None:
        return None
    states = _find(
        {("trace", "profiles", n): name for n, name in enumerate(trace.profiles)}, profiles
    )
    try:
        return Trace(trace.at_seconds, states, trace.repeat_seconds)
    except ValueError as error:
        raise _mistake(("trace",), error) from error


def _on_off(
    plan: OnOffPlan, profiles: Mapping[str, Profile], seed: int | str, place: Place
) -> OnOff:
    good, bad = _find({(*place, "good"): plan.good, (*place, "bad"): plan.bad}, profiles)
    if good is bad:
        words = f"read {plan.bad!r}; allowed: another profile than good"
        raise MistakesError([Mistake((*place, "bad"), words)])
    try:
        return OnOff(good, bad, plan.mean_good_seconds, plan.mean_bad_seconds, seed)
    except ValueError as error:
        raise _mistake(place, error) from error


def _overlapping(
    plans: tuple[OnOffPlan, ...], profiles: Mapping[str, Profile], chance: str
) -> Overlapping:
    causes = tuple(
        _on_off(plan, profiles, f"{chance} {number}", ("overlapping", number))
        for number, plan in enumerate(plans)
    )
    try:
        return Overlapping(causes)
    except ValueError as error:
        raise MistakesError([Mistake(("overlapping",), str(error))]) from error


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
