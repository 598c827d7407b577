"""A QoS 2 message comes once, also where it is sent again at another broker or server."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from redis import Redis

from penstock.broker.mqtt.packets import ConnAck, Connect, PubComp, Publish, PubRec, PubRel
from penstock.plugins.cluster.engine import LIBRARY, ClusterEngine
from penstock.plugins.redis.server import RedisServer
from tests.helpers.cluster import (
    LOOK_SECONDS,
    Cluster,
    Subscriber,
    lasting,
    reached,
    roam,
    running_brokers,
)
from tests.helpers.redis_server import running_redis, running_sentinels, shared_redis
from tests.helpers.wire import WireClient

JUDGE = "judge"


@asynccontextmanager
async def judge_of(cluster: Cluster) -> AsyncIterator[ClusterEngine]:
    """Act as a node that evicts others, and does for them what it has to when the test says so."""
    prefix = cluster.section["redis"]["prefix"]
    server = RedisServer("127.0.0.1", shared_redis(), prefix=prefix)
    judge = ClusterEngine(server, cluster.section["name"], JUDGE, logging.getLogger(__name__))
    await judge.open()
    try:
        yield judge
    finally:
        await judge.close()


def evict(judge: ClusterEngine, node: str, epoch: int) -> None:
    """Evict a node at once, whether it beats or not."""
    with Redis(port=shared_redis()) as redis, redis.pipeline(transaction=True) as calls:
        calls.delete(f"{judge.base}:alive:{node}")
        calls.fcall(f"{LIBRARY.prefix}evict", 1, judge.base, node, epoch, JUDGE)
        assert calls.execute()[1] == 1


async def back(port: int, client_id: str) -> WireClient:
    """Connect a client to its session; what refuses it is asked again."""
    while True:
        client = await WireClient.dial(port)
        await client.send(Connect(client_id, keep_alive=0, **lasting()))
        answer = await client.receive()
        if isinstance(answer, ConnAck) and not answer.reason_code:
            assert answer.session_present
            return client
        client.close()


async def publish(client: WireClient, *packets: Publish) -> None:
    """Publish messages, and wait for all that comes of each."""
    for packet in packets:
        await client.send(packet)
        assert (await client.take(PubRec)).reason_code < 0x80
        await client.send(PubRel(packet.packet_id))
        await client.take(PubComp)


async def test_broker_that_was_evicted_goes_on_with_what_it_had_read(tmp_path: Path) -> None:
    """Its client is nowhere else before all that it still sends is refused."""
    subscriber = Subscriber()
    with running_brokers(tmp_path, "a", "b") as cluster:
        async with (
            judge_of(cluster) as judge,
            await cluster.connected("b", "reads", **lasting()) as reader,
            await cluster.connected("a", "writes", **lasting()) as writer,
        ):
            await reader.subscribe("exact/#", 2)
            taking = asyncio.create_task(subscriber.run(reader))
            epoch, _ = (await judge.members())["a"]
            cluster["a"].process.send_signal(signal.SIGSTOP)
            await writer.send(Publish("exact/x", b"1", 2, packet_id=7))
            evict(judge, "a", epoch)

            async def go_on() -> None:
                async with await back(cluster["b"].port, "writes") as client:
                    await publish(client, Publish("exact/x", b"1", 2, dup=True, packet_id=7))
                    await publish(client, Publish("exact/x", b"2", 2, packet_id=7))

            again = asyncio.create_task(go_on())
            await asyncio.wait([again], timeout=1.0)  # who lets it in does so by then
            cluster["a"].process.send_signal(signal.SIGCONT)
            await writer.rest()  # it has handled what had come
            await judge.sweep_owners("a", epoch)
            await judge.done("a", epoch)
            await again
            await reached(lambda: 2 in subscriber.came, "the last message")
            assert subscriber.came == [1, 2]
            taking.cancel()


async def test_client_that_has_gone_on_is_not_heard_where_it_was_not_let_in(tmp_path: Path) -> None:
    """What it had sent there behind its CONNECT, it has sent again elsewhere."""
    subscriber = Subscriber()
    with running_brokers(tmp_path, "a", "b") as cluster:
        async with (
            judge_of(cluster) as judge,
            await cluster.connected("b", "reads", **lasting()) as reader,
        ):
            await reader.subscribe("exact/#", 2)
            taking = asyncio.create_task(subscriber.run(reader))
            (await cluster.connected("b", "writes", **lasting())).close()
            members = await judge.members()
            cluster["a"].process.send_signal(signal.SIGSTOP)
            async with await WireClient.dial(cluster["a"].port) as left:
                await left.send(Connect("writes", keep_alive=0, **lasting()))
                await left.send(Publish("exact/x", b"1", 2, packet_id=7))
            once_more = Publish("exact/x", b"1", 2, dup=True, packet_id=7)
            async with await back(cluster["b"].port, "writes") as writer:
                await publish(writer, once_more)
                resting = asyncio.create_task(writer.rest())
                cluster["a"].process.send_signal(signal.SIGCONT)
                while not resting.done():  # until "a" has claimed the client
                    await asyncio.sleep(LOOK_SECONDS)
                    if await judge.is_over("a", members["a"][0]):
                        break  # it stood still for so long that it was evicted
            async with await back(cluster["b"].port, "writes") as writer:
                await publish(writer, Publish("exact/x", b"2", 2, packet_id=7))
            await reached(lambda: 2 in subscriber.came, "the last message")
            assert subscriber.came == [1, 2]
            resting.cancel()
            taking.cancel()


async def test_message_that_a_failover_has_lost_comes_once(tmp_path: Path) -> None:
    """Its subscriber's broker had read it before any replica had it, and not sent it."""
    subscriber = Subscriber()
    with ExitStack() as stack:
        master = stack.enter_context(running_redis(tmp_path / "0"))
        line = f"replicaof 127.0.0.1 {master.port}"
        replicas = [stack.enter_context(running_redis(tmp_path / name, line)) for name in "12"]
        for replica in replicas:
            stack.callback(replica.process.send_signal, signal.SIGCONT)
        ports = stack.enter_context(running_sentinels(tmp_path / "sentinels", master.port))
        servers = [f"127.0.0.1:{port}" for port in ports]
        section = {"sentinel": {"servers": servers, "master": "m"}, "min_replicas": 1}
        cluster = stack.enter_context(running_brokers(tmp_path, "a", "b", redis=section))
        admin = stack.enter_context(Redis(port=master.port))
        async with await cluster.connected("a", "reads", **lasting()) as reader:
            await reader.subscribe("exact/#", 2)
        roaming = asyncio.create_task(roam(cluster, "a", "reads", subscriber.run))
        async with await cluster.connected("b", "writes", **lasting()) as writer:
            await publish(writer, Publish("exact/x", b"0", 2, packet_id=7))
            (stream,) = admin.scan_iter("*:q:reads")
            await reached(lambda: not admin.xlen(stream), "the end of the first message")
            for replica in replicas:
                replica.process.send_signal(signal.SIGSTOP)
            admin.execute_command("CLIENT", "KILL", "TYPE", "replica")
            publishing = asyncio.create_task(
                publish(writer, Publish("exact/x", b"1", 2, packet_id=8))
            )
            await reached(lambda: admin.xlen(stream), "the second message")
            (entry, _), *_ = admin.xrange(stream)
            (notes,) = admin.scan_iter("*:a}:*:notes")
            admin.xadd(notes, {"b": json.dumps(["mail", ["reads"]])})
            session = stream.replace(b":q:", b":s:")
            await reached(lambda: admin.hget(session, "got") == entry, "that it is read")
            master.process.kill()
            for replica in replicas:
                replica.process.send_signal(signal.SIGCONT)
            await publishing
            await publish(writer, Publish("exact/x", b"2", 2, packet_id=9))
            await reached(lambda: 2 in subscriber.came, "the last message")
            assert subscriber.came == [0, 1, 2]
            roaming.cancel()


