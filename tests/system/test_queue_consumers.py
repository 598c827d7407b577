"""Consumers of a queue over MQTT: paho, mosquitto_sub and bare sockets against a real broker."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, PahoClient, publish_properties
from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker
from tests.helpers.wire import WireClient, connected

LAYOUT: dict[str, Any] = {
    "topics": ["jobs/#"],
    "physical_queues": 2,
    "groups": {
        "default": {"visibility_timeout": 60.0, "max_receives": 5},
        "other": {},
        "readers": {"kind": "offsets"},
    },
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run one broker with a queue for each test."""
    queues = {name: LAYOUT | {"topics": [f"{name}/#"]} for name in ("a", "b", "c", "d", "e")}
    section = {"engine": "memory", "http": "127.0.0.1:0", "queues": queues}
    with running_broker(
        anonymous_policy({"queue": section}), tmp_path_factory.mktemp("consumers")
    ) as process:
        yield process


def publish(broker: BrokerProcess, topic: str, *payloads: bytes) -> None:
    """Publish messages that the queue has when this returns."""
    with PahoClient(broker.port) as client:
        assert client.connect()
        for payload in payloads:
            client.publish(topic, payload)


@pytest.mark.parametrize(("queue", "version"), [("a", MQTT_3_1_1), ("b", MQTT_5)])
def test_paho_consumes(broker: BrokerProcess, queue: str, version: MQTTProtocolVersion) -> None:
    """Each message comes with its own topic, and is gone once it is acknowledged."""
    given = publish_properties(UserProperty=[("unit", "C")], ContentType="text/plain")
    with PahoClient(broker.port, version=MQTT_5) as publisher:
        assert publisher.connect()
        publisher.publish(f"{queue}/1", b"first", properties=given)
    with PahoClient(broker.port, version=version) as client:
        assert client.connect()
        assert client.subscribe(f"$queue/{queue}", 2)
        publish(broker, f"{queue}/2", b"second")
        messages = sorted((client.message() for _ in range(2)), key=lambda one: one.topic)
    assert [(one.topic, one.payload, one.qos) for one in messages] == [
        (f"{queue}/1", b"first", 1),
        (f"{queue}/2", b"second", 1),
    ]
    if version == MQTT_5:
        found: Any = messages[0].properties
        assert found.ContentType == "text/plain"
        assert found.UserProperty == [
            ("unit", "C"),
            ("penstock-queue", queue),
            ("penstock-group", "default"),
            ("penstock-receive-count", "1"),
        ]
    with PahoClient(broker.port, version=version) as client:
        assert client.connect()
        assert client.subscribe(f"$queue/{queue}/default", 1)
        publish(broker, f"{queue}/3", b"third")
        assert client.payloads(1) == [b"third"]


def test_mosquitto_sub_consumes(broker: BrokerProcess) -> None:
    """Messages published before and after it has subscribed."""
    publish(broker, "c/1", b"before")
    command = ["mosquitto_sub", "-p", str(broker.port), "-t", "$queue/c", "-q", "1", "-C", "2"]
    command += ["-W", str(int(SECONDS)), "-F", "%t %q %p"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "c/1 1 before\n"
        publish(broker, "c/2", b"after")
        assert process.stdout.readline() == "c/2 1 after\n"
        assert process.wait(SECONDS) == 0


async def take(client: WireClient) -> tuple[Publish, str]:
    """Return the next message, and how often the group has received it."""
    packet = await client.take(Publish)
    found = dict(packet.properties["user_property"])
    return packet, found["penstock-receive-count"]


async def test_a_message_is_received_again_after_a_refusal_or_a_lost_connection(
    broker: BrokerProcess,
) -> None:
    """At once: nobody waits for its visibility timeout."""
    await asyncio.to_thread(publish, broker, "d/1", b"job")
    async with await connected(broker.port, "first") as client:
        assert await client.subscribe("$queue/d", 1) == 1
        packet, count = await take(client)
        assert (packet.payload, count) == (b"job", "1")
        await client.send(PubAck(packet.packet_id, ReasonCode.UNSPECIFIED_ERROR))
        packet, count = await take(client)
        assert count == "2"
    async with await connected(broker.port, "second") as client:
        await client.subscribe("$queue/d", 1)
        packet, count = await take(client)
        assert (packet.payload, packet.dup, count) == (b"job", False, "3")
        await client.send(PubAck(packet.packet_id))


async def test_subscriptions_that_cannot_be_are_refused(broker: BrokerProcess) -> None:
    """In MQTT 3.1.1 by 0x80."""
    refused = ReasonCode.TOPIC_FILTER_INVALID
    async with await connected(broker.port) as client:
        for topic_filter in (
            "$queue/x",
            "$queue/a/x",
            "$queue/a/readers",
            "$queue/a/default/x",
            "$queue/+",
            "$queue/#",
            "$share/s/$queue/a",
        ):
            assert await client.subscribe(topic_filter, 1) == refused, topic_filter
    async with await connected(broker.port, version=4) as client:
        assert await client.subscribe("$queue/x", 1) == 0x80


async def test_consumers_share_a_backlog(broker: BrokerProcess) -> None:
    """Each of them gets a part of it, and each message comes once."""
    payloads = [b"%d" % number for number in range(200)]
    clients = [await connected(broker.port, f"worker-{n}") for n in range(4)]
    for client in clients:
        await client.subscribe("$queue/e", 1)
    found: list[list[bytes]] = [[] for _ in clients]

    async def work(number: int) -> None:
        while sum(map(len, found)) < len(payloads):
            packet = await clients[number].take(Publish)
            found[number].append(packet.payload)
            await clients[number].send(PubAck(packet.packet_id))

    workers = [asyncio.create_task(work(number)) for number in range(len(clients))]
    await asyncio.to_thread(publish, broker, "e/1", *payloads)
    async with asyncio.timeout(SECONDS):
        await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    for client in clients:
        client.close()
    assert sorted(payload for one in found for payload in one) == sorted(payloads)
    assert min(map(len, found)) >= 10
