"""The cases of MQTT 5.0 alone; `test_paho_cases` has the list."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.broker.mqtt.packets import Disconnect, PingReq, PingResp, PubAck, Publish, Will
from tests.helpers.cluster import Service
from tests.helpers.paho_client import properties, publish_properties
from tests.helpers.wire import WireClient, connected, ending
from tests.system.interop.cases import LIMITS, connect, fresh, let_pass, until


async def session_is_present(port: int, client_id: str, expiry: int = 0) -> bool:
    """Say whether a session is there; it ends with this connection unless given an expiry."""
    async with await WireClient.dial(port) as client:
        kept = {"session_expiry_interval": expiry}
        connack = await client.connect(client_id, clean_start=False, properties=kept)
        await client.send(Disconnect())
        await client.rest()
        return connack.session_present


# -- wills and sessions -----------------------------------------------------------------------


@pytest.mark.mqtt5("3.1.2-8")
async def test_will_message(cases: Service) -> None:
    """A will has the User Properties it was given, in their order."""
    topic = fresh("will")
    pairs = [("a", "2"), ("c", "3")]
    will = Will(topic, b"gone", qos=1, properties={"user_property": pairs})
    async with await connected(cases.port) as watcher:
        await watcher.subscribe(topic, 2)
        async with await connected(cases.port, topic, will=will):
            pass
        came = await watcher.take(Publish)
        assert (came.payload, came.qos, came.properties) == (b"gone", 1, {"user_property": pairs})


@pytest.mark.mqtt5("3.1.3-9")
async def test_will_delay(cases: Service) -> None:
    """A delayed will waits, and is gone if the client comes back before."""
    topic = fresh("delayed")
    kept: dict[str, Any] = {"properties": {"session_expiry_interval": 60}, "clean_start": False}
    async with await connected(cases.port) as watcher:
        await watcher.subscribe(f"{topic}/#", 1)

        async def leave(name: str, delay: int) -> None:
            will = Will(f"{topic}/{name}", properties={"will_delay_interval": delay})
            async with await connected(cases.port, f"{topic}-{name}", will=will, **kept):
                pass

        for number in itertools.count():
            void, left_at = f"void-{number}", time.monotonic()
            await leave(void, 2)
            async with await connected(cases.port, f"{topic}-{void}", **kept):
                if time.monotonic() < left_at + 2:
                    break  # else the client came back too late, on a machine that is busy
        await leave("soon", 1)
        await leave("later", 3)
        came = [(await watcher.take(Publish)).topic]
        while came[-1] != f"{topic}/later":
            came.append((await watcher.take(Publish)).topic)
        assert f"{topic}/{void}" not in came
        others = [each for each in came if "/void-" not in each]
        assert others == [f"{topic}/soon", f"{topic}/later"]


async def test_will_comes_with_the_end_of_session(cases: Service) -> None:
    """A session that ends before the delay of its will publishes it then (3.1.3.2.2)."""
    topic = fresh("ending")
    will = Will(topic, properties={"will_delay_interval": 3600})
    kept = {"session_expiry_interval": 1}
    async with await connected(cases.port) as watcher:
        await watcher.subscribe(topic)
        async with await connected(cases.port, topic, will=will, properties=kept):
            pass
        assert (await watcher.take(Publish)).topic == topic
    assert not await session_is_present(cases.port, topic)


async def test_will_delay_without_a_session(cases: Service) -> None:
    """Where the session ends with its connection, the will does not wait."""
    topic = fresh("at once")
    will = Will(topic, properties={"will_delay_interval": 3600})
    async with await connected(cases.port) as watcher:
        await watcher.subscribe(topic)
        async with await connected(cases.port, topic, will=will):
            pass
        assert (await watcher.take(Publish)).topic == topic


@pytest.mark.mqtt5("3.1.2-23")
async def test_session_expiry(cases: Service) -> None:
    """A session outlives its connection by its Session Expiry Interval and no longer."""
    name = fresh("expiry")
    assert not await session_is_present(cases.port, name, 0)
    assert not await session_is_present(cases.port, name, 60)
    assert await session_is_present(cases.port, name, 1)
    await let_pass(cases.port, 1)
    assert not await session_is_present(cases.port, name)


async def test_session_expiry_of_disconnect(cases: Service) -> None:
    """DISCONNECT may change the Session Expiry Interval, up or down to none."""
    name = fresh("changed")
    for expiry, is_kept in ((60, True), (0, False)):
        async with await WireClient.dial(cases.port) as client:
            kept = {"session_expiry_interval": 1}
            assert not (await client.connect(name, properties=kept)).session_present
            await client.send(Disconnect(properties={"session_expiry_interval": expiry}))
            await client.rest()
        if is_kept:
            await let_pass(cases.port, 2)
        assert await session_is_present(cases.port, name) is is_kept


# -- messages ---------------------------------------------------------------------------------


@pytest.mark.mqtt5("3.3.2-4", "3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-20")
def test_properties_come_as_published(cases: Service) -> None:
    """At each QoS, live and retained, those of the message are what the publisher gave."""
    topic = fresh("properties")
    pairs = [("c", "3"), ("a", "2"), ("c", "3")]
    sent = publish_properties(
        UserProperty=pairs,
        PayloadFormatIndicator=1,
        ContentType="text/plain",
        ResponseTopic="r",
        CorrelationData=b"\x00\xff",
    )
    with connect(cases.port, topic) as client:
        assert client.subscribe(topic, 2)
        for qos in range(3):
            client.publish(topic, "ü".encode(), qos, properties=sent, retain=qos == 2)
        messages = [client.message() for _ in range(3)]
        assert client.subscribe(topic, 2)
        messages.append(client.message())
        assert [(m.qos, m.retain) for m in messages] == [(0, 0), (1, 0), (2, 0), (2, 1)]
        for message in messages:
            came: Any = message.properties
            assert came.UserProperty == pairs
            assert (came.PayloadFormatIndicator, came.ContentType) == (1, "text/plain")
            assert (came.ResponseTopic, came.CorrelationData) == ("r", b"\x00\xff")


@pytest.mark.mqtt5("3.3.2-5", "3.3.2-6")
async def test_publication_expiry(cases: Service) -> None:
    """Expired messages do not come; the others say how many seconds are left."""
    topic = fresh("publication")
    with connect(cases.port, topic, expiry=60) as client:
        assert client.subscribe(topic, 2)
    with connect(cases.port, f"{topic}-publisher") as publisher:
        for seconds in (1, 3600):
            for qos in (1, 2):
                sent = publish_properties(MessageExpiryInterval=seconds)
                publisher.publish(topic, b"%d" % seconds, qos, properties=sent)
        await let_pass(cases.port, 2)
        with connect(cases.port, topic, expiry=60) as client:
            publisher.publish(topic, b"end", 2)
            came: list[Any] = until(client, b"end")
            assert [(m.payload, m.qos) for m in came] == [(b"3600", 1), (b"3600", 2)]
            assert all(3000 < m.properties.MessageExpiryInterval < 3600 for m in came)


@pytest.mark.mqtt5("3.8.3-3")
def test_no_local(cases: Service) -> None:
    """A client that wants none of its own gets none; another one gets it."""
    topic = fresh("no local")
    with connect(cases.port, topic) as client, connect(cases.port, f"{topic}-other") as other:
        for subscriber in (client, other):
            assert subscriber.subscribe(topic, options=SubscribeOptions(2, noLocal=True))
        client.publish(topic, b"data")
        assert other.payloads(1) == [b"data"]
        other.publish(topic, b"end")
        assert not until(client, b"end")


@pytest.mark.mqtt5("3.3.1-12", "3.3.1-13")
@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published(cases: Service, *, as_published: bool) -> None:
    """A live message has the publisher's RETAIN flag for who asked for it."""
    topic = fresh("flag")
    with connect(cases.port, topic) as client:
        options = SubscribeOptions(2, retainAsPublished=as_published)
        assert client.subscribe(topic, options=options)
        client.publish(topic, b"data", retain=False)
        client.publish(topic, b"data", retain=True)
        assert [client.message().retain for _ in range(2)] == [False, as_published]