async def test_broker_that_was_evicted_lets_nobody_in_to_what_it_had(tmp_path: Path) -> None:
    """It would acknowledge a message as one that it has had, by what is over elsewhere."""
    subscriber = Subscriber()
    with (
        running_redis(tmp_path / "redis") as redis,
        Redis(port=redis.port) as admin,
        running_brokers(tmp_path, "a", "b", redis={"server": f"127.0.0.1:{redis.port}"}) as cluster,
    ):
        async with (
            await cluster.connected("b", "reads", **lasting()) as reader,
            await cluster.connected("a", "writes", **lasting()) as writer,
        ):
            await reader.subscribe("exact/#", 2)
            taking = asyncio.create_task(subscriber.run(reader))
            await writer.send(Publish("exact/x", b"1", 2, packet_id=7))
            await writer.take(PubRec)
            cluster["a"].process.send_signal(signal.SIGSTOP)
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal")
            async with await back(cluster["b"].port, "writes") as client:
                await client.send(PubRel(7))
                await client.take(PubComp)
            # No beat of "a" is answered, and it does not hear that it is dead.
            admin.config_set("min-replicas-to-write", 1)
            admin.acl_setuser("default", enabled=True, commands=["-xread"])
            async with await WireClient.dial(cluster["a"].port) as again:
                await again.send(Connect("writes", keep_alive=0, **lasting()))
                await again.send(Publish("exact/x", b"2", 2, dup=True, packet_id=7))
                cluster["a"].process.send_signal(signal.SIGCONT)
                answer = await again.receive()
                assert isinstance(answer, ConnAck | None)
                assert answer is None or answer.reason_code >= 0x80
            admin.config_set("min-replicas-to-write", 0)
            admin.acl_setuser("default", enabled=True, commands=["+xread"])
            async with await back(cluster["a"].port, "writes") as client:
                await publish(client, Publish("exact/x", b"2", 2, dup=True, packet_id=7))
            await reached(lambda: 2 in subscriber.came, "the last message")
            assert subscriber.came == [1, 2]
            taking.cancel()
