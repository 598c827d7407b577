"""Whether a message would be stored at this moment, with a server that refuses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from redis import Redis

from penstock.broker.message import Message
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec, StorageError
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import RedisProcess, running_cluster, running_redis
from tests.plugins.queue.engines.contract.harness import until

LOGGER = logging.getLogger("penstock.queue")
SPEC = QueueSpec(physical_queues=12, groups={"g": GroupSpec()})


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[RedisEngine]:
    """Open an engine with a queue for a block."""
    engine = RedisEngine(server, logger=LOGGER)
    await engine.open()
    try:
        await engine.create_queue("q", SPEC)
        yield engine
    finally:
        await engine.close()


async def store(engine: RedisEngine, number: int = 0) -> None:
    """Store a message."""
    assert engine.reserve("q", 1, 1)
    await engine.append("q", number, [NewMessage(Message("t", b"x"))])


@pytest.mark.parametrize(
    ("command", "undo", "told"),
    [
        ("CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0", "memory is full"),
        ("ACL SETUSER default -fcall", "ACL SETUSER default +@all", "NOPERM|no permissions"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "NOREPLICAS|Not enough good replicas",
        ),
    ],
    ids=lambda text: text.split(" ")[1] if " " in text else "",
)
async def test_what_refuses_messages_is_told_before_one_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, command: str, undo: str, told: str
) -> None:
    """By name, once in the log; and that it is over."""
    caplog.set_level(logging.INFO)
    with running_redis(tmp_path) as process, Redis(port=process.port) as admin:
        async with opened(RedisServer(port=process.port)) as engine:
            assert (await engine.probe()).problem is None
            caplog.clear()
            admin.execute_command(*command.split(" "))
            problem = (await engine.probe()).problem
            assert problem
            assert any(part in problem for part in told.split("|")), problem
            assert engine.failure() == problem
            with pytest.raises(StorageError):
                await store(engine)
            assert (await engine.probe()).problem == problem
            errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
            assert [problem in one.getMessage() for one in errors] == [True]
            admin.execute_command(*undo.split(" "))
            assert (await engine.probe()).problem is None
            assert engine.failure() is None
            await store(engine)
            assert "stores messages again" in caplog.text


async def test_a_server_that_may_delete_messages_is_told(tmp_path: Path) -> None:
    """As at the start, where that ends it."""
    with running_redis(tmp_path) as process, Redis(port=process.port) as admin:
        async with opened(RedisServer(port=process.port)) as engine:
            admin.config_set("maxmemory-policy", "allkeys-lru")
            problem = (await engine.probe()).problem
            assert problem
            assert "maxmemory-policy" in problem
            assert "read allkeys-lru; allowed: noeviction" in problem


async def test_too_few_replicas_are_told(tmp_path: Path) -> None:
    """Those of `min_replicas`, without which a message is refused."""
    patience = Patience(min_replicas=1, replication_seconds=3.0)
    with (
        running_redis(tmp_path / "master") as master,
        running_redis(tmp_path / "replica", f"replicaof 127.0.0.1 {master.port}") as replica,
        Redis(port=master.port) as client,
    ):
        await until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        async with opened(RedisServer(port=master.port, patience=patience)) as engine:
            assert (await engine.probe()).problem is None
            replica.process.kill()
            replica.process.wait()
            problem = (await engine.probe()).problem
            assert problem
            assert "replicas" in problem


async def test_a_server_that_is_emptied_is_told_and_nothing_is_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queues stay, so that publishers are refused: their messages have none to go to."""
    with running_redis(tmp_path) as process, Redis(port=process.port) as admin:
        async with opened(RedisServer(port=process.port)) as engine:
            await store(engine)
            admin.flushall()
            with pytest.raises(StorageError, match="not those of before"):
                await engine.maintain()
            assert list(engine.queues()) == ["q"]
            with pytest.raises(StorageError, match="not those of before"):
                await store(engine)
            problem = (await engine.probe()).problem
            assert problem
            assert "not those of before" in problem
            assert problem in caplog.text
            async with opened(RedisServer(port=process.port)):  # it begins anew
                assert (await engine.probe()).problem == problem
                with pytest.raises(StorageError, match="not those of before"):
                    await engine.maintain()


async def test_a_node_that_is_emptied_is_told(tmp_path: Path) -> None:
    """Messages for its physical queues are refused; the others go on."""
    with running_cluster(tmp_path) as nodes:
        addresses = tuple(("127.0.0.1", node.port) for node in nodes)
        async with opened(RedisServer(cluster=addresses)) as engine:
            assert (await engine.probe()).problem is None
            node = node_of(engine, nodes)
            with Redis(port=node.port) as admin:
                admin.flushall()
            health = await engine.probe()
            assert health.problem
            assert "lost its data" in health.problem
            assert health.is_partial


def node_of(engine: RedisEngine, nodes: list[RedisProcess]) -> RedisProcess:
    """Return a node that has physical queues, and not the list of queues."""
    functions, routes = engine._functions, engine._routes
    parts = engine._catalogue.find("q").physical.values()
    ports = {routes.address_of(part.base)[1] for part in parts}
    ports.remove(routes.address_of(functions._catalogue)[1])
    return next(node for node in nodes if node.port in ports)


async def test_a_server_that_does_not_answer_is_told_soon(tmp_path: Path) -> None:
    """Whoever asks for the engine's health does not wait for it."""
    with running_redis(tmp_path) as process:
        async with opened(RedisServer(port=process.port)) as engine:
            psutil.Process(process.process.pid).suspend()
            try:
                async with asyncio.timeout(30):
                    problem = (await engine.probe()).problem
            finally:
                psutil.Process(process.process.pid).resume()
            assert problem
            assert "no answer" in problem
            while (await engine.probe()).problem is not None:
                assert engine.failure()
            assert engine.failure() is None
