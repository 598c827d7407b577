"""Returns free memory to the system soon after a backlog, not after one large message.

Theory of operation. Memory that Python frees goes back to Python's own allocator or to the C
library, and both keep it: a broker that once had 200 MB of messages waiting would keep 350 MB. The
C library returns only free memory at the end of its heap, unless it is asked to search the whole
heap for free pages (`malloc_trim`: 20 ms for 300 MB). Python's allocator for small objects returns
arenas of 1 MiB that are entirely free. A freed tuple that the interpreter keeps for reuse holds an
arena just as a live one does, and only a full collection releases these. It visits no frozen
object (`penstock.broker.process.gc_control`), so that it takes no time that a client would notice.

Neither is worth doing again and again, nor while a backlog is still draining. The number of small
blocks in use shows when many of them are freed and no more are being freed; to count them costs
some 10 ns for each pool. A number or a timer that stays and was allocated during a backlog would
hold the memory around it: `reserve_blocks` makes room for such objects elsewhere.

A few large messages are many bytes in few blocks. Their memory is searched for once the resident
memory differs from that at the last rest, and is the same in two successive looks. Messages that
waited through such a rest and leave later do not change it. So while the process has more than its
lowest size at any rest, the search is repeated, after twice as many looks each time.

A small part is kept on purpose. Otherwise the C library would return the end of its heap after each
large message, and the system would make the pages again for the next one, at three times the cost
of the copy into them (`keep_a_little`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

from penstock.broker.process.gc_control import resident_bytes

LOOK_SECONDS: Final = 0.25
"""Time between two looks, so short that the memory visibly goes with the backlog."""

LEAST_BLOCKS: Final = 20_000
"""With fewer freed blocks nothing is done; they are some 3 MB with the payloads of small messages.
"""

LOOKS_AFTERWARDS: Final = 8
"""Free pages are released again at so many looks after a release, as data on its way to the disk is
freed a little later than its backlog. A search that finds little costs 0.7 ms."""

LEAST_PART: Final = 16
"""The freed blocks must be at least one in so many of those left; 5 % are not missed."""

RESTING_BYTES: Final = 2 * 1024 * 1024
"""A smaller difference in resident memory from that of the last rest is ignored."""

STEADY_BLOCKS: Final = 1_000
"""An idle broker may still free so many blocks between two looks."""

RESERVED_NUMBERS: Final = 30_000
"""So many numbers take 1 MB. With 10,000, some of the numbers of 200,000 messages for five sessions
were allocated elsewhere."""

KEPT_NUMBERS: Final = 250
"""One number of so many is kept; each of Python's pages has room for 510."""

RESERVED_BYTES: Final = 64 * 1024
"""So much is reserved for each size of small blocks, 2 MB in all."""

POOL_BYTES: Final = 16 * 1024
"""CPython keeps small blocks of each size, 16, 32 and so on to 512 bytes, in pools of this size."""

LITTLE_BYTES: Final = 4 * 1024 * 1024
"""The C library keeps so much free at the end of its heap, and allocates blocks up to this size
there: enough for an incoming message of 1 MiB and the one before it that leaves. With 1 MiB to 50
readers the broker takes 12.3 ms of processor time a message without this, and 9.6 ms with 4, 8 or
16 MiB."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3)."""


def reserve_blocks() -> list[float | bytes]:
    """Allocate room for small objects in pages of their own; return what keeps that room.

    Counters, times and identifiers are replaced all the time, and timers and futures with them. A
    new one is allocated where another was just freed: amid the objects of a backlog, if those were
    freed last. Each one that stays, some hundred in all, would hold an otherwise empty arena.
    """
    kept: list[float | bytes] = []
    kept += [float(number) for number in range(RESERVED_NUMBERS)][::KEPT_NUMBERS]
    for block_bytes in range(48, 513, 16):
        length = block_bytes - sys.getsizeof(b"")
        blocks = [bytes(length) for _ in range(RESERVED_BYTES // block_bytes)]
        kept += blocks[:: POOL_BYTES // block_bytes // 2]
    return kept


def keep_a_little() -> None:
    """Have the C library keep `LITTLE_BYTES`, where it can; once, before any client connects."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(_M_TRIM_THRESHOLD, LITTLE_BYTES)
    mallopt(_M_MMAP_THRESHOLD, LITTLE_BYTES)


def find_malloc_trim() -> Callable[[int], object] | None:
    """Return the C library's function that releases free memory; None where it has none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return None


class SpareMemory:
    """Watches how much memory the process uses, and releases what it no longer needs."""

    def __init__(
        self,
        count_blocks: Callable[[], int] = sys.getallocatedblocks,
        resident_bytes: Callable[[], int] = resident_bytes,
    ) -> None:
        """Begin to watch."""
        self._count_blocks = count_blocks
        self._malloc_trim = find_malloc_trim()
        self._reserve = reserve_blocks()
        self._most_blocks = self._last_blocks = count_blocks()
        self._looks_left = 0
        self._resident_bytes = resident_bytes
        self._last_bytes = self._resting_bytes = self._least_bytes = resident_bytes()
        self._looks_at_rest = 0
        self._patience_looks = 1
        self.n_times = 0

    def look(self) -> None:
        """Release memory if a large part of it is no longer in use."""
        n_blocks = self._count_blocks()
        is_falling = n_blocks < self._last_blocks - STEADY_BLOCKS
        self._last_blocks = n_blocks
        self._most_blocks = max(self._most_blocks, n_blocks)
        n_gone = self._most_blocks - n_blocks
        if is_falling or n_gone < max(LEAST_BLOCKS, n_blocks // LEAST_PART):
            if self._looks_left:
                self._looks_left -= 1
                self._trim()
            self._trim_at_rest()
            return
        self.n_times += 1
        self._looks_left = LOOKS_AFTERWARDS
        gc.collect()
        self._trim()
        self._most_blocks = n_blocks

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
        """Release what can be found at rest; return the resident memory afterwards."""
        self._trim()
        n_bytes = self._resting_bytes = self._resident_bytes()
        self._least_bytes = min(self._least_bytes, n_bytes)
        self._looks_at_rest = 0
        self._patience_looks *= 2
        return n_bytes

    def _trim(self) -> None:
        if self._malloc_trim is not None:
            self._malloc_trim(0)
