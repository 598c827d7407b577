from __future__ import annotations

import pytest

from penstock.models.kernels.delivery_simulation import DeliveryRuns
from penstock.models.papers.patterns import claims as module
from penstock.models.papers.patterns import sweep
from penstock.models.papers.patterns.claims import claims, numbers
from penstock.models.papers.patterns.sweep import Limit, PatternPoint, cells, run, success, tables
from penstock.netem.figures.estimates import Standing
from tests.models.papers.patterns.small_results import small_results


def test_every_point_of_the_figures_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures 7 and 9 by three parameters, figure 11 by two; each finished step is told."""
    assert len(set(cells())) == 2 * 63 + 6 * 5 - 2  # two of figure 11 are of figure 9
    monkeypatch.setattr(sweep, "PUBLISHER_ON", (40.0,))
    monkeypatch.setattr(sweep, "SUBSCRIBER_ON", (15.0,))
    monkeypatch.setattr(sweep, "LIMITS", (Limit("lifetime 10 s", 10.0),))
    told: list[str] = []
    results = run(DeliveryRuns(2, 400), told.append)
    assert len(results.by_point) == 6 + 5
    assert told[-2:] == ["11 of 11 points", "closed forms"]
    assert {len(outcomes) for outcomes in results.by_point.values()} == {2}
    assert len(results.checks) == 11


def test_points_meet_equal_peers() -> None:
    """Paired by replication: a shorter lifetime never has more success in one."""
    runs = DeliveryRuns(3, 3000)
    short, long = (runs.run(PatternPoint(True, 40.0, 15.0, each).path()) for each in (10.0, 30.0))
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
    assert results.found(PatternPoint(True, 40.0, 15.0, 10.0), success).value == pytest.approx(0.32)


def test_the_numbers_of_the_paper_agree_with_themselves() -> None:
    """Each is read from the point, and as the figure, that the paper names."""
    rows = list(numbers(small_results()))
    assert [row.what for row in rows if row.standing is not Standing.MET] == []
    assert len(rows) == 29


def test_closed_forms_stand_beside_light_loads() -> None:
    """At lambda 2 alone; the first is 0.44, where the paper has 0.32."""
    rows = list(numbers(small_results()))
    assert rows[0].closed_form == pytest.approx(0.442, abs=0.001)
    assert [row.what for row in rows if "lambda 20" in row.what and row.closed_form > 0] == []


def test_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is met or missed on its own; a subscriber for whom the broker keeps messages gains."""
    monkeypatch.setattr(module, "PUBLISHER_ON", (30.0, 60.0))
    monkeypatch.setattr(module, "SUBSCRIBER_ON", (10.0, 15.0))
    found = {claim: standing for claim, standing, _ in claims(small_results(reliable_at_10=0.2))}
    close = "figures 7, 9: at lifetime 10 s a reliable subscriber has at most 0.1 more success"
    assert found[close] is Standing.MISSED
    assert found["figure 9: a longer lifetime gives more success"] is Standing.MET
    assert found["figure 11: with K, a higher lambda is faster"] is Standing.MET
    assert len(found) == 14
