from __future__ import annotations

from penstock.models.withholding.report import describe, sweep_tables, to_markdown
from penstock.models.withholding.sweep import POLICIES
from tests.models.withholding.small_sweep import small_results


def test_report_has_every_policy_and_every_claim() -> None:
    """All rows of a table are as wide as its head."""
    results = small_results()
    tables = sweep_tables(results)
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


def test_markdown_has_the_heading_and_all_tables() -> None:
    """Number of independent traces first."""
    results = small_results()
    tables = sweep_tables(results)
    parts = to_markdown(describe(results), tables).rstrip("\n").split("\n\n")
    assert "over 6 independent traces of 300 s" in parts[0]
    assert parts[1:] == [str(table) for table in tables.values()]
