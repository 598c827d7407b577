"""A payload for each subscriber: what paper 002 calls the baseline, to compare others with."""

from __future__ import annotations

from penstock.broker.extensions import PayloadStore
from penstock.broker.payload import Payload


class CopyStore(PayloadStore):
    """Keeps a payload in memory for each subscriber that waits for it."""

    def copy(self, payload: Payload) -> Payload:
        """Return the same bytes once more."""
        return bytes(memoryview(payload if isinstance(payload, bytes) else payload.read()))
