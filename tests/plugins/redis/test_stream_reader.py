"""A stream that is read on a connection of its own, whichever server has it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.engines.redis.functions import LIBRARY
from penstock.plugins.redis import stream_reader
from penstock.plugins.redis.calls import FunctionCalls
from penstock.plugins.redis.server import RedisServer
from penstock.plugins.redis.stream_reader import StreamReader
from tests.helpers.redis_server import running_redis, shared_cluster, shared_redis
from tests.plugins.queue.engines.contract.harness import until

LOGGER = logging.getLogger("penstock.test")


@asynccontextmanager
async def opened(server: RedisServer, key: str) -> AsyncIterator[StreamReader]:
    """Yield a reader of a stream for a block."""
    calls = FunctionCalls(server, LIBRARY, LOGGER)
    await calls.open()
    reader = StreamReader(calls, key)
    try:
        yield reader
    finally:
        await reader.close()
        await calls.close()


async def read_all(reader: StreamReader, n_entries: int) -> list[list[bytes]]:
    """Return the fields of as many entries, read one by one."""
    found: list[list[bytes]] = []
    after = b"0-0"
    while len(found) < n_entries:
        for identifier, fields in await reader.read(after, 1):
            after = identifier
            found.append(fields)
    return found


async def test_entries_come_once_and_in_order_also_while_nobody_writes() -> None:
    """A reader that waits gets what is written then; one that is cancelled has read nothing."""
    key = f"test-stream-{uuid.uuid4().hex}"
    with Redis(port=shared_redis()) as client:
        async with opened(RedisServer(port=shared_redis()), key) as reader:
            waiting = asyncio.create_task(read_all(reader, 2))
            await until(lambda: b"cmd=xread" in client.execute_command("CLIENT", "LIST"))
            for number in range(2):
                client.xadd(key, {"n": number})
            assert await waiting == [[b"n", b"0"], [b"n", b"1"]]
            cancelled = asyncio.create_task(reader.read(b"0-0", 1))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            assert await read_all(reader, 2) == [[b"n", b"0"], [b"n", b"1"]]


async def test_the_reader_of_a_cluster_asks_the_node_that_has_the_stream() -> None:
    """Each of many streams, wherever it is."""
    server = RedisServer(cluster=shared_cluster())
    for number in range(4):
        key = f"test-stream-{uuid.uuid4().hex}"
        async with opened(server, key) as reader:
            call = reader._calls.routes.call(key, "XADD", key, "*", "n", number)
            await call
            assert await read_all(reader, 1) == [[b"n", b"%d" % number]]


async def test_reading_goes_on_when_a_killed_server_is_back(tmp_path: Path) -> None:
    """Behind the entry that was read last."""
    with reserved_port() as port:
        settings = ("appendonly yes", "appendfsync always")
        with running_redis(tmp_path, *settings, port=port) as server, Redis(port=port) as client:
            client.xadd("s", {"n": 0})
            async with opened(RedisServer(port=port), "s") as reader:
                ((first, _),) = await reader.read(b"0-0", 9)
                waiting = asyncio.create_task(reader.read(first, 9))
                server.process.kill()
                await asyncio.to_thread(server.process.wait)
                with running_redis(tmp_path, *settings, port=port), Redis(port=port) as again:
                    again.xadd("s", {"n": 1})
                    while not (found := await waiting):
                        waiting = asyncio.create_task(reader.read(first, 9))
                    assert [fields for _, fields in found] == [[b"n", b"1"]]
                assert reader.n_connections > 1


async def test_what_was_refused_is_not_told_again_while_the_server_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each refusal counts; that there is no server is the pipeline's to tell."""
    reader = StreamReader(FunctionCalls(RedisServer(), LIBRARY, LOGGER), "k")
    answers: list[Any] = [NoPermissionError("no right")] * 2 + [OSError("no server")] * 5 + [None]

    async def ask(_command: object) -> Any:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(reader, "_ask", ask)
    monkeypatch.setattr(stream_reader, "_RETRY_SECONDS", 0)
    assert await reader.read(b"0-0", 1) == []
    assert caplog.messages == ["the Redis server 127.0.0.1:6379 refuses XREAD k: no right"]
