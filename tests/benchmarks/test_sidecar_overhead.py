from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.sidecar_overhead import Figures, main, to_markdown


def test_rows_are_measured_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Latency and throughput, of the broker itself and through the sidecar, in one run."""
    file = tmp_path / "results.json"
    rows = "latency_qos1,qos1_1to1"
    assert main(["--quick", "--broker", "mosquitto", "--rows", rows, "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert "| latency_qos1 |" in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    assert list(document["rows"]) == rows.split(",")
    assert all(each["broker"] and each["sidecar"] for each in document["rows"].values())


def test_the_table_judges_by_the_median_of_the_rounds() -> None:
    """Added milliseconds for latency, the ratio for throughput."""
    found = {
        "latency_qos0": Figures([0.001, 0.001, 0.001], [0.0011, 0.0015, 0.0011]),
        "qos1_1to1": Figures([100.0, 200.0, 100.0], [70.0, 140.0, 90.0]),
    }
    assert to_markdown(found)[2:] == [
        "| latency_qos0 | 1.000 ms | 1.100 ms | +0.100 ms | Met: < 0.2 ms |",
        "| qos1_1to1 | 100/s | 90/s | 70% | Missed: ≥ 80% |",
    ]


def test_a_row_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, with those that there are."""
    assert main(["--rows", "qos9"]) == 2
    assert "no row 'qos9'; allowed: latency_qos0" in capsys.readouterr().err
