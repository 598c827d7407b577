from __future__ import annotations

import pytest

from penstock.models.papers import live_comparison
from penstock.models.papers.model_vs_measured import (
    ComparedFigure,
    ComparedUnit,
    compared_table,
    is_late,
)
from penstock.models.papers.patterns import live_run as patterns
from penstock.models.papers.visibility import live_run as visibility
from penstock.netem.figures.estimates import Standing


def row(late_seconds: float) -> ComparedFigure:
    """Return a row that agrees."""
    return ComparedFigure(
        "003", "success", [ComparedUnit((1.0, 2.0), (1.0, 2.0))] * 6, late_seconds
    )


def test_both_papers_stand_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick run has its own extent; what was late is told."""
    given: list[object] = []

    def run_patterns(runs: patterns.PathRuns, *_: object) -> list[ComparedFigure]:
        given.append(runs)
        return [row(0.0)]

    def run_visibility(runs: visibility.QueueRuns, *_: object) -> list[ComparedFigure]:
        given.append(runs)
        return [row(1.5)]

    monkeypatch.setattr(patterns, "run", run_patterns)
    monkeypatch.setattr(visibility, "run", run_visibility)
    found = live_comparison.run(lambda _: None, is_quick=True)
    assert given == list(live_comparison.RUNS[1])
    assert [each[-2] for each in found.tables["real runs"].rows] == [
        "met",
        "not shown: busy machine",
    ]
    (doubt,) = found.doubts
    assert "up to 1.5 s late in 99 of 100 cases, in 1 of 2 rows by too much" in doubt


def test_runs_in_time_leave_no_doubt() -> None:
    """Nothing is said of them."""
    assert live_comparison.doubts([row(0.0)]) == []


def compared(by: float, late_seconds: float = 0.0) -> ComparedFigure:
    """Return a row whose measured figure is so many times the model's, in each of 8 units."""
    units = [ComparedUnit((n, 10.0), (by * n, 10.0)) for n in range(1, 9)]
    return ComparedFigure("003", "success", units, late_seconds)


@pytest.mark.parametrize(
    ("by", "standing"),
    [(1.0, Standing.MET), (1.09, Standing.MET), (0.85, Standing.MISSED), (1.2, Standing.MISSED)],
)
def test_a_row_agrees_within_a_tenth(by: float, standing: Standing) -> None:
    """Units are compared in pairs: a wide spread between units decides nothing."""
    row = compared(by)
    assert row.standing is standing
    assert row.modelled.high - row.modelled.low > 0.1
    assert row.over.low == pytest.approx(by)


def test_a_busy_machine_gives_no_verdict() -> None:
    """Clients that were late have measured it, and not the broker."""
    assert not is_late(compared(1.0, 0.04))
    assert is_late(compared(1.0, 0.06))
    assert compared_table([compared(2.0, 0.06)]).rows[0][-2] == "not shown: busy machine"
    assert compared_table([compared(2.0)]).rows[0][-2] == "missed"
