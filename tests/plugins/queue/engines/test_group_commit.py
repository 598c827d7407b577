from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.durable.storage_clock import Clocks, StorageClock
from penstock.broker.message import Message
from penstock.plugins.queue.engines import group_commit
from penstock.plugins.queue.engines.contract import (
    Action,
    AppendResult,
    GroupSpec,
    NewMessage,
    QueueSpec,
    StorageError,
    StorageFullError,
)
from penstock.plugins.queue.engines.group_commit import GroupCommit
from penstock.plugins.queue.engines.leases import LocalGroup, LocalPlace
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.engines.partition import PhysicalQueue
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.receipts import Receipts
from penstock.plugins.queue.engines.requests import (
    Append,
    Bury,
    Cut,
    DeadLetter,
    Marks,
    Run,
    Settle,
)
from penstock.plugins.queue.engines.segments import SegmentCache
from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.engines.store import Changes, GroupRow, PhysicalRow, QueueRow
from penstock.plugins.queue.engines.transaction import Surroundings, Transaction
from penstock.plugins.queue.strategies.message_key import stored_key_reader
from penstock.plugins.queue.wire.frames import read_batch
from tests.helpers.clock import Clock
from tests.helpers.process import SECONDS
from tests.plugins.queue.engines.local_engine import payloads, put, running_engine
from tests.plugins.queue.running import LOGGER, message, until

PLACE = 1


class CountingStore(MemoryStore):
    """A store that notes its commits, and can be held up and made to fail.

    Attributes:
        commits: numbers of messages and of other rows, one pair a commit.
        may_write: writes wait for it.
        is_writing: set when one waits.
        fails: says of a write whether it fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[int, int]] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_writing = threading.Event()
        self.fails: Callable[[int, int], bool] = lambda _n_messages, _n_marks: False

    def write(self, changes: Changes) -> None:
        """Write when allowed, or fail."""
        self.is_writing.set()
        self.may_write.wait()
        n_messages = sum(segment.n_messages for _, segment, _ in changes.segments)
        n_marks = len(changes.gone) + len(changes.deleted_segments)
        if self.fails(n_messages, n_marks):
            raise StorageFullError("disk full")
        super().write(changes)
        self.commits.append((n_messages, n_marks))


class Running:
    """A store with its writing thread, and a queue with one group."""

    def __init__(self, max_messages: int = 100) -> None:
        self.store = CountingStore()
        self.loop = asyncio.get_running_loop()
        clock = StorageClock(Clocks(monotonic=Clock()))
        around = Surroundings(self.store, SegmentCache(10**6), clock, LOGGER, lambda _queue: None)
        self.queue = LocalQueue(QueueRow(1, "q", "i", ""), QueueSpec())
        self.part = PhysicalQueue(PhysicalRow(PLACE, 1, 0, 0, 0, 0, 0, 0))
        self.queue.physical[0] = self.part
        row = GroupRow(1, 1, "g", "", 0, 0.0)
        self.group = LocalGroup(row, GroupSpec(), Receipts(b"", "i", 1), stored_key_reader(None))
        self.place = self.group.places[0] = LocalPlace(self.group, self.part, 0)
        self.queue.groups["g"] = self.group
        self.commits = GroupCommit(around, self.loop, Clock(), max_messages, LOGGER)

    def append(self, *messages: Message) -> asyncio.Future[AppendResult]:
        """Submit messages."""
        future: asyncio.Future[AppendResult] = self.loop.create_future()
        new = [NewMessage(each) for each in messages or (message(),)]
        self.commits.submit(Append(self.queue, 0, new, future))
        return future

    def settle(self, bits: int) -> asyncio.Future[None]:
        """Submit messages of the first segment as settled."""
        future: asyncio.Future[None] = self.loop.create_future()
        marks = Marks(self.place, {0: bits})
        self.commits.submit(Settle(self.queue, self.group, "ack", [marks], future))
        return future

    def cut(self, below: int) -> asyncio.Future[int]:
        """Submit a cut."""
        future: asyncio.Future[int] = self.loop.create_future()
        self.commits.submit(Cut(self.queue, self.part, below, "purge", future))
        return future

    async def hold(self) -> asyncio.Future[AppendResult]:
        """Have the thread wait in a commit of one message."""
        self.store.may_write.clear()
        self.store.is_writing.clear()
        future = self.append()
        await asyncio.to_thread(self.store.is_writing.wait)
        return future


class Watched(Message):
    """A message of which a test can see that it is gone."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("fails", [True, False])
