"""What brokers have when the engine has it not."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from redis import Redis

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.netem.runs.broker_process import RunningBroker, reserved_port
from tests.helpers.cluster import reached, running_brokers
from tests.helpers.redis_server import running_cluster, running_redis
from tests.helpers.wire import WireClient


async def keep(client: WireClient) -> None:
    """Publish a retained message."""
    await client.send(Publish("kept", b"kept", 1, retain=True, packet_id=1))
    await client.take(PubAck)


async def test_an_engine_without_a_file_is_killed_and_comes_back_empty(tmp_path: Path) -> None:
    """Nobody is disconnected, what is retained is there again, and one client has one owner.

    What waited for the engine is refused: it does not come.
    """
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        redis = stack.enter_context(running_redis(tmp_path / "redis", port=port))
        cluster = stack.enter_context(
            running_brokers(tmp_path, "a", "b", redis={"server": f"127.0.0.1:{port}"})
        )
        async with (
            await cluster.connected("a", "sends") as sender,
            await cluster.connected("b", "reads") as reader,
        ):
            await keep(sender)
            await reader.subscribe("x/#", 1)
            redis.process.kill()
            await asyncio.to_thread(redis.process.wait)
            await sender.send(Publish("x/1", b"lost", 1, packet_id=2))
            stack.enter_context(running_redis(tmp_path / "again", port=port))
            assert (await sender.take(PubAck)).reason_code == 0x97
            got: list[bytes] = []

            async def read() -> None:
                while (packet := await reader.receive()) is not None:
                    if isinstance(packet, Publish):
                        got.append(packet.payload)

            reading = asyncio.create_task(read())

            async def arrives() -> None:
                while not got:
                    await sender.send(Publish("x/1", b"x"))
                    await asyncio.sleep(0.05)

            await asyncio.wait_for(arrives(), 60)
            assert not reading.done()
            cluster.start("c")
            async with await cluster.connected("c", "late") as late:
                await late.subscribe("kept")
                assert (await late.take(Publish)).payload == b"kept"
            async with await cluster.connected("a", "reads"):
                await reached(reading.done, "the end of the first connection")


async def test_one_server_of_a_redis_cluster_is_killed_and_comes_back_empty(
    tmp_path: Path,
) -> None:
    """The broker whose inbox it had ends its sessions and joins anew; publishers do not hang."""
    with ExitStack() as stack:
        nodes = stack.enter_context(running_cluster(tmp_path / "redis"))
        servers = [f"127.0.0.1:{node.port}" for node in nodes]
        cluster = stack.enter_context(
            running_brokers(tmp_path, "a", "b", redis={"cluster": servers})
        )
        async with await cluster.connected("b", "sends") as sender:
            reader = await cluster.connected("a", "reads")
            await reader.subscribe("x/#", 1)
            lost = [node for node in nodes if has_inbox_of_a(node.port)].pop()
            lost.process.kill()
            await asyncio.to_thread(lost.process.wait)
            folder = tmp_path / "redis" / f"node{nodes.index(lost)}"
            again = RunningBroker("redis-server", ["redis-server", "redis.conf"], folder)
            stack.callback(again.stop)
            assert (await sender.publish("x/1", b"lost")).reason_code == 0
            await reader.rest()
            reader = await WireClient.dial(cluster["a"].port)
            while (await reader.connect("reads")).reason_code:  # it joins
                reader.close()
                reader = await WireClient.dial(cluster["a"].port)
            await reader.subscribe("x/#", 1)
            await sender.publish("x/1", b"x")
            assert (await reader.take(Publish)).payload == b"x"
            reader.close()


def has_inbox_of_a(port: int) -> bool:
    """Say whether a server has what is for the broker `a`."""
    with Redis(port=port) as redis:
        return bool(redis.keys("*cluster:test:a}:*:s"))
