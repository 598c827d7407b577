"""Two nodes in one process, on a real server."""

from __future__ import annotations

import json
import logging
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import Disconnect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.server import Server
from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.redis.errors import StorageError
from penstock.plugins.redis.server import RedisServer
from tests.broker.serving import port_of, serving
from tests.helpers.redis_server import shared_redis
from tests.helpers.wire import connected


@pytest.fixture
async def nodes() -> AsyncIterator[list[Server]]:
    """Return two brokers of one cluster."""
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": f"test-{uuid.uuid4().hex}"}
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                serving(cluster={"name": "c", "node": node, "redis": redis})
            )
            for node in ("a", "b")
        ]


async def test_a_client_that_came_back_to_its_node_is_had_by_it_still(nodes: list[Server]) -> None:
    """Its first session ended as the second began; a third one elsewhere ends that."""
    one, other = map(port_of, nodes)
    async with (
        await connected(one, "x") as first,
        await connected(one, "x") as second,
        await connected(other, "x"),
    ):
        for client in (first, second):
            told = await client.take(Disconnect)
            assert told.reason_code == ReasonCode.SESSION_TAKEN_OVER


@pytest.mark.parametrize("call", ["join", "announce"])
async def test_a_node_whose_engine_has_just_lost_a_replica_starts_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """It does not end, as if it could not be used, and says once for what it waits."""
    carry_out = getattr(ClusterEngine, call)
    failures = 2 * [StorageError("replicas of the Redis server: read 1; allowed: 2 or more")]

    async def fail_first(*args: Any) -> Any:
        found = await carry_out(*args)
        if failures:
            raise failures.pop()
        return found

    monkeypatch.setattr(ClusterEngine, call, fail_first)
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": f"test-{uuid.uuid4().hex}"}
    async with serving(cluster={"name": "c", "node": "a", "redis": redis}) as broker:
        assert not failures
        assert caplog.text.count(" waits for its engine: replicas of the Redis server: read 1") == 1
        async with await connected(port_of(broker), "x"):
            pass


async def test_a_console_at_all_addresses_is_told_at_one_that_can_be_opened(
    tmp_path: Path,
) -> None:
    """By the machine's name."""
    tokens = tmp_path / "tokens"
    tokens.write_text("me admin Vn3cQbJ0yXh7mS2kTz9wAAAA\n")
    tokens.chmod(0o600)
    prefix = f"test-{uuid.uuid4().hex}"
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": prefix}
    console = {"http": "0.0.0.0:0", "without_tls": True, "token_file": str(tokens)}
    cluster = {"name": "c", "node": "a", "redis": redis}
    async with serving(cluster=cluster, plugins={"console": console}):
        server = RedisServer(port=shared_redis(), prefix=prefix)
        engine = ClusterEngine(server, "c", "looker", logging.getLogger("penstock"))
        await engine.open()
        figures: dict[str, str] = {}
        while not figures:  # they are told soon
            figures = await engine.figures()
        await engine.close()
    assert json.loads(figures["a"])["console"].startswith(f"http://{socket.gethostname()}:")
