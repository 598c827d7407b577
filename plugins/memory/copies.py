"""A payload for each subscriber: what paper 002 calls the baseline, to compare others with."""

from __future__ import annotations

from penstock.broker.extensions import CopyingStore
from penstock.broker.payload import Payload


class CopyStore(CopyingStore):
    """Keeps a payload in memory for each subscriber that waits for it."""

    def keep(self, data: bytes) -> Payload:
        """Return `data` itself, of which `copy` is made for each subscriber."""
        return data

    def copy(self, payload: Payload) -> Payload:
        """Return the same bytes once more."""
        return bytes(memoryview(payload if isinstance(payload, bytes) else payload.read()))