async def test_messages_are_freed_without_the_collector(*, fails: bool) -> None:
    """A flood that is refused must not fill the memory; nor is the last group kept."""
    running = Running()
    running.store.fails = lambda _n_messages, _n_marks: fails
    gc.collect()
    gc.disable()
    try:
        one = Watched("t", b"x")
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        weakref.finalize(one, loop.call_soon_threadsafe, gone.set)
        outcomes = await asyncio.gather(running.append(one), running.cut(1), return_exceptions=True)
        assert isinstance(outcomes[0], StorageFullError) == fails
        del one, outcomes
        async with asyncio.timeout(SECONDS):
            await gone.wait()
    finally:
        gc.enable()
        await running.commits.close()


async def test_what_comes_during_a_commit_goes_into_the_next_one() -> None:
    """One flush carries everything that has come while the last one was made."""
    running = Running()
    futures = [await running.hold()]
    futures += [running.append() for _ in range(20)]
    running.store.may_write.set()
    await asyncio.gather(*futures)
    assert running.store.commits == [(1, 0), (20, 0)]
    await running.commits.close()


async def test_groups_are_bounded() -> None:
    """A commit takes requests until it has its number of messages."""
    running = Running(max_messages=8)
    futures = [await running.hold()]
    futures += [running.append(message(), message(), message()) for _ in range(5)]
    running.store.may_write.set()
    await asyncio.gather(*futures)
    assert running.store.commits == [(1, 0), (9, 0), (6, 0)]
    await running.commits.close()


async def test_a_commit_has_so_many_requests_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the loop some time when the commit is made, whatever it stores."""
    monkeypatch.setattr(group_commit, "MOST_REQUESTS", 2)
    running = Running()
    futures = [await running.hold()]
    futures += [running.append() for _ in range(5)]
    running.store.may_write.set()
    await asyncio.gather(*futures)
    assert running.store.commits == [(1, 0), (2, 0), (2, 0), (1, 0)]
    await running.commits.close()


async def test_refused_messages_are_told_and_offsets_are_not_used_up() -> None:
    """A commit that fails refuses its messages; the next one goes on where the last ended."""
    running = Running()
    running.store.fails = lambda _n_messages, _n_marks: True
    with pytest.raises(StorageFullError, match="disk full"):
        await running.append()
    assert running.commits.failure == "disk full"
    running.store.fails = lambda _n_messages, _n_marks: False
    await running.append()
    assert running.commits.failure is None
    assert running.part.next == 1
    await running.commits.close()


async def test_deletes_are_done_where_messages_cannot_be_stored() -> None:
    """A full disk must not keep readers from emptying the queue."""
    running = Running()
    await running.append(message(), message())
    running.store.fails = lambda n_messages, _n_marks: n_messages > 0
    held = await running.hold()
    refused, deleted = running.append(), running.settle(0b01)
    running.store.may_write.set()
    with pytest.raises(StorageError):
        await held
    with pytest.raises(StorageError):
        await refused
    await deleted
    assert running.part.messages == 1
    await running.commits.close()


async def test_deletes_that_fail_alone_are_told() -> None:
    """Each one that cannot be written is refused, with an error of its own to raise."""
    running = Running()
    await running.append(message(), message())
    running.store.fails = lambda _n_messages, _n_marks: True
    with pytest.raises(StorageError):
        await running.settle(0b01)
    held = await running.hold()
    deletes = [running.settle(0b01), running.settle(0b10)]
    running.store.may_write.set()
    assert isinstance((await asyncio.gather(held, return_exceptions=True))[0], StorageError)
    errors = await asyncio.gather(*deletes, return_exceptions=True)
    assert [str(error) for error in errors] == ["disk full"] * 2
    assert all(isinstance(error, StorageFullError) for error in errors)
    assert errors[0] is not errors[1]
    assert running.part.messages == 2
    await running.commits.close()


async def test_failing_storage_is_logged_once_and_its_recovery_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says when a storage begins and ceases to refuse, not each time it does."""
    running = Running()
    with caplog.at_level(logging.WARNING):
        running.store.fails = lambda _n_messages, _n_marks: True
        for _ in range(5):
            await asyncio.gather(running.append(), return_exceptions=True)
        running.store.fails = lambda _n_messages, _n_marks: False
        await running.append()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "refuses to write: disk full; 1 messages refused" in caplog.text
    assert "writes again; 5 messages were refused" in caplog.text
    await running.commits.close()


