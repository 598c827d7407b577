"""A client that does not read is nobody's problem but its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.cluster import Cluster, Reading, Stream, reached, running_brokers

PAYLOAD = bytes(20_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with short queues."""
    folder = tmp_path_factory.mktemp("cluster")
    with running_brokers(folder, "a", "b", limits={"queued_messages": 100}) as brokers:
        yield brokers


async def flood(cluster: Cluster, topic: str) -> None:
    """Publish large messages at QoS 1 at the broker `a`, acknowledged or refused, until cancelled.

    Args:
        cluster: the brokers.
        topic: of all messages.
    """
    async with await cluster.connected("a") as publisher:
        for packet_id in itertools.cycle(range(1, 0xFFFF)):
            await publisher.send(Publish(topic, PAYLOAD, qos=1, packet_id=packet_id))
            await publisher.take(PubAck)


async def test_others_get_their_messages_while_one_client_reads_nothing(cluster: Cluster) -> None:
    """Who publishes to it is held back, or refused; nobody else is."""
    async with (
        await cluster.connected("b", "stalled") as stalled,
        await cluster.connected("b", "reads") as reader,
    ):
        await stalled.subscribe("large/#", 1)
        await reader.subscribe("small/#", 1)
        flooding = asyncio.create_task(flood(cluster, "large/x"))
        reading = Reading()
        taking = asyncio.create_task(reading.run(reader))
        stream = Stream("small/x")
        publishing = asyncio.create_task(stream.run(lambda: cluster["a"].port))
        await reached(lambda: stream.n_sent >= 3_000, "what others publish")
        stream.end()
        await publishing
        await reading.until_all_of(stream)
        taking.cancel()
        flooding.cancel()


async def test_a_client_that_reads_nothing_can_go_to_another_broker(cluster: Cluster) -> None:
    """What waits for it is not in its way."""
    async with await cluster.connected("b", "moves") as stalled:
        await stalled.subscribe("much/#", 1)
        flooding = asyncio.create_task(flood(cluster, "much/x"))
        await asyncio.sleep(2)
        async with await cluster.connected("a", "moves") as moved:
            assert await moved.subscribe("calm/#") == 0
        flooding.cancel()
