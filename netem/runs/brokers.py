"""The brokers that are compared: how each is configured, started, and asked for its version.

All listen on port 1883 of every address of their host, let everybody in, and hold any number of
messages for a subscriber; otherwise they are as they come.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.netem.clients.connection import PORT
from penstock.netem.errors import NetemError, RunError
from penstock.netem.links.network import FOLDER, Host
from penstock.netem.runs.scenario import Broker

CONSOLE: Final = "127.0.0.1:8081"
"""Where Penstock's plugin `console` listens unless a scenario says otherwise."""

START_SECONDS: Final = 30.0
"""In which a broker has to listen."""

LOOK_SECONDS: Final = 0.02

TAIL_BYTES: Final = 2_000
"""Of a log that a failure shows."""

ANONYMOUS: Final = "amqtt.plugins.authentication.AnonymousAuthPlugin"

LISTEN: Final = "0A"
"""State of a listening socket in /proc/PID/net/tcp."""

ENVIRONMENT: Final = os.environ | {"PYTHONPATH": str(FOLDER)}
"""Of our own programs: the packages of this very process, wherever they are."""


def penstock_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy for Penstock.

    Args:
        settings: of the scenario, laid over the runner's own key by key.
    """
    policy: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": f"0.0.0.0:{PORT}"}},
        "limits": {"queued_messages": 1 << 30, "queued_bytes": 1 << 40},
        "plugins": {
            ANONYMOUS: {"allow_anonymous": True},
            "probing": {},
            "withholding": {},
            "console": {"http": CONSOLE},
        },
    }
    return laid_over(policy, settings)


def amqtt_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration for aMQTT, likewise."""
    policy: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": f"0.0.0.0:{PORT}"}},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}},
    }
    return laid_over(policy, settings)


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with another laid over it: mappings key by key, all else in its place."""
    laid = dict(below)
    for key, value in above.items():
        under = laid.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            laid[key] = laid_over(under, value)
        else:
            laid[key] = value
    return laid


def console_address(broker: Broker) -> str | None:
    """Return where the broker can be asked what it withholds; None where it cannot."""
    if broker.kind != "penstock":
        return None
    plugins = penstock_policy(broker.settings)["plugins"]
    http = None
    # A list, as aMQTT has it, holds names, and mappings of a name to its keys.
    for each in plugins if isinstance(plugins, list) else [plugins]:
        console = each.get("console") if isinstance(each, Mapping) else None
        http = console.get("http") if isinstance(console, Mapping) else http
    return http if isinstance(http, str) else None


def find_program(name: str) -> str:
    """Return the path of a program: beside this Python, on PATH or in /usr/sbin.

    Raises:
        NetemError: it is not installed.
    """
    beside = Path(sys.executable).parent / name
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = str(beside) if beside.exists() else shutil.which(name, path=search)
    if found is None:
        raise NetemError(f"{name} is not installed; install it, or leave it out with --brokers")
    return found


def _write_yaml(directory: Path, policy: Mapping[str, Any]) -> str:
    file = directory / "broker.yaml"
    file.write_text(yaml.safe_dump(policy))
    return str(file)


def _penstock(broker: Broker, directory: Path) -> list[str]:
    file = _write_yaml(directory, penstock_policy(broker.settings))
    return [sys.executable, "-m", "penstock.broker", "-c", file]


def _amqtt(broker: Broker, directory: Path) -> list[str]:
    return [find_program("amqtt"), "-c", _write_yaml(directory, amqtt_policy(broker.settings))]


def _mosquitto(broker: Broker, directory: Path) -> list[str]:
    lines = [
        f"listener {PORT} 0.0.0.0",
        "allow_anonymous true",
        "max_queued_messages 0",
        "max_queued_bytes 0",
        *broker.lines,
    ]
    file = directory / "mosquitto.conf"
    file.write_text("\n".join(lines) + "\n")
    return [find_program("mosquitto"), "-c", str(file)]


def _command(broker: Broker, directory: Path) -> list[str]:
    program, *arguments = (word.replace("{directory}", str(directory)) for word in broker.command)
    return [program if "/" in program else find_program(program), *arguments]


_PREPARE: Final[dict[str, Callable[[Broker, Path], list[str]]]] = {
    "penstock": _penstock,
    "mosquitto": _mosquitto,
    "amqtt": _amqtt,
    "command": _command,
}


def prepare(broker: Broker, directory: Path) -> list[str]:
    """Write a broker's configuration into an empty directory.

    Returns:
        The command that starts it.

    Raises:
        NetemError: its program is not installed.
    """
    return _PREPARE[broker.kind](broker, directory)


def version(broker: Broker) -> str:
    """Return a broker's program and version.

    Raises:
        NetemError: its program is not installed.
    """
    if broker.kind in ("penstock", "amqtt"):
        return f"{broker.kind} {importlib.metadata.version(broker.kind)}"
    if broker.kind == "mosquitto":
        program = find_program("mosquitto")
        shown = subprocess.run(  # noqa: S603 - it says what it is
            [program, "-h"], capture_output=True, text=True, check=False
        )
        return shown.stdout.partition("\n")[0].replace(" version", "")
    return " ".join(broker.command)


class RunningBroker:
    """A broker on a host.

    Attributes:
        process: its own, which may start others.
    """

    def __init__(self, name: str, broker: Broker, host: Host, directory: Path) -> None:
        """Start it; it may not serve yet.

        Args:
            name: in the scenario.
            broker: what it is.
            host: where.
            directory: an empty one, for its configuration, its log and whatever it writes.

        Raises:
            NetemError: its program is not installed.
        """
        self._name = name
        # Mosquitto leaves its rights, and is to read its configuration.
        directory.chmod(0o755)
        self._command = prepare(broker, directory)
        self._log = directory / "broker.log"
        with self._log.open("wb") as log:
            self.process = host.popen(
                self._command,
                cwd=directory,
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
            )

    def wait_until_listening(self) -> None:
        """Come back when it accepts connections.

        Raises:
            RunError: it has ended, or does not listen in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            self.check()
            if listens(self.process.pid, PORT):
                return
            if time.monotonic() > deadline:
                raise self._failure(f"does not listen on port {PORT} after {START_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    def check(self) -> None:
        """See that it runs.

        Raises:
            RunError: it has ended; the text holds its command and the end of its log.
        """
        status = self.process.poll()
        if status is not None:
            raise self._failure(f"has ended with status {status}")

    def _failure(self, what: str) -> RunError:
        command = " ".join(self._command)
        return RunError(f"broker {self._name} {what}: {command}\n{log_tail(self._log)}")


def log_tail(log: Path) -> str:
    """Return the end of a log, for a failure; a note where it is empty."""
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        text = ""
    if text:
        return text
    is_full = shutil.disk_usage(log.parent).free < TAIL_BYTES
    return f"(its log is empty{', as no space is left on its disk' if is_full else ''})"


def listens(pid: int, port: int) -> bool:
    """Say whether somebody listens on a port of the network in which a process is."""
    ending = f":{port:04X}"
    for family in ("tcp", "tcp6"):
        try:
            table = Path(f"/proc/{pid}/net/{family}").read_text()
        except OSError:
            continue
        # Number, local address, remote address, state: proc(5).
        for fields in map(str.split, table.splitlines()[1:]):
            if fields[1].endswith(ending) and fields[3] == LISTEN:
                return True
    return False
