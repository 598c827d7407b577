from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from penstock.netem.errors import RunError
from penstock.netem.runs.broker_process import (
    STOP_SECONDS,
    RunningBroker,
    listens,
    log_tail,
    mosquitto_command,
    reserved_port,
)


def test_a_broker_is_started_and_ended(tmp_path: Path) -> None:
    """It listens on its port, and a second start in its directory goes on in its log."""
    with reserved_port() as port:
        command = mosquitto_command(tmp_path, [f"listener {port} 127.0.0.1", "user root"])
        for _ in range(2):
            broker = RunningBroker("mosquitto", command, tmp_path)
            broker.wait_until_listening(port)
            assert broker.stop() < STOP_SECONDS
    assert broker.log.read_text().count("terminating") == 2


def test_a_broker_that_ends_or_does_not_listen_is_told_with_its_last_words(tmp_path: Path) -> None:
    """And its command."""
    broker = RunningBroker("broken", ["sh", "-c", "echo cannot; exit 3"], tmp_path)
    with pytest.raises(RunError, match=r"broker broken has ended with status 3: sh -c .*\ncannot"):
        broker.wait_until_listening(1)
    waits = RunningBroker("deaf", ["sleep", "600"], tmp_path)
    with pytest.raises(RunError, match="does not listen on port 1 after 0 s"):
        waits.wait_until_listening(1, 0.0)
    waits.kill()


def test_a_broker_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """After the time that it has, and this is an error."""
    ignores = [sys.executable, "-c", IGNORES]
    broker = RunningBroker("stubborn", ignores, tmp_path)
    while not broker.log.read_text():
        broker.check()
    with pytest.raises(RunError, match="has not ended 0 s after SIGTERM"):
        broker.stop(0.0)
    assert broker.process.returncode == -signal.SIGKILL


IGNORES = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""


def test_who_listens_is_found_without_a_connection() -> None:
    """On any address, IPv4 or IPv6; a port that is only connected to does not count."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens(os.getpid(), port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert not listens(os.getpid(), client.getsockname()[1])
    assert not listens(os.getpid(), port)


def test_the_tail_of_a_log_is_shown(tmp_path: Path) -> None:
    """Its end; and that there is none."""
    log = tmp_path / "log"
    assert log_tail(log) == "(its log is empty)"
    log.write_text("x" * 10_000 + "\nthe end\n")
    assert log_tail(log).endswith("the end")
    assert len(log_tail(log)) <= 2_000


def test_a_log_that_is_empty_as_the_disk_is_full_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever has ended for that would have ended for nothing."""
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert log_tail(tmp_path / "log") == "(its log is empty, as no space is left on its disk)"
