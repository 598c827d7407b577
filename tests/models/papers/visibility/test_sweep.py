from __future__ import annotations

import pytest

from penstock.models.kernels.lease_simulation import Effort
from penstock.models.papers.visibility import sweep
from penstock.models.papers.visibility.sweep import run, settings, tables
from tests.models.papers.visibility.small_results import small_results


def test_every_point_of_the_figures_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, those of figure 11 in order on the queue's leases too; each step is told."""
    monkeypatch.setattr(sweep, "THREADS", (6,))
    monkeypatch.setattr(sweep, "SERVICE_TIMES", (0.1,))
    monkeypatch.setattr(sweep, "ARRIVAL_RATES", (10.0, 60.0))
    told: list[str] = []
    results = run(Effort(2, 2.0), told.append)
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
