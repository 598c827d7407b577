"""Clients of three brokers get messages as from one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import (
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.helpers.cluster import Cluster, running_brokers
from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, publish_properties

N_IN_ORDER = 500


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])
def test_a_message_reaches_subscribers_of_all_brokers(
    cluster: Cluster, qos: int, version: object
) -> None:
    """Whoever has the SUBACK gets what is published from then on, at any broker, once."""
    topic = f"reaches/{qos}/{version}"
    with (
        cluster.client("a", subscribes=topic) as one,
        cluster.client("b", subscribes=topic, version=MQTT_3_1_1) as two,
        cluster.client("c", subscribes=topic) as three,
        cluster.client("a", version=version) as publisher,  # type: ignore[arg-type]
    ):
        publisher.publish(topic, b"first", qos)
        publisher.publish(topic, b"second", qos)
        for client in (one, two, three):
            came = [client.message() for _ in range(2)]
            assert [(m.topic, bytes(m.payload), m.qos) for m in came] == [
                (topic, b"first", qos),
                (topic, b"second", qos),
            ]


def test_wildcards_match_on_every_broker(cluster: Cluster) -> None:
    """A client with filters that overlap gets each message once, as from one broker."""
    with cluster.client("b", subscribes="wild/+/level") as client:
        assert client.subscribe("wild/#", 1)
        with cluster.client("a") as publisher:
            for topic in ("wild/x/level", "wildlife", "wild/y", "wild/z/level"):
                publisher.publish(topic, topic.encode(), 1)
        assert client.payloads(3) == [b"wild/x/level", b"wild/y", b"wild/z/level"]


def test_who_has_unsubscribed_gets_nothing(cluster: Cluster) -> None:
    """The filter has left the other brokers, or at least the client's own one."""
    with cluster.client("b", subscribes="left/#") as client, cluster.client("a") as publisher:
        publisher.publish("left/1", b"1", 1)
        assert client.payloads(1) == [b"1"]
        client.paho.unsubscribe("left/#")
        assert client.subscribe("still/#", 1)
        publisher.publish("left/2", b"2", 1)
        publisher.publish("still/3", b"3", 1)
        assert client.payloads(1) == [b"3"]


def test_the_properties_of_a_message_arrive(cluster: Cluster) -> None:
    """Those of its publisher, and none of ours."""
    with cluster.client("c", subscribes="with/#") as client, cluster.client("a") as publisher:
        given = publish_properties(
            ContentType="text/plain",
            ResponseTopic="answer/here",
            CorrelationData=b"7",
            UserProperty=[("k", "v"), ("k", "w")],
            MessageExpiryInterval=600,
        )
        publisher.publish("with/properties", b"x", 1, properties=given)
        found: Any = client.message().properties
        assert found.ContentType == "text/plain"
        assert found.ResponseTopic == "answer/here"
        assert found.CorrelationData == b"7"
        assert found.UserProperty == [("k", "v"), ("k", "w")]
        assert 0 < found.MessageExpiryInterval <= 600


async def test_a_client_that_wants_none_of_its_own_gets_those_of_other_brokers(
    cluster: Cluster,
) -> None:
    """No Local is about one client, not about its broker."""
    topic = "own"
    async with (
        await cluster.connected("a", "own-a") as one,
        await cluster.connected("b", "own-b") as two,
    ):
        await one.send(Subscribe(1, (SubscriptionRequest(topic, 0, no_local=True),)))
        await one.take(SubAck)
        await one.publish(topic, b"mine")
        await two.publish(topic, b"of another")
        assert (await one.take(Publish)).payload == b"of another"


async def test_what_a_subscription_asks_for_counts_at_its_own_broker(cluster: Cluster) -> None:
    """Subscription Identifier, Retain As Published, the least of both QoS; no Topic Alias."""
    async with (
        await cluster.connected("a", "aliases") as publisher,
        await cluster.connected("b", "options") as subscriber,
    ):
        wanted = SubscriptionRequest("options/#", 1, retain_as_published=True)
        given = {"subscription_identifier": [7]}
        await subscriber.send(Subscribe(1, (wanted,), properties=given))
        await subscriber.take(SubAck)
        alias = {"topic_alias": 3}
        await publisher.send(
            Publish("options/x", b"1", 2, packet_id=1, retain=True, properties=alias),
            Publish("", b"2", 0, properties=alias),
        )
        await publisher.take(PubRec)
        await publisher.send(PubRel(1))
        came = [await subscriber.take(Publish) for _ in range(2)]
        assert [(m.topic, m.payload, m.qos, m.retain) for m in came] == [
            ("options/x", b"1", 1, True),
            ("options/x", b"2", 0, False),
        ]
        assert all(message.properties["subscription_identifier"] == [7] for message in came)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_topic_keep_their_order(cluster: Cluster, qos: int) -> None:
    """Also those that come in runs, and those of several publishers at once."""
    topic = f"order/{qos}"
    with (
        cluster.client("b", subscribes=f"{topic}/#") as client,
        cluster.client("a", version=MQTT_3_1_1) as one,
        cluster.client("c") as two,
    ):
        for number in range(N_IN_ORDER):
            for name, publisher in (("one", one), ("two", two)):
                publisher.paho.publish(f"{topic}/{name}", b"%d" % number, qos)
        came: dict[str, list[int]] = {f"{topic}/one": [], f"{topic}/two": []}
        for _ in range(2 * N_IN_ORDER):
            message = client.message()
            came[message.topic].append(int(message.payload))
        assert all(numbers == list(range(N_IN_ORDER)) for numbers in came.values())


