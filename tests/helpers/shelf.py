"""A stored payload that is not in memory, like those of the plugin `memory`."""

from __future__ import annotations

from penstock.broker.payload import PIECE_BYTES


class Shelf:
    """A stored payload that records the reads, and may fail from some byte on.

    Attributes:
        data: the payload.
        starts: the offsets at which the read pieces began.
    """

    def __init__(self, data: bytes, fails_from: int | None = None) -> None:
        self.data = data
        self.starts: list[int] = []
        self._fails_from = fails_from

    def __len__(self) -> int:
        return len(self.data)

    def read(self) -> bytes:
        """Return all of it."""
        return self.data

    def read_piece(self, start: int) -> bytes:
        """Return a piece, or fail."""
        if self._fails_from is not None and start >= self._fails_from:
            raise OSError(5, "input/output error")
        self.starts.append(start)
        return self.data[start : start + PIECE_BYTES]
