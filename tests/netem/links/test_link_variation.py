from __future__ import annotations

import math
from itertools import islice, pairwise
from math import inf

import pytest

from penstock.netem.links.link_variation import OnOff, Trace
from penstock.netem.links.profiles import BAD, GOOD, OPEN, Direction, Profile
from penstock.netem.links.schedule import MAX_LOG, Schedule

CALM = Profile("calm", Direction(0.02, 2e6), Direction(0.02, 2e6))
RAIN = Profile("rain", Direction(0.02, 2e6), Direction(0.05, 2e6, jitter=0.01, loss=0.1))
CROWD = Profile("crowd", Direction(0.12, 5e5), Direction(0.12, 5e5, loss=0.2, queue_bytes=30_000))


def test_on_and_off_alternate_for_exponential_times_of_their_means() -> None:
    """Good first, then bad, in turn; each lasts as long on average as was asked for."""
    steps = list(islice(OnOff(GOOD, BAD, 20.0, 5.0, seed=1).steps(), 8_001))
    assert steps[0] == (0.0, GOOD)
    assert {profile for _, profile in steps[::2]} == {GOOD}
    assert {profile for _, profile in steps[1::2]} == {BAD}
    lasted = [b - a for (a, _), (b, _) in pairwise(steps)]
    good, bad = lasted[::2], lasted[1::2]
    assert sum(good) / len(good) == pytest.approx(20.0, rel=0.1)
    assert sum(bad) / len(bad) == pytest.approx(5.0, rel=0.1)
    # Of an exponential time, 1/e is longer than its mean.
    assert sum(each > 20 for each in good) / len(good) == pytest.approx(0.368, rel=0.1)


def test_the_same_seed_is_bad_at_the_same_times() -> None:
    """Runs that are compared meet the same link."""

    def times(seed: int) -> list[float]:
        return [at for at, _ in islice(OnOff(GOOD, BAD, 1, 1, seed=seed).steps(), 20)]

    assert times(7) == times(7) != times(8)


def test_a_trace_changes_as_it_says_and_ends() -> None:
    """Without a period, the last state stays."""
    trace = Trace((0.0, 2.0, 5.0), (GOOD, BAD, OPEN))
    assert list(trace.steps()) == [(0.0, GOOD), (2.0, BAD), (5.0, OPEN)]


def test_a_trace_may_begin_again() -> None:
    """With a period of 10 s, the changes of 0 and 2 s come at 10 and 12 s too."""
    trace = Trace((0.0, 2.0), (GOOD, BAD), repeat_seconds=10.0)
    assert list(islice(trace.steps(), 4)) == [(0, GOOD), (2, BAD), (10, GOOD), (12, BAD)]


@pytest.mark.parametrize(
    ("at_seconds", "count", "repeat_seconds", "named"),
    [
        ((), 0, None, "at_seconds"),
        ((-1.0,), 1, None, "at_seconds"),
        ((1.0, 1.0), 2, None, "at_seconds"),
        ((0.0, 1.0), 1, None, "profiles"),
        ((0.0, math.nan), 2, None, "at_seconds"),
        ((math.nan,), 1, None, "at_seconds"),
        ((0.0, math.inf), 2, None, "at_seconds"),
        ((0.0, 1.0), 2, 1.0, "repeat_seconds"),
        ((0.0,), 1, 1e-9, "repeat_seconds"),
        ((0.0,), 1, math.nan, "repeat_seconds"),
        ((0.0,), 1, math.inf, "repeat_seconds"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(
    at_seconds: tuple[float, ...], count: int, repeat_seconds: float | None, named: str
) -> None:
    """Times rise, each has a profile, and a period is longer than what it repeats, by a while."""
    with pytest.raises(ValueError, match=rf"{named}: read .*; allowed: "):
        Trace(at_seconds, (GOOD,) * count, repeat_seconds)


@pytest.mark.parametrize("mean", [0.0, -1.0, 1e-9, math.inf, math.nan])
def test_a_mean_that_cannot_be_is_refused(mean: float) -> None:
    """A state lasts some time and ends; were it no time, links would do nothing but change."""
    with pytest.raises(ValueError, match=r"mean_bad_seconds: read .*; allowed: "):
        OnOff(GOOD, BAD, 1.0, mean)


class Link:
    """What a schedule changes."""

    def __init__(self) -> None:
        self.was: list[tuple[str, float]] = []

    def become(self, profile: Profile, now: float) -> None:
        """Note it."""
        self.was.append((profile.name, now))


@pytest.fixture
def link() -> Link:
    """A link that has not changed."""
    return Link()


@pytest.fixture
def schedule(link: Link) -> Schedule:
    """Its schedule, from second 100."""
    return Schedule(OPEN, link.become, 100.0)


def test_changes_come_at_their_times(link: Link, schedule: Schedule) -> None:
    """Each `step` says when the next is wanted; after the last, never."""
    schedule.follow(Trace((0.0, 2.0), (GOOD, BAD)).steps(), 100.0)
    assert schedule.step(100.0) == 102.0
    assert schedule.step(101.9) == 102.0
    assert schedule.step(102.5) == inf
    assert link.was == [("good", 100.0), ("bad", 102.5)]
    assert schedule.log == [(100.0, "open"), (100.0, "good"), (102.5, "bad")]


def test_of_changes_that_are_late_together_the_last_holds(link: Link, schedule: Schedule) -> None:
    """All are in the log; a state without any time lets nothing pass."""
    schedule.follow(Trace((0.0, 1.0, 2.0), (BAD, OPEN, GOOD)).steps(), 100.0)
    assert schedule.step(105.0) == inf
    assert link.was == [("good", 105.0)]
    assert [name for _, name in schedule.log] == ["open", "bad", "open", "good"]


def test_a_switch_ends_the_plan_and_a_plan_the_one_before(link: Link, schedule: Schedule) -> None:
    """Timers of the older plan are told by its number, and find nothing to do."""
    schedule.follow(Trace((1.0,), (BAD,)).steps(), 100.0)
    first = schedule.plan
    schedule.follow(Trace((2.0,), (GOOD,)).steps(), 100.0)
    assert schedule.plan != first
    assert schedule.step(100.0) == 102.0
    schedule.switch(BAD, 101.0)
    assert schedule.step(103.0) == inf
    assert link.was == [("bad", 101.0)]


def test_the_log_is_bounded(schedule: Schedule) -> None:
    """The oldest changes are forgotten."""
    for number in range(MAX_LOG + 5):
        schedule.switch(GOOD, 101.0 + number)
    assert len(schedule.log) == MAX_LOG
    assert schedule.log[0] == (106.0, "good")
