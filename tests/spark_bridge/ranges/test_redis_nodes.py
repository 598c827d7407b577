from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis

from penstock.broker.message import Message
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.client import (
    NoAnswerError,
    OtherIncarnationError,
    QueueError,
    RangeGoneError,
)
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, Position, QueueSpec
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from penstock.spark_bridge.errors import OptionError, QueueChangedError, QueueUnavailableError
from penstock.spark_bridge.offsets import Range
from penstock.spark_bridge.options import RedisOptions, SourceOptions
from penstock.spark_bridge.queue_reader import QueueReader, ReadSettings
from penstock.spark_bridge.ranges import redis_nodes
from penstock.spark_bridge.ranges.redis_nodes import RedisRanges
from penstock.spark_bridge.rows import Frames, RowOrigin, to_record_batch
from penstock.spark_bridge.schema import BY_NAME
from tests.helpers.cluster import until
from tests.helpers.redis_server import (
    RedisProcess,
    running_cluster,
    running_redis,
    running_sentinels,
    shared_cluster,
    shared_redis,
)

PIECE_MESSAGES = 40
AHEAD_MESSAGES = 200
LOGGER = logging.getLogger("penstock.queue")
PLACE = RowOrigin("q", 0, None, 100)
OPTIONS = SourceOptions(url="http://127.0.0.1:9", queues=("q",), retry_seconds=60)
SPEC = QueueSpec(physical_queues=1, groups={"spark": GroupSpec(kind="offsets")})


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few messages be many."""
    monkeypatch.setattr(redis_nodes, "COMMAND_MESSAGES", 16)
    monkeypatch.setattr(redis_nodes, "PIECE_MESSAGES", PIECE_MESSAGES)
    monkeypatch.setattr(redis_nodes, "AHEAD_MESSAGES", AHEAD_MESSAGES)


def stored(server: RedisServer, messages: list[Message], spec: QueueSpec = SPEC) -> Range:
    """Store messages in the first physical queue of a new queue; return their range."""

    async def store() -> Range:
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        try:
            made = await engine.create_queue("q", spec)
            for first in range(0, len(messages), 2_000):
                some = messages[first : first + 2_000]
                await engine.append("q", 0, [NewMessage(one) for one in some])
            return Range("q", 0, 0, len(messages), made.incarnation)
        finally:
            await engine.close()

    return asyncio.run(store())


def numbered(count: int) -> list[Message]:
    """Return messages whose payloads are numbers."""
    return [Message(f"t/{number % 3}", str(number).encode()) for number in range(count)]


def payloads(ranges: RedisRanges, wanted: Range, start: int = 0) -> list[bytes]:
    """Return the payloads of a range."""
    found: list[bytes] = []
    while start < wanted.end:
        piece = ranges.read(wanted, start, PLACE)
        if piece.batch is not None:
            found += piece.batch.column("payload").to_pylist()
        start = piece.next_offset
    return found


@pytest.fixture
def server() -> RedisServer:
    """Return the shared server, with keys of this test alone."""
    return RedisServer(port=shared_redis(), prefix=f"test-{uuid.uuid4().hex}")


def of(server: RedisServer, **more: Any) -> RedisRanges:
    """Return a reader of a server's ranges."""
    redis = RedisOptions(server=(server.host, server.port), prefix=server.prefix)
    return RedisRanges(replace(OPTIONS, **more), redis)


PROPERTIES: tuple[dict[str, Any], ...] = (
    {"content_type": "text/plain", "user_property": [("site", "north")]},
    {"user_property": [("site", "south"), ("hop", "1")]},
)


def various() -> list[Message]:
    """Return messages of many forms."""
    made = numbered(20)
    made += [Message("t/0", b"with", properties=one) for one in PROPERTIES]
    made.append(Message("größe", b"", qos=2, publisher="probe"))
    made.append(Message("t/0", bytes(range(256)), qos=1, publisher="a longer client id"))
    return made


