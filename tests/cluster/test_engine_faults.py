"""The engine stands still, is killed, fails over, and comes back."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from redis import Redis

from penstock.broker.mqtt.packets import PubAck, Publish, Will
from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.cluster import Cluster, Reading, Stream, lasting, reached, running_brokers
from tests.helpers.commands import penstock
from tests.helpers.process import Program
from tests.helpers.redis_server import (
    running_redis,
    running_sentinels,
    shared_cluster,
)
from tests.helpers.wire import WireClient

AWAY_SECONDS: Final = 5.0
"""How long the engine is away: longer than a node may be silent before it counts as dead."""

LASTS: Final = ("appendonly yes", "appendfsync always")


async def round_trips(client: WireClient, topic: str, n: int) -> None:
    """Publish to a topic that the client itself has subscribed to, and wait for each."""
    for number in range(n):
        await client.send(Publish(topic, b"%d" % number))
        assert (await client.take(Publish)).payload == b"%d" % number


async def through_an_outage(cluster: Cluster, outage: Any) -> None:
    """Hold what is promised while the engine is away.

    Clients on one broker go on; what is acknowledged for another broker, or for a session that
    outlives its connection, arrives, in order; nobody is disconnected.

    Args:
        cluster: of the brokers `a` and `b`.
        outage: a coroutine function: it ends once the engine is back.
    """
    async with (
        await cluster.connected("a", "near") as near,
        await cluster.connected("b", "reads") as reader,
        await cluster.connected("b", "keeps", **lasting()) as keeper,
    ):
        await near.subscribe("near/#")
        await reader.subscribe("far/#", 1)
        await keeper.subscribe("far/#", 1)
        stream = Stream("far/x")
        publishing = asyncio.create_task(stream.run(lambda: cluster["a"].port))
        readings = Reading(), Reading()
        takings = [
            asyncio.create_task(reading.run(client))
            for reading, client in zip(readings, (reader, keeper), strict=True)
        ]
        await reached(lambda: len(stream.acknowledged) > 200, "200 acknowledgements")
        out = asyncio.create_task(outage())
        while not out.done():
            await round_trips(near, "near/x", 10)
        await out
        n_sent = stream.n_sent
        await reached(lambda: stream.n_sent >= n_sent + 200, "200 messages after it")
        stream.end()
        await publishing
        for reading, taking in zip(readings, takings, strict=True):
            await reading.until_all_of(stream)
            assert not reading.displaced("far/x")
            taking.cancel()
        assert await near.subscribe("still/#") == 0
        assert await reader.subscribe("there/#") == 0


async def test_the_engine_stands_still(tmp_path: Path) -> None:
    """All are back when it is; nobody takes the silence for the death of a broker."""
    with (
        running_redis(tmp_path / "redis") as redis,
        running_brokers(tmp_path, "a", "b", redis={"server": f"127.0.0.1:{redis.port}"}) as cluster,
    ):

        async def outage() -> None:
            redis.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(AWAY_SECONDS)
            redis.process.send_signal(signal.SIGCONT)

        await through_an_outage(cluster, outage)


async def test_the_engine_is_killed_and_has_its_file(tmp_path: Path) -> None:
    """With `appendfsync always` it has all that was acknowledged."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        redis = stack.enter_context(running_redis(tmp_path / "redis", *LASTS, port=port))
        cluster = stack.enter_context(
            running_brokers(tmp_path, "a", "b", redis={"server": f"127.0.0.1:{port}"})
        )

        async def outage() -> None:
            redis.process.kill()
            await asyncio.sleep(AWAY_SECONDS)
            await asyncio.to_thread(
                stack.enter_context, running_redis(tmp_path / "redis", *LASTS, port=port)
            )

        await through_an_outage(cluster, outage)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_master_is_lost(tmp_path: Path, number: signal.Signals) -> None:
    """Sentinels make a replica the master; with `min_replicas` it has what was acknowledged.

    A master that says nothing any more is not waited for: its machine may have lost its power.
    """
    with ExitStack() as stack:
        master = stack.enter_context(running_redis(tmp_path / "0"))
        stack.callback(master.process.send_signal, signal.SIGCONT)
        for name in ("1", "2"):
            line = f"replicaof 127.0.0.1 {master.port}"
            stack.enter_context(running_redis(tmp_path / name, line))
        ports = stack.enter_context(running_sentinels(tmp_path / "sentinels", master.port))
        servers = [f"127.0.0.1:{port}" for port in ports]
        section: dict[str, Any] = {"sentinel": {"servers": servers, "master": "m"}}
        section |= {"min_replicas": 1, "timeout_seconds": 600}
        cluster = stack.enter_context(running_brokers(tmp_path, "a", "b", redis=section))

        async def outage() -> None:
            master.process.send_signal(number)
            await asyncio.sleep(AWAY_SECONDS)

        await through_an_outage(cluster, outage)


