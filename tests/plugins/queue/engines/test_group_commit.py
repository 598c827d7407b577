from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Sequence

import pytest

from penstock.broker.message import Message
from penstock.plugins.queue.client import read_batch
from penstock.plugins.queue.engine import AppendResult, StorageError, StorageFullError
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.group_commit import Append, Delete, GroupCommit, Truncate
from penstock.plugins.queue.store import Key, Mark, NewSegment
from tests.helpers.clock import Clock
from tests.helpers.process import SECONDS
from tests.plugins.queue.running import LOGGER, message

KEY = ("q", 0)


class CountingStore(MemoryStore):
    """A store that notes its commits, and can be held up and made to fail.

    Attributes:
        commits: numbers of messages and of marks, one pair a commit.
        may_write: writes wait for it.
        is_writing: set when one waits.
        fails: says of a write whether it fails.
        step: how many offsets one truncation goes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[int, int]] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_writing = threading.Event()
        self.fails: Callable[[int, int], bool] = lambda _n_messages, _n_marks: False
        self.step = 1000

    def write(self, segments: Sequence[NewSegment], marks: Sequence[Mark]) -> None:
        """Write when allowed, or fail."""
        self.is_writing.set()
        self.may_write.wait()
        n_messages = sum(segment.n_messages for segment in segments)
        if self.fails(n_messages, len(marks)):
            raise StorageFullError("disk full")
        super().write(segments, marks)
        self.commits.append((n_messages, len(marks)))

    def truncate(self, key: Key, below: int) -> int:
        """Truncate a step."""
        return super().truncate(key, min(below, self.usage[key].earliest + self.step))


class Running:
    """A store with its writing thread."""

    def __init__(self, max_messages: int = 100) -> None:
        self.store = CountingStore()
        self.store.open({"q": 1})
        self.loop = asyncio.get_running_loop()
        self.commits = GroupCommit(self.store, self.loop, Clock(), max_messages, LOGGER)

    def append(self, *messages: Message) -> asyncio.Future[AppendResult]:
        """Submit messages."""
        future: asyncio.Future[AppendResult] = self.loop.create_future()
        self.commits.submit(Append(KEY, messages or (message(),), future))
        return future

    def delete(self, bits: int) -> asyncio.Future[None]:
        """Submit a delete in the first segment."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.commits.submit(Delete([Mark(KEY, 0, self.store.usage[KEY].next, bits)], future))
        return future

    def truncate(self, below: int) -> asyncio.Future[int]:
        """Submit a truncation."""
        future: asyncio.Future[int] = self.loop.create_future()
        self.commits.submit(Truncate(KEY, below, future))
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
        outcomes = await asyncio.gather(
            running.append(one), running.truncate(1), return_exceptions=True
        )
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
    assert running.store.usage[KEY].next == 1
    await running.commits.close()


async def test_deletes_are_done_where_messages_cannot_be_stored() -> None:
    """A full disk must not keep readers from emptying the queue."""
    running = Running()
    await running.append(message(), message())
    running.store.fails = lambda n_messages, _n_marks: n_messages > 0
    held = await running.hold()
    refused, deleted = running.append(), running.delete(0b01)
    running.store.may_write.set()
    with pytest.raises(StorageError):
        await held
    with pytest.raises(StorageError):
        await refused
    await deleted
    assert running.store.usage[KEY].messages == 1
    await running.commits.close()


async def test_deletes_that_fail_alone_are_told() -> None:
    """Each one that cannot be written is refused, with an error of its own to raise."""
    running = Running()
    await running.append(message(), message())
    running.store.fails = lambda _n_messages, _n_marks: True
    with pytest.raises(StorageError):
        await running.delete(0b01)
    held = await running.hold()
    deletes = [running.delete(0b01), running.delete(0b10)]
    running.store.may_write.set()
    assert isinstance((await asyncio.gather(held, return_exceptions=True))[0], StorageError)
    errors = await asyncio.gather(*deletes, return_exceptions=True)
    assert [str(error) for error in errors] == ["disk full"] * 2
    assert all(isinstance(error, StorageFullError) for error in errors)
    assert errors[0] is not errors[1]
    assert running.store.usage[KEY].messages == 2
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
    await running.delete(0b1)
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
    await asyncio.gather(running.delete(0b1), return_exceptions=True)
    assert running.commits.failure == "disk full"
    running.store.fails = lambda _n_messages, _n_marks: False
    await running.delete(0b1)
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
    assert await odd == AppendResult(1, [0])
    assert (await held).stored == (await good).stored == 1
    assert running.store.usage[KEY].next == running.store.usage[KEY].messages == 3
    assert "cannot be read back" in caplog.text
    await running.commits.close()


async def test_appends_of_one_commit_share_segments() -> None:
    """Messages that are committed together lie together, whoever brought them."""
    running = Running()
    futures = [await running.hold()]
    futures += [running.append(message(b"%d" % n)) for n in range(9)]
    running.store.may_write.set()
    await asyncio.gather(*futures)
    found = running.store.read(KEY, 0, 10, 10, 10**6)
    assert [one.n_messages for one in found] == [1, 9]
    assert read_batch(found[1].frame).payload == [b"%d" % n for n in range(9)]
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
    assert (await running.append()).stored == 1
    await running.commits.close()


async def test_long_truncation_lets_others_in_between() -> None:
    """A truncation is done in steps, and messages are stored between two of them."""
    running = Running()
    await running.append(*[message() for _ in range(10)])
    running.store.step = 4
    held = await running.hold()
    truncated, stored = running.truncate(10), running.append()
    order: list[str] = []
    truncated.add_done_callback(lambda _: order.append("truncated"))
    stored.add_done_callback(lambda _: order.append("stored"))
    running.store.may_write.set()
    assert await truncated == 10
    await held
    assert order == ["stored", "truncated"]
    assert running.store.usage[KEY].messages == 2
    await running.commits.close()


async def test_close_writes_all_that_was_submitted() -> None:
    """Nothing is left behind when the thread ends, whatever takes several steps."""
    running = Running()
    running.store.step = 1
    await running.append(*[message() for _ in range(5)])
    held = await running.hold()
    stored, truncated = running.append(), running.truncate(5)
    closing = asyncio.create_task(running.commits.close())
    await asyncio.sleep(0)
    running.store.may_write.set()
    await closing
    assert held.done()
    assert stored.result().stored == 1
    assert truncated.result() == 5
    await running.commits.close()
