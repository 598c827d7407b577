"""When an uplink may stand, and how fast it may send."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from penstock.broker.config.checked_yaml import parse_mapping
from penstock.edge_proxy.uplink.schedule_and_budget import (
    LOOK_SECONDS,
    Budget,
    Demand,
    Opening,
    Schedule,
    StartKeys,
    TimesKeys,
    Window,
    read_zone,
)

BERLIN = ZoneInfo("Europe/Berlin")


def wall(text: str, *, fold: int = 0) -> float:
    """Return the wall clock's seconds of a time in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def window(**keys: Any) -> Window:
    """Return a window as YAML gives its keys."""
    return Window(**keys)


def is_open(schedule: Schedule, text: str) -> bool:
    """Say whether the uplink may stand at a time in Berlin."""
    return schedule.at(wall(text)).is_open


def test_without_windows_an_uplink_may_always_stand() -> None:
    """And sends as fast as it can."""
    assert Schedule([], None).at(0.0) == Opening(True, None, LOOK_SECONDS)


def test_a_window_holds_from_its_begin_to_its_end() -> None:
    """The end is none of it."""
    schedule = Schedule([window(begin="08:30", end="17:00")], BERLIN)
    times = ("08:29:59", "08:30:00", "16:59:59", "17:00:00")
    assert [is_open(schedule, f"2026-03-02 {at}") for at in times] == [False, True, True, False]


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    """Friday's night ends on Saturday; Sunday's is none."""
    schedule = Schedule([window(begin="22:00", end="06:00", days=["mon", "fri"])], BERLIN)
    assert is_open(schedule, "2026-03-06 23:00")  # a Friday
    assert is_open(schedule, "2026-03-07 05:59")
    assert not is_open(schedule, "2026-03-07 22:00")
    assert not is_open(schedule, "2026-03-09 05:00")  # Monday morning
    assert is_open(schedule, "2026-03-09 22:00")


def test_a_window_of_the_whole_day_never_closes() -> None:
    """As the defaults of its keys."""
    schedule = Schedule([window()], BERLIN)
    assert all(is_open(schedule, f"2026-03-02 {at}") for at in ("00:00", "12:00", "23:59:59"))


def test_the_first_open_window_says_how_fast() -> None:
    """A slow day, and a night without a limit."""
    schedule = Schedule(
        [window(begin="08:00", end="18:00", max_bytes_per_second="10 kB"), window()], BERLIN
    )
    assert schedule.at(wall("2026-03-02 12:00")).max_bytes_per_second == 10_000
    assert schedule.at(wall("2026-03-02 20:00")).max_bytes_per_second is None


def test_a_schedule_is_looked_at_when_a_window_begins_or_ends_and_each_minute() -> None:
    """Each minute because the clock may be set."""
    schedule = Schedule([window(begin="08:00", end="18:00")], BERLIN)
    assert schedule.at(wall("2026-03-02 07:59:50")).look_again_seconds == 10.0
    assert schedule.at(wall("2026-03-02 17:59:30")).look_again_seconds == 30.0
    assert schedule.at(wall("2026-03-02 12:00")).look_again_seconds == LOOK_SECONDS


def test_windows_follow_summer_time() -> None:
    """Local time decides; the hour that comes twice counts twice."""
    schedule = Schedule([window(begin="03:30", end="05:00")], BERLIN)
    assert not schedule.at(wall("2026-03-29 03:15")).is_open
    assert schedule.at(wall("2026-03-29 03:45")).is_open
    twice = Schedule([window(begin="02:00", end="03:00")], BERLIN)
    assert twice.at(wall("2026-10-25 02:30")).is_open
    assert twice.at(wall("2026-10-25 02:30", fold=1)).is_open


def test_without_a_zone_the_machine_s_holds() -> None:
    """As for cron."""
    noon = datetime(2026, 3, 2, 12, 0).astimezone().timestamp()
    assert Schedule([window(begin="11:00", end="13:00")], None).at(noon).is_open
    assert not Schedule([window(begin="13:00", end="14:00")], None).at(noon).is_open
    assert read_zone(None) is None


