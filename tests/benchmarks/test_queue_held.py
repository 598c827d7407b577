from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import queue_held
from benchmarks.queue_held import ROWS, Cost, main, to_markdown


def test_rows_are_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are held, and the JSON says what that took."""
    monkeypatch.setattr(queue_held, "QUICK_REQUESTS", 3)
    monkeypatch.setattr(queue_held, "QUICK_SECONDS", 0.1)
    monkeypatch.setattr(queue_held, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(queue_held, "ROWS", [replace(ROWS[4], share=1.0)])
    file = tmp_path / "results.json"
    assert main(["--quick", "--json", str(file)]) == 0
    assert "commit: " in capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert [row["held"] for row in rows.values()] == [3]
    assert all(row["resident_bytes"] > 0 for row in rows.values())


def test_the_table_shows_the_memory_of_each_request() -> None:
    """Above that of the idle gateway."""
    costs = {
        "idle": Cost(0.001, 1.5, 60_000_000, 0, 0, 0.0),
        "held": Cost(0.0021, 2.0, 160_000_000, 10_000, 9_999, 3.0),
    }
    idle, held = to_markdown(costs)[-2:]
    assert idle == "| idle | 0 | 0 | 0.10% | 1.5 | 60 | - |"
    assert held == "| held | 10,000 | 9,999 | 0.21% | 2.0 | 160 | 10.0 |"


def test_too_few_open_files_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how many are needed."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    assert main([]) == 1
    assert "read a hard limit of 1024; allowed: 10200 or more" in capsys.readouterr().err
