from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import spark_ingest
from benchmarks.errors import BenchmarkError
from benchmarks.spark_ingest import ROWS, IngestRate, main, payloads, read_rate, to_table
from penstock.netem.figures.figure_file import read_figure_file


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
    tiny = replace(ROWS[2], payload_bytes=200, quick_messages=400)
    monkeypatch.setattr(spark_ingest, "ROWS", (tiny,))
    file = tmp_path / "results.json"
    arguments = ["--quick", "--repeats", "1", "--folder", str(tmp_path), "--json", str(file)]
    figures = tmp_path / "figures.json"
    arguments += ["--parts", "filled", "--figures", str(figures)]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "commit: " in told
    origin, tables = read_figure_file(figures)
    assert str(tables["filled"]) in told
    assert "| 1 KiB, straight from Redis | " in told
    assert origin.command.endswith(str(figures))
    document = json.loads(file.read_text())
    (rate,) = document["rows_per_second"][tiny.name]
    assert rate["whole"] > 0
    assert rate["cpu"].keys() == {"gateway", "java", "python", "redis"}
    assert min(rate["cpu"].values()) > 0
    assert document["run"]["command"].endswith("benchmarks.spark_ingest " + " ".join(arguments))
    assert {path.name for path in tmp_path.iterdir()} == {"figures.json", "results.json"}


def test_the_first_micro_batch_is_told_apart() -> None:
    """Its time is mostly Spark's start."""
    said = (
        "penstock spark: ingest: 250,000 messages in 1 micro-batches, 5.0 s\n"
        "penstock spark: ingest: 1,000,000 messages in 4 micro-batches, 12.5 s\n"
    )
    assert read_rate(said) == IngestRate(80_000.0, 100_000.0)
    one = "penstock spark: done: ingest: 1,000 messages in 1 micro-batches, 2.0 s\n"
    assert read_rate(one) == IngestRate(500.0, None)
    with pytest.raises(BenchmarkError, match="told no progress"):
        read_rate("")


def test_the_table_says_which_targets_are_met() -> None:
    """By the interval of the median over the runs; too few runs have none, and show nothing."""
    small, gateway, redis = (row.name for row in ROWS)
    cpu = {"java": 8.04, "python": 3.0, "gateway": 2.0}
    rates = {
        small: [IngestRate(1.0, None), IngestRate(60_000.0, 9e4), IngestRate(70_000.0, 8e4, cpu)]
    }
    rates[gateway] = [IngestRate(90_000.0 + run, None) for run in range(6)]
    rates[redis] = [IngestRate(150_000.0, 160_000.0, cpu | {"redis": 1.0})] * 6
    table = str(to_table(rates))
    few = "60,000 | 1 - 70,000 | at least 50,000 | not shown | 85,000 | 8.0 | 3.0 | 2.0 | - |"
    assert f"| 200 B, through the gateway | {few}" in table
    missed = "90,000 - 90,005 | at least 100,000 | missed | - | - | - | - | - |"
    assert f"| 1 KiB, through the gateway | 90,002 (90,000 to 90,005) | {missed}" in table
    met = "at least 150,000 | met | 160,000 (160,000 to 160,000) | 8.0 | 3.0 | 2.0 | 1.0 |"
    assert met in table
