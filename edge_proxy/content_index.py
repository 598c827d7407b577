"""Equal payloads that arrive once per subscriber are stored once.

A broker sends a message to each of its clients, so the proxy receives its payload as often as
it has subscribers. What waits here is looked up by its content: equal bytes are kept once, and
gone with their last reference.
"""

from __future__ import annotations

import hashlib
from typing import Final
from weakref import WeakValueDictionary

from penstock.broker.payload import PIECE_BYTES, Payload

MIN_INDEXED_BYTES: Final = 4096
"""A shorter payload is kept as it is: the entry would cost a good part of what it saves."""


class IndexedPayload:
    """One payload, however many messages refer to it."""

    __slots__ = ("__weakref__", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def read(self) -> bytes:
        """Return the payload; never a copy."""
        return self._data

    def read_piece(self, start: int) -> bytes:
        """Return `PIECE_BYTES` from `start` on, or as many as are left."""
        return self._data[start : start + PIECE_BYTES]


class ContentIndex:
    """A `PayloadStore` that keeps equal payloads once, by their SHA-256.

    The digest alone decides: nobody can make two payloads with the same one, so no client is
    given what was meant for another.
    """

    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[bytes, IndexedPayload] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return how many different payloads are kept."""
        return len(self._by_digest)

    def keep(self, data: bytes) -> Payload:
        """Return what stands for `data` and for every equal payload kept at this time."""
        if len(data) < MIN_INDEXED_BYTES:
            return data
        digest = hashlib.sha256(data).digest()
        kept = self._by_digest.get(digest)
        if kept is None:
            kept = self._by_digest[digest] = IndexedPayload(data)
        return kept