def frames_of(server: RedisServer, wanted: Range) -> bytes:
    """Return a range as a gateway reads it."""

    async def read() -> bytes:
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        try:
            return b"".join(await engine.read("q", 0, wanted.start, wanted.end, wanted.end))
        finally:
            await engine.close()

    return asyncio.run(read())


@pytest.mark.parametrize("columns", [tuple(BY_NAME), ("topic", "size_class"), ("key", "qos")])
def test_each_column_is_that_of_a_gateway(server: RedisServer, columns: tuple[str, ...]) -> None:
    """Whichever columns are asked for, and whether or not they need the payload."""
    wanted = stored(server, various(), replace(SPEC, key="topic"))
    place = PLACE._replace(key="topic")
    piece = of(server, columns=columns).read(wanted, 0, place)
    assert (piece.next_offset, piece.looked_at) == (wanted.end, wanted.end)
    expected = to_record_batch(Frames(frames_of(server, wanted)), columns, place)
    assert piece.batch is not None
    assert piece.batch.equals(expected)


def test_a_long_range_comes_whole_in_order_and_again(server: RedisServer) -> None:
    """In pieces of limited size, whose sizes are asked for ahead; also from the middle."""
    count = AHEAD_MESSAGES + PIECE_MESSAGES + 7
    wanted = stored(server, numbered(count))
    expected = [str(number).encode() for number in range(count)]
    ranges = of(server)
    first = ranges.read(wanted, 0, PLACE)
    assert first.next_offset == PIECE_MESSAGES
    assert payloads(ranges, wanted) == expected
    assert payloads(ranges, wanted) == expected
    assert payloads(ranges, replace(wanted, start=95, end=105), 95) == expected[95:105]


def test_large_messages_come_in_pieces_of_some_bytes(server: RedisServer) -> None:
    """One that is larger than a piece comes alone."""
    big = [bytes(1_500_000), bytes(5_000_000), b"x", bytes(3_000_000), bytes(3_000_000)]
    wanted = stored(server, [Message("t", one) for one in big])
    ranges = of(server)
    sizes = []
    start = 0
    while start < wanted.end:
        piece = ranges.read(wanted, start, PLACE)
        assert piece.batch is not None
        sizes.append(piece.batch.num_rows)
        start = piece.next_offset
    assert sizes == [1, 1, 2, 1]
    assert [len(one) for one in payloads(ranges, wanted)] == [len(one) for one in big]


def test_what_matches_no_filter_is_looked_at_alone(server: RedisServer) -> None:
    """It counts as seen; where nothing matches, there is no batch."""
    wanted = stored(server, numbered(10))
    piece = of(server, topic_filters=("t/1", "alarms/#")).read(wanted, 0, PLACE)
    assert piece.batch is not None
    assert piece.batch.column("payload").to_pylist() == [b"1", b"4", b"7"]
    assert (piece.looked_at, piece.next_offset) == (10, 10)
    assert of(server, topic_filters=("alarms/#",)).read(wanted, 0, PLACE) == (None, 10, 10)


def test_what_has_left_is_told(server: RedisServer) -> None:
    """Behind the earliest offset, in the middle, with its whole queue."""
    wanted = stored(server, numbered(10))
    ranges = of(server)

    async def change(*, is_first: bool) -> None:
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        if is_first:
            await engine.commit("q", "spark", Position(wanted.incarnation, {0: 4}))
        else:
            await engine.delete_queue("q")
            await engine.create_queue("q", SPEC)
        await engine.close()

    base = f"{server.prefix}:{{{wanted.incarnation}.0}}"
    with Redis(port=server.port) as client:
        client.hdel(f"{base}:i", "7")
        client.hdel(f"{base}:d", "8")  # as when it leaves between the two
    piece = ranges.read(wanted, 0, PLACE)
    assert piece.batch is not None
    assert piece.batch.column("offset").to_pylist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert (piece.next_offset, piece.looked_at) == (10, 8)
    with pytest.raises(QueueError, match=r"ends at offset 10 .*, the range at 11"):
        ranges.read(replace(wanted, end=11), 0, PLACE)
    asyncio.run(change(is_first=True))
    with pytest.raises(RangeGoneError) as gone:
        ranges.read(wanted, 0, PLACE)
    assert gone.value.earliest == 4
    asyncio.run(change(is_first=False))
    with pytest.raises(OtherIncarnationError, match=f"incarnation {wanted.incarnation}: the queue"):
        ranges.read(wanted, 4, PLACE)


