from __future__ import annotations

import os
import time
from typing import Any

import pytest

from penstock.netem.runs.machine_load import (
    Load,
    LoadTotals,
    describe_doubt,
    load_between,
    look,
    parse_stat,
)

STAT = """\
cpu  1000 200 300 5000 400 10 20 30 500 0
cpu0 1000 200 300 5000 400 10 20 30 500 0
intr 12345 0 0
ctxt 99
procs_running 3
procs_blocked 0
"""

QUIET = Load(0.0, 1.0, 0.5, 0.0, 0.05, 0.4, 0.05, 1, 0.001)


def test_processor_time_and_runnable_processes_are_read() -> None:
    """Idle time and waits for disks are not in use; what was stolen and interrupts are."""
    assert parse_stat(STAT, 100) == pytest.approx((15.6, 15.0, 0.3, 3))


def test_this_machine_can_be_looked_at() -> None:
    """Totals only go up."""
    one = look(time.monotonic(), 0.0, 0.0, {})
    other = look(time.monotonic(), 0.0, 0.0, {})
    assert other.busy >= one.busy > 0
    assert other.runnable >= 1


def test_nobody_waits_for_programs_of_the_idle_class() -> None:
    """What they use is in use, and no program of others."""
    without, with_them = (look(0.0, 0.0, seconds, {}) for seconds in (0.0, 1.0))
    assert with_them.busy >= without.busy
    assert with_them.programs < without.programs


def test_the_thread_that_waited_longest_counts() -> None:
    """One that has begun in between has waited since its start."""
    before = LoadTotals(0.0, 0.0, 0.0, 0.0, 0.0, {1: 5.0, 2: 7.0, 3: 1.0}, 1)
    after = LoadTotals(2.0, 0.0, 0.0, 0.0, 0.0, {1: 5.1, 2: 7.3, 4: 0.2}, 1)
    assert load_between(before, after, 0.0).wait_share == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"busy_share": 0.95}, "processors over 90 % busy"),
        ({"others_share": 0.2}, "other programs over 10 %"),
    ],
)
def test_a_kernel_that_does_not_tell_of_waits_leaves_it_to_the_processors(
    change: dict[str, Any], reason: str
) -> None:
    """Where it tells, busy processors are no reason: what is in use may be of lower priority."""
    one = LoadTotals(1.0, 0.0, 0.0, 0.0, 0.0, {}, 1)
    untold = load_between(one, one._replace(at=2.0), 0.0)
    assert untold.reasons == ()
    assert untold._replace(**change).reasons == (reason,)
    assert QUIET._replace(**change).reasons == ()


def test_shares_are_those_of_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processors have 4 s in 2 s; 3 s were in use: 0.4 stolen, 0.3 interrupts, 2 the run's."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    before = LoadTotals(10.0, 100.0, 80.0, 1.0, 50.0, {1: 5.0}, 1)
    after = LoadTotals(12.0, 103.0, 82.3, 1.4, 52.0, {1: 5.5}, 4)
    load = load_between(before, after, 0.02)
    assert load == pytest.approx((10.0, 12.0, 0.75, 0.1, 0.075, 0.25, 0.15, 4, 0.02))


def test_own_time_that_was_noticed_late_makes_no_others_negative() -> None:
    """Processor time of processes is read a little after that of the machine."""
    before, after = (
        LoadTotals(0.0, 0.0, 0.0, 0.0, 0.0, {}, 1),
        LoadTotals(1.0, 0.5, 0.5, 0.0, 0.6, {}, 1),
    )
    assert load_between(before, after, 0.0).others_share == 0.0


@pytest.mark.parametrize(("others", "disturbed"), [(0.02, 0.02), (0.3, 0.3), (1.5, 0.4)])
def test_no_process_waits_for_other_programs_longer_than_they_run(
    others: float, disturbed: float
) -> None:
    """A thread that waited for 0.4 s did so for those of its run, but for as long as others ran."""
    before = LoadTotals(0.0, 0.0, 0.0, 0.0, 0.0, {1: 0.0, 2: 0.0}, 1)
    after = LoadTotals(1.0, 1.5 + others, 1.5 + others, 0.0, 1.5, {1: 0.4, 2: 0.1}, 1)
    load = load_between(before, after, 0.0)
    assert load.disturbed_share == pytest.approx(disturbed)
    assert bool(load.reasons) is (disturbed > 0.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"steal_share": 0.06}, "over 5 % stolen"),
        ({"wait_share": 0.6}, "a process waited for over 50 % of the time"),
        ({"disturbed_share": 0.2}, "a process may have waited for others for over 10 %"),
        ({"most_late_seconds": 0.06}, "packets over 50 ms late"),
    ],
)
def test_each_sign_of_a_busy_machine_is_a_reason_for_doubt(
    change: dict[str, Any], reason: str
) -> None:
    """Alone, and named; a quiet second has none."""
    assert QUIET.reasons == ()
    assert QUIET._replace(**change).reasons == (reason,)


def test_doubt_is_told_in_seconds_for_each_reason() -> None:
    """A second with two reasons counts once in all."""
    both = QUIET._replace(begin=1.0, end=3.0, wait_share=1.0, most_late_seconds=1.0)
    late = QUIET._replace(begin=3.0, end=4.0, most_late_seconds=1.0)
    assert describe_doubt([QUIET, both, late]) == (
        3.0,
        "a process waited for over 50 % of the time for 2 s, packets over 50 ms late for 3 s",
    )
    assert describe_doubt([QUIET]) == (0, "")
