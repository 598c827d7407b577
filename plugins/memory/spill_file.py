"""The files of spilled payloads, and their space.

Theory of operation. A *segment* is one file without a name: its space is free as soon as the
process has ended, however it ended, and clearing the directory removes no acknowledged message.
Payloads are written one after the other, each at a block boundary, so that very many need one
descriptor. Freed payloads are *punched* out of the segment, many neighbours at once, which returns
their blocks to the disk while the rest stays. Where a file system cannot do that, the blocks are
returned with the whole segment, when it holds no payload any more.

Nothing is flushed: a payload here is as durable as one in memory. What must outlive the process is
also in the database of `persistence`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

BLOCK_BYTES: Final = 4096
"""The allocation unit of nearly all file systems."""

SEGMENT_BYTES: Final = 1 << 30
"""A segment of this size gets no further payloads. It costs one descriptor as long as it holds a
payload: a million of them would be a petabyte."""

HOLE_BYTES: Final = 4 * 1024 * 1024
"""After so many freed bytes of a segment, they are punched out in few calls, which take some 0.3
ms."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
"""Modes of fallocate(2)."""


class Segment:
    """One file without a name; dropping the last reference closes it.

    Attributes:
        end_bytes: the position where the next payload begins.
    """

    __slots__ = ("_free_bytes", "_holes", "end_bytes", "fileno", "n_payloads")

    def __init__(self, directory: Path) -> None:
        """Create the file.

        Raises:
            OSError: it cannot be created.
        """
        self.fileno = -1
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            self.fileno = os.dup(file.fileno())
        self.end_bytes = 0
        self.n_payloads = 0
        self._holes: list[tuple[int, int]] = []
        self._free_bytes = 0

    def write(self, data: bytes) -> int:
        """Append a payload; return where it begins.

        Raises:
            OSError: there is no room; nothing of the payload remains.
        """
        start = self.end_bytes
        rest = memoryview(data)
        position = start
        try:
            while rest:
                n_bytes = os.pwrite(self.fileno, rest, position)
                position += n_bytes
                rest = rest[n_bytes:]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fileno, start)
            raise
        self.end_bytes = start + _whole_blocks(len(data))
        self.n_payloads += 1
        return start

    def free(self, start: int, n_bytes: int, punch: Callable[[int, int, int], bool]) -> None:
        """Free a payload; from time to time, return the blocks of all freed payloads.

        Args:
            start: the position where the payload begins.
            n_bytes: the length of the payload in bytes.
            punch: returns the blocks of (descriptor, start, bytes) to the disk.
        """
        self.n_payloads -= 1
        if not self.n_payloads:
            self._clear()
            return
        n_bytes = _whole_blocks(n_bytes)
        self._holes.append((start, start + n_bytes))
        self._free_bytes += n_bytes
        if self._free_bytes >= HOLE_BYTES:
            self.give_back(punch)

    def give_back(self, punch: Callable[[int, int, int], bool]) -> bool:
        """Return the blocks of freed payloads to the disk; return whether there were any."""
        has_given = False
        for hole_start, hole_end in _merged(self._holes):
            if not punch(self.fileno, hole_start, hole_end - hole_start):
                break
            has_given = True
        self._holes.clear()
        self._free_bytes = 0
        return has_given

    def _clear(self) -> None:
        """Truncate the file: it holds no payload any more."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.fileno, 0)
        self.end_bytes = 0
        self._holes.clear()
        self._free_bytes = 0

    def __del__(self) -> None:
        """Close the file, which frees all its blocks."""
        if self.fileno >= 0:
            os.close(self.fileno)


class SpillFile:
    """The segments of one store.

    Invariant: each segment but the last holds at least one payload.

    Attributes:
        stored_bytes: the bytes of the payloads in them.
    """

    def __init__(self, directory: str, disk_limit: int | None = None) -> None:
        """Begin without a file."""
        self.stored_bytes = 0
        self._directory = Path(directory)
        self._disk_limit = disk_limit
        self._segments: list[Segment] = []
        self._fallocate = _find_fallocate()

    def check(self) -> None:
        """Check that files can be created.

        Raises:
            OSError: they cannot.
        """
        Segment(self._directory)

    def write(self, data: bytes) -> tuple[Segment, int]:
        """Write a payload.

        Returns:
            (its segment, where it begins).

        Raises:
            OSError: there is no room, or the directory, which the error names, is gone. Nothing has
                changed.
        """
        n_bytes = len(data)
        if self._disk_limit is not None and self.stored_bytes + n_bytes > self._disk_limit:
            raise OSError(errno.ENOSPC, f"disk_limit of {self._disk_limit} bytes reached")
        try:
            # Nameless files could go on to fill a disk whose directory was cleared to free it.
            self._directory.stat()
            if not self._segments or self._segments[-1].end_bytes >= SEGMENT_BYTES:
                self._segments.append(Segment(self._directory))
            segment = self._segments[-1]
            start = self._write(segment, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._directory)) from error
        self.stored_bytes += n_bytes
        return segment, start

    def _write(self, segment: Segment, data: bytes) -> int:
        """Write a payload into a segment; on a full disk, return freed blocks first.

        Raises:
            OSError: as `write`.
        """
        try:
            return segment.write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            # All segments: the blocks of one may not be enough.
            if not sum(other.give_back(self._punch) for other in self._segments):
                raise
        return segment.write(data)

    def read(self, segment: Segment, start: int, n_bytes: int) -> bytes:
        """Return a part of a payload. Any thread may call this.

        Raises:
            OSError: it is gone, or the disk cannot read it.
        """
        parts: list[bytes] = []
        n_left = n_bytes
        while n_left:
            part = os.pread(segment.fileno, n_left, start + n_bytes - n_left)
            if not part:
                raise OSError(errno.EIO, f"{n_left} of {n_bytes} bytes are gone from the file")
            parts.append(part)
            n_left -= len(part)
        return b"".join(parts)  # a single part as it is, without a copy

    def free(self, segment: Segment, start: int, n_bytes: int) -> None:
        """Free a payload."""
        self.stored_bytes -= n_bytes
        segment.free(start, n_bytes, self._punch)
        if not segment.n_payloads and segment is not self._segments[-1]:
            self._segments.remove(segment)

    def _punch(self, fileno: int, start: int, n_bytes: int) -> bool:
        """Return blocks to the disk; return False where that is not possible."""
        if self._fallocate is None:
            return False
        if self._fallocate(fileno, _PUNCH_HOLE | _KEEP_SIZE, start, n_bytes):
            self._fallocate = None  # not on this file system
            return False
        return True


def _whole_blocks(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _merged(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (start, end) of holes in order, adjacent ones as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(holes):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return the C library's function that punches holes; None where it has none."""
    try:
        library = ctypes.CDLL(None)
        fallocate = getattr(library, "fallocate64", None) or library.fallocate
    except (AttributeError, OSError, TypeError):  # macOS, Windows
        return None
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    fallocate.restype = ctypes.c_int
    call: Callable[[int, int, int, int], int] = fallocate
    return call
