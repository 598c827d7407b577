from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.plugins.queue.engines.contract import GroupSpec, UnknownGroupError, UnknownQueueError
from tests.plugins.queue.engines.contract.harness import (
    LEASE,
    LONG_SECONDS,
    OFFSETS,
    LiveClock,
    Running,
)

SHORT_SECONDS = 0.02


async def seen(running: Running, group: str | None = "g") -> int:
    """Return the number of a group at this moment."""
    return await running.engine.wait_for_arrival("q", group, -1, 0)


async def wakes(running: Running, before: int, group: str | None = "g") -> int:
    """Wait until something may have become visible; return the new number."""
    async with asyncio.timeout(LONG_SECONDS):
        number = await running.engine.wait_for_arrival("q", group, before, LONG_SECONDS * 10)
    assert number != before
    return number


async def received(running: Running, n_messages: int, group: str = "g") -> list[bytes]:
    """Receive messages as a consumer does: wait, receive, wait again."""
    got: list[bytes] = []
    number = -1
    async with asyncio.timeout(LONG_SECONDS):
        while len(got) < n_messages:
            number = await running.engine.wait_for_arrival("q", group, number, LONG_SECONDS * 10)
            for physical_queue in running.snapshot().usage:
                got += await running.payloads(group=group, number=physical_queue)
    return got


async def test_the_first_look_does_not_wait(running: Running) -> None:
    """-1 returns at once, and the same number ends a wait only by time."""
    await running.create()
    number = await running.engine.wait_for_arrival("q", "g", -1, LONG_SECONDS * 10)
    assert await running.engine.wait_for_arrival("q", "g", number, 0) == number
    assert await running.engine.wait_for_arrival("q", "g", number, SHORT_SECONDS) == number


@pytest.mark.parametrize("group", [LEASE, OFFSETS], ids=["lease", "offsets"])
async def test_a_stored_message_wakes(running: Running, group: GroupSpec) -> None:
    """In any physical queue, for groups of both kinds and all who wait."""
    await running.create(groups={"g": group}, physical_queues=3)
    before = await seen(running)
    waiting = [asyncio.create_task(wakes(running, before)) for _ in range(3)]
    await asyncio.sleep(0)
    await running.store(b"a", number=2)
    await asyncio.gather(*waiting)


async def test_an_arrival_before_the_wait_is_not_missed(running: Running) -> None:
    """A number from before it returns at once."""
    await running.create()
    before = await seen(running)
    await running.store(b"a")
    await wakes(running, before)


async def test_an_arrival_is_readable_when_it_wakes(running: Running) -> None:
    """Who is woken finds the message."""
    await running.create()
    before = await seen(running)
    waiting = asyncio.create_task(wakes(running, before))
    await asyncio.sleep(0)
    storing = running.append([running.new(b"a")])
    await waiting
    assert await running.payloads() == [b"a"]
    await storing


async def test_a_number_changes_with_each_arrival(running: Running) -> None:
    """Nobody takes a later state for an earlier one."""
    await running.create()
    numbers = [await seen(running)]
    for _ in range(20):
        await running.store(b"a")
        numbers.append(await wakes(running, numbers[-1]))
    assert len(set(numbers)) == len(numbers)


async def test_readers_without_a_group_wait_for_what_is_stored(running: Running) -> None:
    """In a queue with groups and without any."""
    await running.create(groups={})
    before = await seen(running, None)
    assert await running.engine.wait_for_arrival("q", None, before, 0) == before
    waiting = asyncio.create_task(wakes(running, before, None))
    await asyncio.sleep(0)
    await running.store(b"a")
    before = await waiting
    await running.engine.create_group("q", "g", LEASE)
    waiting = asyncio.create_task(wakes(running, before, None))
    await asyncio.sleep(0)
    await running.store(b"b")
    await waiting


