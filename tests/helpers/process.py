"""The real broker, and other programs, as processes of a test."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from tests.helpers import forks

ROOT: Final = Path(__file__).resolve().parents[2]

SECONDS: Final = 120.0
"""The longest wait for an expected event, on a busy machine.

Only a test that fails waits for so long. A program of Python needs a quarter of a second to start
on a quiet machine, and half a minute where twenty others compute.
"""

ANONYMOUS: Final = "amqtt.plugins.authentication.AnonymousAuthPlugin"

_LISTENS: Final = re.compile(r"listener (\S+): listening on \S+:(\d+)$", re.MULTILINE)
_QUEUE_API: Final = re.compile(r"queue API listens on (https?://\S+)")
_CONSOLE_API: Final = re.compile(r"console API listens on (http://\S+)")


def anonymous_policy(plugins: Mapping[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """Return a policy that lets everybody in on a free port of this machine.

    Args:
        plugins: the plugins beside the one that lets everybody in.
        keys: further keys of the top level, such as `limits`.
    """
    return {
        "listeners": {"default": {"bind": "127.0.0.1:0"}},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}, **(plugins or {})},
        **keys,
    }


class Program:
    """A running program and its log, which is what it writes to standard error; a fork, to both.

    Attributes:
        process: the running program.
    """

    process: subprocess.Popen[str]

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        is_forked: bool = False,
        **options: Any,
    ) -> None:
        """Start it.

        Args:
            command: the program and its arguments.
            cwd: its working directory; None for the present one.
            is_forked: whether a program of Penstock is forked, where there are no options; see
                `tests.helpers.forks`.
            options: options of `subprocess.Popen`.
        """
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._has_ended = False
        if is_forked and not options:
            self.process = forks.Popen(
                command,
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            )
        else:
            self.process = subprocess.Popen(
                command, cwd=cwd, stderr=subprocess.PIPE, text=True, **options
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        written = self.process.stderr or self.process.stdout
        assert written is not None
        with written as lines:
            for line in lines:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], object]) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._has_ended or condition(), SECONDS))

    @property
    def log(self) -> str:
        """What the program has logged so far."""
        return "".join(self._lines)

    def wait_for_log(self, text: str) -> None:
        """Wait until a text stands in the log."""
        self.wait_for_match(re.escape(text))

    def lines_with(self, text: str, n_lines: int = 0) -> list[str]:
        """Wait until a text stands in some lines of the log at least; return all that have it."""
        self._wait(lambda: sum(text in line for line in self._lines) >= n_lines)
        found = [line.rstrip() for line in self._lines if text in line]
        assert len(found) >= n_lines, f"{text!r} is not in {n_lines} lines of the log:\n{self.log}"
        return found

    def wait_for_match(self, pattern: str) -> re.Match[str]:
        """Wait until a regular expression matches something in the log; return the match."""
        self._wait(lambda: re.search(pattern, self.log))
        found = re.search(pattern, self.log)
        assert found, f"{pattern!r} is not in the log:\n{self.log}"
        return found

    def wait(self) -> int:
        """Wait for the program's own end; return its exit status."""
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return status

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the program by a signal, as an operator does; return its exit status."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """End the program at once, as the kernel does when memory is short."""
        self.process.kill()
        self.wait()

    def end(self) -> None:
        """Kill the program, if it still runs."""
        if self.process.poll() is None:
            self.kill()


class BrokerProcess(Program):
    """``python -m penstock.broker -c FILE`` and its log.

    Attributes:
        port: the port of the listener `default`, or of the last one where none has that name; 0
            where the program has ended instead.
    """

    def __init__(
        self,
        policy: Mapping[str, Any] | str,
        folder: Path,
        wrapper: Sequence[str] = (),
        *,
        is_forked: bool = True,
        **options: Any,
    ) -> None:
        """Start a broker and wait until it listens, or has ended.

        Args:
            policy: the policy as a mapping, or the text of the file.
            folder: the folder in which ``policy.yaml`` is written and the program runs.
            wrapper: a command that is to run the program in its own place.
            is_forked: whether it is forked, see `Program`; not with a wrapper but a namespace.
            options: options of `subprocess.Popen`.
        """
        text = policy if isinstance(policy, str) else yaml.safe_dump(dict(policy))
        (folder / "policy.yaml").write_text(text)
        super().__init__(
            [*wrapper, sys.executable, "-m", "penstock.broker", "-c", "policy.yaml"],
            cwd=folder,
            is_forked=is_forked and tuple(wrapper[:3]) in {(), ("ip", "netns", "exec")},
            **options,
        )
        awaited = _awaited_listener(text)
        self._wait(lambda: f"listener {awaited}: listening" in self.log)
        self.port = self.ports.get(awaited, 0)

    @property
    def ports(self) -> dict[str, int]:
        """Port by the name of its listener."""
        return {name: int(port) for name, port in _LISTENS.findall(self.log)}

    @property
    def queue_url(self) -> str:
        """The URL of the queue's HTTP API."""
        found = _QUEUE_API.search(self.log)
        assert found, f"no queue API:\n{self.log}"
        return found[1]

    @property
    def console_url(self) -> str:
        """The URL of the console's HTTP API."""
        found = _CONSOLE_API.search(self.log)
        assert found, f"no console API:\n{self.log}"
        return found[1]


def _awaited_listener(text: str) -> str:
    """Return the name of the listener after which a broker with this policy serves."""
    try:
        listeners = yaml.safe_load(text)["listeners"]
    except (yaml.YAMLError, TypeError, KeyError):
        return "default"
    names = list(listeners) if isinstance(listeners, dict) else []
    return "default" if "default" in names or not names else names[-1]


@contextlib.contextmanager
def running_broker(
    policy: Mapping[str, Any] | str, folder: Path, wrapper: Sequence[str] = (), **options: Any
) -> Iterator[BrokerProcess]:
    """Run a broker for a block, which may end it itself; see `BrokerProcess`.

    Raises:
        AssertionError: it did not start, with its log.
    """
    broker = BrokerProcess(policy, folder, wrapper, **options)
    try:
        assert broker.port, f"the broker did not start:\n{broker.log}"
        yield broker
    finally:
        broker.end()


def is_there(pid: int) -> bool:
    """Say whether a process with this number exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def resident_bytes(program: Program) -> int:
    """Return how much memory a program's process has."""
    n_bytes: int = psutil.Process(program.process.pid).memory_info().rss
    return n_bytes


def limit_files(broker: BrokerProcess, n_bytes: int = resource.RLIM_INFINITY) -> None:
    """Let no file grow beyond a length that the broker writes to: to it, its disk is full."""
    _, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (n_bytes, hard))
