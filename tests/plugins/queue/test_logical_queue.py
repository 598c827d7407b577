from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from penstock.plugins.queue.client import ReceivedMessage
from penstock.plugins.queue.engine import Engine, StorageError
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.logical_queue import (
    ANSWER_BYTES,
    BusyError,
    LogicalQueue,
    WrongReaderError,
)
from tests.helpers.clock import Clock
from tests.plugins.queue.running import (
    LONG_SECONDS,
    queue_config,
    running_engine,
    store_messages,
    until,
)


@asynccontextmanager
async def running_queue(
    clock: Clock | None = None, **keys: Any
) -> AsyncIterator[tuple[LogicalQueue, Engine]]:
    """Start the queue `q` with some of its keys, over a memory engine with a clock.

    Its requests wait in the event loop's time, so its own clock runs, and begins at 0.
    """
    began_at = time.monotonic()
    config = queue_config(queues={"q": keys}).queues["q"]
    opened = running_engine(
        MemoryStore(),
        {"q": config.physical_queues},
        clock=clock,
        visibility_timeout=config.visibility_timeout,
    )
    async with opened as engine:
        queue = LogicalQueue("q", config, engine, lambda: time.monotonic() - began_at)
        queue.start()
        yield queue, engine


def waiting(queue: LogicalQueue) -> int:
    """Return how many requests wait."""
    number: int = queue.figures()["waiting"]
    return number


async def test_rds_answers_when_a_message_has_come() -> None:
    """A request that found nothing is kept and answered with what comes later (paper 000)."""
    async with running_queue(sleep_time=0.005) as (queue, engine):
        request = asyncio.create_task(queue.dequeue(10, LONG_SECONDS))
        await until(lambda: queue.figures()["retries"] >= 2)
        await store_messages(engine, [b"a"], number=3)
        assert [one.payload for one in await request] == [b"a"]
        assert waiting(queue) == 0


async def test_rds_answers_with_nothing_when_the_wait_ends() -> None:
    """A client waits no longer than it asked for."""
    async with running_queue(sleep_time=0.005) as (queue, _):
        assert await queue.dequeue(10, 0.02) == []
        assert queue.figures()["retries"] >= 1


async def test_conventional_answers_at_once() -> None:
    """Conventional dequeue makes its tries and answers, however long the client would wait."""
    async with running_queue(dequeue="conventional", physical_queues=5) as (queue, engine):
        await store_messages(engine, [b"a"], number=4)
        assert await queue.dequeue(10, LONG_SECONDS) == []
        figures = queue.figures()
        assert (figures["missed_dequeues"], figures["hit_dequeues"], figures["retries"]) == (
            3,
            0,
            0,
        )
        assert len(await queue.dequeue(10, LONG_SECONDS)) == 1


async def test_tries_are_limited_as_configured() -> None:
    """`max_queues_per_dequeue` bounds the physical queues that one request touches."""
    async with running_queue(physical_queues=4, max_queues_per_dequeue=4) as (queue, engine):
        for number in range(4):
            await store_messages(engine, [b"a", b"b"], number=number)
        assert len(await queue.dequeue(100, 0)) == 8
        assert queue.figures()["hit_dequeues"] == 4


