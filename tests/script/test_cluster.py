"""``script/demo --cluster``."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from script.demo_program.__main__ import main
from script.demo_program.cluster import run_cluster

SECONDS = 6.0


def test_a_broker_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """What is shown is the count."""
    console = Console(file=io.StringIO(), width=200)
    assert run_cluster(tmp_path / "demo", SECONDS, console) == []
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "kill -9: broker one, after 2 s" in told
    assert "sent " in told
    assert told.count(", lost 0, ") == 3
    assert "Nothing that was acknowledged was lost." in told


def test_what_it_needs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2: it is the user's to mend."""
    arguments = ["--cluster", "--output", str(tmp_path / "demo")]
    assert main([*arguments, "--haproxy"]) == 2
    assert "allowed with it: --seconds, --output" in capsys.readouterr().err
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    assert main(arguments) == 2
    assert "redis-server" in capsys.readouterr().err
