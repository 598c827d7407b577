from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.sidecar_overhead import Figures, Growth, main, memory_lines, to_markdown


def test_rows_are_measured_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the broker, through a forwarder and the sidecar, in one run; and memory."""
    file = tmp_path / "results.json"
    rows = "latency_qos1,qos1_1to1,memory_stalled"
    assert main(["--quick", "--broker", "mosquitto", "--rows", rows, "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert "| latency_qos1 |" in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    assert list(document["rows"]) == rows.split(",")
    assert list(document["rows"].pop("memory_stalled")) == ["broker", "behind", "sidecar"]
    for row in document["rows"].values():
        assert list(row["values"]) == ["broker", "forwarder", "sidecar"]
        assert all(row["values"].values())


def test_the_table_judges_by_the_median_of_the_rounds() -> None:
    """Added milliseconds for latency, the ratio for throughput."""
    found = {
        "latency_qos0": Figures(
            {
                "broker": [0.001, 0.001, 0.001],
                "forwarder": [0.001, 0.00105, 0.00105],
                "sidecar": [0.0011, 0.0015, 0.0011],
            },
            {},
        ),
        "qos1_1to1": Figures(
            {
                "broker": [100.0, 200.0, 100.0],
                "forwarder": [80.0, 160.0, 100.0],
                "sidecar": [70.0, 140.0, 90.0],
            },
            {"broker": [4e-6], "forwarder": [2e-6], "sidecar": [5e-6]},
        ),
    }
    latency, rate = to_markdown(found)[2:]
    assert latency.startswith("| latency_qos0 | 1.000 ms | 1.050 ms | 1.100 ms | +0.100 ms | +0.1")
    assert latency.endswith(" |  | Met: < 0.2 ms |")
    assert rate.startswith("| qos1_1to1 | 100/s | 100/s | 90/s | 70% | 88% | 4.00, 2.00, 5.00 |")
    assert rate.endswith(" | Missed: ≥ 80% |")


def test_the_target_of_memory() -> None:
    """The sidecar takes payloads once, and its broker less than without it."""
    verdicts = [
        memory_lines(Growth(broker, behind, own))[2].split("|")[5]
        for broker, behind, own in ((20, 1.5, 1.1), (20, 1.5, 1.3), (1.1, 1.5, 1.1))
    ]
    assert verdicts == [" Met: ≤ 1.2 ", " Missed: ≤ 1.2 ", " Missed: ≤ 1.2 "]


def test_a_row_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, with those that there are."""
    assert main(["--rows", "qos9"]) == 2
    assert "no row 'qos9'; allowed: latency_qos0" in capsys.readouterr().err