async def test_answer_is_bounded_in_bytes() -> None:
    """An answer over several physical queues stays near its byte limit."""
    async with running_queue(physical_queues=3) as (queue, engine):
        for number in range(3):
            await store_messages(engine, [bytes(ANSWER_BYTES // 2)] * 2, number=number)
        assert len(await queue.dequeue(100, 0)) == 2
        assert queue.figures()["missed_dequeues"] == 0


async def test_visibility_timeout_is_as_configured() -> None:
    """A message is received again once its queue's own timeout has passed."""
    clock = Clock()
    async with running_queue(clock, visibility_timeout=3.0, physical_queues=1) as (queue, engine):
        await store_messages(engine, [b"a"])
        await queue.dequeue(10, 0)
        clock.now += 2.5
        assert await queue.dequeue(10, 0) == []
        clock.now += 0.5
        (again,) = await queue.dequeue(10, 0)
        assert again.receive_count == 2


async def test_waiting_requests_are_bounded() -> None:
    """A request beyond `max_waiting_requests` is refused at once."""
    async with running_queue(max_waiting_requests=1) as (queue, _):
        first = asyncio.create_task(queue.dequeue(10, LONG_SECONDS))
        await until(lambda: waiting(queue) == 1)
        with pytest.raises(BusyError, match="1 requests wait; allowed: 1"):
            await queue.dequeue(10, LONG_SECONDS)
        queue.close()
        assert await first == []


async def test_leased_messages_are_bounded() -> None:
    """No more than `max_leased_messages` are out at a time; a delete makes room."""
    async with running_queue(max_leased_messages=2, physical_queues=1) as (queue, engine):
        await store_messages(engine, [b"a", b"b", b"c"])
        taken = await queue.dequeue(10, 0)
        assert len(taken) == 2
        with pytest.raises(BusyError, match="2 messages are received and not deleted"):
            await queue.dequeue(10, 0)
        await queue.delete([taken[0].receipt_handle])
        assert len(await queue.dequeue(10, 0)) == 1


async def test_close_answers_who_waits() -> None:
    """When the program ends, waiting requests are answered and not left hanging."""
    async with running_queue() as (queue, _):
        requests = [asyncio.create_task(queue.dequeue(1, LONG_SECONDS)) for _ in range(3)]
        await until(lambda: waiting(queue) == 3)
        queue.close()
        assert await asyncio.gather(*requests) == [[], [], []]


async def test_client_that_goes_away_leaves_its_messages_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a cancelled request had found is visible at once, without waiting for the timeout."""
    async with running_queue(physical_queues=2) as (queue, engine):
        await store_messages(engine, [b"a"], number=0)
        take, reached = engine.take, asyncio.Event()

        async def take_then_wait(
            name: str, number: int, n_max: int, size: int
        ) -> list[ReceivedMessage]:
            if number == 1:
                reached.set()
                await asyncio.Event().wait()
            return await take(name, number, n_max, size)

        with monkeypatch.context() as patched:
            patched.setattr(engine, "take", take_then_wait)
            request = asyncio.create_task(queue.dequeue(10, LONG_SECONDS))
            await reached.wait()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
        assert waiting(queue) == 0
        assert [one.receive_count for one in await queue.dequeue(10, LONG_SECONDS)] == [1]


async def test_unreadable_physical_queue_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A storage error is told only where no other physical queue has a message."""
    async with running_queue(physical_queues=2) as (queue, engine):
        take = engine.take

        async def take_or_fail(
            name: str, number: int, n_max: int, size: int
        ) -> list[ReceivedMessage]:
            if number == 0:
                raise StorageError("unreadable")
            return await take(name, number, n_max, size)

        monkeypatch.setattr(engine, "take", take_or_fail)
        await store_messages(engine, [b"a"], number=1)
        assert [one.payload for one in await queue.dequeue(10, 0)] == [b"a"]
        with pytest.raises(StorageError, match="unreadable"):
            await queue.dequeue(10, 0)
        assert waiting(queue) == 0


async def test_storage_error_is_freed_without_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests that fail one after the other do not fill the memory till it runs."""

    class UnreadableError(StorageError):
        """Found among all objects, if it is there."""

    async def fail(*_: object) -> list[ReceivedMessage]:
        raise UnreadableError("unreadable")

    async with running_queue(physical_queues=2) as (queue, engine):
        monkeypatch.setattr(engine, "take", fail)
        gc.collect()
        gc.disable()
        try:
            with suppress(UnreadableError):
                await queue.dequeue(10, 0)
            assert not [each for each in gc.get_objects() if isinstance(each, UnreadableError)]
        finally:
            gc.enable()


async def test_queue_for_dequeue_refuses_offsets() -> None:
    """A queue has readers of one kind; the other kind is told which."""
    async with running_queue() as (queue, _):
        told = "configured for `readers: dequeue`; allowed: dequeue and delete"
        with pytest.raises(WrongReaderError, match=told):
            queue.offsets()
        with pytest.raises(WrongReaderError, match=told):
            await queue.read_range(0, 0, 0, 1)
        with pytest.raises(WrongReaderError, match=told):
            await queue.commit({0: 0})


async def test_queue_for_offsets_refuses_dequeue() -> None:
    """A queue that is read by offsets gives out no leases."""
    async with running_queue(readers="offsets") as (queue, _):
        told = "configured for `readers: offsets`; allowed: offsets, range and commit"
        with pytest.raises(WrongReaderError, match=told):
            await queue.dequeue(1, 0)
        with pytest.raises(WrongReaderError, match=told):
            await queue.delete(["0.0.0"])


async def test_deleted_and_committed_messages_are_counted() -> None:
    """The figures say how much readers have finished."""
    async with running_queue(physical_queues=1) as (queue, engine):
        await store_messages(engine, [b"a", b"b", b"c"])
        taken = await queue.dequeue(2, 0)
        await queue.delete([one.receipt_handle for one in taken])
        assert (queue.figures()["deleted"], queue.figures()["messages"]) == (2, 1)
    async with running_queue(physical_queues=1, readers="offsets") as (queue, engine):
        await store_messages(engine, [b"a", b"b", b"c"])
        await queue.commit({0: 2})
        assert queue.figures()["deleted"] == 2
        assert queue.offsets() == {0: (2, 3)}


async def test_old_messages_expire_and_are_counted() -> None:
    """`retention_seconds` removes unread messages once they are older."""
    clock = Clock()
    async with running_queue(clock, retention_seconds=1800.0) as (queue, engine):
        await store_messages(engine, [b"a", b"b"], arrived_at=clock.now - 3600.0)
        await store_messages(engine, [b"new"])
        await queue.expire_old()
        assert (queue.expired, queue.figures()["messages"]) == (2, 1)


async def test_without_retention_nothing_expires() -> None:
    """A queue without `retention_seconds` keeps messages for ever."""
    async with running_queue() as (queue, engine):
        await store_messages(engine, [b"a"])
        await queue.expire_old()
        assert queue.figures()["messages"] == 1


@pytest.mark.parametrize(
    ("keys", "n_pending", "n_bytes", "is_full"),
    [
        ({}, 10**9, 10**12, False),
        ({"max_messages": 3}, 0, 10**12, False),
        ({"max_messages": 3}, 1, 0, True),
        ({"max_bytes": 10_000}, 10**9, 1_000, False),
        ({"max_bytes": 10_000}, 0, 10_000, True),
    ],
)
async def test_queue_is_full_at_its_limits(
    keys: dict[str, Any], n_pending: int, n_bytes: int, *, is_full: bool
) -> None:
    """`max_messages` and `max_bytes` count what is stored, what is under way and what comes."""
    async with running_queue(**keys) as (queue, engine):
        await store_messages(engine, [b"a", b"b"], number=1)
        queue.pending_messages = n_pending
        assert queue.is_full(n_bytes) is is_full
        queue.pending_bytes = n_bytes
        assert queue.is_full(0) is is_full
