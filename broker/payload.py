"""Where payloads live: by reference, unless a plugin's store says otherwise."""

from __future__ import annotations

from typing import Protocol, TypeAlias


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


Payload: TypeAlias = "bytes | StoredPayload"


class ReferenceStore:
    """The default store: one immutable `bytes`, kept by Python's own references.

    Paper 002 calls this lazy allocation: a queue of a subscriber holds a reference to the
    one stored message, and the packet is built only when it can be sent.
    """

    def keep(self, data: bytes) -> Payload:
        """Return `data` itself."""
        return data
