"""A server's clock that is set, and a server that is away: what waits for clients waits on."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest

from penstock.broker.durable.storage_clock import Clocks
from penstock.broker.message import Message
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec, StorageError
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.helpers.clock import Clock
from tests.helpers.redis_server import running_redis, shared_redis
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, until

LOGGER = logging.getLogger("penstock.queue")
EXPIRING = GroupSpec(visibility_timeout=30.0, group_expiry_seconds=60.0)
SPEC = QueueSpec(physical_queues=1, groups={"g": EXPIRING}, deduplication_seconds=60.0)


async def store(engine: RedisEngine, payload: bytes, identifier: bytes = b"") -> list[int]:
    """Store a message; return whether it is a duplicate, as [0] or []."""
    assert engine.reserve("q", 1, len(payload))
    done = await engine.append("q", 0, [NewMessage(Message("t", payload), identifier)])
    return list(done.duplicates)


async def receive(engine: RedisEngine) -> list[bytes]:
    """Receive messages; return their payloads."""
    return [one.payload for one in await engine.lease("q", "g", 0, 10, MANY_BYTES)]


async def test_time_goes_on_where_the_server_s_clock_was_set_back() -> None:
    """Leases, delays and windows end by the time that passes, not a year later."""
    clock = Clock(1e9)
    server = RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")
    engine = RedisEngine(server, server_clock=clock, logger=LOGGER)
    await engine.open()
    await engine.create_queue("q", SPEC)
    assert await store(engine, b"a", b"1") == []
    assert await receive(engine) == [b"a"]
    clock.now -= 3e7
    assert await store(engine, b"a", b"1") == [0]
    assert await receive(engine) == []
    clock.now += 31
    assert await receive(engine) == [b"a"]
    clock.now += 30
    assert await store(engine, b"a", b"1") == []
    await engine.close()


async def test_a_server_s_clock_that_is_set_forward_expires_no_group() -> None:
    """No time has passed for this program, nor for those that use the group."""
    clock, monotonic = Clock(1e9), Clock()
    server = RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")
    clocks = Clocks(monotonic=monotonic)
    engine = RedisEngine(server, clocks=clocks, server_clock=clock, logger=LOGGER)
    await engine.open()
    await engine.create_queue("q", SPEC)
    await engine.maintain()
    for _ in range(2):
        clock.now += 1e7
        await engine.maintain()
        assert "g" in engine.snapshot("q").groups
    for timer in (clock, monotonic):
        timer.now += 61
    await engine.maintain()
    assert "g" not in engine.snapshot("q").groups
    await engine.close()


async def test_time_without_a_server_expires_nothing_that_waits_for_clients(tmp_path: Path) -> None:
    """Neither a group nor a window, from the first call on: nobody could ask meanwhile."""
    clock = Clock(1e9)
    durable = ("appendonly yes", "appendfsync always")
    with reserved_port() as port:
        server = RedisServer(port=port, patience=Patience(retry_seconds=0.2))
        engine = RedisEngine(
            server, clocks=Clocks(monotonic=clock), server_clock=clock, logger=LOGGER
        )
        with running_redis(tmp_path / "redis", *durable, port=port):
            await engine.open()
            await engine.create_queue("q", SPEC)
            assert await store(engine, b"a", b"1") == []
            await engine.maintain()
        await until(lambda: engine.failure() is not None)
        with pytest.raises(StorageError):
            await engine.maintain()
        clock.now += 1000
        with running_redis(tmp_path / "redis", *durable, port=port):
            await until(lambda: engine.failure() is None)
            assert await store(engine, b"a", b"1") == [0]
            await engine.maintain()
            assert "g" in engine.snapshot("q").groups
            assert await receive(engine) == [b"a"]
            await engine.close()
