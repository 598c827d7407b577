from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.models.papers.fabric import sweep
from penstock.models.papers.fabric.claims import claims, numbers
from penstock.models.papers.fabric.rings import COUNTER_ROTATING
from penstock.models.papers.fabric.setting import FabricSetting, Fault
from penstock.models.papers.fabric.sweep import (
    N_STEPS,
    SAME_DIRECTION,
    FabricRuns,
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
from penstock.netem.figures.estimates import Standing
from tests.models.papers.fabric.small_results import small_results


def test_every_setting_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal seeds, and each step is told."""
    few = [replace(each, seconds=0.2) for each in (with_pauses(0.1), with_pauses(0.4))]
    monkeypatch.setattr(sweep, "settings", lambda: few)
    told: list[str] = []
    results = run(FabricRuns(2), told.append)
    assert {setting: len(each) for setting, each in results.by_point.items()} == dict.fromkeys(
        few, 2
    )
    assert told[1] == f"fabric: 2 of {N_STEPS} settings"


def test_a_part_of_the_load_keeps_servers_as_busy() -> None:
    """A tenth of the messages for servers that can do a tenth; stored under the whole setting."""
    setting = replace(one_failure("exclusion", needs_all_copies=False), faults=(), seconds=4.0)
    (whole,), (part,) = (FabricRuns(1, ratio).run(setting) for ratio in (1.0, 0.1))
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
    assert isinstance(setting, FabricSetting)


STORED = "repeated elsewhere: every message of a live controller is stored, with one fault or two"


def test_numbers_of_the_paper_stand_beside_ours() -> None:
    """Without errors, consistent hashing's are missed; exclusion has as many as it has here."""
    found = {row.what: row for row in numbers(small_results(n_failed=214))}
    assert found["error responses with consistent hashing"].standing is Standing.MISSED
    exclusion = found["error responses with slowdown exclusion, two of three copies"]
    assert (exclusion.found.value, exclusion.standing) == (214, Standing.MET)
    assert found["- of consistent hashing's, fewer, two of three copies"].found.value == 0


def test_what_the_paper_says_is_judged() -> None:
    """Where nothing happens, throughput is stable and nothing is lost."""
    results = small_results()
    found = {claim: standing for claim, standing, _ in claims(results)}
    assert found["and is flat from 0.4 s on"] is Standing.NOT_SHOWN  # two runs have no interval
    assert found[STORED] is Standing.MET
    assert found["one node has the physical queues of three, or two have those of two"] is (
        Standing.MET
    )
    assert len(found) == 14


def test_a_message_that_is_not_stored_is_told() -> None:
    """The claim that stands for the product: one error is too many."""
    found = {claim: standing for claim, standing, _ in claims(small_results(n_failed=1))}
    assert found[STORED] is Standing.MISSED


@pytest.mark.parametrize(
    ("fault", "standing"),
    [
        (Fault("D", 1.0), [False, True, True]),
        (Fault("D", 1.0, 2.0), [False, True, False]),
        (Fault("D", 1.0, 2.0, slowness=10), [False, False, False]),
    ],
)
def test_when_a_node_does_nothing(fault: Fault, standing: list[bool]) -> None:
    """A killed node never comes back, and a slow one goes on."""
    assert [fault.is_standing(now) for now in (0.9, 1.0, 2.0)] == standing
