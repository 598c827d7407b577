"""A real mosquitto as a process of a test."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from penstock.netem.runs.broker_process import RunningBroker, mosquitto_command, reserved_port


class Mosquitto:
    """A running mosquitto.

    Attributes:
        port: the TCP port that it listens on, on loopback.
        process: its process, which a test may kill.
    """

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process


@contextlib.contextmanager
def running_mosquitto(
    folder: Path, settings: str = "", port: int | None = None
) -> Iterator[Mosquitto]:
    """Start mosquitto; end it afterwards.

    Args:
        folder: the folder in which a folder for its file and its log is made.
        settings: further lines of its file.
        port: a reserved port; None for a free one.
    """
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(reserved_port()) if port is None else port
        place = folder / f"mosquitto-{own}"
        place.mkdir(exist_ok=True)
        lines = [f"listener {own} 127.0.0.1", "allow_anonymous true", *settings.splitlines()]
        broker = RunningBroker("mosquitto", mosquitto_command(place, lines), place)
        stack.callback(broker.stop)
        broker.wait_until_listening(own)
        yield Mosquitto(own, broker.process)
