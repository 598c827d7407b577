from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.queue.engines.contract import (
    GroupSpec,
    Health,
    NewMessage,
    QueueSpec,
    RangeGoneError,
    StorageError,
    StorageFullError,
)
from penstock.plugins.queue.engines.leases import MAX_LOOKED, LeaseRequest, LocalPlace
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.maintenance import TRIM_STEPS
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.engines.requests import Request, Run
from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.engines.store import Changes
from penstock.plugins.queue.wire.frames import read_batch
from tests.helpers.clock import Clock
from tests.plugins.queue.engines.local_engine import payloads, put, running_engine
from tests.plugins.queue.running import LOGGER, message, until


async def test_a_handle_is_stale_though_65_536_receives_have_come_between() -> None:
    """Its message was given back, so that its next receive has the same count."""
    async with running_engine(MemoryStore()) as engine:
        await put(engine, b"a")
        (old,) = await engine.lease("q", "g", 0, 1, 10**9)
        engine.give_back("q", "g", [old])
        engine._receiving._nonce += 65_535
        (new,) = await engine.lease("q", "g", 0, 1, 10**9)
        assert (old.receive_count, new.receive_count) == (1, 1)
        assert await engine.settle("q", "g", "ack", [old.receipt_handle]) == {0: "stale"}
        assert await engine.settle("q", "g", "ack", [new.receipt_handle]) == {}


