from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import queue_throughput
from benchmarks.queue_throughput import ROWS, QueueRow, main, to_markdown


def test_rows_are_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows run in the folder they are in, and table and JSON say where the numbers come from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue_throughput, "QUICK_MESSAGES", 600)
    # What `enqueue` does is also the beginning of `dequeue` and `range`.
    chosen = [row for row in ROWS if row.name != "enqueue"]
    monkeypatch.setattr(queue_throughput, "ROWS", chosen)
    file = tmp_path / "results.json"
    arguments = ["--quick", "--repeats", "1", "--json", str(file)]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "| median of 1 | unit |" in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    assert set(document["figures"]) == {row.name for row in chosen}
    assert all(rate > 0 for (rate,) in document["figures"].values())
    assert document["run"]["command"].endswith("queue_throughput " + " ".join(arguments))


def test_table_says_which_targets_are_met() -> None:
    """A row meets its target by the median."""
    rates = {row.name: [5.0, 10.0**6, 10.0**6] for row in ROWS} | {"dequeue": [1.0, 2.0, 10.0**6]}
    table = to_markdown(rates)
    assert "| mqtt | 80,000 | 1,000,000 | messages/s | 5 - 1,000,000 | yes |" in table
    assert "| dequeue | 60,000 | 2 | messages/s | 1 - 1,000,000 | no |" in table


def test_measurement_that_fails_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that cannot do its work ends the benchmark with status 1 and its last words."""
    (tmp_path / "queue.db").write_bytes(b"no database" * 100)

    def fill(_folder: Path, n_messages: int) -> float:
        return float(queue_throughput._in_folder(tmp_path, "fill", "lease", str(n_messages)))

    monkeypatch.setattr(queue_throughput, "ROWS", [QueueRow("enqueue", None, fill)])
    assert main(["--quick", "--folder", str(tmp_path)]) == 1
    assert "file is not a database" in capsys.readouterr().err
