"""When Python looks for cycles among the objects: in quiet moments, and seldom at all of them.

Theory of operation. What the broker makes and lets go of is freed by its reference counts. Cycles
come from elsewhere: an exception that keeps its frame, a plugin, an HTTP request. Python would look
for them each time some hundreds more objects were made than freed. While messages wait for a slow
subscriber these are the messages, which stay; and as messages that came before leave at the same
time, there may be a hundred thousand new ones in one look, 7 ms in which nobody is served.

So the collector does not run by itself. `Collector.look` is called at each rest of the program. If
little was done since the last one, it looks at what was made in that time; if much, at nothing.
Either way what is there then counts as old (`gc.freeze`), and is not looked at again until the
objects have become twice as many, by half a million blocks at least: then all are, as cycles among
the old ones may be what grows. So they are where the resident memory has become half as much again
and 100 MB more: a cycle may hold a payload, and be but a few objects.

To look at all objects takes 0.1 s for 100,000 retained messages, 0.5 s for 500,000. The program
knows how many it has, and their memory: what it *keeps* like that does not count as growth.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import psutil

BUSY_RATIO: Final = 0.25
"""Part of the time in which the processor was used, above which nothing is looked at: what half of
a quarter second makes takes a millisecond to look at."""

LEAST_GROWTH_BLOCKS: Final = 500_000
"""Some 50 MB of small objects; to look at so many takes 60 ms. It bounds what a gateway that is
always busy keeps of requests that failed, each a cycle of 30 objects."""

GROWTH_RATIO: Final = 1.5
LEAST_GROWTH_BYTES: Final = 100_000_000
"""Resident memory at which all objects are looked at again: so many times what it was, and so much
more."""

Kept: TypeAlias = tuple[int, int]
"""What a program keeps, about: small blocks, and bytes of memory."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


@functools.cache
def _open_statm() -> int:
    """Return a descriptor of what Linux tells of this process's memory; -1 on other systems.

    It stays open, so that the memory can be read while the process may open no more files.
    """
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def resident_bytes() -> int:
    """Return the memory of this process that is not on disk."""
    statm = _open_statm()
    if statm < 0:
        return int(psutil.Process().memory_info().rss)
    return int(os.pread(statm, 128, 0).split()[1]) * _PAGE_BYTES


class Collector:
    """Runs Python's cycle collector; the only one who does, once it is made."""

    def __init__(
        self,
        *,
        count_blocks: Callable[[], int] = sys.getallocatedblocks,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        resident_bytes: Callable[[], int] = resident_bytes,
        kept: Callable[[], Kept] = lambda: (0, 0),
    ) -> None:
        """Collect once, then take over from Python.

        Args:
            count_blocks: returns the small blocks in use.
            clock: returns monotonic seconds.
            used: returns the seconds of processor time that the process has used.
            resident_bytes: returns the memory of the process that is not on disk.
            kept: returns what of both the program knows to be in use.
        """
        self._kept = kept
        self._count_blocks = count_blocks
        self._clock = clock
        self._used = used
        self._resident_bytes = resident_bytes
        self._looked_at = clock()
        self._used_then = used()
        self._all_again_at_bytes = 0.0
        gc.disable()
        self.collect_all()

    def look(self) -> None:
        """Look at what is new, unless there was much to do."""
        now, used = self._clock(), self._used()
        is_busy = used - self._used_then > BUSY_RATIO * (now - self._looked_at)
        self._looked_at, self._used_then = now, used
        kept_blocks, kept_bytes = self._kept()
        n_blocks, n_bytes = self._count_blocks(), self._resident_bytes()
        if (
            n_blocks - kept_blocks > self._all_again_at
            or n_bytes - kept_bytes > self._all_again_at_bytes
        ):
            self.collect_all()
        elif is_busy:
            gc.freeze()
        else:
            gc.collect(0)
            gc.freeze()
        self._all_again_at_bytes = min(self._all_again_at_bytes, _most_bytes(n_bytes) - kept_bytes)

    def collect_all(self) -> None:
        """Look at every object there is."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        kept_blocks, kept_bytes = self._kept()
        n_blocks = self._count_blocks()
        self._all_again_at = n_blocks + max(n_blocks, LEAST_GROWTH_BLOCKS) - kept_blocks
        self._all_again_at_bytes = _most_bytes(self._resident_bytes()) - kept_bytes


def _most_bytes(n_bytes: int) -> float:
    return GROWTH_RATIO * n_bytes + LEAST_GROWTH_BYTES
