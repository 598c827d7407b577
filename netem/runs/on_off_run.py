"""A run of clients that are on and off by schedule, on one or several hosts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Final, Self

from penstock.netem.clients.on_off_plan import OnOffClientsPlan, OnOffRecords
from penstock.netem.errors import RunError
from penstock.netem.runs.broker_process import ENVIRONMENT, log_tail

BEGIN_SECONDS: Final = 0.5
"""The seconds between the moment at which all clients are ready and the beginning of the run,
which every process is told in advance."""

Popen = Callable[..., subprocess.Popen[bytes]]


def run_on_off_clients(
    plan: OnOffClientsPlan,
    directory: Path,
    hosts: Mapping[str, Popen] | None = None,
    begun: Callable[[float], None] | None = None,
) -> OnOffRecords:
    """Run the clients of a plan to its end.

    Args:
        plan: the plan; the broker listens already.
        directory: the directory for files of the run.
        hosts: the function that starts a process on each host; None: all clients run on this
            machine, whose host name is "".
        begun: a function that is called before the beginning, with its time in monotonic seconds.

    Returns:
        The records of the clients of all hosts.

    Raises:
        RunError: a process of clients has failed; the text holds the end of its log.
    """
    file = directory / "clients.json"
    plan.write(file)
    with ExitStack() as stack:
        running = [
            (host, stack.enter_context(_Clients(file, directory, host, popen)))
            for host, popen in (hosts or {"": subprocess.Popen}).items()
        ]
        for _, each in running:
            each.await_ready()
        begin_at = time.monotonic() + BEGIN_SECONDS
        if begun is not None:
            begun(begin_at)
        for _, each in running:
            each.begin(begin_at)
        records = OnOffRecords()
        for _, each in running:
            records.add(each.await_end())
    return records


class _Clients:
    """The process of one host's clients."""

    def __init__(self, plan: Path, directory: Path, host: str, popen: Popen) -> None:
        self._log = directory / f"clients-{host}.log"
        self._records = directory / f"records-{host}.json"
        command = [sys.executable, "-m", "penstock.netem.clients.on_off_clients"]
        with self._log.open("wb") as log:
            self._process = popen(
                [*command, str(plan), str(self._records), host],
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # of what `begin` could not write
                _pipe(pipe).close()

    def await_ready(self) -> None:
        """Wait until all clients have been connected."""
        if not _pipe(self._process.stdout).readline():
            raise self._failure()

    def begin(self, at: float) -> None:
        """Let the plan begin, at monotonic seconds."""
        pipe = _pipe(self._process.stdin)
        try:
            pipe.write(f"begin {at!r}\n".encode())
            pipe.flush()
        except BrokenPipeError as error:
            raise self._failure() from error

    def await_end(self) -> Path:
        """Wait for the end; return the file of what was recorded."""
        if self._process.wait():
            raise self._failure()
        return self._records

    def _failure(self) -> RunError:
        status = self._process.wait()
        return RunError(f"clients have ended with status {status}:\n{log_tail(self._log)}")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # noqa: S101 - it was asked for
    return pipe
