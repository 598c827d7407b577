"""Programs of Penstock as forks of a process that has loaded them, as a start takes long.

Theory of operation. Half of what a program takes in a test is to import its modules. A server, one
for each process of pytest, imports them once. For each program it forks a child with the program's
own arguments, folder, environment and output. The child is a process like any other: it has a PID
of its own, gets signals, and ends as Python ends. The server tells how it has ended. Standard input
is pytest's; standard output and error are one pipe.

What a fork does not show: how long a start takes, what a process has of the memory, and that a
program imports all that it needs. Tests of these start a Python of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]

SERVICES: Final = (
    "amqtt.plugins.authentication",
    "penstock.programs",
    "penstock.broker.__main__",
    "penstock.broker.amqtt_host.host",
    "penstock.broker.durable.persistence",
    "penstock.broker.network.websocket",
    "penstock.edge_proxy.__main__",
    "penstock.plugins.queue.__main__",
    "penstock.plugins.access.control",
    "penstock.plugins.console.api",
    "penstock.plugins.memory.store",
    "penstock.plugins.probing.sampler",
    "penstock.plugins.queue.sink",
    "penstock.plugins.withholding.gate",
    "uvloop",
)
"""What brokers, proxies and queues import at their start, or for a policy that names a plugin."""

EXPERIMENTS: Final = ("penstock.netem.__main__", "penstock.netem.runs.run_command")
"""What ``penstock netem`` imports, plots apart."""

MAX_REQUEST_BYTES: Final = 150_000


class Fork:
    """A program that runs, with the attributes and methods of `subprocess.Popen` that tests use.

    Attributes:
        pid: of its process.
        returncode: exit status, negative after a signal; None while it runs.
        stderr: what it writes to standard error and output.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stderr: IO[str] | None = None
        self._ended = threading.Event()

    def end(self, status: int) -> None:
        """Take note of its end."""
        self.returncode = status
        self._ended.set()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status.

        Raises:
            subprocess.TimeoutExpired: it has not ended after as many seconds.
        """
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """End it by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that forks, as the tests see it."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Start it.

        Args:
            modules: that it imports.
        """
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.forks", str(theirs.fileno()), *modules],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        self._forks: dict[int, Fork] = {}
        self._started: queue.SimpleQueue[Fork] = queue.SimpleQueue()
        self._starting = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self._close)

    def start(self, module: str, arguments: Sequence[str], cwd: Path | None) -> Fork:
        """Start ``python -m MODULE ARGUMENTS`` in a folder; None for the present one."""
        reading, writing = os.pipe()
        request = {
            "module": module,
            "arguments": list(arguments),
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ),
        }
        try:
            with self._starting:
                socket.send_fds(self._channel, [json.dumps(request).encode()], [writing])
                fork = self._started.get()
        finally:
            os.close(writing)
        fork.stderr = os.fdopen(reading, encoding="utf-8", errors="replace")
        return fork

    def _listen(self) -> None:
        while told := self._channel.recv(1_000):
            pid, *status = json.loads(told)
            if status:
                self._forks.pop(pid).end(status[0])
            else:
                self._forks[pid] = fork = Fork(pid)
                self._started.put(fork)

    def _close(self) -> None:
        self._channel.shutdown(socket.SHUT_RDWR)
        self._process.wait()


_server = functools.cache(Server)


def start(module: str, arguments: Sequence[str], cwd: Path | None = None) -> Fork:
    """Start ``python -m MODULE ARGUMENTS`` as a fork.

    Args:
        module: whose ``__main__`` has a function `main`.
        arguments: of the program.
        cwd: its working directory; None for the present one.
    """
    modules = EXPERIMENTS if module.startswith("penstock.netem") else SERVICES
    return _server(modules).start(module, arguments, cwd)


def _serve(channel: socket.socket, modules: Sequence[str]) -> int:
    """Fork a child for each request, until the tests have ended; return an exit status."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1_000)
            _tell_who_has_ended(channel, running)
        if channel.fileno() not in ready:
            continue
        request, files, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 1)
        if not request:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return 0
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            channel.close()
            os.close(woken)
            os.close(wakes)
            return _be(json.loads(request), files[0])
        os.close(files[0])
        running.add(pid)
        channel.send(json.dumps([pid]).encode())


def _tell_who_has_ended(channel: socket.socket, running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        running.discard(pid)
        with contextlib.suppress(BrokenPipeError):  # the tests have ended; the next read tells
            channel.send(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode())


def _be(request: Mapping[str, Any], output: int) -> int:
    """Run a program in this process; return its exit status."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    program = importlib.import_module(f"{request['module']}.__main__")
    sys.argv = [str(program.__file__), *request["arguments"]]
    status: int = program.main(request["arguments"])
    return status


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; pytest alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]))
