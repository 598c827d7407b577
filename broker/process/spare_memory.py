"""When free memory goes back to the system: a backlog's soon, one large message's not at all.

Theory of operation. What Python frees goes back to its own allocator or to the C library's, and
both keep it: a broker that had 200 MB of messages waiting once would take 350 MB for ever. The C
library gives back what is free at the end of its heap only, unless it is asked to look for whole
free pages everywhere (`malloc_trim`: 20 ms for 300 MB). Python's allocator for small objects gives
back arenas of 1 MiB that are all free; a freed tuple that the interpreter keeps for the next of its
size holds an arena as well as a live one, and only a full collection lets these go.

Neither is worth while again and again, nor while a backlog is still going. The number of small
blocks in use says when a good part of what was there is gone and no more of it goes; counting them
costs a look at each pool of them, some 10 ns. A number that stays, and was made amid a backlog,
would hold the memory around it, as would a timer: `reserve_blocks` makes room for such apart.

A few large messages are many bytes in few blocks. What they leave is looked for once the resident
memory is another than when the process last rested, and stays the same from one look to the next.
That does not change as messages leave that have waited through such a rest: while the process has
more than the least it ever had at rest, it is looked for again, after twice as long each time.

A little is kept all the same. The C library would give back the end of its heap as each large
message has left, and have the system make the pages anew for the next, at three times what the
copy into them costs (`keep_a_little`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

from penstock.broker.process.collector import resident_bytes

LOOK_SECONDS: Final = 0.25
"""Time between two looks: whoever watches the process sees the memory gone with the backlog."""

LEAST_BLOCKS: Final = 20_000
"""Some 3 MB with the payloads of small messages; less is not looked for."""

LOOKS_AFTERWARDS: Final = 8
"""At so many, free pages are given back anew: what was on its way to the disk goes a little later
than the backlog that it was of. Where there is little to find it costs 0.7 ms."""

LEAST_PART: Final = 16
"""What has gone must be one part in so many of what is left: 5 % are not missed."""

RESTING_BYTES: Final = 2 * 1024 * 1024
"""Resident memory that differs from that of the last rest by less is not looked into."""

STEADY_BLOCKS: Final = 1_000
"""What a broker that has come to rest still frees between two looks."""

MOST_TO_COLLECT: Final = 500_000
"""Blocks since the start above which there is no full collection: it looks at most of them, and so
many take 50 ms, in which nobody is served. Who has more has many clients, and misses less."""

LOOKS_BETWEEN: Final = 20
"""From one full collection to the next. Clients that come, publish and vanish leave free blocks all
the time, and up to 60 ms every second look would go into collections."""

RESERVED_NUMBERS: Final = 30_000
"""1 MB. With 10,000 some of the numbers of 200,000 messages for five sessions stood elsewhere."""

KEPT_NUMBERS: Final = 250
"""One number of so many is kept: each page of Python's has room for 510."""

RESERVED_BYTES: Final = 64 * 1024
"""For each size of small blocks: 2 MB in all."""

POOL_BYTES: Final = 16 * 1024
"""CPython keeps small blocks of each size, 16, 32 and so on to 512 bytes, in pools of so many."""

LITTLE_BYTES: Final = 4 * 1024 * 1024
"""What the C library keeps free at the end of its heap, and the largest block it takes from there
at all: a message of 1 MiB that comes in, and the one before it that leaves. With 1 MiB to 50
readers the broker takes 12.3 ms of processor time a message without, 9.6 ms with 4, 8 or 16 MiB."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3)."""


