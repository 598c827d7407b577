from __future__ import annotations

from math import inf

import pytest

from penstock.netem.links.link_variation import Trace
from penstock.netem.links.profiles import BAD, GOOD, OPEN, Profile
from penstock.netem.links.schedule import MAX_LOG, Schedule


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
