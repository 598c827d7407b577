"""Deduplication identifiers on the nodes of a cluster, some of which are full or do not answer."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from redis import Redis
from redis.crc import key_slot

from penstock.broker.message import Message
from penstock.plugins.queue.engines.contract import (
    AppendResult,
    GroupSpec,
    NewMessage,
    QueueSpec,
    StorageError,
    StorageFullError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.login import Login
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import RedisProcess, running_cluster, shared_cluster
from tests.plugins.queue.engines.contract.harness import until
from tests.plugins.queue.running import LostPayload

LOGGER = logging.getLogger("penstock.queue")
N_QUEUES = 12
SPEC = QueueSpec(physical_queues=N_QUEUES, groups={"g": GroupSpec()})


def new(identifier: bytes = b"", topic: str = "t", *, is_repeat: bool = True) -> NewMessage:
    """Return a message of one byte."""
    return NewMessage(Message(topic, b"x"), identifier, is_repeat=is_repeat)


class Used:
    """A queue, the nodes of its keys, and what its engine has sent to its physical queues."""

    def __init__(self, engine: RedisEngine, nodes: Sequence[RedisProcess], name: str) -> None:
        self.engine, self.nodes, self.name = engine, nodes, name
        self.incarnation = engine.snapshot(name).incarnation
        self.sent: list[tuple[int, asyncio.Future[Any]]] = []

    def node(self, number: int) -> RedisProcess:
        """Return where a physical queue is."""
        slot: int = key_slot(f"penstock:{{{self.incarnation}.{number}}}".encode())
        return self.nodes[slot * len(self.nodes) // 16_384]

    def identifiers(self, node: RedisProcess, *, are_there: bool) -> list[bytes]:
        """Return identifiers that are on a node, or that are not."""
        found: list[bytes] = []
        for n in count():
            identifier = b"%d" % n
            if (self.node(crc32(identifier) % N_QUEUES) is node) == are_there:
                found.append(identifier)
            if len(found) == 9:
                break
        return found

    def append(self, number: int, *messages: NewMessage) -> asyncio.Future[AppendResult]:
        """Store messages."""
        assert self.engine.reserve(self.name, len(messages), len(messages))
        return self.engine.append(self.name, number, messages, lambda *one: self.sent.append(one))


async def _check_full_node(
    engine: RedisEngine, nodes: Sequence[RedisProcess], full: RedisProcess
) -> None:
    """It refuses messages, and none with an identifier of its own that another node stores.

    Its `maxmemory` is 1 then.
    """
    await engine.create_queue("full", SPEC)
    used = Used(engine, nodes, "full")
    identifier = used.identifiers(full, are_there=True)[0]
    with Redis(port=full.port) as client:
        client.config_set("maxmemory", int(0.97 * client.info("memory")["used_memory"]))
    with pytest.raises(StorageFullError):
        await used.append(next(at for at in range(N_QUEUES) if used.node(at) is full), new())
    healthy = next(at for at in range(N_QUEUES) if used.node(at) is not full)
    for duplicates in ([], [0]):
        outcome = await used.append(healthy, new(identifier))
        assert (outcome.offsets, outcome.duplicates) == ([0], duplicates)
    # Far above its limit, it has no room for identifiers either.
    await Login().ask(("127.0.0.1", full.port), "CONFIG", "SET", "maxmemory", "1")


async def test_a_node_that_fails_has_a_part_of_the_identifiers_alone(tmp_path: Path) -> None:
    """Others are stored, messages of one call, too; what the node did not claim is refused."""
    settings = ("cluster-require-full-coverage no", "cluster-node-timeout 600000")
    with running_cluster(tmp_path, *settings) as nodes:
        patience = Patience(0.5, 1.0, slowdown_detection_time=0.1)
        addresses = tuple(("127.0.0.1", one.port) for one in nodes)
        server = RedisServer(cluster=addresses, patience=patience)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue("q", SPEC)
        await engine.create_queue("keyed", replace(SPEC, key="topic"))
        used, keyed = Used(engine, nodes, "q"), Used(engine, nodes, "keyed")
        failing = used.node(0)
        there = used.identifiers(failing, are_there=True)
        elsewhere = used.identifiers(failing, are_there=False)
        healthy, other = [at for at in range(N_QUEUES) if used.node(at) is not failing][:2]

        await _check_full_node(engine, nodes, failing)
        with pytest.raises(StorageFullError):
            await used.append(healthy, new(there[0]))
        both = await used.append(healthy, new(there[0]), new(elsewhere[0]))
        assert (both.offsets, both.refused) == ([-1, 0], {0: "storage_full"})
        await Login().ask(("127.0.0.1", failing.port), "CONFIG", "SET", "maxmemory", "0")
        # What was stored beside it is known.
        both = await used.append(healthy, new(there[0]), new(elsewhere[0]))
        assert (both.offsets, both.duplicates, both.refused) == ([1, 0], [1], {})

        kept = keyed.identifiers(failing, are_there=True)
        quick = [at for at in range(N_QUEUES) if keyed.node(at) is not failing]
        failing.process.send_signal(signal.SIGSTOP)
        try:
            mixed = used.append(healthy, new(there[1]), new(), new(elsewhere[1]))
            lanes = keyed.append(quick[0], new(kept[0], "a"), new(topic="a"), new(topic="b"))
            behind = keyed.append(quick[0], new(topic="a"))
            lost: Any = LostPayload()
            unreadable = keyed.append(quick[0], NewMessage(Message("a", lost)))
            first = used.append(healthy, new(elsewhere[4]), new(there[4]))
            second = used.append(other, new(elsewhere[4]))
            held_up = [mixed, lanes, behind, first, second]
            assert (await used.append(healthy, new(elsewhere[2]))).refused == {}
            assert (await keyed.append(quick[1], new(topic="a"))).refused == {}
            assert not any(call.done() for call in held_up)
            few = [new(elsewhere[3]), new(there[3]), new()]
            await until(lambda: list(engine.held_up("q", few)) == [1])
            assert list(engine.held_up("keyed", [new(kept[0])])) == []
            assert await mixed == ([-1, 3, 4], [], {0: "storage_error"})
            # What comes behind a refused message of its key is refused with it.
            error = "storage_error"
            assert await lanes == ([-1, -1, 0], [], {0: error, 1: error})
            assert await behind == ([1], [], {})
            assert await unreadable == ([-1], [], {0: "unreadable"})
            # Of two with one identifier, the first is stored.
            assert await first == ([5, -1], [], {1: error})
            assert (await second).duplicates == [0]
            with pytest.raises(StorageError, match=f"127.0.0.1:{failing.port}"):
                await used.append(healthy, new(there[2]))
        finally:
            failing.process.send_signal(signal.SIGCONT)
        await until(lambda: engine.failure() is None)
        again = await used.append(healthy, new(there[1]), new(elsewhere[1]))
        assert list(again.duplicates) == [1]
        assert list((await used.append(0, new(there[1]))).duplicates) == [0]
        # No physical queue was to blame for an identifier that could not be claimed.
        assert {number for number, _ in used.sent} == {healthy}
        assert all(stored.exception() is None for _, stored in used.sent)
        await engine.close()


async def opened(server: RedisServer) -> RedisEngine:
    """Return an engine that has read everything there is."""
    engine = RedisEngine(server, logger=LOGGER)
    await engine.open()
    return engine


async def test_identifiers_are_forgotten_expire_and_are_deleted_in_all_their_slots() -> None:
    """Whichever of them a slot has."""
    prefix = f"test-{uuid.uuid4().hex}"
    server = RedisServer(cluster=shared_cluster(), prefix=prefix)
    now = 1_000.0
    engine = RedisEngine(server, server_clock=lambda: now, logger=LOGGER)
    await engine.open()
    snapshot = await engine.create_queue("q", SPEC)
    used = Used(engine, (), "q")
    identifiers = [b"%d" % n for n in range(60)]
    keys = [f"{prefix}:{{{snapshot.incarnation}.{n}}}:claims" for n in range(N_QUEUES)]

    async def n_known() -> list[int]:
        calls = [engine._routes.call(key, "ZCARD", f"{key}:t") for key in keys]
        return list(await asyncio.gather(*calls))

    result = await used.append(3, *map(new, identifiers))
    assert list(result.offsets) == list(range(60))  # one call's order
    assert all(await n_known())
    result = await used.append(4, *map(new, identifiers))
    assert list(result.duplicates) == list(range(60))
    await engine.forget("q", identifiers[:30])
    assert sum(await n_known()) == 30
    result = await used.append(4, *map(new, identifiers))
    assert list(result.duplicates) == list(range(30, 60))
    now += SPEC.deduplication_seconds
    await engine.maintain()
    assert not any(await n_known())
    await used.append(5, *map(new, identifiers))
    await engine.delete_queue("q")
    assert not any(await n_known())
    await engine.close()


async def test_a_repeat_that_overtakes_its_message_is_stored_instead_of_it() -> None:
    """The first is known to be no repeat: it must not be stored beside its own repeat."""
    server = RedisServer(cluster=shared_cluster(), prefix=f"test-{uuid.uuid4().hex}")
    engine = await opened(server)
    await engine.create_queue("q", SPEC)
    storing = engine._storing
    held: list[tuple[Any, ...]] = []

    def hold(*call: Any) -> asyncio.Future[Any]:
        held.append(call)
        return asyncio.get_running_loop().create_future()

    storing._deduplication._send = hold
    used = Used(engine, (), "q")
    calls = [used.append(at, new(b"id", is_repeat=at == 1)) for at in range(2)]
    await until(lambda: len(held) == 2)
    assert not any(call.done() for call in calls)
    for call in reversed(held):
        await storing._send(*call)
    assert engine.snapshot("q").messages == 1
    await engine.close()


async def test_a_claim_is_followed_into_a_physical_queue_that_another_program_has_just_added() -> (
    None
):
    """The message is there already; it must not be stored elsewhere, too."""
    server = RedisServer(cluster=shared_cluster(), prefix=f"test-{uuid.uuid4().hex}")
    one = await opened(server)
    await one.create_queue("q", replace(SPEC, physical_queues=1))
    other = await opened(server)
    await one.change_queue("q", replace(SPEC, physical_queues=2))
    assert list((await Used(one, (), "q").append(1, new(b"id"))).duplicates) == []
    assert list((await Used(other, (), "q").append(0, new(b"id"))).duplicates) == [0]
    await other.maintain()
    assert other.snapshot("q").messages == 1
    assert other.visible("q", "g") == {1: 1}
    for each in (one, other):
        await each.close()


async def test_no_identifier_is_claimed_of_a_queue_that_is_gone() -> None:
    """By a program that does not know of its end yet: nothing would ever forget it."""
    server = RedisServer(cluster=shared_cluster(), prefix=f"test-{uuid.uuid4().hex}")
    one = await opened(server)
    await one.create_queue("q", replace(SPEC, physical_queues=2))
    other = await opened(server)
    used = Used(other, (), "q")
    await one.delete_queue("q")
    with pytest.raises(UnknownQueueError, match="queue q: it was deleted"):
        await used.append(0, new(b"a"), new(b"b"), new(b"c"))
    for shard in range(2):
        key = f"{server.prefix}:{{{used.incarnation}.{shard}}}:claims:m"
        assert await other._routes.call(key, "EXISTS", key) == 0
    for each in (one, other):
        await each.close()


async def test_a_window_begins_with_its_claim() -> None:
    """Not with the second before: a window of one second could be over at once."""
    server = RedisServer(cluster=shared_cluster(), prefix=f"test-{uuid.uuid4().hex}")
    engine = await opened(server)
    snapshot = await engine.create_queue("q", replace(SPEC, physical_queues=1))
    key = f"{server.prefix}:{{{snapshot.incarnation}.0}}:claims"
    before = await engine._routes.call(key, "TIME")
    await Used(engine, (), "q").append(0, new(b"id"))
    claimed_at = await engine._routes.call(key, "ZSCORE", f"{key}:t", "id")
    assert float(claimed_at) >= int(before[0]) + int(before[1]) / 1_000_000
    await engine.close()
