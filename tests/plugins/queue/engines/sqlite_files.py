"""Stores of one physical queue in SQLite files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.engines.store import Changes, PhysicalRow, QueueRow, Rows, Segment

PLACE: Final = 1
"""Row number of the physical queue."""


def segment(first_offset: int, n_messages: int = 1, n_bytes: int = 10) -> Segment:
    """Return the facts about a segment of a size."""
    return Segment(first_offset, n_messages, n_bytes, n_bytes, 0.0, 0.0, 0)


def storing(*segments: Segment, **more: Any) -> Changes:
    """Return the changes that store segments."""
    frames = [(PLACE, one, bytes(one.stored_bytes)) for one in segments]
    return Changes(must_flush=bool(segments), segments=frames, **more)


def deleting(*first_offsets: int) -> Changes:
    """Return the changes that delete segments."""
    return Changes(deleted_segments=[(PLACE, first) for first in first_offsets])


def naming() -> Changes:
    """Return the changes that create the queue `q` with its physical queue."""
    return Changes(
        queues=[QueueRow(1, "q", "incarnation", "{}")],
        physical=[PhysicalRow(PLACE, 1, 0, 0, 0, 0, 0, 0)],
    )


def rows_of(path: Path) -> Rows:
    """Open a file, and return what is in it."""
    store = SqliteStore(str(path))
    try:
        return store.open()
    finally:
        store.close()


def firsts(store: SqliteStore, n: int = 10) -> list[int]:
    """Return the first offsets below a number of the segments that can be read."""
    return sorted(store.read(PLACE, range(n)))


@contextmanager
def opened(path: Path, durability: str = "full") -> Iterator[SqliteStore]:
    """Open a store with the queue `q`."""
    store = SqliteStore(str(path), durability)
    if not store.open().queues:
        store.write(naming())
    try:
        yield store
    finally:
        store.close()
