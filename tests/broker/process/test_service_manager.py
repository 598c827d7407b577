"""What systemd is told by the real programs, over a real socket."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from penstock.broker.process.service_manager import ServiceManager
from tests.helpers.process import SECONDS, Program, anonymous_policy

UPLINKS: Final = {
    "site": "berlin",
    "uplinks": {"cloud": {"upstream": {"address": "127.0.0.1:9"}, "up": [{"filter": "#"}]}},
}
QUEUES: Final = {"http": "127.0.0.1:0", "path": "queue.db", "queues": {"jobs": {}}}
PROGRAMS: Final[dict[str, tuple[list[str], dict[str, Any]]]] = {
    "broker": (["broker"], anonymous_policy()),
    "proxy": (
        ["proxy"],
        {"listener": {"bind": "127.0.0.1:0"}, "upstream": {"address": "127.0.0.1:9"}},
    ),
    "edge broker": (["proxy", "--mode", "edge"], anonymous_policy({"uplink": UPLINKS})),
    "queue": (["queue", "serve"], {"plugins": {"queue": QUEUES}}),
}


class Manager:
    """Stands for systemd: has the socket, and reads what comes.

    Attributes:
        address: of the socket, as NOTIFY_SOCKET has it.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SECONDS)
        self._socket.bind(address.replace("@", "\0", 1))

    def next(self) -> dict[str, str]:
        """Wait for the next message; return its lines by name."""
        lines = self._socket.recv(65_536).decode().splitlines()
        return dict(line.partition("=")[::2] for line in lines)

    def after_beats(self) -> tuple[dict[str, str], int]:
        """Return the next message that is not of the watchdog, and how many of it came before."""
        n_beats = 0
        while (found := self.next()) == {"WATCHDOG": "1"}:
            n_beats += 1
        return found, n_beats

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """A service manager, by either kind of address."""
    is_path = request.param == "path"
    found = Manager(str(tmp_path / "notify") if is_path else f"@penstock-{os.getpid()}")
    yield found
    found.close()


@pytest.mark.parametrize("manager", ["path"], indirect=True)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_tells_what_it_does(name: str, manager: Manager, tmp_path: Path) -> None:
    """That it is ready, alive, reloads a file, has refused one, and stops."""
    words, config = PROGRAMS[name]
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(config))
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "20000"}
    program = Program(
        [sys.executable, "-m", "penstock", *words, "-c", str(file)],
        cwd=tmp_path,
        env=os.environ | environment,
    )
    try:
        assert manager.after_beats() == ({"READY": "1", "STATUS": "serving"}, 0)
        assert manager.next() == manager.next() == {"WATCHDOG": "1"}

        program.process.send_signal(signal.SIGHUP)
        reloading, _ = manager.after_beats()
        assert reloading["RELOADING"] == "1"
        assert int(reloading["MONOTONIC_USEC"]) > 0
        assert manager.after_beats()[0] == {"READY": "1", "STATUS": "serving"}

        file.write_text("no: such key")
        program.process.send_signal(signal.SIGHUP)
        assert "RELOADING" in manager.after_beats()[0]
        assert manager.after_beats()[0]["STATUS"].startswith("serving; not reloaded, see the log: ")

        program.process.send_signal(signal.SIGTERM)
        assert manager.after_beats()[0]["STOPPING"] == "1"
        assert program.wait() == 0
    finally:
        if program.process.poll() is None:
            program.kill()
    assert "Traceback" not in program.log


def test_a_message_goes_to_either_kind_of_address(manager: Manager) -> None:
    """In one datagram, whose status is one line."""
    environment = {"NOTIFY_SOCKET": manager.address, "HOME": "/"}
    ServiceManager(environment).ready("two\nlines")
    assert manager.next() == {"READY": "1", "STATUS": "two lines"}
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234", "/no/such/socket"])
def test_without_a_socket_nothing_is_told(address: str) -> None:
    """And nothing fails: the program may have been started by hand."""
    ServiceManager({"NOTIFY_SOCKET": address}).ready("serving")


def test_a_line_of_any_length_is_told(tmp_path: Path) -> None:
    """Such as one of the faults of a file, each line of which is wrong."""
    manager = Manager(str(tmp_path / "notify"))
    try:
        ServiceManager({"NOTIFY_SOCKET": manager.address}).ready("é" * 1_000_000)
        assert manager.next() == {"READY": "1", "STATUS": "é" * 1_000}
    finally:
        manager.close()
