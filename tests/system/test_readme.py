"""README.md's lines, as a newcomer copies them: each block in a terminal of its own, in order."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links.network import Host, Network
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.process import ROOT, SECONDS

pytestmark = NEEDS_ROOT

README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PIP = '#!/bin/sh\n[ "$*" = "install .[lanes]" ]\n'
"""In place of pip: what the tests run is installed already."""

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
            lines: of the README.
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


@contextmanager
def machine(congestion_control: str) -> Iterator[Host]:
    """A host of its own, so that the README's ports are free."""
    with Network() as network:
        yield network.host("machine", congestion_control=congestion_control)


def wait_until_connected(host: Host, client_id: str, terminal: Terminal) -> None:
    """Wait until the broker has taken a client that was started in a terminal."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(NetemError):
            host.run([sys.executable, "-m", "penstock", "why", client_id])
            return
    raise AssertionError(f"{client_id} is not there: {terminal.printed}")


def before(printed: str, first: str, then: str) -> bool:
    """Say whether a line came, and no other one before it."""
    return first in printed and then not in printed.partition(first)[0]


def shape(text: str) -> str:
    """Return text without what differs from run to run: its numbers."""
    return re.sub(r"\d[\d.,]*( ms| s|%)?", "#", text)


@pytest.mark.parametrize("congestion_control", ["cubic", "bbr"])
def test_an_alarm_is_there_before_the_picture(congestion_control: str, tmp_path: Path) -> None:
    """On two lanes and on one connection, and `penstock why` says what the README shows."""
    (policy, broker, link, dashboard, subscribers, publishing, why) = [
        text for _, text in BLOCK.findall(README)[:7]
    ]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").write_text(PIP)
    (tmp_path / "bin" / "pip").chmod(0o755)
    (tmp_path / "policy.yaml").write_text(policy)
    (tmp_path / "dashboard.py").write_text(dashboard)
    with machine(congestion_control) as host:
        Terminal(host, broker, tmp_path).wait_for("listening on 127.0.0.1:1883")
        Terminal(host, link, tmp_path).wait_for("listening on 127.0.0.1:1884")
        third = Terminal(host, subscribers, tmp_path)
        for client_id in ("two-lanes", "one-connection"):
            wait_until_connected(host, client_id, third)
        printed = Terminal(host, publishing, tmp_path).wait()
        for name in ("two lanes", "one connection"):
            seen = third.wait_for(f"{name}: {ALARM}")
            assert before(seen, f"{name}: {ALARM}", f"{name}: {PICTURE}"), seen
        third.wait_for(f"two lanes: {PICTURE}")
    assert "large messages: 1 was withheld" in printed
    assert shape(why) in shape(printed)
