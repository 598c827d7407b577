"""A Redis server as a process, for benchmarks of the engine `redis`."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.errors import BenchmarkError
from penstock.netem.runs.broker_process import RunningBroker, find_program, reserved_port

LOOK_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 600.0
"""For a snapshot of some GB that is written or read."""


class Redis(NamedTuple):
    """A server that runs.

    Attributes:
        pid: of its process.
        port: on loopback.
    """

    pid: int
    port: int

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
def running_redis(folder: Path, port: int | None = None) -> Iterator[Redis]:
    """Run a server that writes to the disk when it is told to alone.

    Args:
        folder: of its snapshot.
        port: one that is reserved; None for a free one.

    Raises:
        BenchmarkError: it did not start.
    """
    if port is None:
        with reserved_port() as own, running_redis(folder, own) as running:
            yield running
        return
    command = [find_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--dir", str(folder), "--save", "", "--appendonly", "no"]
    server = RunningBroker("redis-server", command, folder)
    try:
        running = Redis(server.process.pid, port)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while running.ask("PING") != "+PONG":
            if time.monotonic() > give_up_at or server.process.poll() is not None:
                raise BenchmarkError(f"redis-server did not start: {server.log.read_text()}")
            time.sleep(LOOK_SECONDS)
        yield running
    finally:
        server.kill()
