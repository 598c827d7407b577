"""A client is at one broker, and what happens when it comes to another."""

from __future__ import annotations

import asyncio

from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.cluster import Cluster
from tests.helpers.wire import WireClient, ending


async def test_a_client_that_comes_to_another_broker_is_taken_over(cluster: Cluster) -> None:
    """Its first connection is told so, and is closed before the second is accepted."""
    async with await cluster.connected("a", "moves") as first:
        await first.subscribe("moves/#")
        async with await cluster.connected("b", "moves") as second:
            assert ending(await first.rest()) == ReasonCode.SESSION_TAKEN_OVER
            assert await second.subscribe("second/#") == 0
            async with await cluster.connected("a", "other") as publisher:
                await publisher.publish("moves/1", b"for nobody")
                await publisher.publish("second/1", b"for the second")
            assert (await second.take(Publish)).payload == b"for the second"


async def test_a_client_of_mqtt_3_1_1_is_closed(cluster: Cluster) -> None:
    """It cannot be told why."""
    async with (
        await cluster.connected("a", "old", version=4) as first,
        await cluster.connected("c", "old", version=4),
    ):
        assert await first.rest() == []


async def test_a_client_that_comes_to_all_brokers_at_once_stays_at_one(cluster: Cluster) -> None:
    """One connection is left in the end, and it serves."""
    for number in range(10):
        name = f"everywhere-{number}"
        clients = [await WireClient.dial(cluster[node].port) for node in "abcabc"]
        for client in clients:
            await client.send(Connect(client_id=name, keep_alive=0))
        ends = {asyncio.create_task(client.rest()): client for client in clients}
        left = set(ends)
        while len(left) > 1:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        (last,) = left
        last.cancel()
        await asyncio.wait(left)
        await ends[last].send(Subscribe(1, (SubscriptionRequest(f"{name}/#", 0),)))
        while not isinstance(packet := await ends[last].receive(), SubAck):
            assert isinstance(packet, ConnAck), packet
        for client in clients:
            client.close()


async def test_the_will_of_a_client_that_is_taken_over_is_published_once(
    cluster: Cluster,
) -> None:
    """As where it comes again to the same broker [MQTT-3.1.4-3]."""
    will = Will("wills/taken", b"gone", qos=1)
    async with await cluster.connected("c", "watches-wills") as watcher:
        await watcher.subscribe("wills/#", 1)
        async with (
            await cluster.connected("a", "has-will", will=will) as first,
            await cluster.connected("b", "has-will"),
        ):
            await first.rest()
            assert (await watcher.take(Publish)).payload == b"gone"
        async with await cluster.connected("a", "marks") as marks:
            await marks.publish("wills/mark", b"mark")
        assert (await watcher.take(Publish)).payload == b"mark"


async def test_a_client_comes_and_goes_between_brokers(cluster: Cluster) -> None:
    """Sessions that have ended stand in nobody's way."""
    for number in range(30):
        client = await WireClient.dial(cluster["abc"[number % 3]].port)
        answer = await client.connect("wanders")
        assert (answer.reason_code, answer.session_present) == (0, False)
        if number % 2:
            await client.send(Disconnect())
            await client.rest()
        client.close()


async def test_a_durable_session_waits_for_its_client(cluster: Cluster) -> None:
    """Which comes back to the same broker, and has missed nothing that others published."""
    lasting = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    async with await cluster.connected("b", "waits", **lasting) as first:
        await first.subscribe("waits/#", 1)
        await first.send(Disconnect())
        await first.rest()
    async with await cluster.connected("a") as publisher:
        await publisher.publish("waits/1", b"meanwhile")
    async with await WireClient.dial(cluster["b"].port) as again:
        assert (await again.connect("waits", **lasting)).session_present
        assert (await again.take(Publish)).payload == b"meanwhile"
