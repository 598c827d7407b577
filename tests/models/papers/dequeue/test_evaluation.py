from __future__ import annotations

import pytest

from penstock.models.papers.dequeue import sweep
from penstock.models.papers.dequeue.sweep import RUNS, SLEEP_TIMES, claims, numbers, run, tables
from penstock.netem.figures.estimates import Standing
from tests.models.papers.dequeue.small_results import small_results


def test_what_the_paper_reports_holds_on_figures_as_the_papers() -> None:
    """Figures 9 to 12 and the text on them (paper 000, 4.2 and 4.3)."""
    assert {standing for _, standing, _ in claims(small_results())} == {Standing.MET}


def test_a_claim_that_does_not_hold_is_told() -> None:
    """PMS above RDS, and RDS that is no better than conventional."""
    found = small_results(
        pms=[(800.0, 0.7, 4.2), (990.0, 0.7, 2.6)], rds=[(1000.0, 0.8, 4.0), (480.0, 0.8, 1.7)]
    )
    missed = [claim for claim, standing, _ in claims(found) if standing is Standing.MISSED]
    assert missed == [
        "PMS has a lower hit rate than conventional from 200 on",
        "RDS receives at least as much as pms at every lambda",
        "RDS is flat: at least 0.9 at 200 of what it is at 10",
        "RDS is at least 1.8 of conventional at 200",
    ]


def test_tables_have_every_strategy_lambda_and_sleep_time() -> None:
    """A table for each figure of the paper, and the claims."""
    found = tables(small_results())
    figures = ["figure 9", "figure 10", "figure 11", "figure 12"]
    assert list(found) == [*figures, "reported", "claims"]
    assert [row[0] for row in found["figure 9"].rows] == list(RUNS)
    assert found["figure 9"].rows[0][1].startswith("1,000 (1,000 to")
    assert len(found["figure 12"].columns) == 1 + len(SLEEP_TIMES)


def test_numbers_of_the_text_stand_beside_ours() -> None:
    """The gain of RDS (figure 14), and the best sleep time (figure 12)."""
    gain, sleep_time = numbers(small_results())
    assert (gain.value, gain.standing) == (1.8, Standing.MET)
    assert gain.found.value == pytest.approx(950 / 480, rel=1e-3)
    assert (sleep_time.found.value, sleep_time.deviation) == (5.0, 0.0)
    assert (sleep_time.found.low, sleep_time.found.high) == (5.0, 5.0)


def test_runs_are_paired_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All strategies run with the same seeds, and each finished step is told."""
    monkeypatch.setattr(sweep, "SLEEP_TIMES", (1.0, 5.0))
    told: list[str] = []
    found = run((10,), (3, 4), 0.2, told.append)
    assert {len(one[10]) for one in found.by_rate.values()} == {2}
    assert found.by_sleep_time[5.0] is found.by_rate["rds"][10]
    assert len(told) == len(RUNS) + 1
