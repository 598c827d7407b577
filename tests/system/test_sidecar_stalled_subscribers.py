from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import psutil
import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.sidecar import running_sidecar
from tests.helpers.wire import WireClient, connected

N_SUBSCRIBERS = 15
N_MESSAGES = 20
PAYLOAD_BYTES = 1_000_000

CLIENT_BYTES = 1_300_000
"""A packet that is being received from the broker, and two pieces of one that is being sent."""


async def stalled_subscriber(port: int, number: int) -> WireClient:
    """Return a client that subscribes at QoS 1 and then reads nothing."""
    client = await WireClient.dial(port, 4 + number % 2, receive_bytes=4096)
    assert (await client.connect(f"stalled {number}")).reason_code == 0
    assert await client.subscribe("large/#", 1) == 1
    return client


async def read_all(client: WireClient) -> list[int]:
    """Read and acknowledge what has waited; return the number of each message."""
    numbers = []
    for _ in range(N_MESSAGES):
        packet = await client.take(Publish)
        assert len(packet.payload) == PAYLOAD_BYTES
        numbers.append(int(packet.payload[:3]))
        await client.send(PubAck(packet.packet_id))
    return numbers


@pytest.mark.memory
async def test_stalled_subscribers_cost_the_payloads_once(tmp_path: Path) -> None:
    """A payload comes to the proxy for each of them and is kept once; nothing is lost or doubled.

    Each may have a packet under way besides, as docs/edge-proxy.md says.
    """
    with (
        running_mosquitto(tmp_path) as broker,
        running_sidecar(
            {
                "listener": {"bind": "127.0.0.1:0"},
                "upstream": {"address": f"127.0.0.1:{broker.port}"},
            },
            tmp_path,
        ) as proxy,
    ):
        port = proxy.ports["default"]
        process = psutil.Process(proxy.process.pid)
        async with contextlib.AsyncExitStack() as clients:
            stalled = [
                await clients.enter_async_context(await stalled_subscriber(port, number))
                for number in range(N_SUBSCRIBERS)
            ]
            healthy = await clients.enter_async_context(await connected(port))
            await healthy.subscribe("small")
            publisher = await clients.enter_async_context(await connected(port))
            before = most = process.memory_info().rss
            for number in range(N_MESSAGES):
                payload = b"%03d" % number + bytes(PAYLOAD_BYTES - 3)
                assert (await publisher.publish("large/1", payload)).reason_code < 0x80
                await publisher.publish("small", b"%d" % number)
                assert (await healthy.take(Publish)).payload == b"%d" % number
                most = max(most, process.memory_info().rss)
            payload_bytes = N_MESSAGES * PAYLOAD_BYTES
            assert most - before <= 1.2 * payload_bytes + N_SUBSCRIBERS * CLIENT_BYTES
            async with asyncio.TaskGroup() as tasks:
                reading = [tasks.create_task(read_all(client)) for client in stalled[:4]]
            for task in reading:
                assert task.result() == list(range(N_MESSAGES))
        assert proxy.stop() == 0