class HeldStore(MemoryStore):
    """A store whose reads can be held up, and which can be made to fail.

    Attributes:
        may_read: reads wait for it.
        is_reading: set when one waits.
        error: raised by every call while it is set.
        unreadable: first offsets that cannot be read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.may_read = threading.Event()
        self.may_read.set()
        self.is_reading = threading.Event()
        self.error: Exception | None = None
        self.unreadable: set[int] = set()

    def write(self, changes: Changes) -> None:
        """Write, or fail."""
        if self.error is not None:
            raise self.error
        super().write(changes)

    def read(self, physical_id: int, first_offsets: Sequence[int]) -> dict[int, bytes]:
        """Read when allowed, or fail."""
        if self.unreadable & set(first_offsets):
            raise StorageError("unreadable")
        found = super().read(physical_id, first_offsets)
        self.is_reading.set()
        self.may_read.wait()
        if self.error is not None:
            raise self.error
        return found


def forget_segments(engine: LocalEngine) -> None:
    """Have the engine read segments again."""
    engine._state.cache.max_bytes = 0
    for place, first in list(engine._state.cache._held):
        engine._state.cache.drop(place, first)


@asynccontextmanager
async def reading_engine(
    store: HeldStore, *stored: bytes, clock: Callable[[], float] | None = None, group: str = "g"
) -> AsyncIterator[LocalEngine]:
    """Open an engine in which each message is a segment that must be read."""
    async with running_engine(store, clock=clock, groups=[group]) as engine:
        for payload in stored:
            await put(engine, payload)
        forget_segments(engine)
        yield engine


async def test_failed_settling_lets_the_lease_go_on() -> None:
    """A settling that the storage refuses is told; it may be repeated, or the lease ends."""
    store, clock = HeldStore(), Clock()
    async with running_engine(store, clock=clock) as engine:
        await put(engine, b"a", b"b")
        received, repeated = await engine.lease("q", "g", 0, 9, 99)
        store.error = StorageError("no")
        handles = [received.receipt_handle, repeated.receipt_handle]
        with pytest.raises(StorageError, match="no"):
            await engine.settle("q", "g", "ack", handles)
        assert engine.failure() == "no"
        store.error = None
        assert await engine.settle("q", "g", "ack", [repeated.receipt_handle]) == {}
        assert engine.failure() is None
        assert await payloads(engine) == []
        clock.now += 31
        assert await payloads(engine) == [b"a"]
        assert await engine.settle("q", "g", "ack", [received.receipt_handle]) == {0: "stale"}


async def test_receive_counts_that_the_storage_refused_are_stored_later(tmp_path: Path) -> None:
    """Without another receive: a restart does not begin to count again."""
    clock = Clock()
    path = str(tmp_path / "queue.db")
    store = SqliteStore(path, "normal")
    async with running_engine(store, clock=clock) as engine:
        await engine.change_group("q", "g", GroupSpec(max_receives=5))
        await put(engine, b"a")
        write = store.write
        n_refused = 0

        def refuse(changes: Changes) -> None:
            nonlocal n_refused
            if changes.receives and not n_refused:
                n_refused += 1
                raise StorageError("no")
            write(changes)

        store.write = refuse  # type: ignore[method-assign]
        (received,) = await engine.lease("q", "g", 0, 9, 99)
        assert (received.receive_count, n_refused) == (1, 1)
    async with running_engine(SqliteStore(path, "normal"), clock=clock) as engine:
        (received,) = await engine.lease("q", "g", 0, 9, 99)
        assert received.receive_count == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_settling_goes_on_when_the_one_who_asked_has_gone(*, fails: bool) -> None:
    """A client that leaves during its ack neither undoes it nor hides its failure."""
    store = HeldStore()
    async with running_engine(store) as engine:
        await put(engine, b"a")
        (received,) = await engine.lease("q", "g", 0, 9, 99)
        store.error = StorageError("no") if fails else None
        settling = asyncio.create_task(engine.settle("q", "g", "ack", [received.receipt_handle]))
        await asyncio.sleep(0)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        if not fails:
            await until(lambda: engine.snapshot("q").messages == 0)
            return
        await until(lambda: engine.snapshot("q").groups["g"].leased == 1)
        assert engine.snapshot("q").messages == 1


async def test_unseen_settling_that_fails_is_made_again() -> None:
    """What a filter passes over is not lost to it by a full disk, nor given to a receiver."""
    store, clock = HeldStore(), Clock()
    async with running_engine(store, clock=clock) as engine:
        await engine.change_group("q", "g", GroupSpec(topics=("other",)))
        await put(engine, b"a")
        store.error = StorageError("no")
        assert await payloads(engine) == []
        store.error = None
        assert engine.snapshot("q").groups["g"].waiting == 1
        clock.now += 1
        assert await payloads(engine) == []
        assert engine.snapshot("q").messages == 0


async def test_a_group_passes_over_many_messages_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them the loop serves others, and what was passed over leaves."""
    looked, longest = 0, 0
    consider = LocalPlace._consider

    def counting(place: LocalPlace, decoded: Decoded, index: int, take: LeaseRequest) -> bool:
        nonlocal looked, longest
        looked += 1
        longest = max(longest, looked)
        return consider(place, decoded, index, take)

    async def go_round() -> None:
        nonlocal looked
        while True:
            looked = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(LocalPlace, "_consider", counting)
    async with running_engine(MemoryStore()) as engine:
        await engine.change_group("q", "g", GroupSpec(topics=("wanted",)))
        for _ in range(4):
            await put(engine, *[b"x"] * 1_000)
        await put(engine, b"a", topic="wanted")
        others = asyncio.create_task(go_round())
        assert await payloads(engine) == [b"a"]
        others.cancel()
        assert longest <= MAX_LOOKED
        assert engine.snapshot("q").messages == 1
        assert engine.snapshot("q").groups["g"].settled["filtered"] == 4_000


async def test_a_dead_letter_that_cannot_move_wakes_no_receiver() -> None:
    """Its queue was deleted: each look fails, so a look that wakes the next one would be a loop."""
    clock = Clock()
    async with running_engine(MemoryStore(), clock=clock) as engine:
        await engine.change_group("q", "g", GroupSpec(max_receives=1, dead_letter_queue="gone"))
        await put(engine, b"a")
        (received,) = await engine.lease("q", "g", 0, 1, 99)
        await engine.settle("q", "g", "nack", [received.receipt_handle])
        assert await payloads(engine) == []
        assert engine.visible("q", "g") == {}
        clock.now += 1
        assert engine.visible("q", "g") == {0: 1}
        await engine.create_queue("gone", QueueSpec(physical_queues=1))
        assert await payloads(engine) == []
        assert engine.snapshot("gone").messages == 1


