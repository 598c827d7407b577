from __future__ import annotations

from penstock.models.withholding.other_paths import PathResult
from penstock.models.withholding.report import paths_to_markdown, table, to_markdown
from penstock.models.withholding.sweep import POLICIES
from tests.models.withholding.small_sweep import small_results


def test_table_is_markdown() -> None:
    """A heading, the line below it, rows."""
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_report_has_every_policy_and_every_claim() -> None:
    """One table for each T_Q, then the verdicts; all rows of a table are as wide as its head."""
    results = small_results()
    text = to_markdown(results)
    assert "over 3 independent traces of 300 s" in text
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 3
    for lines in tables:
        assert len({line.count("|") for line in lines}) == 1
    latency = [line.split(" | ")[0].removeprefix("| ") for line in tables[0][2:]]
    assert latency == [*POLICIES, "clairvoyant"]
    historic = next(line for line in tables[1] if line.startswith("| historic"))
    assert str(results.latency("historic", 5, 2.0)) in historic
    assert "Adaptive beats historic" in text


def test_paths_have_their_ratios_and_the_claim() -> None:
    """Against the best of the paper's policies, and against historic; the baseline is shown."""
    latencies = {"none": 1.0, "conservative": 4.0, "probabilistic": 1.5, "historic": 2.0}
    means = {name: [latency] * 2 for name, latency in latencies.items()}
    rows = [
        PathResult("a", 1, means | {"adaptive": [2.2] * 2}),
        PathResult("b", 5, means | {"adaptive": [1.0] * 2}),
    ]
    text = paths_to_markdown(rows)
    assert "over 2 independent traces" in text
    assert "1.10 (1.10 to 1.10) | does not hold |" in text
    assert "0.67 (0.67 to 0.67), probabilistic | 0.50 (0.50 to 0.50) | holds |" in text
