"""Keeps payloads in memory up to a limit and in files beyond it, each once.

Theory of operation. A new payload is in memory first. Where that exceeds the limit, those that have
waited longest go to the file. So a payload that passes straight through never goes there, and each
goes at most once. A payload is accepted only after there is room for it, in memory or in the file.
It is read back only in pieces (`read_piece`), for a socket that has room. A few of the newest
pieces are cached: subscribers that get a message at the same time share them.

A payload is freed when its last reference is dropped, on whatever thread that happens, and possibly
by the cycle collector in the middle of any step here. So freed payloads are put into a queue, which
is emptied by the next thread that has the lock or can get it without waiting.
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
"""So many pieces, 512 KiB, are cached; they count towards the limit. The connections of a message
are served in rounds of one piece each, so that two would do for one message."""

SHARED_BYTES: Final = SHARED_PIECES * PIECE_BYTES

ARRIVING_COPIES: Final = 2
"""An incoming message has so many copies in memory besides its payload, for a moment: the received
chunks, and the packet that they form. The limit leaves room for these, too."""


class _Kept:
    """The store's record of one payload.

    Attributes:
        n_bytes: the length of the payload in bytes.
        data: the payload; None when it is in the file.
        place: (segment, position) in the file; None before it is there.
        is_lost: an earlier attempt to read it back has failed.
    """

    __slots__ = ("data", "is_lost", "n_bytes", "place")

    def __init__(self, data: bytes) -> None:
        self.n_bytes = len(data)
        self.data: bytes | None = data
        self.place: tuple[Segment, int] | None = None
        self.is_lost = False


class KeptPayload:
    """A handle to a payload; dropping its last reference frees the payload."""

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
        data = kept.data  # read once: another thread may move it to the file meanwhile
        return self._store.read(kept, 0, kept.n_bytes) if data is None else data

    def read_piece(self, start: int) -> bytes:
        """Return `PIECE_BYTES` from `start` on, or the rest.

        Raises:
            OSError: it cannot be read back.
        """
        return self._store.read_piece(self._kept, start)


class SpillStore(PayloadStore):
    """Keeps payloads in memory up to a limit, and the others in files.

    Invariant: a payload is in `_in_memory`, and counts in `memory_bytes`, while it has no place in
    the file.

    Attributes:
        memory_bytes: the bytes of the payloads in memory.
        n_spilled: the number of payloads that have gone to the file so far.
        n_lost: payloads that could not be read back.
    """

    def __init__(self, memory_limit: int, file: SpillFile, logger: logging.Logger) -> None:
        """Begin without payloads."""
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
        """Return the store's figures: present bytes and totals since the start."""
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
        """Return a handle to `data`, which is kept until the handle's last reference is dropped.

        Raises:
            OSError: there is no room in memory, and the file takes nothing more. Payloads kept
                before are not affected.
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
        """Move the payloads that have waited longest to the file, until the rest fits."""
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
                "more than %d bytes of payloads: those that wait longest go to files",
                self._memory_limit,
            )
        kept.place = self._file.write(data)
        kept.data = None
        self.n_spilled += 1

    def read(self, kept: _Kept, start: int, n_bytes: int) -> bytes:
        """Return a part of a payload that is in the file. Any thread may call this.

        Raises:
            OSError: it cannot be read back, now or at an earlier attempt.
        """
        self._check(kept)
        assert kept.place is not None  # noqa: S101 (it is not in memory)
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
        """Return a piece of a payload; concurrent readers get the same object.

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
            # A view would keep the whole payload in memory after it has moved to the file.
            piece = self.read(kept, start, stop - start) if data is None else data[start:stop]
            with self._lock:
                self._pieces[key] = piece
                if len(self._pieces) > SHARED_PIECES:
                    self._pieces.popitem(last=False)
            self._work_off()
        return piece

    def release(self, kept: _Kept) -> None:
        """Free a payload after its last reference was dropped. Any thread may call this."""
        self._gone.append(kept)
        self._work_off()

    def _work_off(self) -> None:
        """Empty the queue of freed payloads, unless another thread has the lock and will do it."""
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
