from __future__ import annotations

from penstock.models.withholding.other_paths import PathResult
from penstock.models.withholding.report import (
    describe,
    describe_paths,
    path_tables,
    sweep_tables,
    to_markdown,
)
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
    assert closed["adaptive"][1].startswith(f"{results.closed('adaptive', 1, 2.0).value:.1%} (")
    assert "Adaptive beats historic at every T_Q and threshold_l" in {
        row[0] for row in tables["claims"].rows
    }


def test_markdown_has_the_heading_and_all_tables() -> None:
    """Number of independent traces first."""
    results = small_results()
    tables = sweep_tables(results)
    parts = to_markdown(describe(results), tables).rstrip("\n").split("\n\n")
    assert "over 6 independent traces of 300 s" in parts[0]
    assert parts[1:] == [str(table) for table in tables.values()]


def test_paths_have_their_ratios_and_the_target() -> None:
    """Against the best of the paper's policies, and against historic; the baseline is shown."""
    latencies = {"none": 1.0, "conservative": 4.0, "probabilistic": 1.5, "historic": 2.0}
    means = {name: [latency] * 6 for name, latency in latencies.items()}
    rows = [
        PathResult("a", 1, means | {"adaptive": [2.2] * 6}),
        PathResult("b", 5, means | {"adaptive": [1.0] * 6}),
    ]
    assert "over 6 independent traces" in describe_paths(rows)
    missed, met = path_tables(rows)["other paths"].rows
    assert missed[-2:] == ["1.10 (1.10 to 1.10)", "missed"]
    assert met[-3:] == ["0.67 (0.67 to 0.67), probabilistic", "0.50 (0.50 to 0.50)", "met"]