def test_a_time_without_quotes_is_what_was_written() -> None:
    """YAML 1.1 takes 22:30 for a number of base 60."""
    read = parse_mapping("begin: 22:30\nend: 06:00", "f")
    assert (window(**read).begin, window(**read).end) == (22 * 60 + 30, 6 * 60)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"begin": "25:00"}, "from"),
        ({"begin": "8"}, "from"),
        ({"begin": 5}, "quotes"),
        ({"end": 5.5}, "from"),
        ({"days": ["monday"]}, "mon"),
        ({"days": []}, "mon"),
        ({"max_bytes_per_second": 0}, "1 or more"),
        ({"rate": 1}, "rate"),
    ],
)
def test_a_wrong_window_names_what_is_allowed(keys: dict[str, Any], told: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValidationError, match=told):
        window(**keys)


def test_a_zone_that_the_machine_does_not_have_is_a_mistake() -> None:
    """Found when the file is read."""
    with pytest.raises(ValidationError, match="time zone"):
        TimesKeys(time_zone="Europe/Atlantis")
    with pytest.raises(ValidationError, match="time zone"):
        TimesKeys(time_zone="../etc/passwd")
    assert (
        TimesKeys(time_zone="UTC", windows=[window(begin="01:00", end="02:00")])
        .schedule()
        .at(3_600.0)
        .is_open
    )


def test_an_uplink_that_is_always_wanted_never_stops() -> None:
    """The default."""
    demand = Demand(StartKeys())
    assert demand.wants_start(0)
    assert demand.stop_in_seconds(0, 0, 1_000.0) is None


def test_an_uplink_on_demand_starts_with_enough_messages_and_stops_when_idle() -> None:
    """As mosquitto's `start_type lazy`."""
    demand = Demand(StartKeys("on_demand", threshold_messages=3, idle_seconds=60.0))
    assert not demand.wants_start(2)
    assert demand.wants_start(3)
    assert demand.stop_in_seconds(0, 3, 0.0) == 60.0
    assert demand.stop_in_seconds(3, 0, 10.0) == 60.0
    assert demand.stop_in_seconds(3, 0, 40.0) == 30.0
    assert demand.stop_in_seconds(4, 0, 50.0) == 60.0
    assert demand.stop_in_seconds(4, 1, 200.0) == 60.0  # it waits for an acknowledgement
    assert demand.stop_in_seconds(4, 0, 260.0) == 0.0


def test_an_uplink_that_is_held_does_not_start() -> None:
    """However much waits."""
    assert not Demand(StartKeys("never")).wants_start(1_000_000)


def test_without_a_limit_nothing_waits() -> None:
    """And nothing is counted."""
    budget = Budget()
    budget.spend(10**9, 0.0)
    assert budget.wait_seconds(0.0) == 0.0


def test_what_was_sent_is_paid_before_anything_else_leaves() -> None:
    """In the long run, the bytes per second hold."""
    budget = Budget()
    budget.set_rate(1_000.0, 0.0)
    assert budget.wait_seconds(0.0) == 0.0
    budget.spend(3_000, 0.0)
    assert budget.wait_seconds(0.0) == 2.0
    assert budget.wait_seconds(1.5) == 0.5
    assert budget.wait_seconds(2.0) == 0.0


def test_a_budget_saves_up_one_second() -> None:
    """Not the whole night for the morning."""
    budget = Budget()
    budget.set_rate(1_000.0, 0.0)
    budget.spend(2_000, 10_000.0)
    assert budget.wait_seconds(10_000.0) == 1.0


def test_another_rate_keeps_the_debt() -> None:
    """A window that ends forgives nothing, as long as there is a limit."""
    budget = Budget()
    budget.set_rate(1_000.0, 0.0)
    budget.spend(3_000, 0.0)
    budget.set_rate(2_000.0, 0.0)
    assert budget.wait_seconds(0.0) == 1.0
    budget.set_rate(2_000.0, 0.5)
    assert budget.wait_seconds(0.5) == 0.5
    budget.set_rate(None, 0.5)
    assert budget.wait_seconds(0.5) == 0.0
    budget.set_rate(1_000.0, 0.5)
    assert budget.wait_seconds(0.5) == 0.0
