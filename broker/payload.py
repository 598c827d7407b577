"""Payloads: in memory by reference, or in a plugin's store."""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

STORED_ABOVE_BYTES: Final = 4096
"""A payload up to this size stays with its message, whatever the store: the store's record of it
would take about as much."""

JOIN_BELOW_BYTES: Final = STORED_ABOVE_BYTES
"""A header up to this size is joined to a payload up to it; longer ones are not copied again."""

PIECE_BYTES: Final = 65_536
"""A stored payload is read in pieces of this size while it is sent, so that a stalled client has no
more of it in memory. Smaller pieces take more system calls."""


class StoredPayload(Protocol):
    """A handle to a payload that is stored outside of memory.

    Dropping the last reference frees what it holds; nothing else does.
    """

    def __len__(self) -> int:
        """Length of the payload in bytes."""

    def read(self) -> bytes:
        """Return the payload.

        Raises:
            OSError: it cannot be read back.
        """

    def read_piece(self, start: int) -> bytes:
        """Return `PIECE_BYTES` of the payload, or the rest.

        Callers that read the same piece at about the same time should get the same object. After a
        piece could not be read, every read must fail, so that the payload is not sent again and
        again in vain.

        Args:
            start: the position where the piece begins, a multiple of `PIECE_BYTES` before the end.

        Raises:
            OSError: it cannot be read back.
        """


Payload: TypeAlias = "bytes | StoredPayload"


class PayloadReader:
    """A stored payload that is being sent to one client, read in pieces as the client takes them.

    Its length is what remains to be read.
    """

    __slots__ = ("_next", "_payload", "_position")

    def __init__(self, payload: StoredPayload) -> None:
        """Read the first piece, so that a payload that cannot be read is not begun.

        Raises:
            OSError: it cannot be read back.
        """
        self._payload = payload
        self._position = 0
        self._next = payload.read_piece(0)

    def __len__(self) -> int:
        return len(self._payload) - self._position

    def read(self) -> bytes | memoryview:
        """Return the next piece; only called while something remains.

        Raises:
            OSError: it cannot be read back.
        """
        piece = self._next or self._payload.read_piece(self._position)
        self._next = b""
        self._position += len(piece)
        return piece
