"""A Redis server as a process, for benchmarks of the engine `redis`."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.errors import BenchmarkError
from penstock.netem.runs.broker_process import RunningBroker, find_program, reserved_port

LOOK_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 600.0
"""The time that a server has to write or read a snapshot of some GB."""


class RedisServer:
    """A server that is started, and may be killed and started again."""

    def __init__(self, folder: Path, port: int, *settings: str) -> None:
        self.port = port
        self._folder = folder
        self._command = [find_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
        self._command += ["--dir", str(folder), "--save", "", *settings]
        self._running: RunningBroker | None = None

    def start(self) -> None:
        """Start it, and wait until it has read its files.

        Raises:
            BenchmarkError: it did not start.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._running = RunningBroker("redis-server", self._command, self._folder)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while self.ask("PING") != "+PONG":
            if time.monotonic() > give_up_at or self._running.process.poll() is not None:
                raise BenchmarkError(f"redis-server: {self._running.log.read_text()}")
            time.sleep(LOOK_SECONDS)

    def kill(self) -> None:
        """End it as the kernel does when memory is short; may be repeated."""
        if self._running is not None:
            self._running.kill()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The identifier of its process."""
        return 0 if self._running is None else self._running.process.pid

    def ask(self, command: str) -> str:
        """Return the first line of the answer to a command; "" where it does not listen."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as connection:
                connection.sendall(f"{command}\r\n".encode())
                return connection.makefile(encoding="utf-8").readline().strip()
        except OSError:
            return ""

    def save(self) -> None:
        """Write a snapshot into the server's folder, which a server that starts there reads.

        Raises:
            BenchmarkError: it could not.
        """
        told = self.ask("SAVE")
        if told != "+OK":
            raise BenchmarkError(f"redis-server: SAVE: {told}")


@contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """Run a server that writes to the disk only when it is told to.

    Raises:
        BenchmarkError: it did not start.
    """
    with reserved_port() as port:
        server = RedisServer(folder, port)
        try:
            server.start()
            yield server
        finally:
            server.kill()