async def test_storage_is_not_called_healthy_for_a_delete_while_messages_are_refused() -> None:
    """Deletes go on while a disk is full; the failure ends when a message is stored."""
    running = Running()
    await running.append()
    running.store.fails = lambda n_messages, _n_marks: n_messages > 0
    await asyncio.gather(running.append(), return_exceptions=True)
    await running.settle(0b1)
    assert running.commits.failure == "disk full"
    running.store.fails = lambda _n_messages, _n_marks: False
    await running.append()
    assert running.commits.failure is None
    await running.commits.close()


async def test_failure_of_deletes_alone_ends_with_the_next_delete() -> None:
    """Where only deletes had failed, a delete that is done shows that the storage is well."""
    running = Running()
    await running.append()
    running.store.fails = lambda _n_messages, _n_marks: True
    await asyncio.gather(running.settle(0b1), return_exceptions=True)
    assert running.commits.failure == "disk full"
    running.store.fails = lambda _n_messages, _n_marks: False
    await running.settle(0b1)
    assert running.commits.failure is None
    await running.commits.close()


async def test_message_that_cannot_be_read_costs_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A message whose properties are no JSON is named; what shares its commit is stored."""
    running = Running()
    held = await running.hold()
    odd = running.append(message(properties={"user_property": object()}), message())
    good = running.append()
    running.store.may_write.set()
    assert await odd == AppendResult([-1, 1], [], {0: "unreadable"})
    assert ((await held).offsets, (await good).offsets) == ([0], [2])
    assert running.part.next == running.part.messages == 3
    assert "cannot be stored" in caplog.text
    await running.commits.close()


async def test_appends_of_one_commit_share_segments() -> None:
    """Messages that are committed together lie together, whoever brought them."""
    running = Running()
    futures = [await running.hold()]
    futures += [running.append(message(b"%d" % n)) for n in range(9)]
    running.store.may_write.set()
    await asyncio.gather(*futures)
    assert [segment.n_messages for segment in running.part.index] == [1, 9]
    frames = running.store.read(PLACE, [0, 1])
    assert read_batch(frames[1]).payload == [b"%d" % n for n in range(9)]
    await running.commits.close()


async def test_fault_of_the_storage_is_an_answer_and_not_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error that nobody expected refuses its group; the next one is written."""
    running = Running()

    def fail(_n_messages: int, _n_marks: int) -> bool:
        raise RuntimeError("a fault")

    running.store.fails = fail
    with pytest.raises(StorageError, match="RuntimeError: a fault"):
        await running.append()
    assert "a fault" in caplog.text
    running.store.fails = lambda _n_messages, _n_marks: False
    assert (await running.append()).offsets == [0]
    await running.commits.close()


