from __future__ import annotations

import pytest

from penstock.models.kernels.delivery_simulation import Effort
from penstock.models.papers.patterns import sweep
from penstock.models.papers.patterns.sweep import Cell, Limit, cells, run, success, tables
from tests.models.papers.patterns.small_results import small_results


def test_every_point_of_the_figures_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures 7 and 9 by three parameters, figure 11 by two; each finished step is told."""
    assert len(set(cells())) == 2 * 63 + 6 * 5 - 2  # two of figure 11 are of figure 9
    monkeypatch.setattr(sweep, "PUBLISHER_ON", (40.0,))
    monkeypatch.setattr(sweep, "SUBSCRIBER_ON", (15.0,))
    monkeypatch.setattr(sweep, "LIMITS", (Limit("lifetime 10 s", 10.0),))
    told: list[str] = []
    results = run(Effort(2, 400), told.append)
    assert len(results.by_point) == 6 + 5
    assert told[-2:] == ["11 of 11 points", "closed forms"]
    assert {len(outcomes) for outcomes in results.by_point.values()} == {2}
    assert len(results.checks) == 11


def test_points_meet_equal_peers() -> None:
    """Paired by replication: a shorter lifetime never has more success in one."""
    effort = Effort(3, 3000)
    short, long = (effort.run(Cell(True, 40.0, 15.0, each).path()) for each in (10.0, 30.0))
    assert all(
        one.success_ratio <= other.success_ratio for one, other in zip(short, long, strict=True)
    )


def test_tables_have_every_point() -> None:
    """A table for each figure, and the closed forms."""
    results = small_results()
    found = tables(results)
    assert list(found) == ["figure 7", "figure 9", "figure 11a", "figure 11b", "closed forms"]
    assert [len(table.rows) for table in found.values()] == [9, 9, 6, 6, 1]
    assert found["figure 7"].rows[3][4].startswith("0.32 (0.32 to 0.32)")
    assert found["closed forms"].rows == [["M/M/1", "1", "1 (0.99 to 1.01)", "met"]]
    assert results.found(Cell(True, 40.0, 15.0, 10.0), success).value == pytest.approx(0.32)
