"""Many callers at the same time: none sees what another is at."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from penstock.plugins.queue.engines.contract import (
    ExistsError,
    GroupSpec,
    QueueSpec,
    UnknownQueueError,
)
from tests.plugins.queue.engines.contract.harness import (
    LEASE,
    LONG_SECONDS,
    OFFSETS,
    Running,
    until,
)

N_MESSAGES = 1500
KEYS = "abcdefgh"


def chance(seed: int) -> random.Random:
    """Return a generator of choices, the same in each run."""
    return random.Random(seed)  # noqa: S311 - no secrets


async def publish(running: Running, number: int, rng: random.Random) -> None:
    """Store numbered messages of some keys, several at a time; their payloads ascend by key."""
    stored = 0
    while stored < N_MESSAGES:
        n = rng.randint(1, 40)
        messages = [
            running.new(b"%d" % each, key=KEYS[each % len(KEYS)])
            for each in range(stored, stored + n)
        ]
        stored += n
        await running.append(messages, number=number)


class Consumers:
    """Receivers of one group.

    Attributes:
        done: how often each message was acknowledged.
        order: payloads in the order in which they were received, by physical queue and key.
    """

    def __init__(self, running: Running, group: str, *, is_ordered: bool = False) -> None:
        self.done: Counter[tuple[int, int]] = Counter()
        self.order: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._running = running
        self._group = group
        self._is_ordered = is_ordered
        self._held: set[tuple[int, int]] = set()

    async def run(self, number: int, rng: random.Random, n_wanted: int) -> None:
        """Receive, and acknowledge, reject or give back, until all is acknowledged."""
        running, group = self._running, self._group
        while sum(self.done.values()) < n_wanted:
            received = await running.receive(rng.randint(1, 30), group=group, number=number)
            for each in received:
                place = (each.physical_queue, each.offset)
                assert place not in self._held, "two receivers have one message"
                assert place not in self.done, "it was acknowledged"
                self._held.add(place)
                value = int(each.payload)
                self.order[number, value % len(KEYS)].append(value)
            await asyncio.sleep(0)
            self._held.difference_update((each.physical_queue, each.offset) for each in received)
            way = rng.random()
            if way < 0.1:
                running.engine.give_back("q", group, received)
            elif way < 0.2:
                await running.settle("nack", received, group=group)
            else:
                await running.ack(received, group=group)
                self.done.update((each.physical_queue, each.offset) for each in received)

    def check(self) -> None:
        """Hold what was received against what was stored."""
        assert set(self.done.values()) == {1}
        if self._is_ordered:
            for values in self.order.values():
                for before, value in pairwise([values[0] % len(KEYS) - len(KEYS), *values]):
                    assert value <= before + len(KEYS), "a message of the key was left out"


async def test_receivers_at_once_share_the_messages(running: Running) -> None:
    """Each message is with one receiver at a time, acknowledged once, and in order by key."""
    await running.create(
        key="property:none",
        physical_queues=2,
        groups={"g": LEASE, "h": GroupSpec(order="key"), "r": OFFSETS},
    )
    publishers = [publish(running, number, chance(number)) for number in (0, 1)]
    groups = [Consumers(running, "g"), Consumers(running, "h", is_ordered=True)]
    await asyncio.gather(*publishers[:1])
    n_stored = running.snapshot().usage[0].next
    async with asyncio.timeout(4 * LONG_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(publishers[1])
        for consumers in groups:
            for seed in range(3):
                tasks.create_task(consumers.run(0, chance(seed), n_stored))
    for consumers in groups:
        consumers.check()
        assert len(consumers.done) == n_stored
    assert running.group("g").waiting == running.group("h").waiting
    await running.engine.commit("q", "r", running.position(n_stored))
    await until(lambda: running.snapshot().usage[0].messages == 0)
    assert running.snapshot().usage[1].messages == running.snapshot().messages


async def test_everything_at_once_leaves_the_sums_right(running: Running) -> None:
    """Groups come and go, move and expire while messages are stored, settled and removed."""
    await running.create(
        groups={"g": GroupSpec(visibility_timeout=5), "r": OFFSETS}, retention_seconds=500.0
    )
    rng = chance(3)

    async def store() -> None:
        for _ in range(60):
            await running.store(*(b"x" for _ in range(rng.randint(1, 20))))

    async def settle() -> None:
        for _ in range(80):
            received = await running.receive(rng.randint(1, 20))
            await running.settle(rng.choice(["ack", "nack", "dead"]), received)

    async def commit() -> None:
        for _ in range(40):
            offset = rng.randint(0, running.snapshot().usage[0].next)
            await running.engine.commit("q", "r", running.position(offset))

    async def come_and_go() -> None:
        for _ in range(10):
            await running.engine.create_group("q", "late", LEASE)
            await running.receive(10, group="late")
            await running.engine.seek("q", "late", rng.choice(["earliest", "latest"]))
            await running.engine.delete_group("q", "late")

    async def keep_up() -> None:
        for _ in range(20):
            running.passes(1)
            await running.engine.maintain()
            await running.engine.compact()

    async with asyncio.timeout(4 * LONG_SECONDS):
        await asyncio.gather(store(), settle(), commit(), come_and_go(), keep_up())
    running.passes(6)
    snapshot = running.snapshot()
    usage = snapshot.usage[0]
    held = await running.batch(usage.earliest, usage.next)
    assert len(held.offset) == usage.messages == snapshot.messages
    assert len(held.offset) >= max(each.waiting for each in snapshot.groups.values())
    n_waiting = snapshot.groups["g"].waiting
    assert snapshot.groups["r"].waiting == usage.next - snapshot.groups["r"].position[0]
    assert len(await running.drain()) == n_waiting
    assert running.group().waiting == 0
    await running.engine.seek("q", "r", "latest")
    await until(lambda: running.snapshot().messages == 0)
    assert running.snapshot().payload_bytes == 0
    assert running.snapshot().stored_bytes == 0


async def in_one_commit(running: Running, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Make calls while a commit is under way; return what each returns or raises."""
    asked = [asyncio.ensure_future(call) for call in calls]
    await running.store(b"other", queue="other")
    return await asyncio.gather(*asked, return_exceptions=True)