@pytest.mark.parametrize("way", ["commit", "seek", "delete"])
async def test_what_groups_finish_in_one_transaction_leaves(way: str) -> None:
    """It would stay, and count as held, until the first group had settled all before it."""
    async with running_engine(MemoryStore(), groups=("g", "r")) as engine:
        await put(engine, b"a", b"b")
        received = await engine.lease("q", "g", 0, 2, 99)
        end = await engine.locate("q", "latest")
        settling = engine.settle("q", "g", "ack", [received[1].receipt_handle])
        finishing: Coroutine[Any, Any, Any]
        if way == "commit":
            finishing = engine.commit("q", "r", end)
        elif way == "seek":
            finishing = engine.seek("q", "r", "latest")
        else:
            finishing = engine.delete_group("q", "r")
        await asyncio.gather(settling, finishing)
        assert engine.snapshot("q").messages == 1


async def test_keys_whose_messages_have_left_are_forgotten() -> None:
    """However many keys pass through a queue that keeps the last message of each."""
    async with running_engine(MemoryStore()) as engine:
        spec = QueueSpec(physical_queues=1, key="topic", keeps_last=True, groups={"g": GroupSpec()})
        await engine.change_queue("q", spec)
        await put(engine, b"old", topic="kept")
        await engine.lease("q", "g", 0, 1, 99)
        for start in range(0, 5_000, 500):
            names = [f"key/{start + n}" for n in range(500)]
            assert engine.reserve("q", 500, 500)
            await engine.append("q", 0, [NewMessage(message(b"x", name)) for name in names])
            received = await engine.lease("q", "g", 0, 500, 10**9)
            await engine.settle("q", "g", "ack", [one.receipt_handle for one in received])
        newest = engine._state.queues["q"].newest
        assert newest is not None
        assert len(newest) < 2_000
        await put(engine, b"new", topic="kept")
        assert await payloads(engine) == [b"new"]


async def test_receive_that_fails_half_way_gives_back_what_it_had() -> None:
    """Messages that were found are visible at once where reading further ones fails."""
    store = HeldStore()
    async with reading_engine(store, b"a", b"b") as engine:
        engine._state.cache.max_bytes = 10**6
        assert await payloads(engine, 1) == [b"a"]
        await engine.seek("q", "g", "earliest")
        engine._state.cache.drop(1, 1)
        store.unreadable = {1}
        with pytest.raises(StorageError, match="unreadable"):
            await payloads(engine)
        store.unreadable = set()
        received = await engine.lease("q", "g", 0, 9, 99)
        assert [(one.payload, one.receive_count) for one in received] == [(b"a", 1), (b"b", 1)]


async def test_a_lease_begins_behind_the_read_and_the_receives_that_it_waits_for() -> None:
    """Else a slow disk would give two receivers one message: the first lease was over at once."""
    store, clock = HeldStore(), Clock()
    async with reading_engine(store, b"a", b"b", clock=clock) as engine:
        store.may_read.clear()
        receives = [asyncio.create_task(payloads(engine, 1)) for _ in range(2)]
        await asyncio.to_thread(store.is_reading.wait)
        clock.now += 40
        store.may_read.set()
        assert await asyncio.gather(*receives) == [[b"a"], [b"b"]]
        clock.now += 29
        assert await payloads(engine) == []
        clock.now += 1
        assert await payloads(engine) == [b"a", b"b"]


