from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from penstock.netem.clients.bulk_flow import FlowTime, read_flow_file, send
from tests.helpers.process import SECONDS

MODULE = [sys.executable, "-m", "penstock.netem.clients.bulk_flow"]


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_a_flow_sends_in_each_of_its_times_and_tells_what_arrived(tmp_path: Path) -> None:
    """Over a connection for each; the sender stays until its input ends."""
    # On a busy machine the programs may have started only after the first time.
    for n, seconds in enumerate((2.0, 8.0, 32.0)):
        if sent_bytes(tmp_path / f"flow{n}", seconds):
            return
    raise AssertionError("nothing was acknowledged in any of the times")


def sent_bytes(file: Path, seconds: float) -> int:
    """Send for so many seconds and once more; return what was acknowledged in the first time."""
    port = str(free_port())
    with (
        subprocess.Popen([*MODULE, "receive", port]) as receiver,
        subprocess.Popen(
            [*MODULE, "send", "127.0.0.1", port, str(file)], stdin=subprocess.PIPE
        ) as sender,
    ):
        assert sender.stdin is not None
        begin = time.monotonic()
        times = [(begin, begin + seconds), (begin + seconds + 0.5, begin + seconds + 1.0)]
        sender.stdin.write(json.dumps(times).encode() + b"\n")
        sender.stdin.flush()
        while len(found := read_flow_file(file)) < 2:
            assert sender.poll() is None
            assert receiver.poll() is None
            time.sleep(0.05)
        assert sender.poll() is None
        sender.stdin.close()
        assert sender.wait(SECONDS) == 0
        receiver.kill()
    for (planned, end), each in zip(times, found, strict=True):
        assert planned <= each.begin <= each.end
        assert each.end >= end
    return found[0].acknowledged_bytes


def test_a_flow_without_a_receiver_sends_nothing_and_ends_in_time(tmp_path: Path) -> None:
    """It tries again until its time is over."""
    file = tmp_path / "flow"
    begin = time.monotonic()
    send(("127.0.0.1", free_port()), [(begin, begin + 0.3)], file)
    (found,) = read_flow_file(file)
    assert found == FlowTime(found.begin, found.end, 0)
    assert found.end >= begin + 0.3


def test_a_flow_that_has_not_sent_has_no_times(tmp_path: Path) -> None:
    """Such as in a run that failed before."""
    assert read_flow_file(tmp_path / "none") == []
