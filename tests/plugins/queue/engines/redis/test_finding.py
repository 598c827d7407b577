"""Servers that fail, and those that take over, found by sentinels."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.broker.message import Message
from penstock.plugins.queue.engines.contract import (
    EngineStartError,
    GroupSpec,
    NewMessage,
    QueueSpec,
    StorageError,
)
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.queue.engines.redis.finding import RedisSentinels, SentinelFinder
from penstock.plugins.queue.engines.redis.login import Address, Login
from penstock.plugins.queue.engines.redis.pipeline import Patience
from penstock.plugins.queue.engines.redis.server import RedisServer
from tests.helpers.redis_server import running_redis, running_sentinels, shared_redis
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, UNTIL_SECONDS, until

LOGGER = logging.getLogger("penstock.queue")
SPEC = QueueSpec(physical_queues=2, groups={"g": GroupSpec()})
PATIENT = Patience(retry_seconds=UNTIL_SECONDS, min_replicas=1, replication_seconds=0.5)


async def answer(address: Address, *command: str) -> str:
    """Return what a server answers, or why it does not."""
    try:
        return str(await Login().ask(address, *command))
    except Exception as error:  # noqa: BLE001 (whoever waits asks again)
        return f"error: {error}"


async def until_answered(address: Address, *command: str, wanted: str) -> None:
    """Wait until a server's answer has a word."""
    async with asyncio.timeout(UNTIL_SECONDS):
        while wanted not in await answer(address, *command):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def publish(engine: RedisEngine, payload: bytes) -> None:
    """Store a message; repeat it, as a publisher does, until it is acknowledged."""
    new = NewMessage(Message("t", payload), deduplication_id=payload)
    while True:
        assert engine.reserve("q", 1, len(payload))
        try:
            await engine.append("q", len(payload) % 2, [new])
        except StorageError:
            continue
        return


async def drained(engine: RedisEngine) -> Counter[bytes]:
    """Receive and acknowledge everything."""
    found: Counter[bytes] = Counter()
    for number in (0, 1):
        while received := await engine.lease("q", "g", number, 100, MANY_BYTES):
            handles = [message.receipt_handle for message in received]
            assert await engine.settle("q", "g", "ack", handles) == {}
            found.update(message.payload for message in received)
    return found


async def test_a_failover_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The master is killed while messages come: each is there once, and calls go on."""
    with ExitStack() as stack:
        master = stack.enter_context(running_redis(tmp_path / "0"))
        for name in ("1", "2"):
            line = f"replicaof 127.0.0.1 {master.port}"
            stack.enter_context(running_redis(tmp_path / name, line))
        ports = stack.enter_context(running_sentinels(tmp_path, master.port))
        addresses = tuple(("127.0.0.1", port) for port in ports)
        await until_answered(("127.0.0.1", master.port), "WAIT", "2", "100", wanted="2")
        for address in addresses:
            await until_answered(address, "SENTINEL", "CKQUORUM", "m", wanted="OK 3")
            replicas = ("SENTINEL", "MASTER", "m")
            await until_answered(address, *replicas, wanted="b'num-slaves', b'2'")
        server = RedisServer(sentinels=RedisSentinels(addresses, "m"), patience=PATIENT)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue("q", SPEC)
        payloads = [b"%d" % n for n in range(400)]
        n_acknowledged = 0

        async def publish_some(some: list[bytes]) -> None:
            nonlocal n_acknowledged
            for payload in some:
                await publish(engine, payload)
                n_acknowledged += 1

        publishers = [asyncio.create_task(publish_some(payloads[n::20])) for n in range(20)]
        await until(lambda: n_acknowledged > 100)
        master.process.kill()
        assert n_acknowledged < len(payloads)
        await asyncio.gather(*publishers)
        assert engine.failure() is None
        assert await drained(engine) == Counter(payloads)
        await engine.maintain()
        assert engine.snapshot("q").messages == 0
        await engine.close()


async def test_sentinels_that_cannot_tell_are_named(tmp_path: Path) -> None:
    """One that is not there, and one that knows no such master."""
    with running_sentinels(tmp_path, shared_redis(), n=1) as (port,):
        addresses = (("127.0.0.1", 1), ("127.0.0.1", port))
        server = RedisServer(sentinels=RedisSentinels(addresses, "other"))
        with pytest.raises(EngineStartError) as told:
            await RedisEngine(server, logger=LOGGER).open()
        assert "sentinels of master other: 127.0.0.1:1: " in str(told.value)
        assert f"127.0.0.1:{port}: it knows no master other" in str(told.value)
        finder = SentinelFinder(RedisSentinels(addresses, "m"))
        for _ in range(2):
            assert await finder.find() == [(0, 0, ("127.0.0.1", shared_redis()))]


async def test_sentinels_have_a_login_of_their_own(tmp_path: Path) -> None:
    """User and password of the sentinels are not those of the master."""
    acl = "user watcher on >secret +sentinel|get-master-addr-by-name"
    file = tmp_path / "password"
    file.write_text("secret")
    with running_sentinels(tmp_path, shared_redis(), acl, n=1) as (port,):
        login = Login("watcher", str(file))
        sentinels = RedisSentinels((("127.0.0.1", port),), "m", login)
        assert await SentinelFinder(sentinels).find() == [(0, 0, ("127.0.0.1", shared_redis()))]
        file.write_text("other")
        with pytest.raises(EngineStartError, match="invalid username-password"):
            await SentinelFinder(sentinels).find()
