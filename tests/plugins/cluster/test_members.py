"""Nodes that join, live, die and follow each other, on a real server."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from penstock.plugins.cluster import members as members_module
from penstock.plugins.cluster.announcer import Announcer
from penstock.plugins.cluster.engine import ClusterEngine, Row
from penstock.plugins.cluster.members import Listener, Members
from penstock.plugins.cluster.routes import OtherRoutes, OwnRoutes
from penstock.plugins.redis.calls import plain
from penstock.plugins.redis.errors import EngineStartError, StorageError
from penstock.plugins.redis.login import Login
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_redis, shared_cluster, shared_redis
from tests.plugins.queue.engines.contract.harness import until

LOGGER = logging.getLogger("penstock.cluster")


class Node:
    """A node without a broker.

    Attributes:
        routed: the routes of others, as they were told.
        heard: what it was told of others.
        duties: the ended members for whom it had something to do.
    """

    def __init__(self, server: RedisServer, name: str) -> None:
        self.engine = ClusterEngine(server, "test", name, LOGGER)
        self.routed: dict[str, dict[str, int]] = {}
        self.heard: list[str] = []
        self.retained: dict[str, bytes] = {}
        self.duties: list[tuple[str, int]] = []
        self.n_fenced = self.n_lost = 0
        self.own = OwnRoutes()
        self.announcer = Announcer(self.engine, self.own)
        self.others = OtherRoutes(self._route)
        listener = Listener(
            beaten=self.announcer.beaten,
            joined=self._joined,
            left=self._left,
            retained=self._retained,
            all_retained=self._all_retained,
            duty=self._duty,
            fenced=self._fenced,
            joined_anew=self.announcer.start,
        )
        self.members = Members(
            self.engine, self.others, listener, f'{{"host": "{name}"}}', time.monotonic, LOGGER
        )

    def _route(self, node: str, topic_filter: str, n: int) -> None:
        self.routed.setdefault(node, {})[topic_filter] = n

    def _joined(self, node: str, epoch: int) -> None:  # noqa: ARG002 (Listener's form)
        self.heard.append(f"+{node}")
        self.announcer.joined(node, self.members.own_number)

    def _left(self, node: str, epoch: int) -> None:  # noqa: ARG002 (Listener's form)
        self.heard.append(f"-{node}")
        self.announcer.left(node)

    def _retained(self, topic: str, data: bytes, is_own: bool) -> None:  # noqa: ARG002, FBT001
        self.retained[topic] = data

    async def _all_retained(self, found: AsyncIterator[list[tuple[str, bytes]]]) -> None:
        self.retained = {topic: data async for some in found for topic, data in some}

    async def _duty(self, node: str, epoch: int) -> None:
        self.duties.append((node, epoch))

    async def _fenced(self, has_forgotten: bool) -> None:  # noqa: FBT001 (Listener's form)
        self.n_fenced += 1
        self.n_lost += has_forgotten
        self.announcer.stop()

    def routes_of(self, node: str) -> dict[str, int]:
        """Return the routes of another node."""
        there = self.others.members.get(node)
        return {} if there is None else there.routes

    async def open(self) -> None:
        """Join."""
        await self.engine.open()
        await self.members.join()
        self.members.start()
        self.announcer.start()
        await self.members.announce()

    async def die(self) -> None:
        """End as a process that is killed."""
        assert self.members._task is not None
        self.members._task.cancel()
        await asyncio.gather(self.members._task, return_exceptions=True)
        await self.engine.close()

    async def close(self) -> None:
        """Leave."""
        self.announcer.close()
        await self.members.close()
        await self.engine.close()


@asynccontextmanager
async def opened(server: RedisServer, *names: str) -> AsyncIterator[list[Node]]:
    """Run nodes for a block."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name in names:
            node = Node(server, name)
            stack.push_async_callback(node.close)
            await node.open()
            nodes.append(node)
        yield nodes


