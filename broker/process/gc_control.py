"""Runs Python's cycle collector when the broker is idle, and seldom over all objects.

Theory of operation. Reference counts free what the broker itself allocates. Cycles come from
elsewhere: an exception that keeps its frame, a plugin, an HTTP request. Python would search for
them each time some hundreds more objects were made than freed. While messages wait for a slow
subscriber, these objects are the messages, which stay. As earlier messages leave at the same time,
one search may cover a hundred thousand new objects: 7 ms in which no client is served.

So the automatic collector is off. The program calls `Collector.look` periodically. If little was
done since the last call, the collector searches the objects made since then; if much was done, it
searches none. Either way all objects then count as old (`gc.freeze`). Old objects are searched
again only after the number of blocks has doubled, and grown by half a million at least, as cycles
among the old objects may be what grows. They are also searched when the resident memory has grown
by half and 100 MB: a cycle may hold a payload and consist of few objects.

To search all objects takes 0.1 s with 100,000 retained messages, 0.5 s with 500,000. The program
knows how many of these it has, and their memory: what it *keeps* like that does not count as
growth. Nor does what it kept shortly before: objects go a little later than the program tells, as
they wait for a commit, and their memory later still (`penstock.broker.process.memory_trim`).
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
"""Above this share of processor time nothing is searched: the objects made in half of a quarter
second take a millisecond to search."""

MOST_NEW_OBJECTS: Final = 20_000
"""More new objects than these, which take some 4 ms, are not searched either: a process that has to
wait for the processor is busy with little of it."""

KEPT_RATIO: Final = 0.99
"""This part of what was kept at the last look still counts: half of it after 17 s."""

LEAST_GROWTH_BLOCKS: Final = 500_000
"""Some 50 MB of small objects, which take 60 ms to search. This bounds the failed requests that an
always busy gateway keeps, each a cycle of 30 objects."""

GROWTH_RATIO: Final = 1.5
LEAST_GROWTH_BYTES: Final = 100_000_000
"""All objects are searched again when the resident memory is above `GROWTH_RATIO` times its last
size plus these bytes."""

Kept: TypeAlias = tuple[int, int]
"""Roughly how much a program keeps: (small blocks, bytes of memory)."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


@functools.cache
def _open_statm() -> int:
    """Return a descriptor of Linux's memory figures for this process; -1 on other systems.

    It stays open, so that the figures can be read when the process may open no more files.
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
    """Runs Python's cycle collector, and turns its automatic runs off."""

    def __init__(
        self,
        *,
        count_blocks: Callable[[], int] = sys.getallocatedblocks,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        resident_bytes: Callable[[], int] = resident_bytes,
        kept: Callable[[], Kept] = lambda: (0, 0),
    ) -> None:
        """Collect once, and turn automatic runs off.

        Args:
            count_blocks: returns the small blocks in use.
            clock: returns monotonic seconds.
            used: returns the seconds of processor time that the process has used.
            resident_bytes: returns the memory of the process that is not on disk.
            kept: returns how much of both the program knows to be in use.
        """
        self._kept = kept
        self._kept_lately: Kept = 0, 0
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
        """Search new objects, unless the process is busy."""
        now, used = self._clock(), self._used()
        is_busy = used - self._used_then > BUSY_RATIO * (now - self._looked_at)
        self._looked_at, self._used_then = now, used
        kept_blocks, kept_bytes = self._kept()
        blocks_lately, bytes_lately = self._kept_lately
        blocks_lately = max(kept_blocks, int(KEPT_RATIO * blocks_lately))
        bytes_lately = max(kept_bytes, int(KEPT_RATIO * bytes_lately))
        self._kept_lately = blocks_lately, bytes_lately
        n_blocks, n_bytes = self._count_blocks(), self._resident_bytes()
        if (
            n_blocks - blocks_lately > self._all_again_at
            or n_bytes - bytes_lately > self._all_again_at_bytes
        ):
            self.collect_all()
        elif is_busy or gc.get_count()[0] > MOST_NEW_OBJECTS:
            gc.freeze()
        else:
            gc.collect(0)
            gc.freeze()
        self._all_again_at_bytes = min(self._all_again_at_bytes, _most_bytes(n_bytes) - kept_bytes)

    def collect_all(self) -> None:
        """Search all objects."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        kept_blocks, kept_bytes = self._kept()
        n_blocks = self._count_blocks()
        self._all_again_at = n_blocks + max(n_blocks, LEAST_GROWTH_BLOCKS) - kept_blocks
        self._all_again_at_bytes = _most_bytes(self._resident_bytes()) - kept_bytes


def _most_bytes(n_bytes: int) -> float:
    return GROWTH_RATIO * n_bytes + LEAST_GROWTH_BYTES
