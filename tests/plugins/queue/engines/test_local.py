from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from penstock.plugins.queue.client import read_batch
from penstock.plugins.queue.engine import RangeGoneError, StorageError
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.engine_sqlite import SqliteStore
from penstock.plugins.queue.store import Key, Mark, NewSegment, StoredSegment
from tests.helpers.clock import Clock
from tests.plugins.queue.running import running_engine, store_messages, until


class HeldStore(MemoryStore):
    """A store whose reads and writes can be held up, and made to fail.

    Attributes:
        may_read: reads wait for it.
        is_reading: set when one waits.
        error: raised by every call while it is set.
        fails_from: offset from which reads fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.may_read = threading.Event()
        self.may_read.set()
        self.is_reading = threading.Event()
        self.error: Exception | None = None
        self.fails_from: int | None = None

    def write(self, segments: Sequence[NewSegment], marks: Sequence[Mark]) -> None:
        """Write, or fail."""
        if self.error is not None:
            raise self.error
        super().write(segments, marks)

    def truncate(self, key: Key, below: int) -> int:
        """Truncate, or fail."""
        if self.error is not None:
            raise self.error
        return super().truncate(key, below)

    def read(
        self, key: Key, start: int, end: int, max_messages: int, max_bytes: int
    ) -> list[StoredSegment]:
        """Read when allowed, or fail."""
        if self.fails_from is not None and start >= self.fails_from:
            raise StorageError("unreadable")
        found = super().read(key, start, end, max_messages, max_bytes)
        self.is_reading.set()
        self.may_read.wait()
        if self.error is not None:
            raise self.error
        return found


async def test_failed_delete_leaves_the_messages_visible() -> None:
    """A delete that the storage refuses is told, and its messages come again at once."""
    store = HeldStore()
    async with running_engine(store) as engine:
        await store_messages(engine, [b"a"])
        (received,) = await engine.take("q", 0, 9, 99)
        store.error = StorageError("no")
        with pytest.raises(StorageError, match="no"):
            await engine.delete("q", [received.receipt_handle])
        assert engine.failure() == "no"
        store.error = None
        (again,) = await engine.take("q", 0, 9, 99)
        assert again.receive_count == 2
        assert await engine.delete("q", [again.receipt_handle]) == []
        assert engine.failure() is None


@pytest.mark.parametrize("fails", [False, True])
async def test_delete_goes_on_when_the_one_who_asked_has_gone(*, fails: bool) -> None:
    """A client that leaves during its delete neither undoes it nor hides its failure."""
    store = HeldStore()
    async with running_engine(store) as engine:
        await store_messages(engine, [b"a"])
        (received,) = await engine.take("q", 0, 9, 99)
        store.error = StorageError("no") if fails else None
        deleting = asyncio.create_task(engine.delete("q", [received.receipt_handle]))
        await asyncio.sleep(0)
        deleting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deleting
        if not fails:
            await until(lambda: engine.usage("q")[0].messages == 0)
            return
        await until(lambda: engine.leased("q") == 1)
        store.error = None
        assert [one.payload for one in await engine.take("q", 0, 9, 99)] == [b"a"]


async def test_handle_of_the_last_run_deletes_nothing(tmp_path: Path) -> None:
    """After a restart a message may be with another receiver: old handles are dead."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path)) as engine:
        await store_messages(engine, [b"a"])
        (old,) = await engine.take("q", 0, 9, 99)
    async with running_engine(SqliteStore(path)) as engine:
        (new,) = await engine.take("q", 0, 9, 99)
        assert await engine.delete("q", [old.receipt_handle]) == [old.receipt_handle]
        assert await engine.delete("q", [new.receipt_handle]) == []


