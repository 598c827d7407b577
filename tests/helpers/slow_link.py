"""A slow link to a broker, in its own process, and the broker's own counts of its messages."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, BrokerProcess


class Link:
    """A relay in a process of its own.

    Attributes:
        port: the port for clients.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        found = re.search(r":(\d+) for ", self._line())
        assert found
        self.port = int(found[1])

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def switch(self, profile: str) -> None:
        """Make the link another one; open connections stay."""
        assert self._process.stdin is not None
        self._process.stdin.write(profile + "\n")
        self._process.stdin.flush()
        assert self._line().startswith(f"profile {profile}: ")

    def stall(self) -> None:
        """Carry nothing any more; connections stay, and the kernel goes on acknowledging."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Carry again what has piled up."""
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def relay_to(port: int) -> Iterator[Link]:
    """Run a good link to a port of this machine for a block."""
    command = [sys.executable, "-m", "penstock.netem.links.relay", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Link(process)
        finally:
            process.kill()


@contextmanager
def link_to(broker: BrokerProcess) -> Iterator[Link]:
    """Run a good link to a broker for a block."""
    with relay_to(broker.port) as link:
        yield link


class Ledger:
    """A reader of the broker's ledger in $SYS."""

    ROOT = "$SYS/broker/penstock/"
    TEXTS = ("withholding/policy",)

    def __init__(self, client: PahoClient) -> None:
        self._client = client
        self._figures: dict[str, float] = {}
        assert client.connect()
        assert client.subscribe(self.ROOT + "#")

    def wait_until(self, condition: Callable[[Callable[[str], float]], bool]) -> None:
        """Wait until a condition on the figures holds."""
        while not condition(self.of):
            self._take()

    def wait_for_balance(self) -> None:
        """Wait until nothing is under way, and all that matched was delivered."""
        under_way = ("inflight", "withheld", "queued", "queued_bytes")
        self.wait_until(
            lambda of: (
                not any(of(f"ledger/{name}") for name in under_way)
                and 0 < of("ledger/matched") == of("ledger/delivered")
                and 0 < of("withholding/withheld_total") == of("withholding/released_total")
            )
        )

    def of(self, name: str) -> float:
        """Return a figure as it was published last; 0 before."""
        return self._figures.get(name, 0)

    def _take(self) -> None:
        message = self._client.message()
        name = message.topic.removeprefix(self.ROOT)
        if name not in self.TEXTS and not name.startswith("clients/"):  # which somebody asks for
            self._figures[name] = float(message.payload)
