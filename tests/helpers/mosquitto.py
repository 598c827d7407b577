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

    def has_started(self) -> bool:
        """Wait until it listens; return False where it has ended, as for a port in use."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS).close()
                return True
            time.sleep(0.01)
        return False

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(SECONDS)


@contextlib.contextmanager
def running_mosquitto(folder: Path, settings: str = "") -> Iterator[Mosquitto]:
    """Start mosquitto on a free port; end it afterwards.

    Args:
        folder: where its file is written.
        settings: further lines of its file.
    """
    for _attempt in range(5):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        broker = Mosquitto(folder, port, settings)
        try:
            if broker.has_started():
                yield broker
                return
        finally:
            broker.stop()
    raise AssertionError("mosquitto does not start")
