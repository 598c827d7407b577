from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import queue_ping
from benchmarks.queue_ping import main, rows, to_markdown
from penstock.netem.runs.broker_process import reserved_port


def test_rows_are_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table and the JSON say where the numbers come from."""
    monkeypatch.setattr(queue_ping, "IDLE_PINGS", 10)
    chosen = ["idle", "range of 4 MB, JSON"]
    monkeypatch.setattr(queue_ping, "rows", lambda: chosen)
    file = tmp_path / "results.json"
    assert main(["--quick", "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert "| longest, ms |" in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    assert list(document["rows"]) == chosen
    assert all(figures["trips"] for figures in document["rows"].values())


def test_the_queue_answers_the_requests_of_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that need pyarrow are left out where it is missing."""
    for name in ("BODY_MESSAGES", "SMALL_MESSAGES"):
        monkeypatch.setattr(queue_ping, name, 10)
    monkeypatch.setattr(queue_ping, "RANGE", queue_ping.RANGE.rpartition("=")[0] + "=0")
    with reserved_port() as port, queue_ping._broker(tmp_path, port) as urls:
        for row in rows():
            queue_ping._load(*urls, row, 1)
    assert capsys.readouterr().out.count("begun") == len(rows())
    monkeypatch.setattr(queue_ping, "find_spec", lambda _: None)
    assert not any("Arrow" in row for row in rows())


def test_the_table_shows_median_and_longest_round_trip() -> None:
    """In milliseconds."""
    trips = [0.001] * 98 + [0.002, 0.3]
    found = {"idle": {"trips": trips, "request_seconds": None}}
    assert to_markdown(found)[-1] == "| idle | - | 100 | 1.00 | 300.00 | 300.00 |"


def test_a_request_that_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that cannot be filled ends the benchmark with status 1."""
    monkeypatch.setattr(queue_ping, "QUEUES", {"other": {}})
    assert main(["--quick"]) == 1
    assert "/queues/read/messages: status 404" in capsys.readouterr().err
