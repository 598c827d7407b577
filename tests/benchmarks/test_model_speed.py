from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.model_speed import LOOPS, main, to_markdown


def test_each_loop_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its events are counted, its processor time is taken."""
    file = tmp_path / "speed.json"
    assert main(["--quick", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert all(f"| {name} |" in out for name in LOOPS)
    rates = json.loads(file.read_text())["events_per_second"]
    assert all(rate > 1000 for found in rates.values() for rate in found)


def test_the_first_line_says_whether_the_target_is_met() -> None:
    """By the median of each loop."""
    found = {"a": [100_000.0, 200_000.0, 900_000.0], "b": [300_000.0, 100_000.0, 150_000.0]}
    first, *_, a, b = to_markdown(found)
    assert first.startswith("Missed in 1 of 2 loops")
    assert a == "| a | 200,000 | 100,000 - 900,000 | met |"
    assert b == "| b | 150,000 | 100,000 - 300,000 | missed |"
    assert to_markdown({"a": [2e5]})[0].startswith("Met: ")
