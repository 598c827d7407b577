"""What the contract does not say: several programs on one server, and a server that fails."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.message import Message
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.engines.contract import (
    EngineStartError,
    GroupSpec,
    NewMessage,
    QueueSpec,
    StorageError,
    StorageFullError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.queue.engines.redis.server import RedisServer, ask_directly
from tests.helpers.redis_server import running_redis, shared_redis
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, until

LOGGER = logging.getLogger("penstock.queue")
SPEC = QueueSpec(physical_queues=1, groups={"g": GroupSpec()})


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[RedisEngine]:
    """Open an engine for a block."""
    engine = RedisEngine(server, logger=LOGGER)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def server() -> RedisServer:
    """Return the shared server, with keys of this test alone."""
    return RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")


@pytest.fixture
async def two(server: RedisServer) -> AsyncIterator[tuple[RedisEngine, RedisEngine]]:
    """Open two engines on the same keys, as two brokers do."""
    async with opened(server) as one, opened(server) as other:
        await one.create_queue("q", SPEC)
        await other.maintain()
        yield one, other


async def store(engine: RedisEngine, *payloads: bytes) -> None:
    """Store messages."""
    messages = [NewMessage(Message("t", payload)) for payload in payloads]
    assert engine.reserve("q", len(payloads), sum(map(len, payloads)))
    await engine.append("q", 0, messages)


async def receive(engine: RedisEngine, n_max: int = 10) -> list[bytes]:
    """Receive messages and acknowledge them."""
    received = await engine.lease("q", "g", 0, n_max, MANY_BYTES)
    handles = [message.receipt_handle for message in received]
    assert await engine.settle("q", "g", "ack", handles) == {}
    return [message.payload for message in received]


async def test_what_one_program_stores_another_receives(
    two: tuple[RedisEngine, RedisEngine],
) -> None:
    """Each message once, whoever asks."""
    one, other = two
    await store(one, b"a", b"b", b"c")
    assert await receive(other, 2) == [b"a", b"b"]
    assert await receive(one) == [b"c"]
    assert await receive(other) == []


async def test_a_handle_counts_in_every_program(two: tuple[RedisEngine, RedisEngine]) -> None:
    """A receiver may settle by another gateway, also when that of its receive is gone."""
    one, other = two
    await store(one, b"a")
    (received,) = await one.lease("q", "g", 0, 1, MANY_BYTES)
    await one.close()
    assert await other.lease("q", "g", 0, 1, MANY_BYTES) == []
    assert await other.settle("q", "g", "ack", [received.receipt_handle]) == {}
    await other.maintain()
    assert other.snapshot("q").messages == 0


async def test_maintenance_learns_what_another_program_has_done(
    two: tuple[RedisEngine, RedisEngine],
) -> None:
    """Messages, queues, groups and settings; who waits for messages is woken."""
    one, other = two
    seen = await other.wait_for_arrival("q", "g", -1, 0)
    waiting = asyncio.create_task(other.wait_for_arrival("q", "g", seen, 300))
    await asyncio.sleep(0)
    await store(one, b"a")
    await one.create_queue("new", SPEC)
    await one.create_group("q", "h", GroupSpec(order="key"))
    await other.maintain()
    assert await waiting != seen
    assert sorted(other.queues()) == ["new", "q"]
    assert other.snapshot("q").groups["h"].spec.order == "key"
    assert (other.snapshot("q").messages, dict(other.visible("q", "g"))) == (1, {0: 1})
    await one.delete_queue("q")
    with pytest.raises(UnknownQueueError):
        await store(other, b"b")
    await other.maintain()
    assert list(other.queues()) == ["new"]


async def test_two_programs_that_change_one_queue_at_once_both_succeed(
    two: tuple[RedisEngine, RedisEngine],
) -> None:
    """The catalogue takes one change after the other."""
    one, other = two
    await asyncio.gather(
        *(one.create_group("q", f"a{n}", GroupSpec()) for n in range(5)),
        *(other.create_group("q", f"b{n}", GroupSpec()) for n in range(5)),
    )
    for engine in two:
        await engine.maintain()
        assert len(engine.snapshot("q").groups) == 11


async def test_keys_of_another_program_are_left_alone(server: RedisServer) -> None:
    """A prefix that is in use for something else is named."""
    connection = server.connection()
    await connection.connect()
    await ask_directly(connection, "SET", f"{server.prefix}:{{catalogue}}:m", "mine")
    with pytest.raises(EngineStartError, match=f"keys {server.prefix}:"):
        await RedisEngine(server, logger=LOGGER).open()
    assert await ask_directly(connection, "GET", f"{server.prefix}:{{catalogue}}:m") == b"mine"
    await ask_directly(connection, "DEL", f"{server.prefix}:{{catalogue}}:m")
    await ask_directly(connection, "HSET", f"{server.prefix}:{{catalogue}}:m", "format", "9")
    with pytest.raises(EngineStartError, match="read 9; allowed: 1"):
        await RedisEngine(server, logger=LOGGER).open()
    await connection.disconnect()


async def fits(engine: RedisEngine, payload: bytes) -> bool:
    """Store a message; say whether there was memory for it."""
    try:
        await store(engine, payload)
    except StorageFullError as error:
        assert "memory is full" in str(error)  # noqa: PT017 (it is raised sooner or later)
        return False
    return True


async def test_a_full_server_can_be_drained(tmp_path: Path) -> None:
    """New messages are refused by name; what is there is received and settled."""
    with running_redis(tmp_path / "redis", "maxmemory 16mb") as process:
        async with opened(RedisServer(port=process.port)) as engine:
            await engine.create_queue("q", SPEC)
            n_stored = 0
            while await fits(engine, bytes(1024 * 1024)):
                n_stored += 1
            assert n_stored > 0
            assert engine.snapshot("q").reserved == 0
            n_received = 0
            while received := await receive(engine, 1):
                n_received += len(received)
            assert n_received == n_stored
            await store(engine, b"new")
            assert await receive(engine) == [b"new"]


async def test_what_was_acknowledged_survives_the_server(tmp_path: Path) -> None:
    """Killed and started again, it has all messages; the engine connects again by itself."""
    async with AsyncExitStack() as stack:
        port = stack.enter_context(reserved_port())
        durable = ("appendonly yes", "appendfsync always")
        with running_redis(tmp_path / "redis", *durable, port=port) as process:
            engine = await stack.enter_async_context(opened(RedisServer(port=port)))
            await engine.create_queue("q", SPEC)
            await store(engine, b"a", b"b")
            assert await receive(engine, 1) == [b"a"]
            process.process.kill()
            process.process.wait()
            await until(lambda: engine.failure() is not None)
        with pytest.raises(StorageError, match="Redis server"):
            await store(engine, b"lost")
        with running_redis(tmp_path / "redis", *durable, port=port):
            await until(lambda: engine.failure() is None)
            await store(engine, b"c")
            assert await receive(engine) == [b"b", b"c"]
            assert engine.snapshot("q").reserved == 0


async def test_a_server_that_comes_back_without_its_data_is_refused(tmp_path: Path) -> None:
    """Nothing is stored in a queue that is gone; the reason is told."""
    async with AsyncExitStack() as stack:
        port = stack.enter_context(reserved_port())
        with running_redis(tmp_path / "one", port=port):
            engine = await stack.enter_async_context(opened(RedisServer(port=port)))
            await engine.create_queue("q", SPEC)
        with running_redis(tmp_path / "other", port=port):
            await until(lambda: "not those of before" in (engine.failure() or ""))
            with pytest.raises(StorageError, match="not those of before"):
                await store(engine, b"a")
