from __future__ import annotations

from penstock.models.papers.withholding.report import describe, sweep_tables
from penstock.models.papers.withholding.sweep import POLICIES
from tests.models.papers.withholding.small_sweep import small_results


def test_report_has_every_policy_and_every_claim() -> None:
    """All rows of a table are as wide as its head."""
    results = small_results()
    tables = sweep_tables(results)
    assert "over 6 independent traces of 300 s" in describe(results)
    assert list(tables) == ["T_Q 1 s", "T_Q 5 s", "by T_Q", "closed", "reported", "claims"]
    for table in tables.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert [row[0] for row in tables["T_Q 1 s"].rows] == [*POLICIES, "clairvoyant"]
    by_threshold = {row[0]: row for row in tables["T_Q 5 s"].rows}
    by_period = {row[0]: row for row in tables["by T_Q"].rows}
    assert by_threshold["historic"][2] == str(results.latency("historic", 5, 2.0))
    assert by_period["historic"][2] == str(results.latency("historic", 5, 2.0))
    closed = {row[0]: row for row in tables["closed"].rows}
    assert closed["historic"][1].startswith(f"{results.closed('historic', 1, 2.0).value:.1%} (")
    assert "Clairvoyant is the lowest on each trace (fig. 8)" in {
        row[0] for row in tables["claims"].rows
    }
