"""The broker to which a fault is done: it is configured, started, killed and started again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.errors import BenchmarkError
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    ENVIRONMENT,
    RunningBroker,
    find_program,
    mosquitto_command,
    penstock_command,
    reserved_port,
)
from penstock.netem.runs.brokers import laid_over


class Subject:
    """A broker on a loopback port that stays the same over its restarts.

    Attributes:
        name: ``penstock`` or ``mosquitto``.
        port: the TCP port that it listens on.
        folder: the folder that it runs in; its files stay there until the block ends.
        broker: the process that was started last; None before the first start.
    """

    def __init__(self, name: str, port: int, folder: Path) -> None:
        self.name = name
        self.port = port
        self.folder = folder
        self.broker: RunningBroker | None = None
        self._command: list[str] = []

    @property
    def is_ours(self) -> bool:
        """Whether it is Penstock."""
        return self.name == "penstock"

    def configure(
        self,
        policy: Mapping[str, Any] | None = None,
        lines: Sequence[str] = (),
        *,
        open_files: int | None = None,
        file_bytes: int | None = None,
        site: Path | None = None,
    ) -> None:
        """Write the configuration that the next start reads; it accepts every client.

        Args:
            policy: the policy of Penstock, beside a listener and anonymous access; a value of None
                under ``plugins`` removes a plugin.
            lines: the lines of mosquitto.conf, likewise.
            open_files: the limit of open files of the process; None for the system's.
            file_bytes: the greatest length of a file of the process, as on a full disk; None for no
                limit.
            site: the folder of a ``sitecustomize.py`` that Penstock runs first; None for none.
        """
        limits = []
        if open_files is not None:
            limits.append(f"--nofile={open_files}")
        if file_bytes is not None:
            limits.append(f"--fsize={file_bytes}")
        wrapper = [find_program("prlimit"), *limits] if limits else []
        if site is not None:
            path = f"{site}:{ENVIRONMENT['PYTHONPATH']}"
            wrapper = [find_program("env"), f"PYTHONPATH={path}", *wrapper]
        if self.is_ours:
            whole = laid_over(
                {
                    "listeners": {"default": {"bind": f"127.0.0.1:{self.port}"}},
                    "plugins": {ANONYMOUS: {"allow_anonymous": True}},
                },
                policy or {},
            )
            plugins = whole["plugins"]
            whole["plugins"] = {key: value for key, value in plugins.items() if value is not None}
            self._command = [*wrapper, *penstock_command(self.folder, whole)]
            return
        text = [f"listener {self.port} 127.0.0.1", *lines]
        if not any(line.startswith("password_file") for line in lines):
            text.append("allow_anonymous true")
        text.append("user root")  # it may write into this folder
        self._command = [*wrapper, *mosquitto_command(self.folder, text)]

    @property
    def log(self) -> str:
        """What it has written so far, over all its starts."""
        file = self.folder / "broker.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self, *ports: int) -> None:
        """Start it and wait until it takes connections.

        Args:
            ports: further ports that it listens on.

        Raises:
            RunError: it has ended, or takes none.
        """
        self.launch()
        for port in (self.port, *ports):
            self._broker().wait_until_listening(port)

    def launch(self) -> None:
        """Start it without waiting for anything."""
        self.broker = RunningBroker(self.name, self._command, self.folder)

    def _broker(self) -> RunningBroker:
        if self.broker is None:
            raise BenchmarkError(f"{self.name} was not started")
        return self.broker

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The process.

        Raises:
            BenchmarkError: it was not started.
        """
        return self._broker().process

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        self._broker().kill()

    def stop(self) -> float:
        """End it as an operator does; return the seconds that it took.

        Raises:
            RunError: it does not end; it was killed then.
        """
        return self._broker().stop()

    def reload(self) -> None:
        """Let it read its files again, as an operator does."""
        self.running.send_signal(signal.SIGHUP)

    def n_connections(self) -> int:
        """Return how many connections of clients it holds, half-closed ones among them."""
        found = psutil.Process(self.running.pid).net_connections("tcp")
        return sum(each.laddr.port == self.port and bool(each.raddr) for each in found)

    def wait_for_connections(self, most: int, seconds: float) -> int:
        """Wait until it holds no more than so many; return how many it holds then.

        Args:
            most: connections.
            seconds: the longest wait, seconds.
        """
        deadline = time.monotonic() + seconds
        while (n_connections := self.n_connections()) > most and time.monotonic() < deadline:
            time.sleep(0.1)
        return n_connections

    def rss_bytes(self) -> int:
        """Return its resident set."""
        return int(psutil.Process(self.running.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        """Return the processor time it has used since its start."""
        times = psutil.Process(self.running.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def subject(name: str) -> Iterator[Subject]:
    """Yield a broker that does not run yet; whatever runs of it in the end is killed."""
    with TemporaryDirectory(prefix="penstock-faults-") as folder, reserved_port() as port:
        made = Subject(name, port, Path(folder))
        try:
            yield made
        finally:
            if made.broker is not None:
                made.kill()