@pytest.mark.mqtt5("3.3.1-9", "3.3.1-10", "3.3.1-11")
@pytest.mark.parametrize(("handling", "n_first", "n_again"), [(0, 3, 3), (1, 3, 0), (2, 0, 0)])
def test_retain_handling(cases: Service, handling: int, n_first: int, n_again: int) -> None:
    """Retained messages come at each subscribe, at the first one, or at none."""
    base = fresh("handling")
    with connect(cases.port, base) as client:
        for qos in range(3):
            client.publish(f"{base}/{qos}", b"data", qos, retain=True)
        for n_expected in (n_first, n_again):
            options = SubscribeOptions(2, retainHandling=handling)
            assert client.subscribe(f"{base}/#", options=options)
            client.publish(f"{base}/end", b"end", 2)  # as slow as the slowest
            qos_of_all = sorted(message.qos for message in until(client, b"end"))
            assert qos_of_all == list(range(n_expected))


@pytest.mark.mqtt5("3.1.3-7", "3.2.2-16")
async def test_assigned_client_id(cases: Service) -> None:
    """Clients without a Client Identifier are told the one they got, each its own."""
    names = set()
    for _ in range(2):
        async with await WireClient.dial(cases.port) as client:
            names.add((await client.connect()).properties["assigned_client_identifier"])
    assert len(names) == 2
    assert "" not in names


