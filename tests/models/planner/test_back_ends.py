from __future__ import annotations

import math

import pytest

from penstock.models.planner import back_ends
from penstock.models.planner.costs import Costs
from penstock.models.planner.planning import BackEndPlan
from tests.models.planner.small_plan import make_fleet, small_plan


def test_the_settings_follow_from_the_time_of_a_message() -> None:
    """2 s a message: 30 s cover nearly all, and five end within a third of that."""
    fleet = make_fleet()
    back_end = fleet.back_ends["recognition"]
    assert back_ends.arrival_rate(fleet, back_end) == pytest.approx(0.2)
    assert back_ends.visibility_timeout(back_end) == 30.0
    assert back_ends.n_max(back_end) == 5
    slow = make_fleet(("seconds_per_message: 2", "seconds_per_message: 4")).back_ends["recognition"]
    assert (back_ends.visibility_timeout(slow), back_ends.n_max(slow)) == (30.0, 2)
    slower = make_fleet(("seconds_per_message: 2", "seconds_per_message: 20"))
    back_end = slower.back_ends["recognition"]
    assert (back_ends.visibility_timeout(back_end), back_ends.n_max(back_end)) == (140.0, 2)


def test_physical_queues_are_as_many_as_receivers_rounded_up() -> None:
    """A power of two, and not too many."""
    for count, expected in ((1, 1), (3, 4), (9, 16), (100, 16)):
        fleet = make_fleet(("receivers: 1", f"receivers: {count}"))
        assert back_ends.physical_queues(fleet, "recognition") == expected


def test_receivers_are_compared_from_the_least_that_keep_up() -> None:
    """The file's, the least, and those with few that wait."""
    fleet = make_fleet(("messages_per_second: 0.04", "messages_per_second: 0.4"))
    assert back_ends.recommended(fleet, "recognition") == 7  # 4.4 are busy on average
    assert back_ends.counts(fleet, "recognition") == [1, 5, 7, 10]


def test_more_receivers_are_quicker_and_too_few_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is Erlang's, the time is simulated on the queue's leases."""
    monkeypatch.setattr(back_ends, "MESSAGES", 500)
    fleet = make_fleet(("messages_per_second: 0.04", "messages_per_second: 0.4"))
    few, some, many = (
        back_ends.predict(fleet, Costs(), "recognition", count) for count in (4, 5, 10)
    )
    assert few.utilisation > 1
    assert not few.outcomes
    assert few.quantile_wait == math.inf
    assert some.utilisation == pytest.approx(2 / 0.9 * 2 / 5)
    assert some.delivery.value > many.delivery.value > 2
    assert some.quantile_wait > many.quantile_wait


def test_strategies_take_of_the_core_what_requests_cost() -> None:
    """One that answers at once has many more requests that find nothing."""
    found = small_plan().queues["recognition"]
    assert isinstance(found, BackEndPlan)
    by_name = {each.name: each for each in found.strategies}
    assert list(by_name) == list(back_ends.STRATEGIES)
    assert by_name["conventional"].busy_ratio > 2 * by_name["rds+wake"].busy_ratio
    assert by_name["rds+wake"].outcome.hit_ratio == 1.0
