from __future__ import annotations

import pytest

from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.engines.store import Changes, Rows
from tests.plugins.queue.engines.sqlite_files import PLACE, deleting, naming, segment, storing


def test_memory_is_empty_after_a_restart() -> None:
    """The memory engine keeps messages until the program ends, and no longer."""
    store = MemoryStore()
    assert store.open() == Rows()
    store.write(naming())
    store.write(storing(segment(0)))
    store.close()
    assert store.open() == Rows()
    assert store.read(PLACE, [0]) == {}


def test_frames_stay_until_their_segment_or_queue_is_deleted() -> None:
    """Nothing keeps the memory of what is gone."""
    store = MemoryStore()
    store.write(naming())
    store.write(storing(segment(0), segment(1), segment(2)))
    assert store.read(PLACE, [0, 2, 5]) == {0: bytes(10), 2: bytes(10)}
    store.write(deleting(0))
    assert list(store.read(PLACE, [0, 1, 2])) == [1, 2]
    store.write(Changes(deleted_queues=[1]))
    assert store.read(PLACE, [0, 1, 2]) == {}
    assert store.figures() == {"engine": "memory", "segments": 0}


def test_there_is_no_file_to_be_copied_or_made_smaller() -> None:
    """What needs a file says so, or has nothing to do."""
    store = MemoryStore()
    with pytest.raises(StorageError, match="backup to copy: the memory engine has no file"):
        store.backup("copy")
    assert (store.compact(), store.sweep(), store.trim(), store.why_lost()) == (0, False, False, "")
