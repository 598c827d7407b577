"""The memory and processor time of groups of processes, and of the scheduler's idle class."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

FAMILY_SECONDS: Final = 3.0
"""The period at which the tree of processes is read, which takes a file for each process."""


class Families:
    """Groups of processes, each with the child processes of its members."""

    def __init__(self, roots: Mapping[str, Sequence[int]]) -> None:
        self._roots = roots
        self._members: dict[str, dict[int, psutil.Process]] = {name: {} for name in roots}
        self._looked_at = 0.0
        self._seconds: dict[str, dict[int, float]] = {name: {} for name in roots}
        self._look()

    def rss_bytes(self, name: str) -> int:
        """Return the current resident set of a group."""
        self._look_if_due()
        total = 0
        for process in self._members[name].values():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def processor_seconds(self, name: str) -> float:
        """Return the processor time that a group has used, in user and kernel mode.

        A process that has ended counts with the time that the last call read.
        """
        self._look_if_due()
        seconds = self._seconds[name]
        for pid, process in self._members[name].items():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds[pid] = times.user + times.system
        return sum(seconds.values())

    def waits(self, name: str) -> dict[int, float]:
        """Return for how long each thread of a group has waited for a processor, by its id.

        Returns:
            Seconds; empty where the kernel does not tell.
        """
        self._look_if_due()
        found = {}
        for pid in self._members[name]:
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    # Time on a processor, time that it was ready and waited, both in ns, and
                    # slices: sched-stats of the kernel's documentation.
                    told = (thread / "schedstat").read_text()
                    found[int(thread.name)] = int(told.split()[1]) / 1e9
        return found

    def _look_if_due(self) -> None:
        if time.monotonic() - self._looked_at >= FAMILY_SECONDS:
            self._look()

    def _look(self) -> None:
        children: dict[int, list[int]] = {}
        for pid, parent in _parents():
            children.setdefault(parent, []).append(pid)
        for name, roots in self._roots.items():
            known = self._members[name]
            family = list(roots)
            for pid in family:  # grows as it is read
                family += children.get(pid, ())
            members = {}
            for pid in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    members[pid] = known.get(pid) or psutil.Process(pid)
            self._members[name] = members
        self._looked_at = time.monotonic()


class IdleClass:
    """Programs of the scheduling class SCHED_IDLE, which run where no other is ready (sched(7))."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, str], float] = {}

    def processor_seconds(self) -> float:
        """Return the processor time that they have used, in user and kernel mode.

        A program that has ended counts with the time of the previous call.

        Returns:
            Seconds; 0 where this process is of that class itself, because then it does wait for
            them.
        """
        if os.sched_getscheduler(0) == os.SCHED_IDLE:
            return 0.0
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        for pid, fields in _stats():
            # Fields of proc(5): 14 and 15 are ticks in user and kernel mode, 22 the time of its
            # start, which tells two of one id apart, 41 the class.
            if int(fields[41 - 3]) == os.SCHED_IDLE:
                ticks = int(fields[14 - 3]) + int(fields[15 - 3])
                self._seconds[pid, fields[22 - 3]] = ticks / ticks_per_second
        return sum(self._seconds.values())


def _parents() -> list[tuple[int, int]]:
    """Return each process id of the machine with its parent's."""
    return [(pid, int(fields[4 - 3])) for pid, fields in _stats()]


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process id of the machine with what proc(5) tells from field 3 on."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, field 2, may hold spaces and brackets.
            yield int(file.parent.name), file.read_text().rpartition(")")[2].split()
