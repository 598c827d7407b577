"""The brokers that are measured: how each is configured, started and ended.

All are untuned except that queue limits are lifted, all listen on loopback on a free port,
and each is started anew for each measurement, so that none carries memory or state from one
to the next.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from benchmarks.errors import BenchmarkError

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLE_POLICY: Final = ROOT / "policy.example.yaml"
START_TIMEOUT_SECONDS: Final = 30.0
STOP_TIMEOUT_SECONDS: Final = 10.0
LOG_TAIL_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker that can be measured.

    Attributes:
        name: as in ``--peers`` and in the results.
        about: its configuration in a few words.
        prepare: writes the configuration into a directory for a port; returns the command.
        version: what the results name.
        is_ceiling: whether it is no broker but the load's own limit.
    """

    name: str
    about: str
    prepare: Callable[[Path, int], list[str]]
    version: Callable[[], str]
    is_ceiling: bool = False


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A started broker.

    Attributes:
        name: of its `Peer`.
        port: where it listens on loopback.
        process: its root process.
    """

    name: str
    port: int
    process: psutil.Process

    def rss_bytes(self) -> int:
        """Return the resident set of the broker and the processes it started."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(process.memory_info().rss for process in family)

    def cpu_seconds(self) -> float:
        """Return the processor time it has used, in user and kernel mode."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def find_program(name: str) -> str:
    """Return the path of a program beside this Python, on PATH or in /usr/sbin.

    Raises:
        BenchmarkError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = str(beside) if beside.exists() else shutil.which(name, path=search)
    if found is None:
        raise BenchmarkError(f"{name} is not installed; install it or leave it out with --peers")
    return found


def _write_yaml(directory: Path, policy: dict[str, Any]) -> str:
    file = directory / "broker.yaml"
    file.write_text(yaml.safe_dump(policy))
    return str(file)


def _listeners(port: int) -> dict[str, Any]:
    return {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}


def stock_amqtt_policy(port: int) -> dict[str, Any]:
    """Return the policy that aMQTT ships, on another port."""
    distribution = importlib.metadata.distribution("amqtt")
    file = Path(str(distribution.locate_file("amqtt/scripts/default_broker.yaml")))
    policy: dict[str, Any] = yaml.safe_load(file.read_text())
    return policy | {"listeners": _listeners(port)}


def without_queue_limits(policy: dict[str, Any]) -> dict[str, Any]:
    """Return a policy for Penstock under which no session's queue is ever full."""
    limits = (policy.get("limits") or {}) | {"queued_messages": 1 << 30, "queued_bytes": 1 << 40}
    return policy | {"limits": limits}


def example_policy(port: int) -> dict[str, Any]:
    """Return the repository's example policy, its plugins included, on free ports."""
    policy: dict[str, Any] = yaml.safe_load(EXAMPLE_POLICY.read_text())
    policy["plugins"]["queue"]["http"] = f"127.0.0.1:{free_port()}"
    return policy | {"listeners": _listeners(port)}


def _penstock(directory: Path, port: int) -> list[str]:
    policy = without_queue_limits(example_policy(port))
    return [sys.executable, "-m", "broker", "-c", _write_yaml(directory, policy)]


def _penstock_stock(directory: Path, port: int) -> list[str]:
    policy = without_queue_limits(stock_amqtt_policy(port))
    return [sys.executable, "-m", "broker", "-c", _write_yaml(directory, policy)]


def _mosquitto(directory: Path, port: int) -> list[str]:
    file = directory / "mosquitto.conf"
    file.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\n"
        "max_queued_messages 0\nmax_queued_bytes 0\n"
    )
    return [find_program("mosquitto"), "-c", str(file)]


def _amqtt(directory: Path, port: int) -> list[str]:
    return [find_program("amqtt"), "-c", _write_yaml(directory, stock_amqtt_policy(port))]


def _relay(_directory: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.relay", str(port)]


def _mosquitto_version() -> str:
    shown = subprocess.run(
        [find_program("mosquitto"), "-h"], capture_output=True, text=True, check=False
    )
    return shown.stdout.split("\n", 1)[0].removeprefix("mosquitto version ")


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer(
            "penstock",
            "the example policy",
            _penstock,
            lambda: importlib.metadata.version("penstock"),
        ),
        Peer(
            "penstock-stock",
            "Penstock with the policy that aMQTT ships",
            _penstock_stock,
            lambda: importlib.metadata.version("penstock"),
        ),
        Peer("mosquitto", "no limit of queued messages", _mosquitto, _mosquitto_version),
        Peer("amqtt", "the policy it ships", _amqtt, lambda: importlib.metadata.version("amqtt")),
        Peer(
            "ceiling",
            "no broker: bytes copied unread, the load's own limit",
            _relay,
            lambda: "-",
            is_ceiling=True,
        ),
    )
}
"""By name, in the order in which one repetition visits them."""


def _log_tail(log: Path) -> str:
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()


def _wait_until_listening(
    process: subprocess.Popen[bytes], port: int, name: str, log: Path
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchmarkError(
                f"{name} ended with status {process.returncode} at its start:\n{_log_tail(log)}"
            )
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise BenchmarkError(f"{name} does not listen on port {port}:\n{_log_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running(peer: Peer) -> Iterator[RunningPeer]:
    """Start a broker in an empty directory of its own and end it afterwards.

    Raises:
        BenchmarkError: it is not installed or does not start; the text holds its last words.
    """
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        command = peer.prepare(directory, port)
        log = directory / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            _wait_until_listening(process, port, peer.name, log)
            yield RunningPeer(peer.name, port, psutil.Process(process.pid))
        finally:
            _end(process)
