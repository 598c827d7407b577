from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import spark_ingest
from benchmarks.errors import BenchmarkError
from benchmarks.spark_ingest import ROWS, Rate, main, payloads, read_rate, to_markdown


@pytest.mark.parametrize("size", [200, 1_024])
def test_payloads_are_telemetry_of_exactly_one_size(size: int) -> None:
    """What is measured is what is claimed."""
    made = list(payloads(size, 50))
    assert {len(payload) for payload in made} == {size}
    assert len(set(made)) == 50
    assert {"host", "metric", "value", "unit", "at"} <= json.loads(made[7]).keys()


def test_a_row_is_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real programs run, and table and JSON say where the numbers come from."""
    tiny = spark_ingest.SparkRow("telemetry_200B", 200, 400, 400, 50_000, engine="redis")
    monkeypatch.setattr(spark_ingest, "ROWS", (tiny,))
    file = tmp_path / "results.json"
    arguments = ["--quick", "--repeats", "1", "--folder", str(tmp_path), "--json", str(file)]
    arguments += ["--parts", "filled"]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "| telemetry_200B | 50,000 | " in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    (rate,) = document["rows_per_second"]["telemetry_200B"]
    assert rate["whole"] > 0
    assert rate["cpu"].keys() == {"gateway", "java", "python", "redis"}
    assert min(rate["cpu"].values()) > 0
    assert document["run"]["command"].endswith("benchmarks.spark_ingest " + " ".join(arguments))
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_the_first_micro_batch_is_told_apart() -> None:
    """Its time is mostly Spark's start."""
    said = (
        "penstock spark: ingest: 250,000 messages in 1 micro-batches, 5.0 s\n"
        "penstock spark: ingest: 1,000,000 messages in 4 micro-batches, 12.5 s\n"
    )
    assert read_rate(said) == Rate(80_000.0, 100_000.0)
    one = "penstock spark: done: ingest: 1,000 messages in 1 micro-batches, 2.0 s\n"
    assert read_rate(one) == Rate(500.0, None)
    with pytest.raises(BenchmarkError, match="told no progress"):
        read_rate("")


def test_the_table_says_which_targets_are_met() -> None:
    """A row meets its target by the median of all micro-batches."""
    fast, slow, redis = (row.name for row in ROWS)
    rates = {fast: [Rate(1.0, None), Rate(60_000.0, 9e4), Rate(70_000.0, 8e4)]}
    rates[slow] = [Rate(1.0, None), Rate(2.0, None), Rate(70_000.0, None)]
    rates[redis] = [Rate(150_000.0, None)] * 3
    table = to_markdown(rates)
    assert f"| {fast} | 50,000 | 60,000 | 1 - 70,000 | yes | 85,000 | 80,000 - 90,000 |" in table
    assert f"| {redis} | 150,000 | 150,000 | 150,000 - 150,000 | yes | - | - |" in table
    assert f"| {slow} | 100,000 | 2 | 1 - 70,000 | no | - | - |" in table
