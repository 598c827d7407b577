"""Stores equal payloads once, although they arrive once for each subscriber.

A broker sends a message to each of its clients, so the proxy receives its payload as often as it
has subscribers. Waiting payloads are looked up by their content: equal bytes are stored once, and
freed with their last reference.
"""

from __future__ import annotations

import hashlib
from typing import Final
from weakref import WeakValueDictionary

from penstock.broker.payload import PIECE_BYTES, Payload

MIN_INDEXED_BYTES: Final = 4096
"""A shorter payload is not indexed: the entry would take much of what it saves."""


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
        """Return `PIECE_BYTES` from `start` on, or the rest."""
        return self._data[start : start + PIECE_BYTES]


class ContentIndex:
    """A `PayloadStore` that keeps equal payloads once, by their SHA-256.

    The digest alone decides: two payloads with the same digest cannot be constructed, so no client
    gets a payload that was meant for another.
    """

    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[bytes, IndexedPayload] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return how many different payloads are kept."""
        return len(self._by_digest)

    def keep(self, data: bytes) -> Payload:
        """Return a handle to `data`, shared by all equal payloads that are stored at the time."""
        if len(data) < MIN_INDEXED_BYTES:
            return data
        digest = hashlib.sha256(data).digest()
        kept = self._by_digest.get(digest)
        if kept is None:
            kept = self._by_digest[digest] = IndexedPayload(data)
        return kept