async def test_failed_read_is_told_and_loses_nothing() -> None:
    """A storage that cannot be read refuses the receive; afterwards all is there."""
    store, clock = HeldStore(), Clock()
    async with reading_engine(store, b"a", b"b", clock=clock) as engine:
        store.error = StorageError("unreadable")
        with pytest.raises(StorageError, match="unreadable"):
            await payloads(engine)
        assert engine.failure() == "unreadable"
        store.error = None
        assert await payloads(engine, 1) == [b"a"]
        assert engine.failure() is None
        clock.now += 30
        store.error = StorageError("unreadable")
        with pytest.raises(StorageError, match="unreadable"):
            await payloads(engine)
        store.error = None
        assert await payloads(engine) == [b"a", b"b"]


async def test_receiver_that_leaves_while_its_messages_are_read_gets_none() -> None:
    """What a cancelled receive would have got goes to the next receiver."""
    store = HeldStore()
    async with reading_engine(store, b"a") as engine:
        store.may_read.clear()
        store.is_reading.clear()
        taking = asyncio.create_task(payloads(engine))
        await asyncio.to_thread(store.is_reading.wait)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        store.may_read.set()
        (received,) = await engine.lease("q", "g", 0, 9, 99)
        assert (received.payload, received.receive_count) == (b"a", 1)


async def test_receiver_that_leaves_while_its_receive_is_counted_gets_none() -> None:
    """Where receives are limited they are stored first; a receiver may leave meanwhile."""
    store = HeldStore()
    async with running_engine(store) as engine:
        await engine.change_group("q", "g", GroupSpec(max_receives=1))
        await put(engine, b"a")
        taking = asyncio.create_task(payloads(engine))
        await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert await payloads(engine) == [b"a"]


async def test_a_message_that_is_settled_while_it_is_read_again_is_not_received() -> None:
    """A late ack that comes before the redelivery is done spares it."""
    store, clock = HeldStore(), Clock()
    async with reading_engine(store, b"a", b"b", clock=clock) as engine:
        first, _ = await engine.lease("q", "g", 0, 9, 99)
        clock.now += 30
        store.may_read.clear()
        store.is_reading.clear()
        taking = asyncio.create_task(payloads(engine))
        await asyncio.to_thread(store.is_reading.wait)
        assert await engine.settle("q", "g", "ack", [first.receipt_handle]) == {}
        store.may_read.set()
        assert await taking == [b"b"]


async def test_range_that_is_committed_while_it_is_read_is_refused() -> None:
    """A reader is never given a range with holes in it."""
    store = HeldStore()
    async with running_engine(store, groups=["r"]) as engine:
        await put(engine, b"a", b"b")
        store.may_read.clear()
        reading = asyncio.create_task(engine.read("q", 0, 0, 2, 9))
        await asyncio.to_thread(store.is_reading.wait)
        start = await engine.locate("q", "earliest")
        # The whole segment leaves, so that the commit needs no read itself.
        await engine.commit("q", "r", start._replace(offsets={0: 2}))
        store.may_read.set()
        with pytest.raises(RangeGoneError):
            await reading


async def test_failed_commit_keeps_what_is_there() -> None:
    """A commit that the storage refuses is told; the range can still be read."""
    store = HeldStore()
    async with running_engine(store, groups=["r"]) as engine:
        await put(engine, b"a", b"b")
        store.error = StorageError("no")
        with pytest.raises(StorageError, match="no"):
            await engine.commit("q", "r", await engine.locate("q", "latest"))
        store.error = None
        frames = await engine.read("q", 0, 0, 2, 9)
        assert read_batch(b"".join(frames)).payload == [b"a", b"b"]
        assert engine.snapshot("q").groups["r"].position == {0: 0}


