"""A copy of the payload for each subscriber: paper 002's baseline, for comparisons."""

from __future__ import annotations

from penstock.broker.extensions import PayloadStore
from penstock.broker.payload import Payload


class CopyStore(PayloadStore):
    """Keeps a copy of a payload in memory for each subscriber that waits for it."""

    def copy(self, payload: Payload) -> Payload:
        """Return a copy of the bytes."""
        return bytes(memoryview(payload if isinstance(payload, bytes) else payload.read()))
