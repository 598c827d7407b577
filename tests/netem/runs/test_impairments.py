from __future__ import annotations

from itertools import islice

import pytest

from penstock.netem.checked_yaml import MistakesError
from penstock.netem.links.link_variation import Trace
from penstock.netem.links.profiles import BAD, GOOD, LOSSY, OPEN, Direction
from penstock.netem.runs.impairments import (
    Impairment,
    OnOffPlan,
    RedrawnPlan,
    TracePlan,
    draw_profiles,
)
from penstock.netem.runs.profile_plan import ProfilePlan

WAYS = {
    profile.name: ProfilePlan(profile.upstream, profile.downstream)
    for profile in (GOOD, BAD, OPEN, LOSSY)
}
DRAWN = ProfilePlan(
    downstream=Direction(0.02, 1e6, loss=0.1), drawn={"downstream.rate": (1e4, 1e6)}
)
SECONDS = 100.0
PLAN = OnOffPlan("good", "bad", 17.5, 17.5)
TRACE = TracePlan((0.0, 5.0), ("good", "bad"))


def times(link: str, seed: int) -> list[float]:
    """Return when a link changes, seconds."""
    impairment = Impairment(link, on_off=PLAN)
    return [at for at, _ in islice(impairment.changes(WAYS, seed, SECONDS).steps(), 20)]


def test_each_link_of_each_seed_has_bad_times_of_its_own() -> None:
    """A link has the same times with the same seed, whatever the broker."""
    assert times("a-b", 1) == times("a-b", 1)
    found = {tuple(times(link, seed)) for link in ("a-b", "a-c", "a-d") for seed in (1, 2, 11)}
    assert len(found) == 9


def test_bad_times_of_two_links_fall_together_as_chance_has_it() -> None:
    """Two links are bad half of the time each, and both at once a quarter of it."""

    def is_bad(link: str) -> list[bool]:
        steps = Impairment(link, on_off=PLAN).changes(WAYS, 1, SECONDS).steps()
        state = "good"
        found = []
        upcoming = next(steps)
        for second in range(100_000):
            while upcoming[0] <= second:
                state, upcoming = upcoming[1].name, next(steps)
            found.append(state == "bad")
        return found

    one, other = is_bad("cloud-edge1"), is_bad("cloud-edge2")
    both = sum(a and b for a, b in zip(one, other, strict=True)) / len(one)
    assert both == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("impairment", "line"),
    [
        (Impairment("a-b"), "read none of on_off, trace, redrawn; allowed: one of them"),
        (
            Impairment("a-b", on_off=PLAN, trace=TRACE),
            "read on_off and trace of on_off, trace, redrawn; allowed: one of them",
        ),
        (
            Impairment("a-b", on_off=OnOffPlan("good", "worse", 1, 1)),
            "on_off.bad: read 'worse'; allowed: good, bad, open, lossy, drawn",
        ),
        (
            Impairment("a-b", on_off=OnOffPlan("good", "bad", 0, 1)),
            "on_off.mean_good_seconds: read 0; allowed: from 0.001",
        ),
        (
            Impairment("a-b", redrawn=RedrawnPlan("bad", 3.0)),
            "redrawn.profile: read 'bad'; allowed: a profile with drawn parameters (drawn)",
        ),
        (
            Impairment("a-b", redrawn=RedrawnPlan("drawn", 0.0)),
            "redrawn.mean_seconds: read 0.0; allowed: from 0.001",
        ),
    ],
)
def test_what_cannot_be_is_named(impairment: Impairment, line: str) -> None:
    """With its place and what is allowed."""
    with pytest.raises(MistakesError) as raised:
        impairment.changes({**WAYS, "drawn": DRAWN}, 1, SECONDS)
    assert str(raised.value).startswith(line)


def test_each_link_of_each_seed_draws_its_parameters() -> None:
    """The parameters do not depend on the broker; what is not drawn is as it is written."""
    assert draw_profiles({"x": DRAWN}, 1, "a-b") == draw_profiles({"x": DRAWN}, 1, "a-b")
    found = [
        draw_profiles({"x": DRAWN, "y": DRAWN}, seed, link)[name].downstream
        for link in ("a-b", "a-c")
        for seed in (1, 2)
        for name in ("x", "y")
    ]
    assert len({each.rate for each in found}) == 8
    assert {(each.delay, each.loss) for each in found} == {(0.02, 0.1)}


def test_a_profile_is_drawn_anew_again_and_again() -> None:
    """From the beginning of the traffic to its end, under one name."""
    impairment = Impairment("a-b", redrawn=RedrawnPlan("drawn", 2.0))
    changes = impairment.changes({"drawn": DRAWN}, 1, SECONDS)
    assert changes == impairment.changes({"drawn": DRAWN}, 1, SECONDS)
    assert isinstance(changes, Trace)
    assert changes.at_seconds[0] == 0.0
    assert changes.at_seconds[-1] < SECONDS
    assert len(changes.at_seconds) == pytest.approx(SECONDS / 2.0, rel=0.5)
    assert {profile.name for profile in changes.profiles} == {"drawn"}
    assert len({profile.downstream.rate for profile in changes.profiles}) == len(changes.profiles)
