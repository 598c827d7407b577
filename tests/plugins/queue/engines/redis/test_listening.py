"""Arrivals that other programs cause, without maintenance, which would see them later."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.message import Message
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.login import Address, Login
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_redis, shared_cluster, shared_redis
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, UNTIL_SECONDS, until

LOGGER = logging.getLogger("penstock.queue")
SPEC = QueueSpec(physical_queues=2, groups={"g": GroupSpec(), "keys": GroupSpec(order="key")})


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[tuple[RedisEngine, RedisEngine]]:
    """Open two engines for a block, as two gateways do."""
    async with AsyncExitStack() as stack:
        engines = RedisEngine(server, logger=LOGGER), RedisEngine(server, logger=LOGGER)
        for engine in engines:
            await engine.open()
            stack.push_async_callback(engine.close)
        await engines[0].create_queue("q", SPEC)
        await engines[1].maintain()
        yield engines


async def wait(engine: RedisEngine, group: str | None = "g") -> asyncio.Task[int]:
    """Begin to wait for arrivals, as a held request does."""
    seen = await engine.wait_for_arrival("q", group, -1, 0)
    return asyncio.create_task(engine.wait_for_arrival("q", group, seen, UNTIL_SECONDS))


async def store(engine: RedisEngine, payload: bytes = b"a", number: int = 1) -> None:
    """Store a message."""
    assert engine.reserve("q", 1, 1)
    properties = {"user_property": [("penstock-key", "k")]}
    new = NewMessage(Message("t", payload, properties=properties))
    await engine.append("q", number, [new])


async def until_told(address: Address, *command: str, least: int) -> None:
    """Ask a server until it answers with a number, or a list so long."""
    async with asyncio.timeout(UNTIL_SECONDS):
        while True:
            told = await Login().ask(address, *command)
            if (told if isinstance(told, int) else len(told)) >= least:
                return
            await asyncio.sleep(0.01)


SERVERS: dict[str, Callable[[str], RedisServer]] = {
    "redis": lambda prefix: RedisServer(port=shared_redis(), prefix=prefix),
    "cluster": lambda prefix: RedisServer(cluster=shared_cluster(), prefix=prefix),
}


@pytest.fixture(params=SERVERS)
async def two(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RedisEngine, RedisEngine]]:
    """Open two engines on one server, and on one cluster."""
    server = SERVERS[request.param](f"test-{uuid.uuid4().hex}")
    async with opened(server) as engines:
        yield engines


async def test_a_message_of_another_program_wakes_who_waits(
    two: tuple[RedisEngine, RedisEngine],
) -> None:
    """For a group, and for the queue as a reader of ranges does."""
    one, other = two
    waiting = [await wait(other), await wait(other, None)]
    await store(one)
    await asyncio.gather(*waiting)
    assert dict(other.visible("q", "g")) == {1: 1}


async def test_what_another_program_gives_back_wakes_who_waits(
    two: tuple[RedisEngine, RedisEngine],
) -> None:
    """So does the end of a message that others of its key wait for."""
    one, other = two
    await store(one)
    await store(one, b"b")
    for group, action in (("g", "nack"), ("keys", "ack")):
        n_max = 2 if group == "g" else 1
        received = await one.lease("q", group, 1, n_max, MANY_BYTES)
        await other.maintain()
        waiting = await wait(other, group)
        handles = [message.receipt_handle for message in received]
        assert await one.settle("q", group, action, handles) == {}  # type: ignore[arg-type]
        await waiting
        assert await other.lease("q", group, 1, 9, MANY_BYTES) != []


async def test_nothing_is_asked_while_nothing_happens() -> None:
    """A held request costs the server nothing; nor does what this program itself stores."""
    prefix = f"test-{uuid.uuid4().hex}"
    server = RedisServer(port=shared_redis(), prefix=prefix)
    async with opened(server) as (one, other):
        waiting = await wait(other)
        channels = ("PUBSUB", "CHANNELS", f"{prefix}:*")
        address = ("127.0.0.1", server.port)
        await until_told(address, *channels, least=2)
        await store(other, number=0)
        await waiting
        waiting = await wait(other)
        heard = other.figures()["heard"]
        assert heard == 0
        await store(one)
        await waiting
        assert other.figures()["heard"] == 1
        assert one.figures()["heard"] == 0


async def test_a_user_without_channels_is_told_and_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Maintenance finds what others store, somewhat later."""
    acl = "user default on nopass ~* +@all resetchannels"
    with running_redis(tmp_path, acl) as process:
        async with opened(RedisServer(port=process.port)) as (one, other):
            waiting = await wait(other)
            await until(lambda: "a user with the channels &penstock:*" in caplog.text)
            await store(one)
            await other.maintain()
            await waiting


async def test_listening_goes_on_after_the_connection_has_ended() -> None:
    """What came meanwhile is seen, too."""
    server = RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")
    async with opened(server) as (one, other):
        waiting = await wait(other)
        address = ("127.0.0.1", server.port)
        await until_told(address, "CLIENT", "KILL", "TYPE", "pubsub", least=1)
        await store(one)
        await waiting
