from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiomqtt
import pytest

from tests.helpers.paho_client import connect_properties, publish_properties
from tests.helpers.process import SECONDS, BrokerProcess

V3 = aiomqtt.ProtocolVersion.V311
V5 = aiomqtt.ProtocolVersion.V5
VERSIONS = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5"])


def client(
    broker: BrokerProcess, version: aiomqtt.ProtocolVersion, **options: Any
) -> aiomqtt.Client:
    """Return a client that is not connected."""
    return aiomqtt.Client("127.0.0.1", broker.port, protocol=version, timeout=SECONDS, **options)


async def take(subscriber: aiomqtt.Client, n_messages: int) -> list[aiomqtt.Message]:
    """Return the next messages."""
    async with asyncio.timeout(SECONDS):
        return [await anext(subscriber.messages) for _ in range(n_messages)]


@VERSIONS
async def test_each_qos_reaches_each(
    broker: BrokerProcess, version: aiomqtt.ProtocolVersion
) -> None:
    """A message arrives at the lesser QoS, of either version of the publisher."""
    async with client(broker, V3) as old, client(broker, V5) as new:
        for granted in range(3):
            topic = f"aiomqtt/{version}/{granted}"
            async with client(broker, version) as subscriber:
                await subscriber.subscribe(topic, granted)
                for publisher in (old, new):
                    for qos in range(3):
                        await publisher.publish(topic, f"{qos}", qos)
                        (message,) = await take(subscriber, 1)
                        assert message.payload == f"{qos}".encode()
                        assert message.qos == min(qos, granted)


@VERSIONS
async def test_persistent_session(broker: BrokerProcess, version: aiomqtt.ProtocolVersion) -> None:
    """Messages of the time away come in order when the client is back."""
    topic = f"aiomqtt/away/{version}"
    kept: dict[str, Any] = {"identifier": f"aiomqtt {version}"}
    if version == V5:
        kept |= {"clean_start": False, "properties": connect_properties(SessionExpiryInterval=60)}
    else:
        kept |= {"clean_session": False}
    async with client(broker, version, **kept) as subscriber:
        await subscriber.subscribe(topic, 1)
    async with client(broker, V5) as publisher:
        for number in range(20):
            await publisher.publish(topic, f"{number}", 1 + number % 2)
    async with client(broker, version, **kept) as subscriber:
        messages = await take(subscriber, 20)
        assert [message.payload for message in messages] == [b"%d" % n for n in range(20)]


async def test_properties(broker: BrokerProcess) -> None:
    """User properties and a response topic reach the subscriber."""
    async with client(broker, V5) as subscriber, client(broker, V5) as publisher:
        await subscriber.subscribe("aiomqtt/properties", 1)
        sent = publish_properties(UserProperty=[("a", "1")], ResponseTopic="answer")
        await publisher.publish("aiomqtt/properties", b"data", 1, properties=sent)
        (message,) = await take(subscriber, 1)
        came: Any = message.properties
        assert came.UserProperty == [("a", "1")]
        assert came.ResponseTopic == "answer"


async def be_cut_off(dying: aiomqtt.Client) -> None:
    """Connect, lose the network connection, and hear of it.

    Raises:
        MqttError: what the library makes of it.
    """
    async with dying:
        sock = dying._client.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        await dying._disconnected


@VERSIONS
async def test_retained_message_and_will(
    broker: BrokerProcess, version: aiomqtt.ProtocolVersion
) -> None:
    """A retained message comes on subscription, a will when a client is cut off."""
    topic = f"aiomqtt/state/{version}"
    async with client(broker, version) as watcher:
        await watcher.publish(topic, b"here", 1, retain=True)
        await watcher.subscribe(topic, 1)
        (message,) = await take(watcher, 1)
        assert (message.payload, message.retain) == (b"here", True)
        with pytest.raises(aiomqtt.MqttError):
            await be_cut_off(client(broker, version, will=aiomqtt.Will(topic, b"gone", 1)))
        (message,) = await take(watcher, 1)
        assert message.payload == b"gone"