@pytest.mark.mqtt5("3.3.4-3", "3.3.4-4")
def test_subscription_identifiers(cases: Service) -> None:
    """A message says which of the client's subscriptions it came for."""
    topic = fresh("identifiers")

    def identified(number: int) -> dict[str, Any]:
        values = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=number)
        return {"qos": 2, "properties": values}

    with connect(cases.port, topic) as one, connect(cases.port, f"{topic}-two") as two:
        assert one.subscribe(topic, **identified(456_789))
        assert two.subscribe(topic, **identified(2))
        assert two.subscribe(f"{topic}/#", **identified(3))
        two.publish(topic, b"data")
        came: list[Any] = [one.message(), two.message()]
        assert came[0].properties.SubscriptionIdentifier == [456_789]
        assert sorted(came[1].properties.SubscriptionIdentifier) == [2, 3]


def test_request_response(cases: Service) -> None:
    """A responder finds where to answer, and the answer finds its request."""
    topic = fresh("request")
    asked = publish_properties(ResponseTopic=f"{topic}/answer", CorrelationData=b"\x00\xff")
    with connect(cases.port, topic) as requester, connect(cases.port, f"{topic}-2") as responder:
        assert requester.subscribe(f"{topic}/answer", 1)
        assert responder.subscribe(topic, 1)
        requester.publish(topic, b"question", properties=asked)
        question: Any = responder.message().properties
        back = publish_properties(CorrelationData=question.CorrelationData)
        responder.publish(question.ResponseTopic, b"answer", properties=back)
        answer: Any = requester.message()
        assert (answer.payload, answer.properties.CorrelationData) == (b"answer", b"\x00\xff")


# -- limits -----------------------------------------------------------------------------------


async def test_maximum_packet_size_of_server(cases: Service) -> None:
    """CONNACK says how much a packet may hold; a larger one ends the connection (3.2.2.3.6)."""
    topic = fresh("too large")
    async with await WireClient.dial(cases.port) as client:
        maximum = (await client.connect()).properties["maximum_packet_size"]
        assert maximum == LIMITS["maximum_packet_size"]
        await client.send(Publish(topic, bytes(maximum)))
        assert ending(await client.rest()) == 0x95


@pytest.mark.mqtt5("3.1.2-24", "3.1.2-25")
async def test_maximum_packet_size_of_client(cases: Service) -> None:
    """A message that is too large for a client is not sent to it, as if it had got it."""
    topic = fresh("size")
    small = {"maximum_packet_size": 64, "receive_maximum": 1}
    publisher, other = await connected(cases.port), await connected(cases.port)
    async with publisher, other, await WireClient.dial(cases.port) as client:
        await client.connect(properties=small)
        await client.subscribe(topic, 2)
        await other.subscribe(topic, 2)
        for size in (32, 64, 8):
            assert not (await publisher.publish(topic, bytes(size))).reason_code
            message = await other.take(Publish)
            assert len(message.payload) == size
            await other.send(PubAck(message.packet_id))
        for size in (32, 8):
            message = await client.take(Publish)
            assert len(message.payload) == size
            await client.send(PubAck(message.packet_id))


@pytest.mark.parametrize(("asked", "told"), [(120, 60), (0, 60), (30, None)])
async def test_server_keep_alive(cases: Service, asked: int, told: int | None) -> None:
    """A client that asks for more than the broker's limit is told what holds."""
    async with await WireClient.dial(cases.port) as client:
        connack = await client.connect(keep_alive=asked)
        assert connack.properties.get("server_keep_alive") == told


@pytest.mark.mqtt5("3.3.4-9")
async def test_receive_maximum_of_client(cases: Service) -> None:
    """No more is sent than the client takes unacknowledged; each PUBACK lets one more out."""
    topic = fresh("window")
    async with await WireClient.dial(cases.port) as client, await connected(cases.port) as other:
        await client.connect(properties={"receive_maximum": 2})
        await client.subscribe(topic, 2)
        for number in range(4):
            await other.publish(topic, b"%d" % number)
        first, second = await client.take(Publish), await client.take(Publish)
        await client.send(PingReq())
        await client.take(PingResp)
        await client.send(PubAck(second.packet_id))
        third = await client.take(Publish)
        await client.send(PubAck(first.packet_id), PubAck(third.packet_id))
        fourth = await client.take(Publish)
        payloads = [message.payload for message in (first, second, third, fourth)]
        assert payloads == [b"0", b"1", b"2", b"3"]


async def test_receive_maximum_of_server(cases: Service) -> None:
    """A client that has more unacknowledged than allowed is disconnected (3.3.4)."""
    topic = fresh("too many")
    async with await WireClient.dial(cases.port) as client:
        maximum = (await client.connect()).properties["receive_maximum"]
        assert maximum == LIMITS["receive_maximum"]
        for number in range(maximum + 1):
            await client.send(Publish(topic, qos=2, packet_id=number + 1))
        assert ending(await client.rest()) == 0x93


