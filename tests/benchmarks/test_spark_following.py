from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.loads.queue_publisher import HEAD
from benchmarks.spark_following import (
    POLLING,
    QUEUE,
    SOURCE,
    WAYS,
    FollowingOutcome,
    FollowingWay,
    Schedule,
    WayLocations,
    follow,
    lateness,
    listed,
    succeeded,
    to_tables,
)
from penstock.plugins.queue.client import QueueClient


def write(file: Path, numbers: list[int]) -> Path:
    """Write messages that were due at their number, in seconds of this boot."""
    file.parent.mkdir(parents=True, exist_ok=True)
    payloads = [HEAD.pack(number, float(number)) + b"x" for number in numbers]
    parquet.write_table(pa.table({"payload": payloads}), file)
    return file


def written(file: Path, lines: list[str], at: float) -> None:
    """Write a list of files at a moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["v1", *lines]))
    os.utime(file, (at, at))


def test_a_file_is_there_when_spark_first_lists_it(tmp_path: Path) -> None:
    """A compact list names the files of earlier micro-batches again."""
    files = [write(tmp_path / f"{name}.parquet", []) for name in ("a b", "b", "c")]
    lines = [json.dumps({"path": file.as_uri(), "size": 1}) for file in files]
    written(tmp_path / "_spark_metadata" / "8", lines[:1], 100.0)
    written(tmp_path / "_spark_metadata" / "9.compact", lines[:2], 101.0)
    written(tmp_path / "_spark_metadata" / "10", lines[2:], 102.0)
    written(tmp_path / "_spark_metadata" / ".10.crc", [], 103.0)
    assert list(listed(tmp_path)) == [(100.0, files[:1]), (101.0, files[1:2]), (102.0, files[2:])]


def test_a_folder_of_a_micro_batch_is_there_when_it_succeeded(tmp_path: Path) -> None:
    """One that has not is not."""
    file = write(tmp_path / "batch=3" / "part.parquet", [])
    write(tmp_path / "batch=4" / "part.parquet", [])
    written(tmp_path / "batch=3" / "_SUCCESS", [], 100.0)
    assert list(succeeded(tmp_path)) == [(100.0, [file])]


def test_a_message_is_late_from_when_it_was_due_until_it_is_first_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that comes again counts as a row, and makes nothing later."""
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    first = write(tmp_path / "first.parquet", [1, 2])
    second = write(tmp_path / "second.parquet", [2, 3])
    late, n_rows = lateness(iter([(1_003.0, [first]), (1_005.0, [second])]))
    assert late == {1: 2.0, 2: 1.0, 3: 2.0}
    assert n_rows == 4


def test_what_is_published_is_followed_and_its_requests_are_counted(tmp_path: Path) -> None:
    """A way without Spark, on a real broker: one message is never there, and one twice."""

    def start(place: WayLocations) -> None:
        thread = threading.Thread(target=write_out, args=(place, is_over), daemon=True)
        thread.start()
        place.stack.callback(thread.join)
        place.stack.callback(is_over.set)

    is_over = threading.Event()
    way = FollowingWay("by hand", start, succeeded, True)
    schedule = Schedule(rate=100.0, warm_up_seconds=0.2, seconds=0.4, idle_seconds=0.2)
    outcome = follow(way, tmp_path, schedule)
    assert (outcome.lost, outcome.repeated) == (1, 1)
    assert 0 < outcome.p50_seconds <= outcome.p99_seconds
    assert outcome.requests is not None
    assert outcome.requests > 0
    assert outcome.idle_requests is not None


def write_out(place: WayLocations, is_over: threading.Event) -> None:
    """Write what is in the queue to files; the message 3 once more in place of the message 4."""
    client = QueueClient(place.url)
    number = 0
    while not is_over.is_set():
        received = client.receive(QUEUE, max_messages=100, wait_seconds=0.1)
        if not received:
            continue
        numbers = [HEAD.unpack_from(one.payload) for one in received]
        folder = place.output / f"batch={number}"
        folder.mkdir(parents=True)
        rows = [HEAD.pack(3 if message == 4 else message, due) for message, due in numbers]
        parquet.write_table(pa.table({"payload": rows}), folder / "part.parquet")
        (folder / "_SUCCESS").touch()
        number += 1


def test_the_tables_have_medians_and_say_which_targets_are_met() -> None:
    """Requests of the source against those of polling, run by run."""
    outcomes = {way.name: [FollowingOutcome(2.0, 3.0, None, None, 0, 0)] * 6 for way in WAYS}
    outcomes[SOURCE] = [FollowingOutcome(1.0 + run / 50, 2.0, 4.0, 1.0, 0, 0) for run in range(6)]
    outcomes[POLLING] = [
        FollowingOutcome(0.8, 2.0, 16.0 + run, 2.0, run // 5, 0) for run in range(6)
    ]
    tables = to_tables(outcomes)
    ways, targets = str(tables["followed"]), str(tables["targets"])
    assert f"| {SOURCE} | 1.05 (1.00 to 1.10) | 2.00 (2.00 to 2.00) | 4.0 | 1.0 | 0 | 0 |" in ways
    assert f"| {WAYS[1].name} | 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) | - | - | 0 | 0 |" in ways
    assert "| 18.5 | 2.0 | 1 | 0 |" in ways
    assert f"| {SOURCE}: p50, s | 1.05 (1.00 to 1.10) | at most 1.5 | met |" in targets
    assert "| 4.6 (4.0 to 5.2) | at least 5 | not shown |" in targets
