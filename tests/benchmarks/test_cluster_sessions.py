from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cluster_sessions as program
from benchmarks.cluster import PUBLISHERS, REDIS, SUBSCRIBERS
from penstock.netem.figures.figure_file import read_figure_file


def test_memory_of_sessions_and_their_messages_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each process; a large message for many sessions is not in each of their mailboxes."""
    monkeypatch.setattr(program, "QUICK_SESSIONS", 200)
    monkeypatch.setattr(program, "QUIET_SECONDS", 0.5)
    figures = tmp_path / "figures.json"
    assert program.main(["--quick", "--figures", str(figures)]) == 0
    _, tables = read_figure_file(figures)
    table = tables["sessions"]
    assert table.columns[1:] == [REDIS, PUBLISHERS, SUBSCRIBERS]
    assert len(table.rows) == 1 + len(program.PAYLOADS)
    large = float(table.rows[-1][1].replace(",", ""))
    assert 1_000_000 < large < program.QUICK_READERS * 1_000_000 / 4
