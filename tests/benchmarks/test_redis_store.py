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
    depths_to_markdown,
    main,
    to_markdown,
    verdict,
)
from penstock.netem.figures.estimates import Estimate


def test_ways_are_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one server and on a cluster of two; each message comes back, or the run fails."""
    monkeypatch.setattr(redis_store, "NODES", (1, 2))
    monkeypatch.setattr(redis_store, "QUICK_MESSAGES", 130)
    file = tmp_path / "results.json"
    assert main(["--quick", "--repeats", "1", "--json", str(file)]) == 0
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
    lines = depths_to_markdown({1: [10_000.0], 3: [20_000.0], 9: [50_000.0]})
    assert lines[0].startswith("Cost model: 90 µs a round, 10 µs a message;")
    assert lines[-2] == "| 3 | 20,000 (20,000 to 20,000) | 25,000 | +25% |"
    assert lines[-1].endswith("| 50,000 | +0% |")


def test_a_ratio_is_that_of_each_repetition() -> None:
    """And an interval that holds the target shows nothing."""
    found = {ENGINE: [8.0] * 9, RUNS: [9.0] * 9, KEYS: [2.0] * 9, PIPELINED: [9.0] * 9}
    lines = to_markdown({1: found})
    assert lines[4].endswith("| 4.00 (4.00 to 4.00) | >= 3.8 | met |")
    assert lines[5].endswith("| 1.00 (1.00 to 1.00) | >= 1.5 | missed |")
    assert verdict(Estimate(2.0, 1.0, 3.0, 5), 1.5) == "not shown"
