"""Programs of Penstock as forks of a process that has loaded them, as a start takes long.

Theory of operation. Half of what a program takes in a test is to import its modules. A server, one
for each process of pytest, imports them once. For each program it forks a child with the program's
own arguments, folder, environment and standard streams. The child is a process like any other: it
has a PID of its own, and gets signals. The server tells how it has ended.

A program that starts others must be their parent, as it measures its own load by its children. So a
fork forks itself for them.

A fork does not show how long a start takes, the memory of a process, and that a program imports all
modules that it needs. Tests of these start a Python of their own.
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
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn

from penstock.broker.extensions import ENTRY_POINT_GROUP
from penstock.netem.links.namespaces import enter

ROOT: Final = Path(__file__).resolve().parents[2]

SERVICES: Final = (
    "amqtt.plugins.authentication",
    "benchmarks.loads.publisher",
    "tests.campaigns.queue_consumer",
    "benchmarks.loads.queue_drain",
    "benchmarks.loads.relay",
    "benchmarks.loads.subscribers",
    "penstock.programs",
    "penstock.broker.__main__",
    "penstock.broker.amqtt_host.host",
    "penstock.broker.durable.persistence",
    "penstock.broker.network.websocket",
    "penstock.edge_proxy.__main__",
    "penstock.edge_proxy.uplink.plugin",
    "penstock.edge_proxy.parts.plugin",
    "penstock.plugins.queue.__main__",
    "penstock.plugins.access.control",
    "penstock.plugins.console.api",
    "penstock.plugins.memory.store",
    "penstock.plugins.probing.sampler",
    "penstock.plugins.queue.plugin",
    "penstock.plugins.withholding.gate",
    "uvloop",
)
"""The modules that brokers, proxies and queues import at their start, or for a policy that names
a plugin, and those of the benchmarks' loads."""

EXPERIMENTS: Final = (
    *SERVICES,
    "penstock.netem.__main__",
    "penstock.netem.clients.client",
    "penstock.netem.links.forwarder",
    "penstock.netem.runs.run_command",
    "penstock.netem.runs.withheld_watch",
    "pyarrow.dataset",
)
"""The modules that ``penstock netem`` and its programs import, except for plots."""

FORKED: Final = (
    "benchmarks",
    "broker",
    "penstock.broker",
    "penstock.edge_proxy",
    "penstock.netem",
    "penstock.plugins.access",
    "penstock.plugins.queue",
    "script.demo_program",
)
"""The packages whose programs may be forks; ``penstock`` itself is one too. The demo starts
``broker``, by the name of its folder."""

MAX_REQUEST_BYTES: Final = 150_000

_entry_points: Final = functools.cache(metadata.entry_points)
"""The installed entry points, cached: they stay the same while tests run, and each start would
read all of them."""

_is_fork = False
"""Whether this process is a program's fork."""


class _Fork:
    """A child of the server.

    Attributes:
        pid: the process id of the process.
        status: the exit status, negative after a signal; None while it runs.
        has_ended: an event that is set with the status.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.has_ended = threading.Event()

    def end(self, status: int) -> None:
        """Take note of its end."""
        self.status = status
        self.has_ended.set()


class Server:
    """The process that forks, as the tests see it."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Start it.

        Args:
            modules: the modules that it imports.
        """
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _POPEN(
                [sys.executable, "-m", "tests.helpers.forks", str(theirs.fileno()), *modules],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        self._forks: dict[int, _Fork] = {}
        self._started: queue.SimpleQueue[_Fork] = queue.SimpleQueue()
        self._starting = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self._close)

    def start(self, request: Mapping[str, Any], files: Sequence[int]) -> _Fork:
        """Fork a program; see `_request`.

        Args:
            request: the request.
            files: descriptors of its standard input, output and error.
        """
        with self._starting:
            socket.send_fds(self._channel, [json.dumps(request).encode()], files)
            return self._started.get()

    def _listen(self) -> None:
        while told := self._channel.recv(1_000):
            pid, *status = json.loads(told)
            if status:
                self._forks.pop(pid).end(status[0])
            else:
                self._forks[pid] = fork = _Fork(pid)
                self._started.put(fork)

    def _close(self) -> None:
        self._channel.shutdown(socket.SHUT_RDWR)
        self._process.wait()


_server = functools.cache(Server)

_POPEN: Final = subprocess.Popen


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` that starts a program of Penstock, or of a benchmark, as a fork.

    A command is forked if it is ``PYTHON -m MODULE ARGUMENTS``, with or without ``ip netns exec
    NAMESPACE`` before it. Any other is started as usual.
    """

    _fork: _Fork | None = None

    def _execute_child(self, *given: Any) -> None:
        arguments, _, preexec_fn, _, pass_fds, cwd, environment = given[:7]
        pipes = given[10:16]  # three pairs: the end to read, and the end to write
        request = _request(arguments, cwd, environment, leads_session=given[21])
        if request is None or preexec_fn is not None or pass_fds:
            super()._execute_child(*given)  # type: ignore[misc] # typeshed has it not
            return
        theirs = (pipes[0], pipes[3], pipes[5])
        files = [standard if file < 0 else file for standard, file in enumerate(theirs)]
        if _is_fork:
            self.pid = _fork_here(request, files)
        else:
            words = ".".join([request["module"], *request["arguments"]])
            is_netem = request["namespace"] or words.startswith("penstock.netem")
            self._fork = _server(EXPERIMENTS if is_netem else SERVICES).start(request, files)
            self.pid = self._fork.pid
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined] # typeshed has it not

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._fork is None:
            status: int | None = super()._internal_poll(*given, **named)  # type: ignore[misc] # as above
            return status
        if self.returncode is None and self._fork.status is not None:
            self.returncode = self._fork.status
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._fork is None:
            status: int = super()._wait(timeout)  # type: ignore[misc] # as above
            return status
        if not self._fork.has_ended.wait(timeout) or self._fork.status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.returncode = self._fork.status
        return self.returncode


