from __future__ import annotations

from itertools import islice, takewhile

import pytest

from script.demo_program.schedule import MIN_SECONDS, Schedule


def test_the_link_is_bad_in_the_middle() -> None:
    """Good, bad and good again, with the same time before and after."""
    schedule = Schedule(20)
    assert (schedule.bad_from, schedule.bad_until) == pytest.approx((6, 14))
    times = (0, 5.9, 6.1, 13.9, 14.1, 20)
    assert [schedule.profile(at) for at in times] == ["good", "good", "bad", "bad", "good", "good"]


@pytest.mark.parametrize("seconds", [MIN_SECONDS, 26, 60])
def test_no_picture_is_caught_by_the_change(seconds: float) -> None:
    """The one before it has more than a second to pass; at least one meets the bad link."""
    schedule = Schedule(seconds)
    slots = list(takewhile(lambda slot: slot < seconds, schedule.picture_slots()))
    assert slots == sorted(slots)
    assert all(slot >= 0 for slot in slots)
    assert not [slot for slot in slots if schedule.bad_from - 1 < slot <= schedule.bad_from]
    assert [slot for slot in slots if schedule.profile(slot) == "bad"]


def test_no_picture_is_caught_by_the_change_where_the_program_is_late() -> None:
    """What counts after the change is when the link was made bad, not when it was to be."""
    schedule = Schedule(20)
    assert schedule.is_time_for_picture(4.9, None)
    assert not schedule.is_time_for_picture(5.1, None)
    assert not schedule.is_time_for_picture(7.5, 7.0)
    assert schedule.is_time_for_picture(8.3, 7.0)


def test_ticks_begin_at_once() -> None:
    """The first look at the machine is at the start."""
    assert list(islice(Schedule(26).ticks(), 3)) == [0, 0.5, 1.0]