def test_a_reader_tells_losses_without_a_gateway(server: RedisServer) -> None:
    """What a task must know of its queue comes with the range."""
    wanted = stored(server, numbered(10))
    redis = RedisOptions(server=(server.host, server.port), prefix=server.prefix)
    reader = QueueReader(replace(OPTIONS, redis=redis, fail_on_data_loss=False, retry_seconds=0))
    base = f"{server.prefix}:{{{wanted.incarnation}.0}}"
    with Redis(port=server.port) as client:
        client.hdel(f"{base}:i", "0", "7")
    (batch,) = reader.read(wanted, ReadSettings(None, keeps_last=True))
    assert batch.num_rows == 8
    strict = QueueReader(replace(OPTIONS, redis=redis))
    with pytest.raises(
        QueueChangedError, match="2 of the messages 0 to 9 of physical queue 0 are gone"
    ):
        list(strict.read(wanted, ReadSettings(None, keeps_last=False)))
    assert list(strict.read(wanted, ReadSettings(None, keeps_last=True))) == [batch]


# -- servers -----------------------------------------------------------------------------------


ACL = ("on", ">secret", "%R~penstock:*", "-@all", "+hmget", "+role", "+select", "+cluster|slots")
"""What docs/how-to/spark-job.md gives to executors."""


def test_a_user_that_may_only_read_is_enough(tmp_path: Path) -> None:
    """One who may not is told at once, as is a password that is not there."""
    with running_redis(tmp_path / "redis") as process, Redis(port=process.port) as client:
        wanted = stored(RedisServer(port=process.port), numbered(5))
        client.execute_command("ACL", "SETUSER", "reader", *ACL)
        client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", "~*", "-@all", "+role")
        client.config_set("requirepass", "other")
        file = tmp_path / "password"
        file.write_text("secret\n")
        given = RedisOptions(
            server=("127.0.0.1", process.port), user="reader", password_file=str(file)
        )
        assert payloads(RedisRanges(OPTIONS, given), wanted) == [b"0", b"1", b"2", b"3", b"4"]
        with pytest.raises(
            QueueUnavailableError, match=r"queue 'q': Redis server .*no permissions"
        ):
            RedisRanges(OPTIONS, replace(given, user="writer")).read(wanted, 0, PLACE)
        file.write_text("wrong\n")
        with pytest.raises(QueueUnavailableError, match="invalid username-password pair"):
            RedisRanges(OPTIONS, given).read(wanted, 0, PLACE)
        file.unlink()
        with pytest.raises(OptionError, match=r"'redisPasswordFile': .*where executors run"):
            RedisRanges(OPTIONS, given).read(wanted, 0, PLACE)


def test_a_replica_is_no_answer(tmp_path: Path) -> None:
    """It may lack what its master has, which is not lost."""
    with running_redis(tmp_path / "redis") as process, Redis(port=process.port) as client:
        wanted = stored(RedisServer(port=process.port), numbered(5))
        client.replicaof("127.0.0.1", "9")
        ranges = of(RedisServer(port=process.port))
        with pytest.raises(NoAnswerError, match="is no master"):
            ranges.read(wanted, 0, PLACE)
        client.replicaof("NO", "ONE")
        assert len(payloads(ranges, wanted)) == 5


