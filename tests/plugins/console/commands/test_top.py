"""``penstock top`` on a real broker, once and in a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.plugins.console.commands import top as running_top
from tests.helpers.commands import PENSTOCK
from tests.helpers.paho_client import PahoClient
from tests.plugins.console.commands.conftest import Operated

if TYPE_CHECKING:
    from penstock.plugins.console.commands.asking import Console


def test_rates_and_clients_are_printed_once(operated: Operated) -> None:
    """As text and as JSON; the rate is that between two answers."""
    with PahoClient(operated.broker.port, "topped\x1b") as client:
        assert client.connect()
        assert client.subscribe("topped", 1)
        client.publish("topped", b"x")
        client.message()
        done = operated.run("top", "--once", "--sort", "held")
        assert done.status == 0, done.err
        head, *_ = done.out.splitlines()
        assert re.match(r"penstock \S+, broker \S+, up .*: 1 connected, 1 sessions", head)
        (row,) = [row for row in done.rows if row and row[0] == "topped\\x1b"]
        assert row[-1] == "127.0.0.1"
        found = operated.run("top", "--json").json
        (one,) = found["clients"]
        assert one["delivered_per_second"] is not None
        assert found["overview"]["clients"]["connected"] == 1


class Slow:
    """A console whose overview has no rates yet when those of clients are known."""

    def __init__(self) -> None:
        self.n_asked = 0

    def get(self, path: str) -> dict[str, Any]:
        """Return the overview, with rates from the third time on; or who asks."""
        if path != "overview":
            return {}
        self.n_asked += 1
        return {"rates": {"received_messages": 1.5 if self.n_asked > 2 else None}}

    def rows(self, _path: str, _limit: int, **_order: str) -> dict[str, Any]:
        """Return a client."""
        return {"clients": [{"delivered_per_second": 0.0}], "total": 1}


def test_rates_of_all_are_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers of a cluster are asked in turn, and the overview has its second reading later."""
    monkeypatch.setattr(running_top, "ONCE_SECONDS", 0.0)
    console = Slow()
    seen = running_top._read_rates(cast("Console", console), "rtt", 1)
    assert seen.overview["rates"]["received_messages"] == 1.5
    assert console.n_asked == 3


@pytest.mark.parametrize("end", ["q", "interrupt"])
def test_it_is_drawn_until_a_key_ends_it(end: str, operated: Operated) -> None:
    """A digit gives another order; the terminal is left as it was."""
    token = str(operated.folder / "viewer.token")
    where = ["--url", operated.broker.console_url, "--token-file", token]
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    before = termios.tcgetattr(its)
    with PahoClient(operated.broker.port, "drawn") as client:
        assert client.connect()
        process = subprocess.Popen(
            [PENSTOCK, "top", "--interval", "0.5", *where],
            stdin=its,
            stdout=its,
            stderr=its,
            env=os.environ | {"TERM": "xterm"},
        )
        try:
            seen = ""
            while "order (rtt)" not in seen or "drawn" not in seen:
                seen += os.read(ours, 65_536).decode(errors="replace")
            os.write(ours, b"3")
            while "order (waiting)" not in seen:
                seen += os.read(ours, 65_536).decode(errors="replace")
            if end == "q":
                os.write(ours, b"q")
            else:
                process.send_signal(signal.SIGINT)
            # What it writes at its end has to be read, or it waits.
            while "\x1b[?1049l" not in seen:
                seen += os.read(ours, 65_536).decode(errors="replace")
            assert process.wait() == 0
            assert termios.tcgetattr(its) == before
            assert "Traceback" not in seen
        finally:
            process.kill()
            process.wait()
            os.close(ours)
            os.close(its)
