"""Sections 4.5 and 4.6: who gets a message, and in which order."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from tests.conformance.clients import IN_EACH_VERSION, keep, pair
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker


@pytest.mark.mqtt5("4.5.0-1")
@pytest.mark.mqtt311("4.5.0-1")
@IN_EACH_VERSION
def test_a_message_reaches_every_session_that_subscribed(version: int) -> None:
    """Those that are there now, and those that come back."""
    broker = VirtualBroker()
    publisher = broker.connect("p", version)
    for name in ("here", "away", "elsewhere"):
        client = broker.connect(name, version, **keep(version))
        client.subscribe("other" if name == "elsewhere" else "t/+", 1)
        if name == "away":
            client.lose()
        elif name == "here":
            here = client
    publisher.publish("t/x", b"1", qos=1)
    publisher.publish("t/x", b"2", qos=2, packet_id=2)
    assert here.acknowledge() == [b"1", b"2"]
    assert broker.connect("away", version, **keep(version)).acknowledge() == [b"1", b"2"]
    assert client.inbox == []


@pytest.mark.mqtt5("4.6.0-1")
@pytest.mark.mqtt311("4.6.0-1")
@IN_EACH_VERSION
def test_what_is_sent_again_keeps_its_order(version: int) -> None:
    """QoS 1 and 2 mixed, with holes where acknowledgements came."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 2)
    for number in range(1, 10):
        publisher.publish("t", b"%d" % number, qos=1 + number % 2, packet_id=number)
    packets = subscriber.take_all(Publish)
    subscriber.send(PubAck(packets[3].packet_id), PubAck(packets[5].packet_id))
    subscriber.lose()
    again = broker.connect("s", version, **keep(version))
    assert again.payloads() == [b"1", b"2", b"3", b"5", b"7", b"8", b"9"]


@pytest.mark.mqtt5("4.6.0-2", "4.6.0-3")
@pytest.mark.mqtt311("4.6.0-2", "4.6.0-3")
@pytest.mark.parametrize(("qos", "kind"), [(1, PubAck), (2, PubRec)])
@IN_EACH_VERSION
def test_publishes_are_acknowledged_in_the_order_they_came(
    version: int, qos: int, kind: type[PubAck | PubRec]
) -> None:
    """Though what some wait for is ready later than what others wait for."""
    sink = HoldingSink("q")
    broker = VirtualBroker(sinks=[sink])
    publisher = broker.connect("p", version)
    for packet_id, topic in enumerate(["q", "t", "q", "t", "q"], 1):
        publisher.publish(topic, b"x", qos=qos, packet_id=packet_id)
    assert publisher.inbox == []
    for receipt in reversed(sink.receipts):
        assert receipt is not None
        receipt.settle(0)
        broker.settle()
    assert [packet.packet_id for packet in publisher.take_all(kind)] == [1, 2, 3, 4, 5]


@pytest.mark.mqtt5("4.6.0-4")
@pytest.mark.mqtt311("4.6.0-4")
@IN_EACH_VERSION
def test_pubrels_are_sent_in_the_order_of_their_pubrecs(version: int) -> None:
    """Whatever the order of the messages was."""
    publisher, subscriber = pair(VirtualBroker(), version, 2)
    for packet_id in range(1, 5):
        publisher.publish("t", b"x", qos=2, packet_id=packet_id)
    ids = [packet.packet_id for packet in subscriber.take_all(Publish)]
    order = [ids[2], ids[0], ids[3], ids[1]]
    subscriber.send(*(PubRec(packet_id) for packet_id in order))
    assert [packet.packet_id for packet in subscriber.take_all(PubRel)] == order


@pytest.mark.mqtt5("4.6.0-5", "4.6.0-6")
@pytest.mark.mqtt311("4.6.0-5", "4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["t", "$own/t", "a/b"])
@IN_EACH_VERSION
def test_messages_of_a_topic_keep_their_order(version: int, topic: str, qos: int) -> None:
    """At once, out of a queue with a small quota, and while the connection has no room."""
    broker = VirtualBroker(Limits(inflight_messages=2))
    publisher = broker.connect("p", version)
    subscriber = broker.connect("s", version)
    subscriber.subscribe(topic, qos)
    sent = [b"%d" % number for number in range(30)]
    came: list[bytes] = []
    for number, payload in enumerate(sent, 1):
        if number == 10:
            subscriber.connection.pause_sending(broker.now)
        if number == 20:
            subscriber.connection.resume_sending(broker.now)
        publisher.publish(topic, payload, qos=qos, packet_id=number if qos else 0)
        if qos == 2:
            publisher.send(PubRel(number))
        publisher.inbox.clear()
    for _ in range(len(sent)):
        packets = subscriber.take_all(Publish)
        came += [packet.payload for packet in packets]
        if qos == 1:
            subscriber.send(*(PubAck(packet.packet_id) for packet in packets))
        elif qos == 2:
            subscriber.send(*(PubRec(packet.packet_id) for packet in packets))
            subscriber.send(*(PubComp(packet.packet_id) for packet in packets))
    assert came == sent
