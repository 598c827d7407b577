"""The load of this machine during a run, second by second.

In a second in which processes of the run had to wait for a processor, latencies may be caused by
this machine. A mean over a whole run would hide such seconds, so each is judged by the waiting
times of the run's own threads. Programs of the scheduling class SCHED_IDLE keep processors busy,
but no other process waits for them.

Processes of the run also wait for each other, which is no reason for doubt: they wake up at the
same packet, as they would on machines of their own with the same load. The kernel does not report
for which process a thread waited. But it cannot have waited for other programs for longer than
these ran.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 1.0
"""The time between two looks."""

BUSY_SHARE: Final = 0.9
"""The share of all processors in use from which on a process may have to wait for one. It is
used where the kernel does not report how long processes wait."""

STEAL_SHARE: Final = 0.05
"""The share of all processors that the hypervisor may give to others: such a pause has no other
trace."""

OTHERS_SHARE: Final = 0.1
"""The share of all processors that other programs may use, where the kernel does not report how
long processes wait."""

WAIT_SHARE: Final = 0.5
"""The share of the time for which one thread of the run may wait for a processor, for whatever
process; above it, this machine is too small for the run. Processes that wake up at the same
packet wait for each other: on a quiet machine of two processors for 0.4 of the second in which
35 links carry a megabyte each."""

DISTURBED_SHARE: Final = 0.1
"""The share of the time for which a thread of the run may wait for other programs. On a quiet
machine, these run for less than that."""

DOUBTFUL_SECONDS: Final = 0.05
"""The lateness of a packet in a forwarder that makes its second doubtful."""

STAT: Final = Path("/proc/stat")


class LoadTotals(NamedTuple):
    """The totals since the machine started.

    Attributes:
        at: the time of the look, monotonic seconds.
        busy: the seconds of all processors together that were in use, `steal` included.
        programs: the part of these seconds that programs used, without interrupts and programs of
            the class SCHED_IDLE.
        steal: the seconds that the hypervisor gave to others.
        own: the seconds that the processes of the run used.
        waits: the seconds for which each thread of the run has waited for a processor, by its id;
            empty if the kernel does not report it.
        runnable: the number of processes that run or wait for a processor at this moment.
    """

    at: float
    busy: float
    programs: float
    steal: float
    own: float
    waits: Mapping[int, float]
    runnable: int


class Load(NamedTuple):
    """The load between two looks.

    Attributes:
        begin: the time of the first look, monotonic seconds.
        end: the time of the second look, monotonic seconds.
        busy_share: the share of all processors in use, 0 to 1.
        steal_share: the share of all processors that the hypervisor gave to others.
        others_share: the share of all processors that programs outside the run used.
        wait_share: the share of the time for which one thread of the run waited for a processor, of
            the thread that waited longest; nan if the kernel does not report it.
        disturbed_share: the share of the time for which that thread may have waited for programs
            outside the run; nan if the kernel does not report it.
        runnable: the number of processes that ran or waited at the second look.
    """

    begin: float
    end: float
    busy_share: float
    steal_share: float
    others_share: float
    wait_share: float
    disturbed_share: float
    runnable: int
    most_late_seconds: float

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why latencies of this time are doubtful; none if they are not."""
        untold = math.isnan(self.wait_share)
        found = {
            f"processors over {100 * BUSY_SHARE:.0f} % busy": (
                untold and self.busy_share > BUSY_SHARE
            ),
            f"over {100 * STEAL_SHARE:.0f} % stolen": self.steal_share > STEAL_SHARE,
            f"other programs over {100 * OTHERS_SHARE:.0f} %": (
                untold and self.others_share > OTHERS_SHARE
            ),
            f"a process waited for over {100 * WAIT_SHARE:.0f} % of the time": (
                self.wait_share > WAIT_SHARE
            ),
            f"a process may have waited for others for over {100 * DISTURBED_SHARE:.0f} %": (
                self.disturbed_share > DISTURBED_SHARE
            ),
            f"packets over {1000 * DOUBTFUL_SECONDS:.0f} ms late": (
                self.most_late_seconds > DOUBTFUL_SECONDS
            ),
        }
        return tuple(reason for reason, holds in found.items() if holds)


def look(
    now: float, own_seconds: float, idle_class_seconds: float, waits: Mapping[int, float]
) -> LoadTotals:
    """Return the totals of this moment."""
    busy, programs, steal, runnable = parse_stat(STAT.read_text(), os.sysconf("SC_CLK_TCK"))
    return LoadTotals(now, busy, programs - idle_class_seconds, steal, own_seconds, waits, runnable)


def parse_stat(text: str, ticks_per_second: int) -> tuple[float, float, float, int]:
    """Return what /proc/stat says (proc(5)).

    Returns:
        (seconds in use, those of programs, seconds stolen, runnable processes).
    """
    values = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is part of user's.
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, values["cpu"][:8])
    programs = user + nice + system
    busy = programs + irq + softirq + steal
    tick = 1 / ticks_per_second
    return busy * tick, programs * tick, steal * tick, int(values["procs_running"][0])


def load_between(before: LoadTotals, after: LoadTotals, most_late_seconds: float) -> Load:
    """Return the load between two looks."""
    seconds = after.at - before.at
    processors = os.cpu_count() or 1
    busy = after.busy - before.busy
    steal = after.steal - before.steal
    others = max(0.0, after.programs - before.programs - (after.own - before.own))
    waits = [total - before.waits.get(thread, 0.0) for thread, total in after.waits.items()]
    wait = max(waits, default=math.nan)
    return Load(
        before.at,
        after.at,
        busy / seconds / processors,
        steal / seconds / processors,
        others / seconds / processors,
        wait / seconds,
        min(wait, others) / seconds,
        after.runnable,
        most_late_seconds,
    )


def describe_doubt(loads: Sequence[Load]) -> tuple[float, str]:
    """Return for how many seconds latencies are doubtful, and for how long for which reason."""
    seconds: dict[str, float] = {}
    for load in loads:
        for reason in load.reasons:
            seconds[reason] = seconds.get(reason, 0.0) + load.end - load.begin
    every = sum(load.end - load.begin for load in loads if load.reasons)
    return every, ", ".join(f"{reason} for {each:.0f} s" for reason, each in seconds.items())
