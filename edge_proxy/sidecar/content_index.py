"""Stores equal payloads once, although they arrive once for each subscriber.

A broker sends a message to each of its subscribers, so that the proxy receives its payload several
times. Waiting payloads are looked up by their content: equal bytes are stored once, in memory or in
the payload store of a plugin, and freed with their last reference.
"""

from __future__ import annotations

import hashlib
from weakref import WeakValueDictionary

from penstock.broker.extensions import PayloadStore, overridden
from penstock.broker.payload import PIECE_BYTES, STORED_ABOVE_BYTES, Payload


class IndexedPayload:
    """One payload, however many messages refer to it."""

    __slots__ = ("__weakref__", "_kept")

    def __init__(self, kept: Payload) -> None:
        self._kept = kept

    def __len__(self) -> int:
        return len(self._kept)

    def read(self) -> bytes:
        """Return the payload; of one in memory never a copy.

        Raises:
            OSError: its store cannot read it back.
        """
        kept = self._kept
        return kept if isinstance(kept, bytes) else kept.read()

    def read_piece(self, start: int) -> bytes:
        """Return `PIECE_BYTES` from `start` on, or the rest.

        Raises:
            OSError: its store cannot read it back.
        """
        kept = self._kept
        if isinstance(kept, bytes):
            return kept[start : start + PIECE_BYTES]
        return kept.read_piece(start)


class ContentIndex:
    """Keeps equal payloads once, by their SHA-256, and each of them in a `PayloadStore`.

    Comparing digests suffices: nobody can construct two payloads with the same digest, so that no
    client gets a payload that was meant for another. A store that wants a copy for each subscriber
    gets each payload as it comes.
    """

    def __init__(self, store: PayloadStore | None = None) -> None:
        self.store = PayloadStore() if store is None else store
        self._copies = overridden(self.store.copy, PayloadStore.copy) is not None
        self._by_digest: WeakValueDictionary[bytes, IndexedPayload] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return how many different payloads are kept."""
        return len(self._by_digest)

    def keep(self, data: bytes) -> Payload:
        """Return a handle to `data`, shared by all equal payloads that are stored at the time.

        Raises:
            OSError: the store has no room for it.
        """
        if len(data) <= STORED_ABOVE_BYTES:
            return data
        if self._copies:
            return self.store.copy(self.store.keep(data))
        digest = hashlib.sha256(data).digest()
        kept = self._by_digest.get(digest)
        if kept is None:
            kept = self._by_digest[digest] = IndexedPayload(self.store.keep(data))
        return kept
