from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.models.kernels.lease_setting import LeaseSetting
from penstock.models.kernels.lease_simulation import LeaseRuns
from penstock.models.papers.visibility import sweep
from penstock.models.papers.visibility.claims import claims, numbers
from penstock.models.papers.visibility.sweep import VisibilityResults, run, settings, tables
from penstock.netem.figures.estimates import Standing
from tests.models.papers.visibility.small_results import small_results


def test_every_point_of_the_figures_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, those of figure 11 in order on the queue's leases too; each step is told."""
    monkeypatch.setattr(sweep, "THREADS", (6,))
    monkeypatch.setattr(sweep, "SERVICE_TIMES", (0.1,))
    monkeypatch.setattr(sweep, "ARRIVAL_RATES", (10.0, 60.0))
    told: list[str] = []
    results = run(LeaseRuns(2, 2.0), told.append)
    assert set(results.by_point) == set(settings())
    assert len(results.leased) == 2
    assert told[-3:] == [
        f"{len(results.by_point)} of {len(results.by_point)} points",
        "on the queue's leases, q 0.99",
        "on the queue's leases, q 0.88",
    ]
    for setting, outcomes in results.leased.items():
        assert outcomes == results.by_point[setting]


def test_tables_have_every_point() -> None:
    """A table for each figure and one of timeouts; a point that overflows says so."""
    found = tables(small_results())
    names = ["figure 11", "figure 12a", "figure 12b", "figure 13", "figure 14", "figure 15"]
    assert list(found) == [*names, "visibility timeout"]
    assert [len(table.rows) for table in found.values()] == [8, 6, 6, 8, 16, 16, 5]
    five = [row for row in found["figure 15"].rows if row[0].startswith("n 5")]
    assert all(row[-2:] == ["overflows", "overflows"] for row in five)
    assert found["figure 11"].rows[0][1] == found["figure 11"].rows[1][1] == "0.312"


def test_the_numbers_of_the_paper_agree_with_themselves() -> None:
    """Order costs half as much again, and three messages wait for it."""
    rows = list(numbers(small_results()))
    assert [row.standing for row in rows[:3]] == [Standing.MET] * 3
    assert [row.standing for row in numbers(small_results(extra=0.02))] == [Standing.MISSED] * 4


def test_what_the_paper_says_is_judged() -> None:
    """Where outcomes are those of the analytic network, all of it agrees with them."""
    found = {claim: standing for claim, standing, _ in claims(small_results())}
    assert found["figure 11: analytic and out of order agree on delivery"] is Standing.MET
    assert found["figure 12: analytic and out of order agree on waiting"] is Standing.MET
    assert found["figure 11: both curves are nearly equidistant, q 0.99"] is Standing.MET
    plateau = "figure 14: utilisation stays around 47% over some service times"
    assert found[plateau] is Standing.MISSED
    assert len(found) == 22


def test_leases_that_decide_otherwise_are_told() -> None:
    """The claim that stands on the product's own object."""
    results = small_results()
    other = {
        setting: [replace(one, figures=replace(one.figures, delivery=9.0)) for one in outcomes]
        for setting, outcomes in results.leased.items()
    }
    claim = "in order, the queue's own leases give what the simulation's queue gives"

    def standing(of: VisibilityResults) -> Standing:
        return {each: found for each, found, _ in claims(of)}[claim]

    assert standing(results) is Standing.MET
    assert standing(replace(results, leased=other)) is Standing.MISSED
    assert LeaseSetting() not in other