# -- topic aliases, shared subscriptions ------------------------------------------------------


async def publish_by_alias(client: WireClient, topic: str, alias: int, number: int) -> None:
    """Publish at QoS 1 with a topic alias, and take the acknowledgement."""
    await client.send(Publish(topic, qos=1, packet_id=number, properties={"topic_alias": alias}))
    assert (await client.take(PubAck)).reason_code < 0x80


@pytest.mark.mqtt5("3.3.2-12")
async def test_client_topic_alias(cases: Service) -> None:
    """A message without a topic goes where its alias was last set to."""
    base = fresh("alias")
    async with await connected(cases.port) as watcher, await WireClient.dial(cases.port) as client:
        await watcher.subscribe(f"{base}/#", 0)
        maximum = (await client.connect()).properties["topic_alias_maximum"]
        for number, topic in enumerate((f"{base}/a", "", f"{base}/b", ""), 1):
            await publish_by_alias(client, topic, maximum, number)
        came = [await watcher.take(Publish) for _ in range(4)]
        assert [m.topic for m in came] == [f"{base}/a"] * 2 + [f"{base}/b"] * 2
        assert not any(m.properties for m in came)


@pytest.mark.mqtt5("3.3.2-7")
async def test_topic_aliases_end(cases: Service) -> None:
    """An alias is of its connection: after a reconnect nobody knows it, session or not."""
    topic = fresh("alias ends")
    kept: dict[str, Any] = {"properties": {"session_expiry_interval": 60}, "clean_start": False}
    async with await connected(cases.port, topic, **kept) as client:
        await publish_by_alias(client, topic, 1, 1)
    async with await connected(cases.port, topic, **kept) as client:
        await client.send(Publish("", properties={"topic_alias": 1}))
        (said,) = await client.rest()
        assert isinstance(said, Disconnect)
        assert said.reason_code in (0x82, 0x94)


@pytest.mark.mqtt5("3.3.2-8", "3.3.2-9")
@pytest.mark.parametrize("beyond", [False, True])
async def test_invalid_topic_alias(cases: Service, *, beyond: bool) -> None:
    """An alias of 0, or beyond the server's maximum, ends the connection."""
    async with await WireClient.dial(cases.port) as client:
        maximum = (await client.connect()).properties["topic_alias_maximum"]
        alias = maximum + 1 if beyond else 0
        await client.send(Publish("t", properties={"topic_alias": alias}))
        (said,) = await client.rest()
        assert isinstance(said, Disconnect)
        assert said.reason_code == 0x94


async def test_server_topic_alias(cases: Service) -> None:
    """A client that allows it is sent a topic once, and then its alias, at every QoS."""
    topic = fresh("server alias")
    async with await connected(cases.port) as other, await WireClient.dial(cases.port) as client:
        await client.connect(properties={"topic_alias_maximum": 1})
        await client.subscribe(topic, 2)
        for qos in range(3):
            await other.send(Publish(topic, qos=qos, packet_id=qos))
        first, *rest = [await client.take(Publish) for _ in range(3)]
        assert (first.topic, first.properties) == (topic, {"topic_alias": 1})
        assert [(m.topic, m.properties) for m in rest] == [("", {"topic_alias": 1})] * 2


@pytest.mark.mqtt5("3.1.2-27")
@pytest.mark.parametrize("allowed", [{}, {"topic_alias_maximum": 0}])
async def test_no_server_topic_alias(cases: Service, allowed: dict[str, Any]) -> None:
    """A client that allows none is sent every topic whole."""
    topic = fresh("no alias")
    async with await connected(cases.port) as other, await WireClient.dial(cases.port) as client:
        await client.connect(properties=allowed)
        await client.subscribe(topic, 2)
        for qos in range(3):
            await other.send(Publish(topic, qos=qos, packet_id=qos))
        came = [await client.take(Publish) for _ in range(3)]
        assert [(m.topic, m.properties) for m in came] == [(topic, {})] * 3


def test_shared_subscription(cases: Service) -> None:
    """One member gets each message of the share; own subscriptions of both get theirs."""
    topic = fresh("shared")
    with connect(cases.port, topic) as one, connect(cases.port, f"{topic}-two") as two:
        for client in (one, two):
            assert client.subscribe(f"$share/{topic}/{topic}/work", 2)
            assert client.subscribe(f"{topic}/news", 2)
        for number in range(4):
            one.publish(f"{topic}/work", b"%d" % number, 0)
        one.publish(f"{topic}/news", b"end", 0)
        came = [message.payload for client in (one, two) for message in until(client, b"end")]
        assert sorted(came) == [b"0", b"1", b"2", b"3"]
