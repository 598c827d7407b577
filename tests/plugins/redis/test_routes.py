"""One slot of a server that is another server's, or is on its way to it, beside its other slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from penstock.plugins.redis.discovery import ClusterFinder
from penstock.plugins.redis.login import Address, Login
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.routes import Range, Routes
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_cluster
from tests.plugins.queue.engines.contract.harness import UNTIL_SECONDS, until

LOGGER = logging.getLogger("penstock.queue")
PATIENT = Patience(300.0, 300.0, slowdown_detection_time=0.02)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Address]]:
    """Start two nodes; the first one has the lower half of the slots."""
    is_partial = "cluster-require-full-coverage no"
    with running_cluster(tmp_path_factory.mktemp("nodes"), is_partial, n=2) as started:
        yield [("127.0.0.1", node.port) for node in started]


def keys_of_the_first(n: int) -> list[str]:
    """Return keys of as many slots of the first node, which no other test uses."""
    keys = (f"test-routes-{at}" for at in range(10_000))
    lower = [key for key in keys if key_slot(key.encode()) < 8_192]
    return lower[:n]


async def set_slot(nodes: list[Address], key: str, *ways: str) -> None:
    """Move a slot of the first node as far as a way does; each is for the other node, then it."""
    identifiers = [(await Login().ask(node, "CLUSTER", "MYID")).decode() for node in nodes]
    slot = str(key_slot(key.encode()))
    for way in ways:
        for at in (1, 0):
            step = {"begin": ("IMPORTING", 0) if at else ("MIGRATING", 1), "end": ("NODE", 1)}[way]
            await Login().ask(nodes[at], "CLUSTER", "SETSLOT", slot, step[0], identifiers[step[1]])


class HeldFinder(ClusterFinder):
    """Finds nothing for as long as a test wants.

    Attributes:
        is_asked: is set when routes are looked for.
        goes_on: to be set for the answer.
    """

    def __init__(self, nodes: list[Address]) -> None:
        super().__init__(nodes, Login())
        self.is_asked = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def find(self) -> list[Range]:
        """Return the master of each slot, when the test wants it."""
        self.is_asked.set()
        await self.goes_on.wait()
        return await super().find()


async def opened(nodes: list[Address], finder: ClusterFinder) -> Routes:
    """Return open routes to a cluster."""
    server = RedisServer(cluster=tuple(nodes))
    routes = Routes(finder, lambda address: server.connect(LOGGER, address), PATIENT, LOGGER)
    await routes.open()
    return routes


async def test_a_slot_on_its_way_holds_up_no_other_slot_of_its_server(nodes: list[Address]) -> None:
    """Its calls wait for routes, in their order; those of the server's other slots do not."""
    finder = HeldFinder(nodes)
    calls = await opened(nodes, finder)
    moved, stays = keys_of_the_first(2)
    await set_slot(nodes, moved, "begin")
    finder.is_asked.clear()
    finder.goes_on.clear()
    async with asyncio.timeout(UNTIL_SECONDS):
        waiting = [calls.call(moved, "RPUSH", moved, f"{n}") for n in range(3)]
        await finder.is_asked.wait()
        assert await calls.call(stays, "RPUSH", stays, "a") == 1
        waiting += [calls.call(moved, "RPUSH", moved, f"{n}") for n in range(3, 6)]
        assert await calls.call(stays, "RPUSH", stays, "b") == 2
        assert not any(call.done() for call in waiting)
        await set_slot(nodes, moved, "end")
        finder.goes_on.set()
        assert await asyncio.gather(*waiting) == [1, 2, 3, 4, 5, 6]
        assert await calls.call(moved, "LRANGE", moved, "0", "-1") == [b"%d" % n for n in range(6)]
    assert calls.address_of(moved) == nodes[1]
    assert calls.address_of(stays) == nodes[0]
    await calls.close()


async def n_refused(node: Address) -> int:
    """Return how many calls a node has refused as their slot was on its way."""
    lines = (await Login().ask(node, "INFO", "errorstats")).decode().split()
    found = [line for line in lines if line.startswith("errorstat_ASK:")]
    return int(found[0].partition("count=")[2]) if found else 0


async def test_one_call_of_a_slot_that_waits_is_tried_from_time_to_time(
    nodes: list[Address],
) -> None:
    """There may be thousands: all of them would keep the server and this program from others'."""
    finder = HeldFinder(nodes)
    calls = await opened(nodes, finder)
    moved = keys_of_the_first(8)[7]
    await set_slot(nodes, moved, "begin")
    before = await n_refused(nodes[0])
    async with asyncio.timeout(UNTIL_SECONDS):
        waiting = [calls.call(moved, "RPUSH", moved, f"{n}") for n in range(100)]
        for _ in range(4):
            finder.is_asked.clear()
            await finder.is_asked.wait()
        assert await n_refused(nodes[0]) - before < 200
        await set_slot(nodes, moved, "end")
        assert await asyncio.gather(*waiting) == [*range(1, 101)]
        assert await calls.call(moved, "LRANGE", moved, "0", "-1") == [
            b"%d" % n for n in range(100)
        ]
    await calls.close()


async def test_a_silent_server_that_has_lost_a_slot_keeps_its_connection(
    nodes: list[Address],
) -> None:
    """What is under way of that slot goes to the server that has it; the rest is waited for."""
    calls = await opened(nodes, ClusterFinder(nodes, Login()))
    slow, moved, *_ = keys_of_the_first(5)[2:]
    connection = await calls.call(slow, "CLIENT", "ID")
    waiting = calls.call(slow, "BLPOP", slow, "0")
    behind = [calls.call(moved, "RPUSH", moved, f"{n}") for n in range(3)]
    await until(lambda: calls.is_away(slow))
    await set_slot(nodes, moved, "begin", "end")
    async with asyncio.timeout(UNTIL_SECONDS):
        assert await asyncio.gather(*behind) == [1, 2, 3]
        assert calls.address_of(moved) == nodes[1]
        assert not waiting.done()
        await Login().ask(nodes[0], "RPUSH", slow, "a")
        assert await waiting == [slow.encode(), b"a"]
        assert await calls.call(slow, "CLIENT", "ID") == connection
    assert calls.failure is None
    await calls.close()


async def test_a_cluster_that_becomes_half_up_is_survived(nodes: list[Address]) -> None:
    """Calls of a slot that no node has wait until one has it; all others go on."""
    calls = await opened(nodes, ClusterFinder(nodes, Login()))
    lost, stays = keys_of_the_first(7)[5:]
    slot = str(key_slot(lost.encode()))
    await Login().ask(nodes[0], "CLUSTER", "DELSLOTS", slot)
    async with asyncio.timeout(UNTIL_SECONDS):
        waiting = [calls.call(lost, "RPUSH", lost, f"{n}") for n in range(3)]
        for n in range(100):
            assert await calls.call(stays, "RPUSH", stays, "a") == n + 1
        assert not any(call.done() for call in waiting)
        await Login().ask(nodes[0], "CLUSTER", "ADDSLOTS", slot)
        assert await asyncio.gather(*waiting) == [1, 2, 3]
    assert calls.failure is None
    await calls.close()
