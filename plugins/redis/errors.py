"""What goes wrong with servers that keep something, as their users see it."""

from __future__ import annotations

from penstock.broker.errors import PenstockError


class EngineStartError(PenstockError):
    """An engine that cannot be opened; the program ends with status 2."""


class EngineAwayError(EngineStartError):
    """The same, as it cannot be reached: it may start later."""


class StorageError(PenstockError):
    """The engine's storage cannot be read or written; what was acknowledged before is safe."""


class StorageFullError(StorageError):
    """The storage has no space left."""