async def test_message_that_is_deleted_while_it_is_read_again_is_not_received() -> None:
    """A late delete that comes before the redelivery is done spares it."""
    store, clock = HeldStore(), Clock()
    async with running_engine(store, clock=clock) as engine:
        await store_messages(engine, [b"a", b"b"])
        (first, _) = await engine.take("q", 0, 9, 99)
        clock.now += 30
        store.may_read.clear()
        store.is_reading.clear()
        taking = asyncio.create_task(engine.take("q", 0, 9, 99))
        await asyncio.to_thread(store.is_reading.wait)
        assert await engine.delete("q", [first.receipt_handle]) == []
        store.may_read.set()
        assert [one.payload for one in await taking] == [b"b"]


async def test_receive_that_fails_half_way_gives_back_what_it_had() -> None:
    """Messages that were read again are visible at once where reading further messages fails."""
    store, clock = HeldStore(), Clock()
    async with running_engine(store, clock=clock) as engine:
        await store_messages(engine, [b"a"])
        await engine.take("q", 0, 9, 99)
        await store_messages(engine, [b"b"])
        clock.now += 30
        store.fails_from = 1
        with pytest.raises(StorageError, match="unreadable"):
            await engine.take("q", 0, 9, 99)
        store.fails_from = None
        received = await engine.take("q", 0, 9, 99)
        assert [(one.payload, one.receive_count) for one in received] == [(b"a", 2), (b"b", 1)]


async def test_failed_read_is_told_and_loses_nothing() -> None:
    """A storage that cannot be read refuses the receive; afterwards all is there."""
    store, clock = HeldStore(), Clock()
    async with running_engine(store, clock=clock) as engine:
        await store_messages(engine, [b"a", b"b"])
        store.error = StorageError("unreadable")
        with pytest.raises(StorageError, match="unreadable"):
            await engine.take("q", 0, 9, 99)
        store.error = None
        assert len(await engine.take("q", 0, 1, 99)) == 1
        clock.now += 30
        store.error = StorageError("unreadable")
        with pytest.raises(StorageError, match="unreadable"):
            await engine.take("q", 0, 9, 99)
        store.error = None
        assert [one.payload for one in await engine.take("q", 0, 9, 99)] == [b"a", b"b"]


async def test_receiver_that_leaves_while_its_messages_are_read_gets_none() -> None:
    """What a cancelled receive would have got goes to the next receiver."""
    store, clock = HeldStore(), Clock()
    async with running_engine(store, clock=clock) as engine:
        await store_messages(engine, [b"a"])
        await engine.take("q", 0, 9, 99)
        clock.now += 30
        store.may_read.clear()
        store.is_reading.clear()
        taking = asyncio.create_task(engine.take("q", 0, 9, 99))
        await asyncio.to_thread(store.is_reading.wait)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        store.may_read.set()
        assert [one.payload for one in await engine.take("q", 0, 9, 99)] == [b"a"]


async def test_range_that_is_committed_while_it_is_read_is_refused() -> None:
    """A reader is never given a range with holes in it."""
    store = HeldStore()
    async with running_engine(store) as engine:
        await store_messages(engine, [b"a", b"b"])
        store.may_read.clear()
        reading = asyncio.create_task(engine.read_range("q", 0, 0, 2, 9))
        await asyncio.to_thread(store.is_reading.wait)
        await engine.commit("q", {0: 1})
        store.may_read.set()
        with pytest.raises(RangeGoneError):
            await reading


async def test_failed_commit_keeps_what_is_there() -> None:
    """A commit that the storage refuses is told; the range can still be read."""
    store = HeldStore()
    async with running_engine(store) as engine:
        await store_messages(engine, [b"a", b"b"])
        store.error = StorageError("no")
        with pytest.raises(StorageError, match="no"):
            await engine.commit("q", {0: 2})
        store.error = None
        frames = await engine.read_range("q", 0, 0, 2, 9)
        assert read_batch(b"".join(frames)).payload == [b"a", b"b"]