def test_large_messages_arrive_whole(cluster: Cluster) -> None:
    """A payload of some megabytes, beside small ones."""
    large = bytes(range(256)) * 16_384
    with cluster.client("b", subscribes="large/#") as client, cluster.client("a") as publisher:
        publisher.publish("large/picture", large, 1)
        publisher.publish("large/small", b"small", 1)
        came = {
            message.topic: bytes(message.payload)
            for message in (client.message(), client.message())
        }
        assert came == {"large/picture": large, "large/small": b"small"}


def test_what_is_retained_is_retained_everywhere(cluster: Cluster) -> None:
    """Set at one broker, seen at another, cleared at a third."""
    topic = "kept/by/all"
    with cluster.client("b", subscribes=topic) as live, cluster.client("a") as publisher:
        publisher.publish(topic, b"kept", 1, retain=True)
        message = live.message()
        assert (bytes(message.payload), bool(message.retain)) == (b"kept", False)
        for name in ("a", "b", "c"):
            with cluster.client(name, subscribes=topic) as client:
                message = client.message()
                assert (bytes(message.payload), bool(message.retain)) == (b"kept", True)
    with cluster.client("c") as other:
        other.publish(topic, b"", 1, retain=True)
    for name in ("a", "b", "c"):
        with cluster.client(name, subscribes=topic) as client:
            assert client.subscribe("kept/nothing", 1)
            with cluster.client(name) as publisher:
                publisher.publish("kept/nothing", b"first that comes", 1)
            assert client.payloads(1) == [b"first that comes"]


def test_the_newest_retained_message_is_the_same_everywhere(cluster: Cluster) -> None:
    """Two publishers at two brokers write one topic at once."""
    topic = "kept/contended"
    with cluster.client("a") as one, cluster.client("b") as two:
        for number in range(50):
            one.paho.publish(topic, b"a%d" % number, 1, retain=True)
            two.paho.publish(topic, b"b%d" % number, 1, retain=True)
        one.publish("kept/last/a", b"", 1)
        two.publish("kept/last/b", b"", 1)
        one.publish(topic, b"", 0)

    def retained(name: str) -> bytes:
        with cluster.client(name, subscribes=topic) as client:
            return client.payloads(1)[0]

    assert len({retained(name) for name in ("a", "b", "c")}) == 1


def test_a_broker_that_joins_has_what_is_retained(cluster: Cluster) -> None:
    """Before its first client."""
    with cluster.client("a") as publisher:
        for number in range(200):
            publisher.publish(f"joins/{number}", b"%d" % number, 1, retain=True)
    cluster.start("late")
    with cluster.client("late", subscribes="joins/#") as client:
        came = {
            message.topic: bytes(message.payload)
            for message in (client.message() for _ in range(200))
        }
        assert came == {f"joins/{number}": b"%d" % number for number in range(200)}
    cluster["late"].stop()


def test_a_broker_that_joins_gets_and_gives_messages(cluster: Cluster) -> None:
    """It knows the filters of the others, and they know its own."""
    with cluster.client("a", subscribes="both/#") as there:
        cluster.start("later")
        with cluster.client("later", subscribes="both/#") as here:
            here.publish("both/1", b"from the new one", 1)
            there.publish("both/2", b"from an old one", 1)
            assert set(there.payloads(2)) == set(here.payloads(2))
    cluster["later"].stop()


async def test_requests_and_responses_cross_brokers(cluster: Cluster) -> None:
    """A thousand round trips between clients of two brokers, each answered."""
    n = 200
    async with (
        await cluster.connected("a", "asks") as asks,
        await cluster.connected("b", "answers") as answers,
    ):
        await asks.subscribe("answer")
        await answers.subscribe("question")

        async def answer() -> None:
            for _ in range(n):
                question = await answers.take(Publish)
                await answers.send(Publish("answer", question.payload))

        async def ask() -> None:
            for number in range(n):
                await asks.send(Publish("question", b"%d" % number))
                assert (await asks.take(Publish)).payload == b"%d" % number

        await asyncio.gather(answer(), ask())


def test_plugins_of_amqtt_hear_of_clients_alone(tmp_path: Path) -> None:
    """And not of what gives a broker the messages of another one."""
    told = "'on_broker_client_connected' EVENT FIRED"
    plugins: dict[str, Any] = {"amqtt.plugins.logging_amqtt.EventLoggerPlugin": {}}
    with (
        running_brokers(tmp_path, "a", "b", plugins=plugins) as cluster,
        cluster.client("a") as publisher,
        cluster.client("b", subscribes="x") as reader,
    ):
        publisher.publish("x", b"1", 1)
        assert reader.payloads(1) == [b"1"]
        with cluster.client("b"):
            assert len(cluster["b"].lines_with(told, 2)) == 2