def test_each_node_of_a_cluster_is_asked_for_its_own() -> None:
    """By the slot of the physical queue."""
    nodes = shared_cluster()
    for _ in range(4):  # each on a node by chance
        server = RedisServer(cluster=nodes, prefix=f"test-{uuid.uuid4().hex}")
        wanted = stored(server, numbered(5))
        redis = RedisOptions(cluster=nodes[:1], prefix=server.prefix)
        assert payloads(RedisRanges(OPTIONS, redis), wanted) == [b"0", b"1", b"2", b"3", b"4"]


def reads_through(
    redis: RedisOptions, wanted: Range, master: RedisProcess, *, frozen: bool
) -> None:
    """Read a range while the server that has it is killed, or hangs; it comes whole."""
    options = replace(OPTIONS, redis=redis, timeout_seconds=1)
    batches: Iterator[pa.RecordBatch] = QueueReader(options).read(wanted)
    first = next(batches)
    assert first.num_rows < wanted.end
    master.process.send_signal(signal.SIGSTOP if frozen else signal.SIGKILL)
    try:
        found = [payload for one in (first, *batches) for payload in one["payload"].to_pylist()]
    finally:
        master.process.kill()
    assert found == [str(number).encode() for number in range(wanted.end)]


def is_replica(client: Redis, identifier: bytes) -> bool:
    """Say whether a node knows that another one has a replica."""
    told: bytes = client.execute_command("CLUSTER", "NODES")
    return b"slave " + identifier in told


MANY = 3 * AHEAD_MESSAGES
"""More than is asked for before the first piece is read."""
REPLICATED = Patience(retry_seconds=60, min_replicas=1, replication_seconds=30)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_replica_that_took_over_is_read_on(tmp_path: Path, frozen: bool) -> None:  # noqa: FBT001
    """Sentinels name it; nothing is lost and nothing comes twice."""
    with running_redis(tmp_path / "master") as master:
        line = f"replicaof 127.0.0.1 {master.port}"
        with running_redis(tmp_path / "replica", line):
            server = RedisServer(port=master.port, patience=REPLICATED)
            wanted = stored(server, numbered(MANY))
            with running_sentinels(tmp_path, master.port) as ports:
                sentinels = tuple(("127.0.0.1", port) for port in ports)
                redis = RedisOptions(sentinels=sentinels, master="m")
                reads_through(redis, wanted, master, frozen=frozen)


def test_a_node_that_fails_is_replaced_by_its_replica(tmp_path: Path) -> None:
    """The others name it."""
    timeout = "cluster-node-timeout 1000"
    with running_cluster(tmp_path, timeout, is_even=False) as nodes, reserved_port() as bus_port:
        # It takes over however long the others take to vote for it.
        always = "cluster-replica-validity-factor 0"
        lines = ("cluster-enabled yes", f"cluster-port {bus_port}", timeout, always)
        with (
            running_redis(tmp_path / "replica", *lines) as process,
            Redis(port=nodes[0].port) as master,
            Redis(port=process.port) as replica,
        ):
            identifier = master.execute_command("CLUSTER", "MYID")
            master.execute_command("CLUSTER", "MEET", "127.0.0.1", process.port, bus_port)
            # Nodes do not hear one that they have not met: it must know all before one fails.
            until(lambda: b"cluster_size:3\r" in replica.execute_command("CLUSTER", "INFO"))
            replica.execute_command("CLUSTER", "REPLICATE", identifier)
            cluster = tuple(("127.0.0.1", node.port) for node in nodes)
            wanted = stored(RedisServer(cluster=cluster, patience=REPLICATED), numbered(MANY))
            for node in nodes[1:]:
                with Redis(port=node.port) as client:
                    until(partial(is_replica, client, identifier))
            reads_through(RedisOptions(cluster=cluster), wanted, nodes[0], frozen=False)
