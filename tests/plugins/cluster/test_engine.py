"""What the engine does once, though it is asked twice, and whom it refuses."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from penstock.plugins.cluster.engine import (
    ClusterEngine,
    FencedError,
    Row,
    is_fenced,
    origin_of,
)
from penstock.plugins.redis.errors import StorageError
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_redis, shared_cluster, shared_redis

LOGGER = logging.getLogger("penstock.cluster")


@pytest.fixture(params=["standalone", "cluster"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    """Return servers, with keys of this test alone."""
    prefix = f"test-{uuid.uuid4().hex}"
    if request.param == "cluster":
        return RedisServer(cluster=shared_cluster(), prefix=prefix)
    return RedisServer(port=shared_redis(), prefix=prefix)


async def joined(server: RedisServer, name: str) -> ClusterEngine:
    """Return the engine of a node that has joined."""
    engine = ClusterEngine(server, "test", name, LOGGER)
    await engine.open()
    assert (await engine.join(name)).state == "joined"
    return engine


@pytest.fixture
async def two(server: RedisServer) -> AsyncIterator[tuple[ClusterEngine, ClusterEngine]]:
    """Yield the engines of two nodes."""
    engines = [await joined(server, name) for name in "ab"]
    yield engines[0], engines[1]
    for engine in engines:
        await engine.close()


async def end(engine: ClusterEngine, node: str, epoch: int) -> None:
    """Have a node be evicted, as if its beats had stopped."""
    key = f"{engine.base}:alive:{node}"
    await engine.calls.routes.call(key, "DEL", key)
    assert await engine.evict(node, epoch)


async def inbox(engine: ClusterEngine) -> list[tuple[Row, bytes]]:
    """Return what a node finds in its inbox."""
    reader = engine.inbox_reader()
    found = await reader.read(b"0-0", 100)
    await reader.close()
    return [(origin_of(fields), fields[1]) for _, fields in found]


async def test_a_node_that_asks_twice_joins_once(server: RedisServer) -> None:
    """Its second call finds its token; another process of its name is told who lives."""
    engine = await joined(server, "a")
    epoch = engine.epoch
    assert (await engine.join("a")).epoch == epoch
    await engine.announce('"info"')
    assert await engine.join("other") == ("alive", epoch, '"info"')
    await end(engine, "a", epoch)
    assert (await engine.join("other")).epoch > epoch
    await engine.close()


async def test_node_that_stops_names_no_heir_that_has_just_stopped(
    two: tuple[ClusterEngine, ClusterEngine], server: RedisServer
) -> None:
    """Both were told at once, as workers are; what they leave is for one that is there."""
    a, b = two
    c = await joined(server, "c")
    first, second = ("a", a.epoch), ("b", b.epoch)
    await a.leave("b")
    await b.leave("a")
    assert sorted(await c.duties()) == [first, second]
    await c.close()


async def test_what_was_not_put_is_refused_where_a_later_one_was_put(tmp_path: Path) -> None:
    """As a server was no master yet when it came: by its number it would be a repeat now."""
    with running_redis(tmp_path) as process, Redis(port=process.port) as admin:
        a, b = [await joined(RedisServer(port=process.port), name) for name in "ab"]
        admin.replicaof("127.0.0.1", "1")
        first = a.put("b", b.epoch, b"one")
        while not a.calls.routes._by_slot[0]._sent:  # noqa: ASYNC110 (time is a part of it)
            await asyncio.sleep(0)
        while "errorstat_READONLY" not in admin.info("errorstats"):
            pass  # the answer is then on its way, and is not read
        admin.replicaof("NO", "ONE")
        assert await a.put("b", b.epoch, b"two") == 3
        with pytest.raises(StorageError):
            await first
        assert await inbox(b) == [(Row("a", a.epoch, 2), b"two")]
        for engine in (a, b):
            await engine.close()


async def test_what_is_put_twice_is_in_the_inbox_once(
    two: tuple[ClusterEngine, ClusterEngine],
) -> None:
    """Bytes count what is there, until its reader has deleted it, which may come twice, too."""
    a, b = two
    key = a.node_key("b", b.epoch)
    for _ in range(2):
        assert await a.call("put", key, "a", a.epoch, 1, b"one") == 3
    a._numbers[key] = 1
    assert await a.put("b", b.epoch, b"three") == 8
    assert await a.put("b", b.epoch, b"") == 8
    assert await inbox(b) == [
        (Row("a", a.epoch, 1), b"one"),
        (Row("a", a.epoch, 2), b"three"),
    ]
    reader = b.inbox_reader()
    ids = [identifier for identifier, _ in await reader.read(b"0-0", 1)]
    await reader.close()
    for _ in range(2):
        assert await b.delete(ids, 3) == 5


async def test_what_is_repeated_writes_again(tmp_path: Path) -> None:
    """Else a WAIT on a new connection would not wait for what an earlier one has written."""
    with running_redis(tmp_path) as process, Redis(port=process.port) as admin:
        a, b = [await joined(RedisServer(port=process.port), name) for name in "ab"]
        bucket, post = a.bucket("c"), (9, 9, "drop", b"", b"0\0", 0, b"", 1, "c")
        calls: list[tuple[str, str, tuple[Any, ...]]] = [
            ("put", a.node_key("b", b.epoch), ("a", a.epoch, 1, b"one")),
            ("change", a.base, ("a", a.epoch, 1, "x", "1")),
            ("retain", a.base, ("a", a.epoch, 1, "x", b"one")),
            ("post", bucket, ("a", a.epoch, 1, *post)),
            ("unsee", bucket, ("x", "a", a.epoch)),
        ]
        for name, key, words in calls:
            await a.call(name, key, *words)
            n_writes = admin.info("persistence")["rdb_changes_since_last_save"]
            await a.call(name, key, *words)
            assert admin.info("persistence")["rdb_changes_since_last_save"] > n_writes, name
        for engine in (a, b):
            await engine.close()


async def test_who_was_evicted_changes_nothing(two: tuple[ClusterEngine, ClusterEngine]) -> None:
    """Not its routes, nor what is retained, nor an inbox whose owner knows of it."""
    a, b = two
    assert await a.put("b", b.epoch, b"before") == 6
    await end(b, "a", a.epoch)
    await b.fence("a", a.epoch)
    for call in (
        a.change([("x", 1)], 1),
        a.retain("t", b"data"),
        a.put("b", b.epoch, b"late"),
    ):
        with pytest.raises(ResponseError) as told:
            await call
        assert is_fenced(told.value)
    with pytest.raises(FencedError):
        await a.beat()
    await a.join("again")
    assert await a.put("b", b.epoch, b"anew") == 10


async def test_nothing_is_put_for_a_node_that_has_died(
    two: tuple[ClusterEngine, ClusterEngine],
) -> None:
    """What is in its inbox can be read by who has its duties, until it is dropped."""
    a, b = two
    await a.put("b", b.epoch, b"data")
    await b.keep_will("client", b"will")
    await end(a, "b", b.epoch)
    assert await a.duties() == [("b", b.epoch)]
    await a.seal("b", b.epoch)
    with pytest.raises(ResponseError, match="PENSTOCK gone"):
        await a.put("b", b.epoch, b"late")
    assert [data async for _, data in a.inbox_of("b", b.epoch)] == [b"data"]
    assert await a.wills_of("b", b.epoch) == {b"client": b"will"}
    await a.drop("b", b.epoch)
    with pytest.raises(ResponseError, match="PENSTOCK gone"):
        await a.put("b", b.epoch, b"later")
    assert not await a.wills_of("b", b.epoch)
    await a.done("b", b.epoch)
    assert await a.duties() == []


async def test_the_duties_of_who_dies_are_those_of_its_heir(server: RedisServer) -> None:
    """A node dies while it does what another has left."""
    a, b, c = [await joined(server, name) for name in "abc"]
    await end(b, "c", c.epoch)
    await end(a, "b", b.epoch)
    assert sorted(await a.duties()) == [("b", b.epoch), ("c", c.epoch)]
    for engine in (a, b, c):
        await engine.close()


async def test_a_client_has_the_owner_that_nobody_displaces(
    two: tuple[ClusterEngine, ClusterEngine],
) -> None:
    """Claims and releases that come twice, or late, change nothing."""
    a, b = two
    first, other = Row("a", a.epoch, 1), Row("b", b.epoch, 1)
    assert (await a.claim("client", first, None))[0] == first
    assert (await b.claim("client", other, None))[0] == first
    assert (await a.claim("client", Row("a", a.epoch, 2), None))[0] == Row("a", a.epoch, 2)
    assert (await a.claim("client", first, None))[0] == Row("a", a.epoch, 2)
    assert await a.release("client", first) == 0
    assert (await b.claim("client", other, first))[0] == Row("a", a.epoch, 2)
    assert (await b.claim("client", other, Row("a", a.epoch, 2)))[0] == other
    assert await a.release("client", Row("a", a.epoch, 2)) == 0
    assert await b.release("client", other) == 1
    assert await b.release("client", other) == 0


async def test_rows_of_an_ended_node_are_swept(two: tuple[ClusterEngine, ClusterEngine]) -> None:
    """Those of others stay."""
    a, b = two
    for number in range(50):
        await a.claim(f"a-{number}", Row("a", a.epoch, number), None)
        await b.claim(f"b-{number}", Row("b", b.epoch, number), None)
    await b.sweep_owners("a", a.epoch)
    mine = Row("b", b.epoch, 100)
    for number in range(50):
        assert (await b.claim(f"a-{number}", mine, None))[0] == mine
        assert (await a.claim(f"b-{number}", Row("a", a.epoch, 1), None))[0] == (
            "b",
            b.epoch,
            number,
        )
    assert len(set(a.buckets)) == len(a.buckets) > 1
