"""What the contract does not say: several programs on one server, and a server that fails."""

from __future__ import annotations

import asyncio
import logging
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from penstock.broker.message import Message
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.engines.contract import (
    EngineStartError,
    GroupSpec,
    IncarnationError,
    NewMessage,
    Position,
    QueueSpec,
    StorageError,
    StorageFullError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.redis.cached_state import RedisQueue
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.login import ask_directly
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_redis, shared_redis
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, until

LOGGER = logging.getLogger("penstock.queue")
SPEC = QueueSpec(physical_queues=1, groups={"g": GroupSpec()})


def impatient(port: int) -> RedisServer:
    """Return a server whose calls fail soon after it has gone."""
    return RedisServer(port=port, patience=Patience(retry_seconds=0.2))


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


async def test_a_handle_is_stale_though_65_536_receives_have_come_between(
    server: RedisServer, two: tuple[RedisEngine, RedisEngine]
) -> None:
    """Its message was given back, so that its next receive has the same count."""
    one, _ = two
    await store(one, b"a")
    (old,) = await one.lease("q", "g", 0, 1, MANY_BYTES)
    one.give_back("q", "g", [old])
    connection = server.connection()
    await connection.connect()
    key = f"{server.prefix}:{{{one.snapshot('q').incarnation}.0}}:s"
    await ask_directly(connection, "HINCRBY", key, "nonce", "65535")
    await connection.disconnect()
    (new,) = await one.lease("q", "g", 0, 1, MANY_BYTES)
    assert (old.receive_count, new.receive_count) == (1, 1)
    assert await one.settle("q", "g", "ack", [old.receipt_handle]) == {0: "stale"}
    assert await one.settle("q", "g", "ack", [new.receipt_handle]) == {}


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


async def test_a_group_that_another_program_deletes_during_upkeep_stops_no_other_queue(
    two: tuple[RedisEngine, RedisEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newest request cannot be noted any more."""
    one, other = two
    await one.create_queue("r", SPEC)
    await other.maintain()
    await one.delete_group("q", "g")
    for queue in ("q", "r"):
        other.visible(queue, "g")
    looked_at: list[str] = []
    maintain = other._maintain_queue

    async def note(queue: RedisQueue) -> None:
        await maintain(queue)
        looked_at.append(queue.name)

    async def refresh() -> None:
        """Learn nothing: the group has just been deleted."""

    monkeypatch.setattr(other._catalogue, "refresh", refresh)
    monkeypatch.setattr(other, "_maintain_queue", note)
    await other.maintain()
    assert looked_at == ["r"]


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
    """New messages are refused by name; what is there is received and settled, and queues go."""
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
            with Redis(port=process.port) as client:
                client.config_set("maxmemory", 1)
            assert not await fits(engine, b"")
            await engine.delete_queue("q")
            assert list(engine.queues()) == []


async def test_what_was_acknowledged_survives_the_server(tmp_path: Path) -> None:
    """Killed and started again, it has all messages; the engine connects again by itself."""
    async with AsyncExitStack() as stack:
        port = stack.enter_context(reserved_port())
        durable = ("appendonly yes", "appendfsync always")
        with running_redis(tmp_path / "redis", *durable, port=port) as process:
            engine = await stack.enter_async_context(opened(impatient(port)))
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
            engine = await stack.enter_async_context(opened(impatient(port)))
            await engine.create_queue("q", SPEC)
        with running_redis(tmp_path / "other", port=port):
            await until(lambda: "not those of before" in (engine.failure() or ""))
            with pytest.raises(StorageError, match="not those of before"):
                await store(engine, b"a")


@pytest.mark.parametrize("is_stored_at_once", [False, True])
async def test_a_server_that_comes_back_with_older_data_gives_its_queues_another_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_stored_at_once: bool
) -> None:
    """Offsets are given to other messages now: readers are told, and handles are of before."""
    durable = ("appendonly yes", "appendfsync always")
    groups = {"g": GroupSpec(), "r": GroupSpec(kind="offsets")}
    with reserved_port() as port:
        async with AsyncExitStack() as stack:
            with running_redis(tmp_path / "redis", *durable, port=port) as process:
                engine = await stack.enter_async_context(opened(impatient(port)))
                await engine.create_queue("q", replace(SPEC, groups=groups))
                await store(engine, *(b"kept" for _ in range(10)))
                process.process.kill()
                process.process.wait()
                shutil.copytree(tmp_path / "redis", tmp_path / "older")
            await until(lambda: engine.failure() is not None)
            with running_redis(tmp_path / "redis", *durable, port=port):
                await until(lambda: engine.failure() is None)
                await store(engine, *(b"lost" for _ in range(10)))
                seen = await engine.locate("q", "latest")
                received = await engine.lease("q", "g", 0, 20, MANY_BYTES)
            await until(lambda: engine.failure() is not None)
            with running_redis(tmp_path / "older", *durable, port=port):
                await until(lambda: engine.failure() is None)
                if is_stored_at_once:  # so that there are as many as before
                    await store(engine, *(b"new" for _ in range(15)))
                with pytest.raises(IncarnationError, match="or its storage is of an earlier"):
                    await engine.plan("q", seen, 100, None)
                with pytest.raises(IncarnationError):
                    await engine.commit("q", "r", seen)
                assert "has lost messages that it had stored" in caplog.text
                handles = [one.receipt_handle for one in received]
                stale = await engine.settle("q", "g", "ack", handles)
                assert set(stale.values()) == {"unknown"}
                await store(engine, b"more")
                now = await engine.locate("q", "latest")
                async with opened(impatient(port)) as other:
                    assert await other.locate("q", "latest") == now
                    await other.renew()
                    assert (await other.locate("q", "latest")).incarnation != now.incarnation
                    await other.delete_queue("q")
                await engine.maintain()
                assert list(engine.queues()) == []


async def test_a_server_that_comes_back_with_all_data_has_the_same_queues(tmp_path: Path) -> None:
    """Positions in them are good."""
    durable = ("appendonly yes", "appendfsync always")
    with reserved_port() as port:
        async with AsyncExitStack() as stack:
            with running_redis(tmp_path / "redis", *durable, port=port):
                engine = await stack.enter_async_context(opened(impatient(port)))
                await engine.create_queue("q", SPEC)
                await store(engine, b"a")
                seen = await engine.locate("q", "latest")
            await until(lambda: engine.failure() is not None)
            with running_redis(tmp_path / "redis", *durable, port=port):
                await until(lambda: engine.failure() is None)
                await store(engine, b"b")
                assert (await engine.plan("q", seen, None, None)).offsets == {0: 2}


class Relay:
    """A way to the server on which answers can get lost.

    Attributes:
        port: where it listens.
        n_lost: answers that have got lost.
    """

    def __init__(self, to_port: int) -> None:
        self.port = 0
        self.n_lost = 0
        self._to_port = to_port
        self._loses_next = False

    def lose_next(self) -> None:
        """Let the server get the next calls; cut the connection when it answers them."""
        self._loses_next = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        answers, calls = await asyncio.open_connection("127.0.0.1", self._to_port)

        async def there() -> None:
            while data := await reader.read(65_536):
                calls.write(data)

        async def back() -> None:
            while data := await answers.read(65_536):
                if self._loses_next:
                    self._loses_next = False
                    self.n_lost += 1
                    return
                writer.write(data)

        ways = [asyncio.create_task(there()), asyncio.create_task(back())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        calls.close()
        writer.close()


@pytest.fixture
async def relayed(server: RedisServer) -> AsyncIterator[tuple[Relay, RedisEngine]]:
    """Open an engine behind a relay."""
    relay = Relay(server.port)
    listener = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = listener.sockets[0].getsockname()[1]
    async with opened(replace(server, port=relay.port)) as engine:
        yield relay, engine
    listener.close()


async def test_a_call_whose_answer_is_lost_is_carried_out_once(
    relayed: tuple[Relay, RedisEngine],
) -> None:
    """What is stored, received and settled is that of the first call, and its caller is told so."""
    relay, engine = relayed
    await engine.create_queue("q", SPEC)
    new = [NewMessage(Message("t", payload)) for payload in (b"a", b"b", b"c")]
    assert engine.reserve("q", 3, 3)
    relay.lose_next()
    stored = await engine.append("q", 0, new)
    assert (list(stored.offsets), list(stored.duplicates)) == ([0, 1, 2], [])
    assert engine.snapshot("q").messages == 3
    relay.lose_next()
    received = await engine.lease("q", "g", 0, 2, MANY_BYTES)
    assert [(one.payload, one.receive_count) for one in received] == [(b"a", 1), (b"b", 1)]
    assert engine.snapshot("q").groups["g"].leased == 2
    handles = [one.receipt_handle for one in received]
    for action, one in (("ack", handles[:1]), ("nack", handles[1:])):
        relay.lose_next()
        assert await engine.settle("q", "g", action, one) == {}  # type: ignore[arg-type]
    relay.lose_next()
    assert await engine.settle("q", "g", "ack", handles[:1]) == {0: "stale"}
    assert [one.payload for one in await engine.lease("q", "g", 0, 9, MANY_BYTES)] == [b"b", b"c"]
    assert relay.n_lost == 5


async def test_queues_and_groups_are_made_once_though_answers_are_lost(
    relayed: tuple[Relay, RedisEngine],
) -> None:
    """A repeated change of the catalogue is no other program's."""
    relay, engine = relayed
    relay.lose_next()
    await engine.create_queue("q", SPEC)
    await store(engine, b"a")
    relay.lose_next()
    await engine.create_group("q", "h", GroupSpec())
    relay.lose_next()
    await engine.delete_group("q", "g")
    (received,) = await engine.lease("q", "h", 0, 9, MANY_BYTES)
    assert received.payload == b"a"
    relay.lose_next()
    await engine.delete_queue("q")
    assert list(engine.queues()) == []
    assert relay.n_lost == 4


async def test_dead_letters_whose_answer_is_lost_die_once(
    relayed: tuple[Relay, RedisEngine],
) -> None:
    """A receive that finds them is repeated, too."""
    relay, engine = relayed
    groups = {"g": GroupSpec(max_receives=1, dead_letter_queue="dead")}
    await engine.create_queue("q", replace(SPEC, groups=groups))
    await engine.create_queue("dead", SPEC)
    await store(engine, b"a", b"b")
    (one,) = await engine.lease("q", "g", 0, 1, MANY_BYTES)
    await engine.settle("q", "g", "nack", [one.receipt_handle])
    relay.lose_next()
    assert [one.payload for one in await engine.lease("q", "g", 0, 9, MANY_BYTES)] == [b"b"]
    assert [one.payload for one in await engine.lease("dead", "g", 0, 9, MANY_BYTES)] == [b"a"]
    assert engine.snapshot("q").groups["g"].settled["dead"] == 1


@pytest.mark.parametrize(
    "steps",
    [
        [(550, (550, 700)), (700, (700, 600))],
        [(600, (650, 650)), (1_250, (1_250, 50))],
        [(620, (650, 650))],
    ],
)
async def test_what_readers_are_done_with_leaves_together(
    server: RedisServer, steps: list[tuple[int, tuple[int, int]]]
) -> None:
    """Across holes that newer messages of a key have left, and up to these."""
    groups = {name: GroupSpec(kind="offsets") for name in ("g", "h")}
    spec = QueueSpec(physical_queues=1, groups=groups, keeps_last=True, key="topic")
    topics = [*(f"t{n}" for n in range(1_250)), *(f"t{n}" for n in range(600, 650))]
    messages = [NewMessage(Message(topic, topic.encode())) for topic in topics]
    async with opened(server) as engine:
        incarnation = (await engine.create_queue("q", spec)).incarnation
        await engine.append("q", 0, messages)

        async def commit(group: str, offset: int) -> tuple[int, int]:
            await engine.commit("q", group, Position(incarnation, {0: offset}))
            usage = engine.snapshot("q").usage[0]
            return usage.earliest, usage.messages

        assert await commit("g", 1_300) == (0, 1_250)
        for offset, expected in steps:
            assert await commit("h", offset) == expected
        assert await commit("h", 1_300) == (1_300, 0)
        snapshot = engine.snapshot("q")
        assert (snapshot.payload_bytes, snapshot.stored_bytes) == (0, 0)
        base = f"{server.prefix}:{{{incarnation}.0}}"
        connection = server.connection()
        await connection.connect()
        for name in ("i", "d", "o", "k"):
            assert await ask_directly(connection, "EXISTS", f"{base}:{name}") == 0
        await connection.disconnect()