def break_segment(path: Path, first_offset: int, frame: bytes = b"broken") -> None:
    """Put something else in the place of a segment's frame."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE segment SET frame = ? WHERE first_offset = ?", (frame, first_offset)
        )


async def test_a_broken_segment_is_set_aside_and_what_is_behind_it_received(tmp_path: Path) -> None:
    """It holds up no reader of either kind, is told, and stays told after a restart."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path))) as engine:
        for payload in (b"a", b"b", b"c"):
            await store_messages(engine, [payload])
    break_segment(path, 0)
    with closing(sqlite3.connect(path)) as connection:
        (frame,) = connection.execute("SELECT frame FROM segment WHERE first_offset = 2").fetchone()
    break_segment(path, 1, frame)  # whole, and of other messages
    async with running_engine(SqliteStore(str(path))) as engine:
        assert [one.payload for one in await engine.take("q", 0, 9, 99)] == [b"c"]
        assert engine.set_aside("q") == 2
        assert engine.usage("q")[0].messages == 1
        assert engine.failure() is None
    async with running_engine(SqliteStore(str(path))) as engine:
        assert engine.set_aside("q") == 2
        frames = await engine.read_range("q", 0, 0, 3, 9)
        assert read_batch(b"".join(frames)).payload == [b"c"]


async def test_a_range_holds_no_broken_frame(tmp_path: Path) -> None:
    """Its reader could not go on behind one."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path))) as engine:
        for payload in (b"a", b"b", b"c"):
            await store_messages(engine, [payload])
        break_segment(path, 1)
        frames = await engine.read_range("q", 0, 0, 3, 9)
        assert read_batch(b"".join(frames)).payload == [b"a", b"c"]


async def test_messages_whose_segment_breaks_while_they_are_leased_are_not_held_up(
    tmp_path: Path,
) -> None:
    """What becomes visible again is read again: a broken segment then leaves, leases and all."""
    path = tmp_path / "queue.db"
    clock = Clock()
    engine = running_engine(SqliteStore(str(path)), clock=clock, visibility_timeout=30.0)
    async with engine as running:
        await store_messages(running, [b"a", b"b"])
        await store_messages(running, [b"c"])
        assert len(await running.take("q", 0, 9, 99)) == 3
        break_segment(path, 0)
        clock.now += 31
        assert [one.payload for one in await running.take("q", 0, 9, 99)] == [b"c"]
        assert running.leased("q") == 1
        assert running.set_aside("q") == 2


async def test_a_physical_queue_that_cannot_be_read_is_a_failure_until_it_can() -> None:
    """Who asks for the engine's health is told."""
    held = HeldStore()
    async with running_engine(held) as engine:
        await store_messages(engine, [b"a"])
        held.fails_from = 0
        with pytest.raises(StorageError, match="unreadable"):
            await engine.take("q", 0, 9, 99)
        assert engine.failure() == "unreadable"
        held.fails_from = None
        assert len(await engine.take("q", 0, 9, 99)) == 1
        assert engine.failure() is None


async def test_closed_engine_takes_no_more() -> None:
    """After the close, an append is refused and not forgotten."""
    async with running_engine(MemoryStore()) as engine:
        await engine.close()
        with pytest.raises(StorageError, match="closed"):
            await store_messages(engine, [b"a"])


async def test_surplus_physical_queues_are_kept_and_read(tmp_path: Path) -> None:
    """A queue that is given fewer physical queues does not lose what lies in the others."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path), {"q": 3}) as engine:
        await store_messages(engine, [b"a"], number=2)
    async with running_engine(SqliteStore(path), {"q": 1}) as engine:
        assert sorted(engine.usage("q")) == [0, 1, 2]
        assert [one.payload for one in await engine.take("q", 2, 9, 99)] == [b"a"]


async def test_messages_of_a_queue_that_is_no_longer_configured_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that has left the policy file keeps its messages, and the log says so."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path), {"q": 1}) as engine:
        await store_messages(engine, [b"a"])
    with caplog.at_level(logging.WARNING):
        async with running_engine(SqliteStore(path), {"other": 1}):
            pass
    assert "queue q is not in the policy file; its 1 messages" in caplog.text
    async with running_engine(SqliteStore(path), {"q": 1}) as engine:
        assert len(await engine.take("q", 0, 9, 99)) == 1
