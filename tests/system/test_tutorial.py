"""README.md and docs/tutorial.md, as a newcomer copies them: a terminal for each block."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links.network import Host, Network
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.process import ROOT, SECONDS

pytestmark = NEEDS_ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

STUBS = {
    "sudo": '[ "$*" = "apt-get install -y python3-venv mosquitto-clients" ]',
    "python3": '[ "$*" = "-m venv .venv" ] && mkdir -p .venv/bin && touch .venv/bin/activate',
    "pip": '[ "$*" = "install .[lanes]" ]',
}
"""Stand-ins for the programs that install: what the tests run is installed already."""

ALARM = "alarms/door 6 bytes"
PICTURE = "pictures/gate 1000000 bytes"


class Terminal:
    """A shell that has a pseudo-terminal, where programs print line by line.

    Attributes:
        printed: what stands in it.
    """

    def __init__(self, host: Host, lines: str, folder: Path) -> None:
        """Type some lines into it.

        Args:
            host: where it is.
            lines: of the page.
            folder: the working directory; its `bin` comes first in PATH.
        """
        self.printed = ""
        self._has_ended = False
        self._changed = threading.Condition()
        path = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._own, theirs = pty.openpty()
        self._shell = host.popen(
            ["bash", "-c", lines],
            cwd=folder,
            env=os.environ | {"PATH": os.pathsep.join(path)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while not self._has_ended:
            try:
                said = os.read(self._own, 1 << 16).decode(errors="replace")
            except OSError:  # all programs have closed their end
                said = ""
            with self._changed:
                self.printed += said.replace("\r\n", "\n")
                self._has_ended = not said
                self._changed.notify_all()
        os.close(self._own)

    def wait_for(self, text: str) -> str:
        """Return all that was printed, once this text was."""
        with self._changed:
            self._changed.wait_for(lambda: text in self.printed or self._has_ended, SECONDS)
            assert text in self.printed, self.printed
            return self.printed

    def wait(self) -> str:
        """Return all that was printed, once the last line is done."""
        assert self._shell.wait(SECONDS) == 0, self.printed
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, SECONDS)
        return self.printed

    def stop(self) -> None:
        """Press Ctrl+C."""
        self._shell.send_signal(signal.SIGINT)
        self._shell.wait(SECONDS)


@pytest.fixture(params=["cubic", "bbr"])
def machine(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Return a host of its own, so that the pages' ports are free."""
    with Network() as network:
        yield network.host("machine", congestion_control=request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the checkout's folder, with programs that install nothing."""
    (tmp_path / "bin").mkdir()
    for name, check in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{check}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def blocks(page: Path) -> list[str]:
    """Return the blocks of a page in order."""
    return [text for _, text in BLOCK.findall(page.read_text())]


def wait_until_connected(host: Host, client_id: str, terminal: Terminal) -> None:
    """Wait until the broker has taken a client that was started in a terminal."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(NetemError):
            host.run([sys.executable, "-m", "penstock", "why", client_id])
            return
    raise AssertionError(f"{client_id} is not there: {terminal.printed}")


def shape(text: str) -> str:
    """Return text without what differs from run to run: its numbers."""
    return re.sub(r"\d[\d.,]*( ms| s|%)?", "#", text)


def test_the_first_commands_of_the_readme_start_a_broker(machine: Host, folder: Path) -> None:
    """Two commands, and a stock client is served that has the password which was shown."""
    start = blocks(ROOT / "README.md")[0]
    printed = Terminal(machine, start, folder).wait_for("listening on 127.0.0.1:1883")
    user, password = re.findall(r"^(?:User|Password) +(\S+)$", printed, re.MULTILINE)
    login = ["-u", user, "-P", password]
    machine.run(["mosquitto_pub", *login, "-q", "1", "-t", "telemetry/1", "-m", "7"])
    with pytest.raises(NetemError, match="not authorised"):
        machine.run(["mosquitto_pub", "-t", "telemetry/1", "-m", "7"])


def test_the_tutorial_shows_what_it_says(machine: Host, folder: Path) -> None:
    """Six steps: an alarm waits, passes on two lanes, passes a held picture; a queue keeps two."""
    page = blocks(ROOT / "docs" / "tutorial.md")
    install, policy, broker, link, subscriber, site, run_site, waited = page[:8]
    dashboard, run_dashboard, passed, withholding, ask, why = page[8:14]
    queue, publish, backend, run_backend, consume = page[14:]
    files = {"policy.yaml": policy, "site.sh": site, "dashboard.py": dashboard}
    for name, text in (files | {"backend.py": backend}).items():
        (folder / name).write_text(text)

    def open_terminal(lines: str) -> Terminal:
        return Terminal(machine, lines, folder)

    open_terminal(install).wait()
    first = open_terminal(broker)
    first.wait_for("listening on 127.0.0.1:1883")
    open_terminal(link).wait_for("listening on 127.0.0.1:1884")

    third = open_terminal(subscriber)
    wait_until_connected(machine, "one-connection", third)
    open_terminal(run_site).wait()
    third.wait_for(waited)
    third.stop()

    third = open_terminal(run_dashboard)
    wait_until_connected(machine, "two-lanes", third)
    open_terminal(run_site).wait()
    third.wait_for(passed)
    third.stop()

    first.stop()
    (folder / "policy.yaml").write_text(withholding)
    first = open_terminal(broker)
    first.wait_for("listening on 127.0.0.1:1883")
    third = open_terminal(subscriber)
    wait_until_connected(machine, "one-connection", third)
    open_terminal(run_site).wait()
    assert PICTURE not in third.wait_for(f"one connection: {ALARM}")
    assert shape(why) in shape(open_terminal(ask).wait())
    third.stop()

    first.stop()
    (folder / "policy.yaml").write_text(queue)
    open_terminal(broker).wait_for("listening on 127.0.0.1:1883")
    open_terminal(publish).wait()
    assert open_terminal(run_backend).wait() == "received alarms/door open\n"
    assert open_terminal(consume).wait() == "alarms/window open\n"
