"""A real mosquitto as a process of a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import reserved_port

SECONDS = 30
"""The longest wait for something that must happen."""


class Mosquitto:
    """A running mosquitto.

    Attributes:
        port: where it listens on loopback.
        process: to be killed by a test that wants it gone.
    """

    def __init__(self, folder: Path, port: int, settings: str) -> None:
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
        program = shutil.which("mosquitto", path=path)
        assert program is not None, "mosquitto is not installed"
        file = folder / f"mosquitto-{port}.conf"
        file.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n{settings}")
        self.port = port
        self.process = subprocess.Popen(
            [program, "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait_until_listening(self) -> None:
        """Come back once it accepts connections.

        Raises:
            AssertionError: it has ended, or takes too long.
        """
        end = time.monotonic() + SECONDS
        while True:
            assert self.process.poll() is None, "mosquitto has ended"
            assert time.monotonic() < end, "mosquitto does not listen"
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS).close()
                return
            time.sleep(0.01)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(SECONDS)


@contextlib.contextmanager
def running_mosquitto(
    folder: Path, settings: str = "", port: int | None = None
) -> Iterator[Mosquitto]:
    """Start mosquitto; end it afterwards.

    Args:
        folder: where its file is written.
        settings: further lines of its file.
        port: one that is reserved; None for a free one.
    """
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(reserved_port()) if port is None else port
        broker = Mosquitto(folder, own, settings)
        try:
            broker.wait_until_listening()
            yield broker
        finally:
            broker.stop()
