"""Where payloads live: by reference, unless a plugin's store says otherwise."""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

STORED_ABOVE_BYTES: Final = 4096
"""A payload up to this size stays with its message, whatever the store: elsewhere, what is noted of
it would soon take as much as it does."""

PIECE_BYTES: Final = 65_536
"""What is read at once of a stored payload that is sent: the most that a client which stalls has in
memory of it. Smaller pieces take more system calls for the same payload."""


SENT_PIECE_BYTES: Final = 16_384
"""What a transport is given at once of a payload in memory that may be broken off: what it has, it
cannot give back. A piece takes some 10 us."""


class StoredPayload(Protocol):
    """A handle to a payload that is kept elsewhere than in memory.

    Its last reference frees what it holds; nothing else does.
    """

    def __len__(self) -> int:
        """Length of the payload in bytes."""

    def read(self) -> bytes:
        """Return the payload.

        Raises:
            OSError: it cannot be read back.
        """

    def read_piece(self, start: int) -> bytes:
        """Return `PIECE_BYTES` of the payload, or as many as are left.

        Who sends the same piece at about the same time should get the same object. A payload of
        which one piece could not be read cannot be read at all from then on: it is not sent again
        and again in vain.

        Args:
            start: where the piece begins, a multiple of `PIECE_BYTES` before the end.

        Raises:
            OSError: it cannot be read back.
        """


Payload: TypeAlias = "bytes | StoredPayload"


class PayloadReader:
    """A stored payload on its way to one client, read piece by piece as the client takes it.

    Its length is what is left of it.
    """

    __slots__ = ("_next", "_payload", "_position")

    def __init__(self, payload: StoredPayload) -> None:
        """Read the first piece: what cannot be read at all is better not begun.

        Raises:
            OSError: it cannot be read back.
        """
        self._payload = payload
        self._position = 0
        self._next = payload.read_piece(0)

    def __len__(self) -> int:
        return len(self._payload) - self._position

    def read(self) -> bytes | memoryview:
        """Return the next piece; not called when nothing is left.

        Raises:
            OSError: it cannot be read back.
        """
        piece = self._next or self._payload.read_piece(self._position)
        self._next = b""
        self._position += len(piece)
        return piece


class PieceReader(PayloadReader):
    """A payload in memory on its way to one client, by reference, so that what is left is known.

    Attributes:
        whole: the payload.
    """

    __slots__ = ("whole",)

    def __init__(self, whole: bytes) -> None:
        self.whole = whole
        self._position = 0

    def __len__(self) -> int:
        return len(self.whole) - self._position

    def read(self) -> memoryview:
        """Return the next piece; not called when nothing is left."""
        start = self._position
        self._position = min(len(self.whole), start + SENT_PIECE_BYTES)
        return memoryview(self.whole)[start : self._position]
