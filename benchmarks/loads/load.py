"""Drives the publishing and the subscribing process of one load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from types import TracebackType
from typing import IO, Any, Self, cast

from benchmarks.errors import BenchmarkError
from benchmarks.loads.access import Access
from benchmarks.loads.stream import Shape
from benchmarks.peers import ROOT
from benchmarks.rows.rates import Run


class Side:
    """A process of the load that is told and answers in lines of JSON."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._questions = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)
        self._complaints = cast("IO[str]", self._process.stderr)

    def tell(self, **values: Any) -> None:
        """Send one line."""
        self._questions.write(json.dumps(values) + "\n")
        self._questions.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next line.

        Raises:
            BenchmarkError: the process has ended; the text holds its last line.
        """
        line = self._answers.readline()
        if not line:
            last = self._complaints.read().strip().rsplit("\n", 1)[-1]
            raise BenchmarkError(f"{self._module} ended: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stand_back(self) -> None:
        """Leave the processor to all who are not idle by their own will, as soon as they want it.

        A scheduler that lets each have its share makes who wakes up wait for some milliseconds
        where more processes are busy than there are cores. Does nothing but on Linux.
        """
        if sys.platform == "linux":
            os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.communicate()


class Load:
    """Publishers and subscribers at QoS 0, connected.

    A context manager; both processes end with it.
    """

    def __init__(self, access: Access, shape: Shape) -> None:
        self._publishers = shape.publishers
        self._sides: list[Side] = []
        arguments = json.dumps(asdict(access)), json.dumps(asdict(shape))
        try:
            self._receiving = self._start("benchmarks.loads.subscribers", *arguments)
            self._sending = self._start("benchmarks.loads.publisher", *arguments)
        except BenchmarkError:
            self.close()
            raise

    def stand_back(self) -> None:
        """Leave the processor to those that are measured; see `Side.stand_back`."""
        for side in self._sides:
            side.stand_back()

    def begin(self, messages: int) -> None:
        """Let each publisher publish so many messages as fast as they are taken."""
        self._receiving.tell(messages=messages)
        self._receiving.answer()
        self._sending.tell(messages=messages)

    def run(self, messages: int) -> Run:
        """Publish so many messages as fast as they are taken, and wait for them all.

        Raises:
            BenchmarkError: a side has ended, as when the broker closed its connection.
        """
        each = max(1, messages // self._publishers)
        self.begin(each)
        arrivals = self._receiving.answer()
        departures = self._sending.answer()
        return Run(
            published=each * self._publishers,
            delivered=arrivals["packets"],
            lost=arrivals["expected"] - arrivals["packets"],
            elapsed_seconds=arrivals["finished"] - departures["started"],
            load_cpu_seconds=arrivals["cpu"] + departures["cpu"],
        )

    def _start(self, module: str, *arguments: object) -> Side:
        side = Side(module, *arguments)
        self._sides.append(side)
        side.answer()
        return side

    def close(self) -> None:
        """End both processes."""
        for side in self._sides:
            side.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
