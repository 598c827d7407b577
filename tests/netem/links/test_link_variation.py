from __future__ import annotations

import math
from itertools import islice, pairwise, takewhile

import pytest

from penstock.netem.links.link_variation import MAX_CAUSES, OnOff, Overlapping, Trace, add
from penstock.netem.links.profiles import BAD, GOOD, OPEN, Bursts, Direction, Profile

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


def test_causes_that_overlap_keep_their_own_times_and_add_while_both_are_bad() -> None:
    """At each moment the link has the profile of exactly the causes that are bad then."""
    causes = (OnOff(CALM, RAIN, 3.0, 2.0, "1 a 0"), OnOff(CALM, CROWD, 4.0, 3.0, "1 a 1"))
    steps = list(islice(Overlapping(causes).steps(), 500))
    names = {"calm": set(), "rain": {0}, "crowd": {1}, "rain+crowd": {0, 1}}
    assert steps[0] == (0.0, CALM)
    assert {profile.name for _, profile in steps} == set(names)
    for (begin, profile), (end, _) in pairwise(steps):
        middle = (begin + end) / 2
        bad = set()
        for number, cause in enumerate(causes):
            *_, (_, state) = takewhile(lambda step: step[0] <= middle, cause.steps())  # noqa: B023
            bad |= {number} if state is cause.bad else set()
        assert names[profile.name] == bad


def test_impairments_of_two_causes_add() -> None:
    """Delays over the good one's, losses as chances of either, the least rate and queue."""
    both = add(CALM, [RAIN, CROWD])
    assert both.upstream == Direction(0.12, 5e5)
    assert both.downstream.delay == pytest.approx(0.15)
    assert both.downstream.loss == pytest.approx(1 - 0.9 * 0.8)
    rest = (both.downstream.rate, both.downstream.jitter, both.downstream.queue_bytes)
    assert rest == (5e5, 0.01, 30_000)
    assert add(CALM, []) == CALM
    assert add(CALM, [RAIN]) == RAIN


def test_a_loss_of_the_good_link_counts_once() -> None:
    """A link that always loses a tenth, and two causes that make it two and three tenths."""
    good, one, other = (
        Profile(str(loss), Direction(), Direction(loss=loss)) for loss in (0.1, 0.2, 0.3)
    )
    assert add(good, [one, other]).downstream.loss == pytest.approx(1 - 0.8 * 0.7 / 0.9)
    dead = Profile("dead", Direction(), Direction(loss=1.0))
    assert add(dead, [dead, dead]).downstream.loss == 1.0


def test_bursts_of_one_cause_stay_bursts() -> None:
    """Beside causes that lose nothing; two different losses have no sum."""
    bursts = Bursts(0.01, 0.2)
    bursty = Profile("bursty", Direction(), Direction(0.02, loss=bursts))
    slow = Profile("slow", Direction(), Direction(0.3))
    calm = Profile("calm", Direction(), Direction(0.02))
    assert add(calm, [bursty, slow]).downstream == Direction(0.3, loss=bursts)
    lossy = Profile("lossy", Direction(), Direction(0.02, loss=0.2))
    with pytest.raises(ValueError, match=r"bursty\+lossy: loss: read bursts beside another loss"):
        Overlapping((OnOff(calm, bursty, 1, 1), OnOff(calm, lossy, 1, 1)))


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ([RAIN], "read 1; allowed: 2 to 6"),
        ([RAIN] * (MAX_CAUSES + 1), "read 7; allowed: 2 to 6"),
    ],
)
def test_too_few_and_too_many_causes_are_refused(bad: list[Profile], named: str) -> None:
    """One cause is no overlap; the number of profiles doubles with each."""
    with pytest.raises(ValueError, match=named):
        Overlapping(tuple(OnOff(CALM, each, 1, 1) for each in bad))


def test_causes_with_different_good_profiles_are_refused() -> None:
    """A link without any cause has one profile."""
    with pytest.raises(ValueError, match="read the good profiles calm, good; allowed: the same"):
        Overlapping((OnOff(CALM, RAIN, 1, 1), OnOff(GOOD, RAIN, 1, 1)))