async def test_a_long_cut_lets_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut is done in steps, and messages are stored between two of them."""
    monkeypatch.setattr("penstock.plugins.queue.engines.transaction.CUT_SEGMENTS", 4)
    running = Running()
    for _ in range(10):
        await running.append()
    held = await running.hold()
    cut = running.cut(10)
    running.store.may_write.set()
    await held
    stored = running.append()
    order: list[str] = []
    cut.add_done_callback(lambda _: order.append("cut"))
    stored.add_done_callback(lambda _: order.append("stored"))
    assert await cut == 10
    await stored
    assert order == ["stored", "cut"]
    assert running.part.messages == 2
    assert (running.part.earliest, running.place.floor, running.place.waiting) == (10, 10, 2)
    await running.commits.close()


async def test_what_leaves_by_retention_beside_its_death_is_no_dead_letter() -> None:
    """Each message leaves once, whatever one commit holds: it is counted and kept for one."""
    running = Running()
    for _ in range(2):
        await running.append(message(), message())
    letters = LocalQueue(QueueRow(2, "letters", "i", ""), QueueSpec())
    part = letters.physical[0] = PhysicalQueue(PhysicalRow(2, 2, 0, 0, 0, 0, 0, 0))
    dead = [
        DeadLetter(running.place, first, bit, ("t", b"%d" % (first + bit), 1, "", 0.0, ""))
        for first in (0, 2)
        for bit in (0, 1)
    ]
    held = await running.hold()
    cut = running.cut(1)
    buried: asyncio.Future[None] = running.loop.create_future()
    marks = Marks(running.place, {0: 0b11, 2: 0b11})
    running.commits.submit(Bury(running.queue, running.group, [marks], dead, letters, buried))
    running.store.may_write.set()
    await asyncio.gather(held, cut, buried)
    assert cut.result() == 1
    assert running.group.settled == {"dead": 3}
    frames = running.store.read(2, [0])
    assert read_batch(frames[0]).payload == [b"1", b"2", b"3"]
    assert (part.messages, running.part.messages) == (3, 1)
    await running.commits.close()


async def test_close_writes_all_that_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind when the thread ends, whatever takes several steps."""
    monkeypatch.setattr("penstock.plugins.queue.engines.transaction.CUT_SEGMENTS", 1)
    running = Running()
    for _ in range(5):
        await running.append()
    held = await running.hold()
    stored, cut = running.append(), running.cut(5)
    closing = asyncio.create_task(running.commits.close())
    await asyncio.sleep(0)
    running.store.may_write.set()
    await closing
    assert held.done()
    assert stored.result().offsets == [6]
    assert cut.result() == 5
    await running.commits.close()


async def test_fault_of_the_state_leaves_nobody_waiting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody expected, behind the commit, is an answer as well."""
    running = Running()

    def fail(_transaction: Transaction) -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "apply", fail)
        with pytest.raises(StorageError, match="RuntimeError: a fault"):
            await running.append()
    assert "queue state failed" in caplog.text
    await running.commits.close()


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_is_settled_at_the_moment_of_a_seek_is_replayed_after_a_restart_too(
    tmp_path: Path, *, is_first: bool
) -> None:
    """The storage would have it as settled, and the group would not."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path, "normal"), groups=("g", "r")) as engine:
        await put(engine, b"a", b"b")
        received = await engine.lease("q", "g", 0, 2, 99)
        may_go = threading.Event()
        engine._state.submit(Run(may_go.wait, None, None))
        changes = [
            engine.settle("q", "g", "ack", [received[1].receipt_handle]),
            engine.seek("q", "g", "earliest"),
        ]
        both = asyncio.gather(*changes if is_first else reversed(changes))
        await asyncio.sleep(0)
        may_go.set()
        await both
        assert await payloads(engine) == [b"a", b"b"]
    async with running_engine(SqliteStore(path, "normal")) as engine:
        assert await payloads(engine) == [b"a", b"b"]


def write(has_begun: threading.Event, may_end: threading.Event) -> None:
    """Keep the writing thread."""
    has_begun.set()
    may_end.wait()


@pytest.mark.parametrize("action", ["ack", "dead"])
async def test_what_is_settled_while_a_seek_is_being_written_is_replayed(
    tmp_path: Path, action: Action
) -> None:
    """Also after a restart; and none of it dies, as a receive would count that is forgotten."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path, "normal"), groups=("g", "r")) as engine:
        await put(engine, b"a", b"b")
        received = await engine.lease("q", "g", 0, 2, 99)
        first, writes, may_end = threading.Event(), threading.Event(), threading.Event()
        engine._state.submit(Run(first.wait, None, None))
        seeking = asyncio.create_task(engine.seek("q", "g", "earliest"))
        await asyncio.sleep(0)
        engine._state.submit(Run(partial(write, writes, may_end), None, None))
        first.set()
        await until(writes.is_set)
        settling = asyncio.create_task(
            engine.settle("q", "g", action, [received[1].receipt_handle])
        )
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(seeking, settling)
        assert engine.snapshot("q").groups["g"].settled.get(action, 0) == 0
        assert await payloads(engine) == [b"a", b"b"]
    async with running_engine(SqliteStore(path, "normal")) as engine:
        assert await payloads(engine) == [b"a", b"b"]
