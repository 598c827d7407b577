"""Queues that are deleted while a node is away, and by a program that dies."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.crc import key_slot

from penstock.broker.message import Message
from penstock.plugins.queue.engines.contract import (
    GroupSpec,
    NewMessage,
    QueueSpec,
    StorageError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_cluster, shared_redis
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, UNTIL_SECONDS

LOGGER = logging.getLogger("penstock.queue")
SPEC = QueueSpec(physical_queues=12, groups={"g": GroupSpec()})


class KilledError(BaseException):
    """In place of SIGKILL: no code of the program handles it."""


async def opened(server: RedisServer) -> RedisEngine:
    """Return an engine that is open."""
    engine = RedisEngine(server, logger=LOGGER)
    await engine.open()
    return engine


def append(engine: RedisEngine, number: int, identifier: bytes = b"") -> asyncio.Future[object]:
    """Store a message."""
    assert engine.reserve("q", 1, 1)
    message = NewMessage(Message("t", b"m"), deduplication_id=identifier)
    return engine.append("q", number, [message])  # type: ignore[return-value]


def n_keys(ports: Sequence[int], incarnation: str) -> list[int]:
    """Return how many keys of a queue each server has, but for answers, which expire."""
    found = []
    for port in ports:
        with Redis(port=port) as client:
            keys = client.keys(f"*{incarnation}*")
            found.append(sum(client.ttl(key) == -1 for key in keys))
    return found


async def test_a_queue_is_deleted_while_a_node_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller is told so; what the node has is deleted by any program when it is back.

    So is what a queue has that could not be created.
    """
    settings = ("cluster-require-full-coverage no", "cluster-node-timeout 600000")
    with running_cluster(tmp_path, *settings) as nodes:
        patience = Patience(0.5, 1.0, slowdown_detection_time=0.1)
        addresses = tuple(("127.0.0.1", node.port) for node in nodes)
        server = RedisServer(cluster=addresses, patience=patience)
        engine, other = await opened(server), await opened(server)
        await engine.create_queue("q", SPEC)
        await asyncio.gather(*(append(engine, number, b"%d" % number) for number in range(12)))
        await other.maintain()
        incarnation = engine.snapshot("q").incarnation
        bases = [f"penstock:{{{incarnation}.{number}}}" for number in range(12)]
        places = [key_slot(base.encode()) * 3 // 16_384 for base in bases]
        catalogue = key_slot(b"penstock:{catalogue}") * 3 // 16_384
        away = next(place for place in places if place != catalogue)
        left = [node.port for at, node in enumerate(nodes) if at != away]
        assert n_keys([nodes[away].port], incarnation) != [0]
        nodes[away].process.send_signal(signal.SIGSTOP)
        try:
            await engine.delete_queue("q")
            assert list(engine.queues()) == []
            assert n_keys(left, incarnation) == [0, 0]
            with pytest.raises(UnknownQueueError):
                await append(other, next(at for at in range(12) if places[at] != away))
            await other.maintain()
            assert list(other.queues()) == []
            with pytest.raises(StorageError):
                await engine.create_queue("r", SPEC)
            await engine.close()  # what it has sent to the node has failed by then
            await other.close()
        finally:
            nodes[away].process.send_signal(signal.SIGCONT)
        third = await opened(server)
        async with asyncio.timeout(UNTIL_SECONDS):
            while await third._functions.tombstones():
                with suppress(StorageError):
                    await third.maintain()
        assert list(third.queues()) == []
        assert n_keys([node.port for node in nodes], "-") == [0, 0, 0]  # of any incarnation
        await third.close()
    assert "never retrieved" not in caplog.text


async def test_a_program_that_dies_while_it_deletes_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no queue any more, its name is free, and upkeep of another program does the rest."""
    server = RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")
    engine = await opened(server)
    await engine.create_queue("q", SPEC)
    await append(engine, 0, b"a")
    incarnation = engine.snapshot("q").incarnation

    async def die(*_: object) -> bool:
        raise KilledError

    monkeypatch.setattr(engine._functions, "delete_parts", die)
    with pytest.raises(KilledError):
        await engine.delete_queue("q")
    await engine.close()
    other = await opened(server)
    assert list(other.queues()) == []
    await other.create_queue("q", SPEC)
    await append(other, 0)
    await other.maintain()
    assert n_keys([server.port], incarnation) == [0]
    assert await other._functions.tombstones() == {}
    assert [one.payload for one in await other.lease("q", "g", 0, 9, MANY_BYTES)] == [b"m"]
    await other.close()


async def test_a_repeated_delete_spares_a_queue_that_has_the_name_since() -> None:
    """The first call was carried out, and its answer was lost. Another delete means that queue."""
    server = RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")
    engine = await opened(server)
    await engine.create_queue("q", SPEC)
    queue = engine._catalogue.find("q")
    other = await opened(server)
    call = ("q", queue.raw, queue.incarnation, b'{"parts": [], "id_shards": 0}')
    assert await engine._functions.delete_entry(*call) == (True, b"")
    await engine._catalogue.refresh()
    await engine.create_queue("q", SPEC)
    assert await engine._functions.delete_entry(*call) == (True, b"")
    assert list(await engine._functions.entries()) == ["q"]
    await other.delete_queue("q")
    assert await engine._functions.entries() == {}
    await engine.close()
    await other.close()