def prepare() -> None:
    """Start the server for programs in namespaces; it stays in that of this thread."""
    _server(EXPERIMENTS)


@contextlib.contextmanager
def forked_programs() -> Iterator[None]:
    """Let all programs that a block starts be forks, where they can be."""
    subprocess.Popen = Popen  # type: ignore[misc] # it is one
    try:
        yield
    finally:
        subprocess.Popen = _POPEN  # type: ignore[misc] # as before


def _request(
    command: object,
    cwd: Path | str | None,
    environment: Mapping[str, str] | None,
    *,
    leads_session: bool,
) -> dict[str, Any] | None:
    """Return what is to be forked, as JSON has it; None where a command is none of ours."""
    if not isinstance(command, list | tuple):
        return None
    words = [os.fspath(word) for word in command]
    namespace = None
    if words[:3] == ["ip", "netns", "exec"]:
        namespace, words = words[3], words[4:]
    if words[:2] != [sys.executable, "-m"]:
        return None
    module = words[2]
    if module != "penstock" and not f"{module}.".startswith(tuple(f"{name}." for name in FORKED)):
        return None
    return {
        "module": module,
        "arguments": words[3:],
        "namespace": namespace,
        "processors": list(os.sched_getaffinity(0)),
        "cwd": os.fspath(cwd or Path.cwd()),
        "environment": dict(os.environ if environment is None else environment),
        "leads_session": leads_session,
    }


def _serve(channel: socket.socket, modules: Sequence[str]) -> None:
    """Fork a child for each request, until the tests have ended."""
    metadata.entry_points = _entry_points  # type: ignore[assignment]
    for name in modules:
        importlib.import_module(name)
    _entry_points(group=ENTRY_POINT_GROUP)
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
        request, files, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 3)
        if not request:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return
        pid = os.fork()
        if not pid:
            _be(json.loads(request), files)
        for file in files:
            os.close(file)
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


def _fork_here(request: Mapping[str, Any], files: Sequence[int]) -> int:
    """Fork a program from this one; return the child's PID."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        _be(request, [os.dup(file) for file in files])
    return pid


def _be(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Run a program in this process and end it.

    Nothing of the parent may end here: neither its blocks, nor its files by the collector. And
    nothing is taken apart at the end, as that would copy all pages that are shared.
    """
    gc.freeze()
    _skip_one_unfreeze()
    atexit._clear()
    status: object = 1
    try:
        _become(request, files)
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code
        if status is not None and not isinstance(status, int):
            sys.stderr.write(f"{status}\n")
            status = 1
    except BaseException:  # noqa: BLE001 - nothing may pass into the parent's frames
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined] # typeshed has it not
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0)


def _skip_one_unfreeze() -> None:
    """Let the collection at a broker's start leave out the server's objects.

    A search through them copies most of the pages that are shared.
    """
    unfreeze = gc.unfreeze

    def skip() -> None:
        gc.unfreeze = unfreeze

    gc.unfreeze = skip


def _become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Make this process what a program finds at its start."""
    global _is_fork  # noqa: PLW0603 - what the process is
    _is_fork = True
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.sched_setaffinity(0, request["processors"])
    if request["leads_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    if any(Path.cwd().glob("*.dist-info")):
        _entry_points.cache_clear()
    if request["namespace"] is not None:
        enter(request["namespace"])
    # What it starts in its turn.
    subprocess.Popen = Popen  # type: ignore[misc] # it is one
    sys.path[0] = request["cwd"]
    sys.argv = ["", *request["arguments"]]
    # The program runs under another name, and would be told that it is here already.
    for name in (request["module"], f"{request['module']}.__main__"):
        if not hasattr(sys.modules.get(name), "__path__"):
            sys.modules.pop(name, None)


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; pytest alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
