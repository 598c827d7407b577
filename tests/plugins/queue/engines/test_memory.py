from __future__ import annotations

from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.store import NewSegment


def test_memory_is_empty_after_a_restart() -> None:
    """The memory engine keeps messages until the program ends, and no longer."""
    store = MemoryStore()
    store.open({"q": 1})
    store.write([NewSegment(("q", 0), 0, 1, 0.0, b"frame")], [])
    store.close()
    store.open({"q": 1})
    assert store.read(("q", 0), 0, 9, 9, 9) == []
    assert store.usage["q", 0].next == 0