@pytest.fixture(params=["standalone", "cluster"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    """Return servers, with keys of this test alone."""
    prefix = f"test-{uuid.uuid4().hex}"
    if request.param == "cluster":
        return RedisServer(cluster=shared_cluster(), prefix=prefix)
    return RedisServer(port=shared_redis(), prefix=prefix)


@pytest.fixture
def single() -> RedisServer:
    """Return the shared server, with keys of this test alone."""
    return RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nodes evict others soon."""
    monkeypatch.setattr(members_module, "STEADY_SECONDS", 0.3)
    monkeypatch.setattr(members_module, "BEAT_SECONDS", 0.05)
    for module in ("engine", "members"):
        monkeypatch.setattr(f"penstock.plugins.cluster.{module}.ALIVE_SECONDS", 0.2)


async def test_each_node_has_the_routes_of_the_others(server: RedisServer) -> None:
    """Also those from before it joined; and what one gives up, the others forget."""
    async with opened(server, "a") as (a,):
        for topic_filter in ("x", "y/#", "$share/g/z", "$share/g/z"):
            a.announcer.subscribed(topic_filter)
        async with opened(server, "b") as (b,):
            await until(lambda: b.routes_of("a") == {"x": 1, "y/#": 1, "$share/g/z": 2})
            b.announcer.subscribed("x")
            a.announcer.unsubscribed("y/#")
            await until(lambda: a.routes_of("b") == {"x": 1})
            await until(lambda: b.routes_of("a") == {"x": 1, "$share/g/z": 2})
        await until(lambda: not a.others.members)
        assert a.routed["b"] == {"x": 1}
        assert a.heard == ["+b", "-b"]


async def test_many_filters_are_taken_in_slices(single: RedisServer) -> None:
    """By a node that is there, and by one that joins later."""
    async with opened(single, "a", "b") as (a, b):
        for number in range(20_000):
            a.announcer.subscribed(f"f/{number}")
        await until(lambda: len(b.routes_of("a")) == 20_000)
        async with opened(single, "c") as (c,):
            assert len(c.routes_of("a")) == 20_000


async def test_a_clock_of_the_engine_that_is_put_right_evicts_nobody(single: RedisServer) -> None:
    """By it, all beats of the others are long ago at once; they come within a second."""
    async with opened(single, "a", "b") as (a, b):
        members, epoch = a.members, b.engine.epoch
        beat = (await a.engine.beat())._replace(silent=[("b", epoch)])
        await b.die()
        key = f"{a.engine.base}:alive:b"
        await a.engine.calls.routes.call(key, "DEL", key)
        members._ahead = beat.time - time.monotonic()
        for seconds, is_left in ((18_000, False), (18_000, True)):
            members._steady_since = -math.inf
            await members._take_beat(beat._replace(time=beat.time + seconds), time.monotonic())
            assert await a.engine.is_member("b", epoch) != is_left


async def test_a_second_node_of_a_name_is_refused(
    single: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told who has the name; a node that was killed is waited for, and comes back."""
    monkeypatch.setattr(members_module, "_JOIN_SECONDS", 0.5)
    async with opened(single, "a") as (a,):
        other = Node(single, "a")
        await other.engine.open()
        with pytest.raises(EngineStartError, match="node a of cluster test: another broker"):
            await other.members.join()
        await a.die()
        monkeypatch.setattr(members_module, "_JOIN_SECONDS", 60.0)
        await other.members.join()
        assert other.engine.epoch > a.engine.epoch
        await other.engine.close()


@pytest.mark.usefixtures("hasty")
async def test_a_dead_node_is_evicted_once(server: RedisServer) -> None:
    """One of the others has then to do what it cannot; all forget its routes."""
    async with opened(server, "a", "b", "c") as (a, b, c):
        c.announcer.subscribed("x")
        await until(lambda: a.routes_of("c") == b.routes_of("c") == {"x": 1})
        epoch = c.engine.epoch
        await c.die()
        await until(lambda: not (a.routes_of("c") or b.routes_of("c")))
        await until(lambda: [*a.duties, *b.duties] == [("c", epoch)])
        assert not await a.engine.is_member("c", epoch)


@pytest.mark.usefixtures("hasty")
async def test_what_a_dead_node_has_left_is_done_once_whatever_fails(
    single: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients are without an owner before that: the wills of some may be due much later."""
    async with opened(single, "a", "c") as (a, c):
        row, epoch = Row("c", c.engine.epoch, 1), c.engine.epoch
        await c.engine.claim("client", row, None)
        swept: list[bool] = []
        drop, n_drops = a.engine.drop, 0

        async def duty(node: str, epoch: int) -> None:
            a.duties.append((node, epoch))
            there = a.engine.command(a.engine.bucket("client"), "HEXISTS", ":o", "client")
            swept.append(not await plain(there))

        async def fails_once(node: str, epoch: int) -> None:
            nonlocal n_drops
            n_drops += 1
            if n_drops == 1:
                raise StorageError("away")
            await drop(node, epoch)

        monkeypatch.setattr(a.members._listener, "duty", duty)
        monkeypatch.setattr(a.engine, "drop", fails_once)
        await c.die()
        await until(lambda: n_drops == 2 and not a.members._duties)
        assert a.duties == [("c", epoch)]
        assert swept == [True]
        assert await a.engine.all_duties() == []


@pytest.mark.usefixtures("hasty")
async def test_state_is_read_anew_once_the_connection_was_lost(single: RedisServer) -> None:
    """Another server may have taken over, or the same one started again.

    Changes that it has lost, and that nobody had read, leave no gap among the others.
    """
    async with opened(single, "a") as (a,):
        await until(lambda: a.members.is_steady)
        n_snapshots = a.members.n_snapshots
        with Redis(port=shared_redis()) as client:
            client.hset(f"{a.engine.base}:retained", "t", "x")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        async with asyncio.timeout(10):
            await until(lambda: a.members.n_snapshots > n_snapshots and "t" in a.retained)


@pytest.mark.usefixtures("hasty")
async def test_who_was_taken_for_dead_joins_anew(
    single: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears so at its next beat, ends its sessions, and tells its routes again."""
    async with opened(single, "a", "b") as (a, b):
        b.announcer.subscribed("x")
        await until(lambda: a.routes_of("b") == {"x": 1})
        epoch, beat = b.engine.epoch, b.engine.beat
        goes_on = asyncio.Event()

        async def late() -> object:
            await goes_on.wait()
            return await beat()

        monkeypatch.setattr(b.engine, "beat", late)
        await until(lambda: b.n_fenced == 1)  # by the stream of changes
        goes_on.set()
        await until(lambda: a.routes_of("b") == {"x": 1} and b.engine.epoch > epoch)
        assert a.heard == ["+b", "-b", "+b"]
        b.announcer.subscribed("y")
        await until(lambda: a.routes_of("b") == {"x": 1, "y": 1})


@pytest.mark.usefixtures("hasty")
async def test_nodes_whose_engine_has_lost_its_data_go_on(single: RedisServer) -> None:
    """They join anew, and tell their routes again; none of them was taken for dead."""
    async with opened(single, "a", "b") as (a, b):
        a.announcer.subscribed("x")
        b.announcer.subscribed("y")
        await until(lambda: a.routes_of("b") == {"y": 1} and b.routes_of("a") == {"x": 1})
        with Redis(port=shared_redis()) as client:
            client.delete(*client.keys(f"{single.prefix}:*"))
        await until(lambda: (a.n_fenced, b.n_fenced) == (1, 1))
        await until(lambda: a.routes_of("b") == {"y": 1} and b.routes_of("a") == {"x": 1})
        assert (a.n_lost, b.n_lost) == (1, 1)


async def test_who_misses_changes_reads_the_state(single: RedisServer) -> None:
    """The stream was cut, or its end was lost by a failover."""
    async with opened(single, "a", "b") as (a, b):
        a.announcer.subscribed("x")
        await until(lambda: b.routes_of("a") == {"x": 1})
        base = a.engine.base
        with Redis(port=shared_redis()) as client:
            client.hset(f"{base}:routes:a", "lost", "1")
            client.hset(f"{base}:m", "last", "7-7")
            before = b.members.n_snapshots
            a.announcer.subscribed("y")
            await until(lambda: b.routes_of("a") == {"x": 1, "y": 1, "lost": 1})
            assert b.members.n_snapshots > before


async def test_changes_that_a_failover_has_lost_are_told_again(single: RedisServer) -> None:
    """The engine has an older number than it has answered: what was removed goes, too."""
    async with opened(single, "a", "b") as (a, b):
        a.announcer.subscribed("x")
        a.announcer.subscribed("y")
        await until(lambda: b.routes_of("a") == {"x": 1, "y": 1})
        a.announcer.unsubscribed("y")
        await until(lambda: b.routes_of("a") == {"x": 1})
        base = a.engine.base
        with Redis(port=shared_redis()) as client:
            client.delete(f"{base}:routes:a")
            client.hset(f"{base}:routes:a", "y", "1")
            client.hset(f"{base}:m", "c a", "1")
            await until(lambda: client.hgetall(f"{base}:routes:a") == {b"x": b"1"})


async def test_retained_messages_have_one_order(server: RedisServer) -> None:
    """Large ones are looked up; a node that joins later has them all; a clear is a change."""
    async with opened(server, "a", "b") as (a, b):
        large = b"l" * 10_000
        for topic, data in (("t", b"1"), ("u", large), ("t", b"2"), ("v", b"3"), ("v", b"")):
            await a.engine.retain(topic, data)
        await b.engine.retain("t", b"4")
        expected = {"t": b"4", "u": large, "v": b""}
        await until(lambda: a.retained == b.retained == expected)
        async with opened(server, "c") as (c,):
            assert c.retained == {"t": b"4", "u": large}


async def test_subscriptions_are_confirmed_by_all(single: RedisServer) -> None:
    """Nobody is waited for who has left, or who is not there."""
    async with opened(single, "a", "b", "c") as (a, b, c):
        del b, c
        await until(lambda: a.heard == ["+b", "+c"])
        assert a.announcer.routed() is None
        a.announcer.subscribed("x")
        waiting = a.announcer.routed()
        assert waiting is not None
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        a.announcer.confirm("b", 1)
        await asyncio.sleep(0)
        assert not task.done()
        a.announcer.left("c")
        await task
        assert a.announcer.routed() is None


RIGHTS = (
    "~penstock:* -@all +@hash +@stream +get +set +del +pexpire +fcall +@set +@sortedset +time"
    " +rename +function|list +function|load +info +exists +unlink +wait +select +cluster|slots"
    " +config|get"
)
"""What a user needs at least, as docs/how-to/queue-on-redis.md says."""


@pytest.mark.usefixtures("hasty")
async def test_the_rights_that_the_page_gives_are_enough(tmp_path: Path) -> None:
    """For all that nodes do with the engine."""
    page = Path(__file__).parents[3] / "docs" / "how-to" / "queue-on-redis.md"
    assert RIGHTS in " ".join(page.read_text().split())
    (tmp_path / "password").write_text("secret\n")
    with running_redis(tmp_path / "redis", f"user penstock on >secret {RIGHTS}") as process:
        login = Login("penstock", str(tmp_path / "password"))
        server = RedisServer(port=process.port, login=login)
        async with opened(server, "a", "b") as (a, b):
            a.announcer.subscribed("x")
            a.announcer.subscribed("y")
            a.announcer.unsubscribed("y")
            await until(lambda: b.routes_of("a") == {"x": 1})
            for data in (b"l" * 10_000, b""):
                await a.engine.retain("t", data)
            await until(lambda: b.retained == {"t": b""})
            assert await a.engine.put("b", b.engine.epoch, b"data") == 4
            inbox = b.engine.inbox_reader()
            ((identifier, _),) = await inbox.read(b"0-0", 1)
            await inbox.close()
            assert not await b.engine.delete([identifier], 4)
            await a.engine.tell("b", b.engine.epoch, b"note")
            row = Row("b", b.engine.epoch, 1)
            assert (await b.engine.claim("client", row, None))[0] == row
            await b.engine.keep_will("client", b"will")
            epoch = b.engine.epoch
            await b.die()
            await until(lambda: a.duties == [("b", epoch)])
            await a.engine.fence("b", epoch)
            own = Row("a", a.engine.epoch, 1)
            assert (await a.engine.claim("client", own, row))[0] == own
            assert await a.engine.release("client", own)
