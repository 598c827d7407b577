"""The process of a broker: its command, its start, its log and its end.

Benchmarks start their peers in the same way, without an emulated host.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.netem.errors import NetemError, RunError
from penstock.netem.links.network import FOLDER

START_SECONDS: Final = 60.0
"""How long a broker may take to listen."""

STOP_SECONDS: Final = 60.0
"""How long a broker may take to end after SIGTERM."""

LOOK_SECONDS: Final = 0.05
"""The time between two looks at whether a broker listens, each of which takes some 10 ms of
processor time."""

TAIL_BYTES: Final = 2_000
"""The bytes of a log that an error message shows."""

ANONYMOUS: Final = "amqtt.plugins.authentication.AnonymousAuthPlugin"

LISTEN: Final = "0A"
"""The state of a listening socket in /proc/PID/net/tcp."""

ENVIRONMENT: Final = os.environ | {"PYTHONPATH": str(FOLDER)}
"""The environment of our own programs: the packages of this very process, wherever they are."""


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a loopback port that the kernel gives no other program that asks for a free one.

    It is bound and does not listen: a server that sets SO_REUSEADDR may bind it as well.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def find_program(name: str) -> str:
    """Return the path of a program: beside this Python, on PATH or in /usr/sbin.

    Raises:
        NetemError: it is not installed.
    """
    beside = Path(sys.executable).parent / name
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = str(beside) if beside.exists() else shutil.which(name, path=search)
    if found is None:
        raise NetemError(f"{name} is not installed; install it, or leave it out")
    return found


def penstock_command(directory: Path, policy: Mapping[str, Any]) -> list[str]:
    """Write a policy to a directory; return the command that starts Penstock with it."""
    return [sys.executable, "-m", "penstock.broker", "-c", _write_yaml(directory, policy)]


def queue_command(directory: Path, policy: Mapping[str, Any]) -> list[str]:
    """Write a policy to a directory; return the command that starts the queue's gateway with it."""
    file = _write_yaml(directory, policy)
    return [sys.executable, "-m", "penstock.plugins.queue", "-c", file]


def proxy_command(directory: Path, config: Mapping[str, Any], *options: str) -> list[str]:
    """Write the edge proxy's file into a directory; return the command that starts it."""
    file = _write_yaml(directory, config)
    return [sys.executable, "-m", "penstock", "proxy", *options, "-c", file]


def amqtt_command(directory: Path, policy: Mapping[str, Any]) -> list[str]:
    """Write a configuration into a directory; return the command that starts aMQTT with it.

    Raises:
        NetemError: it is not installed.
    """
    return [find_program("amqtt"), "-c", _write_yaml(directory, policy)]


def mosquitto_command(directory: Path, lines: Sequence[str]) -> list[str]:
    """Write a configuration into a directory; return the command that starts mosquitto with it.

    Raises:
        NetemError: it is not installed.
    """
    file = directory / "mosquitto.conf"
    file.write_text("\n".join(lines) + "\n")
    return [find_program("mosquitto"), "-c", str(file)]


def _write_yaml(directory: Path, policy: Mapping[str, Any]) -> str:
    file = directory / "broker.yaml"
    file.write_text(yaml.safe_dump(dict(policy)))
    return str(file)


def version_of(kind: str) -> str:
    """Return the version of ``penstock``, ``amqtt``, ``mosquitto`` or ``haproxy``.

    Raises:
        NetemError: it is not installed.
    """
    if kind not in _ASKED:
        return importlib.metadata.version("penstock-mqtt" if kind == "penstock" else kind)
    option, beginning = _ASKED[kind]
    shown = subprocess.run(  # noqa: S603 - it prints its version
        [find_program(kind), option], capture_output=True, text=True, check=False
    )
    return shown.stdout.partition("\n")[0].removeprefix(beginning).split()[0]


_ASKED: Final = {"mosquitto": ("-h", "mosquitto version "), "haproxy": ("-v", "HAProxy version ")}
"""The option by which each program prints its version, and the words before the version."""


class RunningBroker:
    """A broker that was started."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        """Start the broker, which may not listen yet."""
        self._name = name
        self._command = command
        # Mosquitto gives up its rights, and must be able to read its configuration.
        directory.chmod(0o755)
        self.log = directory / "broker.log"
        with self.log.open("ab") as log:
            self.process = popen(
                command,
                cwd=directory,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_until_listening(self, port: int, seconds: float | None = None) -> None:
        """Wait until it listens on a port, at any address.

        Raises:
            RunError: it has ended, or does not listen in time.
        """
        allowed = START_SECONDS if seconds is None else seconds
        deadline = time.monotonic() + allowed
        while True:
            self.check()
            if listens(self.process.pid, port):
                return
            if time.monotonic() > deadline:
                raise self._failure(f"does not listen on port {port} after {allowed:g} s")
            time.sleep(LOOK_SECONDS)

    def check(self) -> None:
        """Check that it runs.

        Raises:
            RunError: it has ended; the text holds its command and the end of its log.
        """
        status = self.process.poll()
        if status is not None:
            raise self._failure(f"has ended with status {status}")

    def stop(self, seconds: float = STOP_SECONDS) -> float:
        """End it with SIGTERM; return the seconds that this took.

        Raises:
            RunError: it did not end in time, and was killed.
        """
        started = time.monotonic()
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise self._failure(f"has not ended {seconds:g} s after SIGTERM") from error
        return time.monotonic() - started

    def kill(self) -> None:
        """End it with SIGKILL, as the kernel does when memory is short; may be repeated."""
        self.process.kill()
        self.process.wait()

    def _failure(self, what: str) -> RunError:
        command = " ".join(self._command)
        return RunError(f"broker {self._name} {what}: {command}\n{log_tail(self.log)}")


def log_tail(log: Path) -> str:
    """Return the end of a log, for an error; a note if the log is empty."""
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        text = ""
    if text:
        return text
    is_full = shutil.disk_usage(log.parent).free < TAIL_BYTES
    return f"(its log is empty{', as no space is left on its disk' if is_full else ''})"


def listens(pid: int, port: int) -> bool:
    """Return whether any process listens on a port in the network namespace of a process.

    The kernel walks through the sockets of all namespaces for it, which takes milliseconds.
    """
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