@pytest.fixture
async def busy(running: Running) -> Running:
    """Return an engine with a queue `other`, whose commits others share."""
    await running.create("other")
    return running


async def still_starts(running: Running) -> None:
    """Open the engine again, where its queues outlive it."""
    if running.storage.is_durable:
        await running.reopen()


async def test_queue_that_is_created_twice_at_once_is_one_queue(busy: Running) -> None:
    """Two programs that create their queue when they start find the same one."""
    spec = QueueSpec(physical_queues=2, groups={"g": LEASE})
    create = busy.engine.create_queue
    other = replace(spec, physical_queues=1)
    made, again, refused = await in_one_commit(
        busy, create("q", spec), create("q", spec), create("q", other)
    )
    assert made.incarnation == again.incarnation
    assert isinstance(refused, ExistsError)
    await busy.store(b"a")
    await still_starts(busy)
    assert await busy.payloads() == [b"a"]


@pytest.mark.parametrize("is_deleted_first", [True, False])
async def test_group_of_a_queue_that_is_deleted_at_once_is_gone(
    busy: Running, *, is_deleted_first: bool
) -> None:
    """The storage keeps no group without its queue, whichever request came first."""
    await busy.create("q")
    engine = busy.engine
    calls = [
        engine.delete_queue("q"),
        engine.create_group("q", "h", LEASE),
        engine.seek("q", "g", "latest"),
    ]
    if not is_deleted_first:
        calls.reverse()
    outcomes = await in_one_commit(busy, *calls)
    if is_deleted_first:
        assert [type(each) for each in outcomes[1:]] == [UnknownQueueError] * 2
    else:
        assert isinstance(outcomes[0], tuple)  # a position
    await still_starts(busy)
    assert list(busy.engine.queues()) == ["other"]
    assert await busy.payloads(queue="other") == [b"other"]


@pytest.mark.parametrize("is_changed_first", [True, False])
async def test_queue_that_is_changed_at_once_keeps_its_messages(
    busy: Running, *, is_changed_first: bool
) -> None:
    """New physical queues and new groups that come together know each other."""
    await busy.create("q")
    calls = [
        busy.change("q", physical_queues=2),
        busy.change("q", physical_queues=3, groups={"g": LEASE, "h": LEASE}),
        busy.engine.create_group("q", "h", LEASE),
        busy.engine.create_group("q", "i", LEASE),
    ]
    if not is_changed_first:
        calls.reverse()
    for outcome in await in_one_commit(busy, *calls):
        assert not isinstance(outcome, Exception)
    for number in range(3):
        await busy.store(b"%d" % number, number=number)
    await still_starts(busy)
    for group in "ghi":
        for number in range(3):
            assert await busy.payloads(group=group, number=number) == [b"%d" % number]


async def test_dead_letters_that_are_moved_twice_at_once_move_once(busy: Running) -> None:
    """Two operators redrive one queue: no message is there twice, none is lost."""
    await busy.create("dead")
    await busy.create("q", groups={"g": replace(LEASE, max_receives=1, dead_letter_queue="dead")})
    await busy.store(b"a", b"b")
    assert await busy.settle("dead", await busy.receive()) == {}
    redrive = busy.engine.redrive
    moved = await in_one_commit(busy, redrive("dead", None, None), redrive("dead", None, None))
    assert sum(moved) == 2
    assert busy.snapshot("dead").messages == 0
    assert await busy.payloads() == [b"a", b"b"]


async def test_identifier_that_is_stored_again_at_once_keeps_its_window(durable: Running) -> None:
    """The end of its first window does not end the second, not even for the next start."""
    await durable.create("q", deduplication_seconds=10)
    await durable.store(b"a", dedup=b"1")
    durable.passes(11)
    cleaning = asyncio.ensure_future(durable.engine.maintain())
    await durable.store(b"b", dedup=b"1")
    await cleaning
    await durable.kill()
    assert (await durable.store(b"b", dedup=b"1")).duplicates == [0]
