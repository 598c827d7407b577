from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.process import anonymous_policy, resident_bytes, running_broker
from tests.helpers.wire import WireClient, connected

N_SUBSCRIBERS = 20
N_MESSAGES = 20
PAYLOAD_BYTES = 1_000_000


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
async def test_a_payload_is_kept_once_however_many_wait_for_it(tmp_path: Path) -> None:
    """Twenty stalled subscribers cost the payloads once; other clients notice nothing."""
    with running_broker(anonymous_policy(), tmp_path, is_forked=False) as broker:
        async with contextlib.AsyncExitStack() as clients:
            stalled = [
                await clients.enter_async_context(await stalled_subscriber(broker.port, number))
                for number in range(N_SUBSCRIBERS)
            ]
            healthy = await clients.enter_async_context(await connected(broker.port))
            await healthy.subscribe("small")
            publisher = await clients.enter_async_context(await connected(broker.port))
            before = resident_bytes(broker)
            for number in range(N_MESSAGES):
                payload = b"%03d" % number + bytes(PAYLOAD_BYTES - 3)
                assert (await publisher.publish("large/1", payload)).reason_code < 0x80
                await publisher.publish("small", b"%d" % number)
                assert (await healthy.take(Publish)).payload == b"%d" % number
            grown = resident_bytes(broker) - before
            assert grown <= 1.5 * N_MESSAGES * PAYLOAD_BYTES
            async with asyncio.TaskGroup() as tasks:
                reading = [tasks.create_task(read_all(client)) for client in stalled[:4]]
            for task in reading:
                assert task.result() == list(range(N_MESSAGES))
        assert broker.stop() == 0


async def test_a_full_outbox_drops_for_one_subscriber_and_says_so(tmp_path: Path) -> None:
    """At `queued_bytes` further messages of the stalled one are dropped and counted in $SYS."""
    limits = {"queued_bytes": 3 * PAYLOAD_BYTES, "queue_full": "drop_newest"}
    policy = anonymous_policy(limits=limits, sys_interval=0.1)
    with running_broker(policy, tmp_path) as broker:
        async with (
            await stalled_subscriber(broker.port, 0),
            await connected(broker.port) as watcher,
            await connected(broker.port) as publisher,
        ):
            await watcher.subscribe("$SYS/broker/penstock/ledger/dropped/queue_full")
            for number in range(N_MESSAGES):
                payload = b"%03d" % number + bytes(PAYLOAD_BYTES - 3)
                assert (await publisher.publish("large/1", payload)).reason_code < 0x80
            assert int((await watcher.take(Publish)).payload) > 0
