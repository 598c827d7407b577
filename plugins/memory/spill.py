"""Payloads in memory up to a limit, beyond it in files; each once, for all who are to get it.

Theory of operation. What comes is in memory first. Where that makes too much of it, those that have
waited longest go to the file: what is only on its way through never does, and each goes at most
once, so that a payload is not kept before there is room for it, one way or the other. There is no
way back into memory but by piece (`read_piece`), for a socket that has room. A few of the newest
pieces are remembered: subscribers that get a message at the same time share them.

Payloads are freed with their last reference, on whatever thread that was dropped, and maybe by the
collector amid any step here. So what is gone is noted in a line, and whoever holds the lock, or can
have it at once, works that off.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import OrderedDict, deque
from typing import Final

from penstock.broker.extensions import PayloadStore
from penstock.broker.payload import PIECE_BYTES
from penstock.plugins.memory.spill_file import Segment, SpillFile

SHARED_PIECES: Final = 8
"""Pieces that are remembered, 512 KiB; they count towards the limit. The connections that a message
is sent on are served in rounds of one piece each, so that two would do for one message."""

SHARED_BYTES: Final = SHARED_PIECES * PIECE_BYTES

ARRIVING_COPIES: Final = 2
"""A message that comes in is in memory as often beside its payload, for a moment: as the chunks
that were received, and as the packet they make up. There must be room for these, too."""


class _Kept:
    """What the store knows of one payload.

    Attributes:
        n_bytes: of it.
        data: the payload; None when it is in the file.
        place: where it is in the file; None before it is.
        is_lost: it could not be read back once.
    """

    __slots__ = ("data", "is_lost", "n_bytes", "place")

    def __init__(self, data: bytes) -> None:
        self.n_bytes = len(data)
        self.data: bytes | None = data
        self.place: tuple[Segment, int] | None = None
        self.is_lost = False


class KeptPayload:
    """What stands for a payload; its last reference frees it."""

    __slots__ = ("_kept", "_store")

    def __init__(self, store: SpillStore, kept: _Kept) -> None:
        self._store = store
        self._kept = kept

    def __len__(self) -> int:
        return self._kept.n_bytes

    def __del__(self) -> None:
        self._store.release(self._kept)

    def read(self) -> bytes:
        """Return the payload. Any thread may call this.

        Raises:
            OSError: it cannot be read back.
        """
        kept = self._kept
        data = kept.data  # looked at once: another thread may be putting it into the file
        return self._store.read(kept, 0, kept.n_bytes) if data is None else data

    def read_piece(self, start: int) -> bytes:
        """Return `PIECE_BYTES` from `start` on, or as many as are left.

        Raises:
            OSError: it cannot be read back.
        """
        return self._store.read_piece(self._kept, start)


class SpillStore(PayloadStore):
    """Keeps payloads in memory up to a limit, and the others in files.

    Invariant: a payload is in `_in_memory`, and counts in `memory_bytes`, while it has no place in
    the file.

    Attributes:
        memory_bytes: of the payloads that are in memory.
        n_spilled: payloads that were put into the file so far.
        n_lost: payloads that could not be read back.
    """

    def __init__(self, memory_limit: int, file: SpillFile, logger: logging.Logger) -> None:
        """Keep nothing yet.

        Args:
            memory_limit: bytes in memory, at most.
            file: for what is beyond.
            logger: told when payloads begin to go to the file.
        """
        self.memory_bytes = 0
        self.n_spilled = 0
        self.n_lost = 0
        self._room_bytes = max(0, memory_limit - SHARED_BYTES)
        self._memory_limit = memory_limit
        self._file = file
        self._logger = logger
        self._in_memory: OrderedDict[_Kept, None] = OrderedDict()
        self._gone: deque[_Kept] = deque()
        self._lock = threading.Lock()
        self._pieces: OrderedDict[tuple[_Kept, int], bytes] = OrderedDict()

    def figures(self) -> dict[str, int]:
        """Return what is where, and what became of the payloads so far."""
        return {
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "spilled_total": self.n_spilled,
            "lost_total": self.n_lost,
        }

    @property
    def disk_bytes(self) -> int:
        """Payload bytes in files."""
        return self._file.stored_bytes

    def keep(self, data: bytes) -> KeptPayload:
        """Return what stands for `data` until its last reference is gone.

        Raises:
            OSError: there is no room in memory, and the file takes nothing more. What was kept
                before is as safe as it was.
        """
        self._work_off()
        kept = _Kept(data)
        most_bytes = self._room_bytes - (1 + ARRIVING_COPIES) * kept.n_bytes
        try:
            with self._lock:
                if most_bytes < 0:
                    self._spill(kept)
                else:
                    self._make_room(most_bytes)
                    self._in_memory[kept] = None
                    self.memory_bytes += kept.n_bytes
        finally:
            self._work_off()
        return KeptPayload(self, kept)

    def _make_room(self, most_bytes: int) -> None:
        """Put into the file what has waited longest, until no more is in memory."""
        while self.memory_bytes > most_bytes:
            oldest = next(iter(self._in_memory))
            self._spill(oldest)
            del self._in_memory[oldest]
            self.memory_bytes -= oldest.n_bytes

    def _spill(self, kept: _Kept) -> None:
        data = kept.data
        assert data is not None  # noqa: S101 (each goes once)
        if not self.n_spilled:
            self._logger.info(
                "more than %d bytes of payloads: what waits longest goes to files",
                self._memory_limit,
            )
        kept.place = self._file.write(data)
        kept.data = None
        self.n_spilled += 1

    def read(self, kept: _Kept, start: int, n_bytes: int) -> bytes:
        """Return a part of a payload that is in the file. Any thread may call this.

        Raises:
            OSError: it cannot be read back, now or before.
        """
        self._check(kept)
        assert kept.place is not None  # noqa: S101 (as it is not in memory)
        segment, begins_at = kept.place
        try:
            return self._file.read(segment, begins_at + start, n_bytes)
        except OSError:
            kept.is_lost = True
            self.n_lost += 1
            raise

    def _check(self, kept: _Kept) -> None:
        if kept.is_lost:
            raise OSError(errno.EIO, "a payload that could not be read back before")

    def read_piece(self, kept: _Kept, start: int) -> bytes:
        """Return a piece of a payload; the same object for those who ask at the same time.

        Raises:
            OSError: it cannot be read back.
        """
        self._check(kept)
        data = kept.data
        if data is not None and kept.n_bytes <= PIECE_BYTES:
            return data
        key = (kept, start)
        piece = self._pieces.get(key)
        if piece is None:
            stop = min(kept.n_bytes, start + PIECE_BYTES)
            # A view would keep all of a payload in memory that is put into the file meanwhile.
            piece = self.read(kept, start, stop - start) if data is None else data[start:stop]
            with self._lock:
                self._pieces[key] = piece
                if len(self._pieces) > SHARED_PIECES:
                    self._pieces.popitem(last=False)
            self._work_off()
        return piece

    def release(self, kept: _Kept) -> None:
        """Free a payload whose last reference is gone. Any thread may call this."""
        self._gone.append(kept)
        self._work_off()

    def _work_off(self) -> None:
        """Free what is gone, unless somebody is at it who will see all of it."""
        gone = self._gone
        while gone and self._lock.acquire(blocking=False):
            try:
                while gone:
                    self._free(gone.popleft())
            finally:
                self._lock.release()

    def _free(self, kept: _Kept) -> None:
        if kept.place is None:
            del self._in_memory[kept]
            self.memory_bytes -= kept.n_bytes
        else:
            self._file.free(*kept.place, kept.n_bytes)
        if not (self._in_memory or self._file.stored_bytes):
            self._pieces.clear()
