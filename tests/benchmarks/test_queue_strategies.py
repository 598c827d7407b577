from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import queue_strategies
from benchmarks.errors import BenchmarkError
from benchmarks.queue_strategies import STRATEGIES, Point, main, measure_point, to_markdown


def test_strategies_are_measured_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every strategy gets messages through; table, JSON and picture are written."""
    monkeypatch.setattr(queue_strategies, "QUICK_SECONDS", 0.3)
    monkeypatch.setattr(queue_strategies, "QUICK_RATES", (50,))
    file, picture = tmp_path / "results.json", tmp_path / "curves.png"
    arguments = ["--quick", "--repeats", "1", "--json", str(file), "--plot", str(picture)]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "RDS beside conventional at lambda 50: " in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    assert set(document["messages_per_second"]) == set(STRATEGIES)
    assert picture.stat().st_size > 0


def points(conventional: float, rds: float) -> queue_strategies.Points:
    """Return measurements at one rate."""
    of = {"conventional": conventional, "pms": 1.0, "rds": rds, "rds+wake": 1.0}
    return {name: {200: [Point(rate, 0.5, 3.0, 9.0)]} for name, rate in of.items()}


def test_table_says_whether_the_target_is_met() -> None:
    """RDS is held against conventional at the highest rate."""
    assert to_markdown(points(100.0, 190.0))[-1] == (
        "RDS beside conventional at lambda 200: 1.90 (1.90 - 1.90), target 1.8: met"
    )
    assert to_markdown(points(100.0, 150.0))[-1].endswith("target 1.8: missed")
    assert "| 200 | rds | 190 | 190 - 190 | 0.50 | 3.0 | 9 |" in to_markdown(points(100.0, 190.0))


def test_load_that_fails_is_told() -> None:
    """A gateway that refuses its policy file ends the measurement with its words."""
    with pytest.raises(BenchmarkError, match="the gateway did not start"):
        measure_point("lifo", 10, 0.1)
