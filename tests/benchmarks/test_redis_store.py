from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import redis_store
from benchmarks.redis_store import (
    ENGINE,
    KEYS,
    MEMCACHED,
    PIPELINED,
    RUNS,
    main,
    to_depths,
    to_table,
)


def test_ways_are_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one server and on a cluster of two; each message comes back, or the run fails."""
    monkeypatch.setattr(redis_store, "NODES", (1, 2))
    monkeypatch.setattr(redis_store, "QUICK_MESSAGES", 130)
    file = tmp_path / "results.json"
    figures = tmp_path / "figures.json"
    options = ["--quick", "--repeats", "1", "--json", str(file), "--figures", str(figures)]
    assert main(options) == 0
    table = json.loads(figures.read_text())["tables"]["rates"]
    assert {row[5] for row in table["rows"]} == {"", "not shown"}  # one run has no interval
    out = capsys.readouterr().out
    assert "machine: " in out
    assert "| 64 | " in out
    found = json.loads(file.read_text())
    assert all(each[0] > 0 for each in found["by_depth"].values())
    rates = found["messages_per_second"]
    ways = [ENGINE, RUNS, KEYS, PIPELINED]
    ways += [MEMCACHED] if shutil.which("memcached") else []
    assert [list(found) for found in rates.values()] == [ways, ways]
    assert all(each[0] > 0 for found in rates.values() for each in found.values())


def test_the_cost_model_stands_beside_each_rate() -> None:
    """Its two costs are those of the ends."""
    table = to_depths({1: [10_000.0], 3: [20_000.0], 9: [50_000.0]})
    assert table.columns[2] == "Cost model: 90 µs a round, 10 µs a message"
    assert table.rows[1] == ("3", "20,000 (20,000 to 20,000)", "25,000", "+25%")
    assert table.rows[2][2:] == ("50,000", "+0%")


def test_a_ratio_is_that_of_each_repetition() -> None:
    """The ratio is the engine's, in the form that the way has."""
    found = {ENGINE: [8.0] * 9, RUNS: [9.0] * 9, KEYS: [2.0] * 9, PIPELINED: [9.0] * 9}
    rows = to_table({1: found}).rows
    assert rows[2][3:] == (f"4.00 (4.00 to 4.00) of {ENGINE}", "at least 3.8", "met")
    assert rows[3][3:] == (f"1.00 (1.00 to 1.00) of {RUNS}", "at least 1.5", "missed")