def reserve_blocks() -> list[float | bytes]:
    """Make room for small objects in pages of their own; return what keeps it.

    Counters, times and identifiers are replaced by new ones all the time, timers and futures with
    them, the newest where others have just gone: among those of a backlog, if that is where they
    are. Each that then stays, and some hundred do, holds an arena that is empty but for it.
    """
    kept: list[float | bytes] = []
    kept += [float(number) for number in range(RESERVED_NUMBERS)][::KEPT_NUMBERS]
    for block_bytes in range(48, 513, 16):
        length = block_bytes - sys.getsizeof(b"")
        blocks = [bytes(length) for _ in range(RESERVED_BYTES // block_bytes)]
        kept += blocks[:: POOL_BYTES // block_bytes // 2]
    return kept


def keep_a_little() -> None:
    """Have the C library keep `LITTLE_BYTES`, where it can be told; once, before any client."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(_M_TRIM_THRESHOLD, LITTLE_BYTES)
    mallopt(_M_MMAP_THRESHOLD, LITTLE_BYTES)


def find_malloc_trim() -> Callable[[int], object] | None:
    """Return the C library's function to give back free memory; None where it has none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return None


class SpareMemory:
    """Watches how much the process has in use, and gives back what it had.

    Attributes:
        n_times: memory was given back.
    """

    def __init__(
        self,
        count_blocks: Callable[[], int] = sys.getallocatedblocks,
        collect: Callable[[], object] = gc.collect,
        resident_bytes: Callable[[], int] = resident_bytes,
    ) -> None:
        """Begin to watch.

        Args:
            count_blocks: returns the small blocks in use.
            collect: runs a full collection.
            resident_bytes: returns the memory of the process that is not on disk.
        """
        self._collect = collect
        self._count_blocks = count_blocks
        self._malloc_trim = find_malloc_trim()
        self._reserve = reserve_blocks()
        self._blocks_at_start = self._most_blocks = self._last_blocks = count_blocks()
        self._looks_left = 0
        self._looks_to_collection = 0
        self._is_collection_due = False
        self._resident_bytes = resident_bytes
        self._last_bytes = self._resting_bytes = self._least_bytes = resident_bytes()
        self._looks_at_rest = 0
        self._patience_looks = 1
        self.n_times = 0

    def look(self) -> None:
        """Give memory back if a good part of what was in use is not any more."""
        n_blocks = self._count_blocks()
        is_falling = n_blocks < self._last_blocks - STEADY_BLOCKS
        self._last_blocks = n_blocks
        self._most_blocks = max(self._most_blocks, n_blocks)
        n_gone = self._most_blocks - n_blocks
        self._looks_to_collection -= 1
        if self._is_collection_due and self._looks_to_collection <= 0:
            self._collect_soon()
            self._looks_left = LOOKS_AFTERWARDS
        if is_falling or n_gone < max(LEAST_BLOCKS, n_blocks // LEAST_PART):
            if self._looks_left:
                self._looks_left -= 1
                self._trim()
            self._trim_at_rest()
            return
        self.n_times += 1
        self._looks_left = LOOKS_AFTERWARDS
        if n_blocks - self._blocks_at_start < MOST_TO_COLLECT:
            self._collect_soon()
        self._trim()
        self._most_blocks = n_blocks

    def _collect_soon(self) -> None:
        """Run a full collection, at once or when the last one is long enough ago."""
        self._is_collection_due = self._looks_to_collection > 0
        if not self._is_collection_due:
            self._looks_to_collection = LOOKS_BETWEEN
            self._collect()

    def _trim_at_rest(self) -> None:
        before, n_bytes = self._last_bytes, self._resident_bytes()
        self._looks_at_rest += 1
        if n_bytes == before:
            if abs(n_bytes - self._resting_bytes) > RESTING_BYTES:
                self._patience_looks = 1
                n_bytes = self._look_for_more()
            elif (
                n_bytes > self._least_bytes + RESTING_BYTES
                and self._looks_at_rest >= self._patience_looks
            ):
                n_bytes = self._look_for_more()
        self._last_bytes = n_bytes

    def _look_for_more(self) -> int:
        """Give back what can be found at rest; return the resident memory then."""
        self._trim()
        n_bytes = self._resting_bytes = self._resident_bytes()
        self._least_bytes = min(self._least_bytes, n_bytes)
        self._looks_at_rest = 0
        self._patience_looks *= 2
        return n_bytes

    def _trim(self) -> None:
        if self._malloc_trim is not None:
            self._malloc_trim(0)