async def test_publishers_wait_while_the_master_has_too_few_replicas(tmp_path: Path) -> None:
    """Also where the server refuses by itself what is to be stored."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        master = stack.enter_context(running_redis(tmp_path / "0", "min-replicas-to-write 1"))
        line = f"replicaof 127.0.0.1 {master.port}"
        replica = stack.enter_context(running_redis(tmp_path / "1", line, port=port))
        section = {"server": f"127.0.0.1:{master.port}", "min_replicas": 1}
        cluster = stack.enter_context(running_brokers(tmp_path, "a", "b", redis=section))
        admin = stack.enter_context(Redis(port=master.port))
        async with (
            await cluster.connected("a", "writes") as writer,
            await cluster.connected("b", "reads") as reader,
            await cluster.connected("b", "keeps", **lasting()) as keeper,
        ):
            for client in (reader, keeper):
                await client.subscribe("far/#", 1)
            replica.process.kill()
            await reached(lambda: not admin.info("replication")["connected_slaves"], "the loss")
            publishing = asyncio.create_task(writer.publish("far/1", b"1"))
            await asyncio.sleep(AWAY_SECONDS)
            assert not publishing.done(), publishing.result()
            stack.enter_context(running_redis(tmp_path / "1", line, port=port))
            assert (await publishing).reason_code == 0
            for client in (reader, keeper):
                assert (await client.take(Publish)).payload == b"1"


@contextmanager
def starting(folder: Path, section: dict[str, Any]) -> Iterator[Program]:
    """Start a broker whose engine is not ready, for a block."""
    (folder / "policy.yaml").write_text(yaml.safe_dump(Cluster(folder, section).policy("a")))
    command = [sys.executable, "-m", "penstock.broker", "-c", "policy.yaml"]
    broker = Program(command, cwd=folder, is_forked=True)
    try:
        broker.wait_for_log("waits for its engine")
        yield broker
    finally:
        broker.end()


def test_a_broker_waits_for_its_engine(tmp_path: Path) -> None:
    """It says for what: all machines may have started at once. A signal ends it."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        master = stack.enter_context(reserved_port())
        section = {"server": f"127.0.0.1:{port}", "min_replicas": 1}
        with starting(tmp_path, section) as broker:
            broker.wait_for_log(f"127.0.0.1:{port}")
            assert broker.stop() == 0
        stack.enter_context(running_redis(tmp_path / "0", port=port))
        with starting(tmp_path, section) as broker:
            broker.wait_for_log("read 0; allowed: 1 or more")
            line = f"replicaof 127.0.0.1 {port}"
            stack.enter_context(running_redis(tmp_path / "1", line, port=master))
            broker.wait_for_log("listening")


async def test_the_engine_is_a_cluster(tmp_path: Path) -> None:
    """The keys of one node's inbox, of a client's owner and of the meta are on several servers."""
    nodes = [f"{host}:{port}" for host, port in shared_cluster()]
    with running_brokers(tmp_path, "a", "b", "c", redis={"cluster": nodes}) as brokers:
        for number in range(20):
            async with await brokers.connected("abc"[number % 3], f"client-{number % 5}") as one:
                await one.subscribe(f"to/{number}", 1)
                async with await brokers.connected("bca"[number % 3]) as other:
                    await other.publish(f"to/{number}", b"%d" % number)
                assert (await one.take(Publish)).payload == b"%d" % number


async def test_the_engine_is_full(tmp_path: Path) -> None:
    """What is new is refused; what is there is delivered and makes room; then all goes on."""
    with (
        running_redis(tmp_path / "redis", "maxmemory-policy noeviction") as server,
        running_brokers(
            tmp_path, "a", "b", redis={"server": f"127.0.0.1:{server.port}"}
        ) as cluster,
        Redis(port=server.port) as redis,
    ):
        async with (
            await cluster.connected("a", "writes") as writer,
            await cluster.connected("b", "reads") as reader,
        ):
            await reader.subscribe("far/#", 1)
            await writer.send(Publish("kept", b"x", 1, retain=True, packet_id=1))
            assert (await writer.take(PubAck)).reason_code < 0x80
            cluster["b"].process.send_signal(signal.SIGSTOP)
            await writer.publish("far/1", b"before")
            redis.config_set("maxmemory", 1)
            assert (await writer.publish("far/2", b"refused")).reason_code == 0x97
            await writer.send(Publish("kept", b"", 1, retain=True, packet_id=1))
            assert (await writer.take(PubAck)).reason_code < 0x80
            cluster["b"].process.send_signal(signal.SIGCONT)
            before = await reader.take(Publish)
            assert before.payload == b"before"
            await reader.send(PubAck(before.packet_id))
            inboxes = list(redis.scan_iter("*:inbox"))
            await reached(lambda: not any(map(redis.xlen, inboxes)), "an empty inbox")
            for name in "ab":
                told = "the engine stores nothing: the Redis server's memory is full"
                await asyncio.to_thread(cluster[name].wait_for_log, told)
            status = ["cluster", "status", "-c", str(tmp_path / "a" / "policy.yaml")]
            told = "What is of node a, or for it, is not stored: the Redis server's memory is full"
            assert told in (await asyncio.to_thread(penstock, *status)).out
            redis.config_set("maxmemory", 0)
            await writer.publish("far/3", b"after")
            assert (await reader.take(Publish)).payload == b"after"
            await asyncio.to_thread(cluster["a"].wait_for_log, "the engine stores again")
            assert "not stored" not in (await asyncio.to_thread(penstock, *status)).out


async def test_will_of_a_client_that_came_while_the_engine_was_full(tmp_path: Path) -> None:
    """It is kept once there is room, so that it is published where its node is killed."""
    with (
        running_redis(tmp_path / "redis", "maxmemory-policy noeviction") as server,
        running_brokers(
            tmp_path, "a", "b", redis={"server": f"127.0.0.1:{server.port}"}
        ) as cluster,
        Redis(port=server.port) as redis,
    ):
        async with await cluster.connected("b", "reads") as reader:
            await reader.subscribe("wills", 1)
            redis.config_set("maxmemory", 1)
            async with await cluster.connected("a", "dies", will=Will("wills", b"gone", 1)):
                await asyncio.to_thread(cluster["a"].wait_for_log, "wills are not kept")
                redis.config_set("maxmemory", 0)
                wills = "*:wills"
                await reached(lambda: any(map(redis.hlen, redis.scan_iter(wills))), "the will")
                cluster["a"].process.kill()
                assert (await reader.take(Publish)).payload == b"gone"
