from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.plugins.queue.client import QueueClient
from script.demo_program.__main__ import main
from tests.helpers.forks import forked_programs
from tests.helpers.process import is_there

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--seconds", "16", "--no-spark")


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    """Let the demo and its brokers be forks, but not the commands that it prints."""
    with forked_programs():
        yield


@contextmanager
def demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A short demo that writes into a folder; its lines come as they are printed."""
    command = [sys.executable, "-m", "script.demo_program", *SHORT, "--output", str(folder)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def shell(
    command: str, *, stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[str]:
    """Start a command line as a user would, in the root of the checkout."""
    return subprocess.Popen(  # noqa: S602 (the line that a user is shown is what is tested)
        f"exec {command}", shell=True, cwd=ROOT, text=True, stdout=stdout, stderr=stderr
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Return what a program prints up to a line with this text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{text!r} was not printed:\n{''.join(lines)}")


def broker_pid(folder: Path) -> int:
    """Return the process that has the queue of the demo's first broker."""
    return int((folder / "queue.db.lock").read_text())


def printed_commands(printed: str) -> list[str]:
    """Return the commands for going on by hand, with this Python's programs."""
    shown = printed.partition("To go on by hand:")[2]
    programs = Path(sys.executable).parent
    lines = [line.strip() for line in shown.splitlines() if line.startswith("  ")]
    return [line.replace(".venv/bin", str(programs)) for line in lines if line[0] != "#"]


def test_nothing_is_lost_and_the_printed_commands_work(tmp_path: Path) -> None:
    """The demo ends with status 0, and what it leaves can be used by hand."""
    folder = tmp_path / "demo-output"
    with demo(folder) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        assert process.wait() == 0, printed
    assert "Nothing was lost" in printed
    assert re.search(r"balances +│ +yes │ +yes", printed)
    assert (folder / "latency.png").read_bytes().startswith(b"\x89PNG")
    start, listen, publish, publish_with_paho, look, put, take = printed_commands(printed)
    url = look.split()[-1]
    before = broker_pid(folder)
    with shell(start, stderr=subprocess.PIPE) as broker:
        try:
            assert broker.stderr is not None
            assert any("listening on" in line for line in broker.stderr)
            assert broker_pid(folder) != before
            client = QueueClient(url)
            n_before = client.queue("telemetry")["messages"]
            with shell(f"stdbuf -oL {listen} -d -C 2 -W 60", stdout=subprocess.PIPE) as listener:
                read_until(listener, "Subscribed")
                for command in (publish, publish_with_paho):
                    with shell(command) as publisher:
                        assert publisher.wait() == 0
                assert listener.stdout is not None
                came = [line for line in listener.stdout if line.startswith("telemetry/")]
            assert came == ["telemetry/me/mood good\n"] * 2
            assert client.queue("telemetry")["messages"] == n_before + 2
            with shell(look, stdout=subprocess.PIPE) as looker:
                assert looker.stdout is not None
                assert "spark" in looker.stdout.read()
            with shell(put) as putter:
                assert putter.wait() == 0
            with shell(f"{take} -W 60", stdout=subprocess.PIPE) as taker:
                assert taker.stdout is not None
                assert taker.stdout.read() == "smile\n"
            client.close()
        finally:
            broker.terminate()


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """Interrupted, the demo says so, and no program of it stays."""
    folder = tmp_path / "demo-output"
    with demo(folder) as process:
        read_until(process, "publishing")
        pid = broker_pid(folder)
        assert is_there(pid)
        process.send_signal(signal.SIGINT)
        read_until(process, "demo: stopped")
        assert process.wait() == 130
        assert not is_there(pid)


def test_a_broker_that_dies_is_told_and_nothing_else_stays(tmp_path: Path) -> None:
    """Where a program of the demo ends too early, the demo fails with its name."""
    folder = tmp_path / "demo-output"
    with demo(folder) as process:
        read_until(process, "publishing")
        os.kill(broker_pid(folder), signal.SIGKILL)
        printed = read_until(process, "broker: ended with status -9")
        assert "Nothing was lost" not in printed
        assert process.wait() == 1


def test_a_folder_of_other_things_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not the demo's is not deleted."""
    (tmp_path / "thesis.txt").touch()
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own stay as they are
    assert main([*SHORT, "--output", str(tmp_path)]) == 2
    assert "not the demo's" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
