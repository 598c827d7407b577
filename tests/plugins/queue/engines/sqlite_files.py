"""Stores of one queue in SQLite files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.plugins.queue.engine_sqlite import SqliteStore
from penstock.plugins.queue.store import NewSegment

KEY = ("q", 0)


def segment(first_offset: int, n_messages: int = 1, n_bytes: int = 10) -> NewSegment:
    """Return a segment of a size."""
    return NewSegment(KEY, first_offset, n_messages, 0.0, bytes(n_bytes))


@contextmanager
def opened(path: Path, durability: str = "full", physical_queues: int = 1) -> Iterator[SqliteStore]:
    """Open a store with the queue `q`."""
    store = SqliteStore(str(path), durability)
    store.open({"q": physical_queues})
    try:
        yield store
    finally:
        store.close()
