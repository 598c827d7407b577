from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.models.papers.fabric import sweep
from penstock.models.papers.fabric.setting import Setting
from penstock.models.papers.fabric.sweep import (
    N_STEPS,
    SAME_DIRECTION,
    Effort,
    kept,
    low_seconds,
    most_masters,
    one_failure,
    run,
    settings,
    tables,
    two_failures,
    with_pauses,
)
from penstock.plugins.queue.fabric.rings import COUNTER_ROTATING
from tests.models.papers.fabric.small_results import small_results


def test_every_setting_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal seeds, and each step is told."""
    few = [replace(each, seconds=0.2) for each in (with_pauses(0.1), with_pauses(0.4))]
    monkeypatch.setattr(sweep, "settings", lambda: few)
    told: list[str] = []
    results = run(Effort(2), told.append)
    assert {setting: len(each) for setting, each in results.by_point.items()} == dict.fromkeys(
        few, 2
    )
    assert told[1] == f"fabric: 2 of {N_STEPS} settings"


def test_a_part_of_the_load_keeps_servers_as_busy() -> None:
    """A tenth of the messages for servers that can do a tenth; stored under the whole setting."""
    setting = replace(one_failure("exclusion", needs_all_copies=False), faults=(), seconds=4.0)
    (whole,), (part,) = (Effort(1, ratio).run(setting) for ratio in (1.0, 0.1))
    assert sum(part.stored) == pytest.approx(0.1 * sum(whole.stored), rel=0.2)
    assert part.median_seconds > 3 * whole.median_seconds


def test_tables_have_every_setting() -> None:
    """A table for each question; no setting is run for none of them."""
    found = tables(small_results())
    assert {name: len(table.rows) for name, table in found.items()} == {
        "one failure": 6,
        "detection time": 7,
        "two failures": 8,
        "faults": 6,
    }
    assert len(set(settings())) == len(settings()) == 6 + 7 + 8 + 6


def test_rings_decide_what_a_node_takes_over() -> None:
    """D and E away: A has the queues of three, or A and C have those of two."""
    same, counter = (
        two_failures(each, "repeat", needs_all_copies=True)
        for each in (SAME_DIRECTION, COUNTER_ROTATING)
    )
    assert (most_masters(same), most_masters(counter)) == (6, 4)


def test_measures_of_throughput() -> None:
    """Shares of the rate from a time on, and the longest run of low seconds."""
    setting = two_failures(COUNTER_ROTATING, "repeat", needs_all_copies=True)
    (outcome, _) = small_results(second_keeps=0.5).by_point[setting]
    assert kept(10.0, setting.rate)(outcome) == 1.0
    assert kept(18.0, setting.rate)(outcome) == pytest.approx(0.7)
    outcome.stored[3] = 0
    assert low_seconds(0.6, setting.rate)(outcome) == 20
    assert low_seconds(0.1, setting.rate)(outcome) == 1
    assert isinstance(setting, Setting)