def break_segment(path: Path, first_offset: int, frame: bytes = b"broken") -> None:
    """Put something else in the place of a segment's frame."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE segment SET frame = ? WHERE first_offset = ?", (frame, first_offset)
        )


async def test_a_broken_segment_is_set_aside_and_what_is_behind_it_received(tmp_path: Path) -> None:
    """It holds up no reader of either kind, is told, and stays told after a restart."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path)), groups=["g", "r"]) as engine:
        for payload in (b"a", b"b", b"c", b"d"):
            await put(engine, payload)
    break_segment(path, 0)
    with closing(sqlite3.connect(path)) as connection, connection:
        (frame,) = connection.execute("SELECT frame FROM segment WHERE first_offset = 3").fetchone()
        connection.execute("DELETE FROM segment WHERE first_offset = 2")  # gone without a trace
    break_segment(path, 1, frame)  # whole, and of other messages
    async with running_engine(SqliteStore(str(path))) as engine:
        assert await payloads(engine) == [b"d"]
        found = engine.snapshot("q")
        assert (found.set_aside, found.messages, found.payload_bytes) == (3, 1, 1)
        assert found.groups["g"].waiting == found.groups["r"].waiting == 1
        assert engine.failure() is None
    async with running_engine(SqliteStore(str(path))) as engine:
        assert engine.snapshot("q").set_aside == 3
        frames = await engine.read("q", 0, engine.snapshot("q").usage[0].earliest, 4, 9)
        assert read_batch(b"".join(frames)).payload == [b"d"]


def flip(path: Path, wanted: bytes) -> None:
    """Change a bit of the last of some bytes, wherever they are in the file, as a disk may."""
    data = path.read_bytes()
    assert data.count(wanted) == 1
    path.write_bytes(data.replace(wanted, wanted[:-1] + bytes([wanted[-1] ^ 1])))


