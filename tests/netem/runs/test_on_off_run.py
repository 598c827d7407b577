from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.netem.clients.on_off_plan import OnOffClientsPlan
from penstock.netem.errors import RunError
from penstock.netem.runs.on_off_run import run_on_off_clients

NOBODY = OnOffClientsPlan(1, 0.0, [], [])


def test_hosts_begin_together_and_their_records_are_one(tmp_path: Path) -> None:
    """Each has a process that its host starts, and is told the same time."""
    told: list[float] = []
    commands: list[list[str]] = []

    def popen(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        commands.append(command)
        return subprocess.Popen(command, **more)

    records = run_on_off_clients(NOBODY, tmp_path, {"a": popen, "b": popen}, told.append)
    assert [command[-1] for command in commands] == ["a", "b"]
    assert len(told) == 1
    assert len(records.late) == 2  # each has waited for the end


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit('no')",
        "print('ready', flush=True); input(); raise OSError",
        "import os; os.close(0); print('ready', flush=True); raise SystemExit('no')",
    ],
    ids=["before it is ready", "after the begin", "between the two"],
)
def test_clients_that_end_end_the_run(tmp_path: Path, program: str) -> None:
    """Whenever they do; the error has the end of the log."""

    def popen(_command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", program], **more)

    with pytest.raises(RunError, match=r"clients have ended with status 1:\n(no|Traceback)"):
        run_on_off_clients(NOBODY, tmp_path, {"a": popen})