async def test_what_is_visible_is_counted_by_physical_queue(running: Running) -> None:
    """A receiver learns where to ask; what is leased, delayed or settled does not count."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)}, physical_queues=4)
    visible = running.engine.visible
    assert dict(visible("q", "g")) == {}
    await running.store(b"a", b"b", number=3)
    await running.store(b"c", number=1)
    assert list(visible("q", "g").items()) == [(1, 1), (3, 2)]
    leased = await running.receive(1, number=3)
    await running.ack(await running.receive(number=1))
    assert dict(visible("q", "g")) == {3: 1}
    running.engine.give_back("q", "g", leased)
    assert dict(visible("q", "g")) == {3: 2}
    leased = await running.receive(number=3)
    await running.settle("nack", leased[:1])
    await running.settle("nack", leased[1:], 20)
    assert dict(visible("q", "g")) == {3: 1}
    running.passes(21)
    assert dict(visible("q", "g")) == {3: 2}
    await running.receive(number=3)
    running.passes(11)
    assert dict(visible("q", "g")) == {3: 2}
    with pytest.raises(UnknownQueueError):
        visible("nowhere", "g")
    with pytest.raises(UnknownGroupError):
        visible("q", "nobody")


async def give_back(running: Running) -> None:
    """Give a receive back."""
    running.engine.give_back("q", "g", await running.receive())


async def reject(running: Running) -> None:
    """Reject a message."""
    await running.settle("nack", await running.receive())


async def shorten(running: Running) -> None:
    """Let a lease end at once."""
    await running.settle("extend", await running.receive(), 0)


async def seek(running: Running) -> None:
    """Move the group back over what it has settled."""
    await running.drain()
    await running.engine.seek("q", "g", "earliest")


@pytest.mark.parametrize("action", [give_back, reject, shorten, seek])
async def test_what_becomes_visible_by_an_action_wakes(
    running: Running, action: Callable[[Running], Awaitable[None]]
) -> None:
    """Given back, rejected, no longer leased, replayed."""
    await running.create(groups={"g": LEASE, "hold": OFFSETS})
    await running.store(b"a")
    before = await seen(running)
    waiting = asyncio.create_task(wakes(running, before))
    await asyncio.sleep(0)
    await action(running)
    await waiting
    assert await running.payloads() == [b"a"]


@pytest.mark.parametrize(
    "keys",
    [
        {"key": "topic", "groups": {"g": GroupSpec(order="key")}},
        {"groups": {"g": GroupSpec(max_leased_messages=1)}},
    ],
)
async def test_a_settled_message_lets_another_one_through(
    running: Running, keys: dict[str, Any]
) -> None:
    """Whoever waits for the next of its key, or for `max_leased_messages`, is woken."""
    await running.create(**keys)
    await running.store(b"a", b"b")
    first = await running.receive(1)
    before = await seen(running)
    assert await running.payloads() == []
    waiting = asyncio.create_task(wakes(running, before))
    await asyncio.sleep(0)
    await running.ack(first)
    await waiting
    assert await running.payloads() == [b"b"]


async def test_the_end_of_a_lease_wakes(live: Running) -> None:
    """Nobody has to ask for it."""
    await live.create(groups={"g": GroupSpec(visibility_timeout=SHORT_SECONDS)})
    await live.store(b"a")
    assert await live.payloads() == [b"a"]
    assert await received(live, 1) == [b"a"]


async def test_the_end_of_a_longer_lease_wakes_behind_a_shorter_one(live: Running) -> None:
    """Each lease has its end, in whatever order they were given."""
    await live.create()
    await live.store(b"a", b"b", b"c")
    for timeout in (3, 1, 2):
        await live.receive(1, visibility_timeout=timeout * SHORT_SECONDS)
    assert sorted(await received(live, 3)) == [b"a", b"b", b"c"]


async def test_the_end_of_a_delay_wakes(live: Running) -> None:
    """The queue's, the message's and that of a rejected message."""
    await live.create(physical_queues=2)
    await live.store(b"a", delay=SHORT_SECONDS)
    await live.store(b"b", number=1, delay=2 * SHORT_SECONDS)
    assert sorted(await received(live, 2)) == [b"a", b"b"]
    await live.store(b"c")
    await live.settle("nack", await live.receive(), SHORT_SECONDS)
    assert await received(live, 1) == [b"c"]


async def test_the_end_of_an_extended_lease_wakes(live: Running) -> None:
    """The new end counts, not the old one."""
    await live.create()
    await live.store(b"a")
    await live.settle("extend", await live.receive(), SHORT_SECONDS)
    assert await received(live, 1) == [b"a"]


async def test_a_delay_from_before_a_restart_wakes(durable: Running) -> None:
    """The end of a delay that nobody of this run has seen begin."""
    durable.clock = LiveClock()
    await durable.reopen()
    await durable.create()
    await durable.store(b"a", delay=5 * SHORT_SECONDS)
    await durable.kill()
    assert await received(durable, 1) == [b"a"]


async def test_a_group_or_queue_that_ends_does_not_leave_its_waiters(running: Running) -> None:
    """They return or are told; none waits for its whole time."""
    await running.create(groups={"g": LEASE, "h": LEASE})
    numbers = {group: await seen(running, group) for group in ("g", "h")}
    waiting = [
        asyncio.create_task(wakes(running, number, group)) for group, number in numbers.items()
    ]
    await asyncio.sleep(0)
    await running.engine.delete_group("q", "g")
    await running.engine.delete_queue("q")
    results = await asyncio.gather(*waiting, return_exceptions=True)
    for result in results:
        assert isinstance(result, int | UnknownQueueError | UnknownGroupError)


async def test_a_close_ends_all_waits(running: Running) -> None:
    """A program that ends does not wait for those who wait."""
    await running.create()
    number = await seen(running)
    waiting = asyncio.create_task(running.engine.wait_for_arrival("q", "g", number, 300))
    await asyncio.sleep(0)
    await running.engine.close()
    async with asyncio.timeout(LONG_SECONDS):
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_cancelled_wait_leaves_the_others(running: Running) -> None:
    """Who leaves takes nobody along."""
    await running.create()
    number = await seen(running)
    gone, stays = (asyncio.create_task(wakes(running, number)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await running.store(b"a")
    assert await stays != number


async def test_a_cancelled_receive_loses_nothing(running: Running) -> None:
    """Cancelled at any step, its messages are visible to the next, or at their timeout."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", b"b")
    for n_steps in range(6):
        receiving = asyncio.create_task(running.receive())
        for _ in range(n_steps):
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        running.passes(11)
    assert sorted(await running.payloads()) == [b"a", b"b"]


async def test_messages_are_not_received_before_they_are_safe(durable: Running) -> None:
    """What anybody has received is there behind a kill at that very moment."""
    await durable.create(groups={"g": LEASE, "h": LEASE})
    number = await seen(durable)
    storing = durable.append([durable.new(b"%d" % n) for n in range(200)])
    await wakes(durable, number)
    got = await durable.payloads()
    await durable.kill()
    assert got
    assert set(got) <= set(await durable.payloads(group="h", n_max=1000))
    await asyncio.gather(storing, return_exceptions=True)


async def test_nothing_that_is_given_back_is_no_arrival(running: Running) -> None:
    """Receivers that find nothing would have each other look again without end."""
    await running.create()
    before = await running.engine.wait_for_arrival("q", "g", -1, 0)
    running.engine.give_back("q", "g", [])
    assert await running.engine.wait_for_arrival("q", "g", before, 0) == before