@pytest.mark.parametrize("kind", ["lease", "offsets"])
async def test_bytes_that_changed_on_the_disk_are_not_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """The frame can be decoded all the same; the log says where, and what is around it is read."""
    path = tmp_path / "queue.db"
    names = ["g"] if kind == "lease" else ["r"]
    async with running_engine(SqliteStore(str(path)), groups=names) as engine:
        for each in ((b"before",), (b"whole", b"amount: 100"), (b"behind",)):
            await put(engine, *each)
    flip(path, b"amount: 100")
    async with running_engine(SqliteStore(str(path))) as engine:
        if kind == "lease":
            found = await payloads(engine)
        else:
            found = read_batch(b"".join(await engine.read("q", 0, 0, 4, 9))).payload
        assert found == [b"before", b"behind"]
        assert engine.snapshot("q").set_aside == 2
        assert engine.failure() is None
    (told,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert told.startswith(
        f"queue q, physical queue 0: queue database {path}: the segment at offset 1 cannot be "
        "read: the CRC-32 of its frame is "
    )
    assert told.endswith("; 2 messages, of offsets 1 to 2, are set aside")


async def test_a_range_holds_no_broken_frame(tmp_path: Path) -> None:
    """Its reader could not go on behind one."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path)), groups=["r"]) as engine:
        for payload in (b"a", b"b", b"c"):
            await put(engine, payload)
        break_segment(path, 1)
        frames = await engine.read("q", 0, 0, 3, 9)
        assert read_batch(b"".join(frames)).payload == [b"a", b"c"]


async def test_messages_whose_segment_breaks_while_they_are_leased_are_not_held_up(
    tmp_path: Path,
) -> None:
    """What becomes visible again is read again: a broken segment then leaves, leases and all."""
    path = tmp_path / "queue.db"
    clock = Clock()
    async with running_engine(SqliteStore(str(path)), clock=clock) as engine:
        await put(engine, b"a", b"b")
        await put(engine, b"c")
        assert len(await payloads(engine)) == 3
        break_segment(path, 0)
        forget_segments(engine)
        clock.now += 31
        assert await payloads(engine) == [b"c"]
        found = engine.snapshot("q")
        assert (found.groups["g"].leased, found.set_aside) == (1, 2)


async def test_segments_in_memory_are_bounded_over_all_queues(tmp_path: Path) -> None:
    """However many queues and groups read ahead."""
    store = SqliteStore(str(tmp_path / "queue.db"), "normal")
    engine = LocalEngine(
        store, clock=Clock(), commit_max_messages=1000, read_ahead_bytes=300_000, logger=LOGGER
    )
    await engine.open()
    try:
        groups = {f"g{n}": GroupSpec() for n in range(3)}
        for name in ("a", "b"):
            await engine.create_queue(name, QueueSpec(physical_queues=4, groups=groups))
            for number in range(4):
                new = [NewMessage(message(bytes(10_000))) for _ in range(20)]
                assert engine.reserve(name, 20, 200_000)
                await engine.append(name, number, new)
        for name in ("a", "b"):
            for group in groups:
                for number in range(4):
                    assert len(await engine.lease(name, group, number, 20, 10**9)) == 20
                    assert engine.figures()["read_ahead_bytes"] <= 300_000
    finally:
        await engine.close()


async def test_one_group_reads_what_another_has_read() -> None:
    """Groups that go side by side read each segment once."""
    store = HeldStore()
    async with reading_engine(store, b"a", b"b") as engine:
        engine._state.cache.max_bytes = 10**6
        assert await payloads(engine) == [b"a", b"b"]
        await engine.create_group("q", "other", GroupSpec())
        store.unreadable = {0, 1}
        assert len(await engine.lease("q", "other", 0, 9, 99)) == 2


async def test_files_that_others_could_read_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, from which on only the owner can."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path))):
        pass
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        async with running_engine(SqliteStore(str(path))):
            pass
    assert f"other users could read {path}" in caplog.text


async def test_a_lost_file_is_a_failure(tmp_path: Path) -> None:
    """Who asks for the engine's health is told."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path))) as engine:
        path.rename(tmp_path / "away")
        assert "was deleted or replaced" in (engine.failure() or "")
        with pytest.raises(StorageError, match="was deleted or replaced"):
            await put(engine, b"a")
        (tmp_path / "away").rename(path)
        assert engine.failure() is None or await put(engine, b"a")


async def test_whether_a_message_would_be_stored_is_known_before_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after one was refused: nobody sends another one to a server that is not healthy."""
    path = tmp_path / "queue.db"
    store = SqliteStore(str(path))
    async with running_engine(store) as engine:
        assert await engine.probe() == Health(None)
        monkeypatch.setattr(store._reserve, "hold", lambda: False)
        assert "the disk has less than" in ((await engine.probe()).problem or "")
        assert engine.failure() == (await engine.probe()).problem
        monkeypatch.undo()
        assert await engine.probe() == Health(None)
        assert engine.failure() is None
        with monkeypatch.context() as patched:
            patched.setattr(store._reserve, "hold", lambda: False)
            with pytest.raises(StorageFullError):
                await put(engine, b"refused")
        assert engine.failure() is not None
        assert await engine.probe() == Health(None)
        assert engine.failure() is None
        path.rename(tmp_path / "away")
        assert "was deleted or replaced" in ((await engine.probe()).problem or "")
        (tmp_path / "away").rename(path)
        await engine.maintain()
        assert engine.failure() is None


async def test_a_limited_receive_is_counted_before_it_is_given_away(tmp_path: Path) -> None:
    """A message that ends the whole program is counted all the same."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path))) as engine:
        await engine.change_group("q", "g", GroupSpec(max_receives=3))
        await put(engine, b"a", b"b")
        assert await payloads(engine, 1) == [b"a"]
        with closing(sqlite3.connect(path)) as visitor:
            (counts,) = visitor.execute("SELECT counts FROM receives").fetchone()
        assert counts == b"\1\0\0\0"


async def test_receives_that_limit_nothing_are_counted_soon_after(tmp_path: Path) -> None:
    """Their receivers do not wait for it."""
    path = tmp_path / "queue.db"
    async with running_engine(SqliteStore(str(path))) as engine:
        await put(engine, b"a")
        assert await payloads(engine) == [b"a"]
        with closing(sqlite3.connect(path)) as visitor:

            def is_counted() -> bool:
                found = visitor.execute("SELECT counts FROM receives").fetchall()
                return found == [(b"\1\0",)]

            await until(is_counted)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_message_that_stays_does_not_keep_the_space_of_its_neighbours(
    tmp_path: Path, kind: str
) -> None:
    """A segment of which most has left is stored anew, once it is left alone."""
    path = str(tmp_path / "queue.db")
    async with running_engine(MemoryStore() if kind == "memory" else SqliteStore(path)) as engine:
        await put(engine, *(bytes(1000) for _ in range(100)))
        received = await engine.lease("q", "g", 0, 100, 10**9)
        await engine.settle("q", "g", "ack", [one.receipt_handle for one in received[1:90]])
        await engine.maintain()
        assert engine.snapshot("q").stored_bytes > 100_000
        await engine.settle("q", "g", "ack", [received[90].receipt_handle])
        await engine.maintain()
        assert engine.snapshot("q").stored_bytes > 100_000
        await engine.maintain()
        found = engine.snapshot("q")
        assert found.stored_bytes < 15_000
        assert (found.messages, found.payload_bytes) == (10, 10_000)
        batch = read_batch(b"".join(await engine.read("q", 0, 0, 100, 100)))
        assert batch.offset == [0, *range(91, 100)]
        assert set(batch.payload) == {bytes(1000)}
        handles = [received[0].receipt_handle, *(one.receipt_handle for one in received[91:])]
        assert await engine.settle("q", "g", "ack", handles) == {}
        found = engine.snapshot("q")
        assert (found.messages, found.payload_bytes, found.stored_bytes) == (0, 0, 0)


async def test_a_shrunk_segment_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    """With its sizes, so that the limits of the queue hold."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path)) as engine:
        await put(engine, *(bytes(1000) for _ in range(100)))
        received = await engine.lease("q", "g", 0, 100, 10**9)
        await engine.settle("q", "g", "ack", [one.receipt_handle for one in received[:99]])
        for _ in range(2):
            await engine.maintain()
        before = engine.snapshot("q")
    async with running_engine(SqliteStore(path)) as engine:
        after = engine.snapshot("q")
        assert (after.usage, after.payload_bytes) == (before.usage, before.payload_bytes)
        assert await payloads(engine) == [bytes(1000)]


async def test_nothing_is_kept_of_a_deleted_queue_for_the_next_shrinking() -> None:
    """A segment that was about to be stored anew is forgotten with its queue."""
    async with running_engine(MemoryStore()) as engine:
        await put(engine, *[b"x" * 10_000] * 4)
        received = await engine.lease("q", "g", 0, 3, 10**9)
        await engine.settle("q", "g", "ack", [one.receipt_handle for one in received])
        await engine.maintain()
        assert engine._maintenance._sparse
        await engine.delete_queue("q")
        await engine.maintain()
        assert not engine._maintenance._sparse


class Trimmed(MemoryStore):
    """A store that has space to give back in some steps.

    Attributes:
        steps: that were made.
        n_left: steps until there is no space to give back.
    """

    def __init__(self, n_left: int) -> None:
        super().__init__()
        self.steps = 0
        self.n_left = n_left

    def trim(self) -> bool:
        """Make a step."""
        self.steps += 1
        self.n_left -= 1
        return self.n_left >= 0


@pytest.mark.parametrize(("n_left", "steps"), [(0, 1), (3, 4), (1000, TRIM_STEPS)])
async def test_space_is_given_back_in_steps(n_left: int, steps: int) -> None:
    """Each is a request of its own, so that messages are stored between two of them."""
    store = Trimmed(n_left)
    async with running_engine(store) as engine:
        runs: list[Request] = []
        submit = engine._state.submit

        def note(request: Request) -> None:
            if isinstance(request, Run) and request.call == store.trim:
                runs.append(request)
            submit(request)

        engine._state.submit = note  # type: ignore[method-assign]
        await engine.maintain()
    assert store.steps == len(runs) == steps
