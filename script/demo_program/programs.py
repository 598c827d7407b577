"""The programs that the demo starts, and ends whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from script.demo_program.errors import DemoError

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 60.0
LOG_TAIL_BYTES: Final = 1500


class Program:
    """A running program with a log of its own.

    Attributes:
        pid: the process id of the program, which leads a process group of its own.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """Start a command in the root of the repository.

        In a session of its own, Ctrl-C in the terminal reaches the demo alone, which then
        ends its programs in order.
        """
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 (the demo's own commands)
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def check(self) -> None:
        """Make sure that it runs.

        Raises:
            DemoError: it has ended.
        """
        status = self._process.poll()
        if status is not None:
            raise self.failure(f"ended with status {status}")

    def failure(self, what: str) -> DemoError:
        """Return an error about it that holds its last words."""
        said = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return DemoError(f"{self.name}: {what}; the end of {self.log}:\n{said}")

    def wait_for(self, text: str, seconds: float) -> str:
        """Wait until its log has a line with this text; return that line.

        Raises:
            DemoError: it ended before, or did not say so in time.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.log.read_text(errors="replace").splitlines():
                if text in line:
                    return line
            self.check()
            time.sleep(0.05)
        raise self.failure(f"did not say {text!r} within {seconds:.0f} s")

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None  # noqa: S101 (made with a pipe above)
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait(self, seconds: float) -> int:
        """Return its exit status.

        Raises:
            DemoError: it still runs after so many seconds.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"still runs after {seconds:.0f} s") from None

    def is_running(self) -> bool:
        """Say whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it and what it has started, at once; does nothing where it has ended."""
        if self.is_running():  # after that the number may be another's
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


class Programs:
    """All programs of one demo; the end of the ``with`` block ends them in reverse order."""

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._started: list[Program] = []

    def start(self, name: str, *arguments: str) -> Program:
        """Start ``python -m`` with these arguments; its log is named after the program."""
        return self.start_command(name, sys.executable, "-m", *arguments)

    def start_command(self, name: str, *command: str) -> Program:
        """Start any command; its log is named after it."""
        log = self._log_folder / f"{name.replace(' ', '-')}.log"
        program = Program(name, command, log)
        self._started.append(program)
        return program

    def check(self) -> None:
        """Make sure that all of them run.

        Raises:
            DemoError: one has ended.
        """
        for program in self._started:
            program.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what ends now must end
        for program in reversed(self._started):
            if program.is_running():
                program.ask_to_end()
        for program in reversed(self._started):
            with contextlib.suppress(DemoError):
                program.wait(STOP_SECONDS)
            program.kill()
        signal.signal(signal.SIGINT, before)
