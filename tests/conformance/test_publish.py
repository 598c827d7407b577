"""Section 3.3: PUBLISH, from its flags to its properties."""

from __future__ import annotations

import pytest

from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.mqtt.packets import (
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.conformance.clients import (
    IN_EACH_VERSION,
    MALFORMED,
    PROTOCOL_ERROR,
    assert_closed,
    frame,
    keep,
    pair,
)
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker


def retained(broker: VirtualBroker, topic: str = "t", version: int = 5) -> list[Publish]:
    """Return what a client that subscribes now is sent."""
    client = broker.connect("late", version)
    client.subscribe(topic, 2)
    return client.take_all(Publish)


# -- DUP and QoS


@pytest.mark.mqtt5("3.3.1-2")
@pytest.mark.mqtt311("3.3.1-2")
@IN_EACH_VERSION
def test_dup_without_a_repeat_to_acknowledge_is_malformed(version: int) -> None:
    """QoS 0 has no repeats."""
    client = VirtualBroker().connect("c", version)
    client.send_bytes(frame(0x38, "0001 74 00"))
    assert_closed(client, MALFORMED)


@pytest.mark.mqtt5("3.3.1-1", "3.3.1-3")
@pytest.mark.mqtt311("3.3.1-1", "3.3.1-3")
@IN_EACH_VERSION
def test_dup_tells_of_this_sending_alone(version: int) -> None:
    """What a publisher repeats goes out as new; what the broker repeats has DUP."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 1)
    publisher.publish("t", b"repeated", qos=1, dup=True)
    assert not subscriber.take(Publish).dup
    publisher.publish("t", b"new", qos=1, packet_id=2)
    assert not subscriber.take(Publish).dup
    subscriber.lose()
    again = broker.connect("s", version, **keep(version))
    assert [packet.dup for packet in again.take_all(Publish)] == [True, True]


@pytest.mark.mqtt5("3.3.1-4")
@pytest.mark.mqtt311("3.3.1-4")
@IN_EACH_VERSION
def test_qos_3_is_malformed(version: int) -> None:
    """There are three of them."""
    client = VirtualBroker().connect("c", version)
    client.send_bytes(frame(0x36, "0001 74 0001 00"))
    assert_closed(client, MALFORMED)


@pytest.mark.mqtt5("3.3.4-1", "4.3.2-4", "4.3.3-8")
@pytest.mark.mqtt311("3.3.4-1", "4.3.2-2", "4.3.3-2")
@IN_EACH_VERSION
def test_each_qos_has_its_answer(version: int) -> None:
    """None, PUBACK, PUBREC; whether anybody has subscribed or not."""
    client = VirtualBroker().connect("c", version)
    client.publish("t", b"0")
    client.publish("t", b"1", qos=1, packet_id=7)
    client.publish("t", b"2", qos=2, packet_id=8)
    assert client.take(PubAck).packet_id == 7
    assert client.take(PubRec).packet_id == 8
    assert client.inbox == []


# -- RETAIN


@pytest.mark.mqtt5("3.3.1-5", "3.3.1-9")
@pytest.mark.mqtt311("3.3.1-5", "3.3.1-6", "3.3.1-8")
@IN_EACH_VERSION
def test_the_last_retained_message_comes_to_later_subscribers(version: int) -> None:
    """With its QoS and with RETAIN, of each topic that matches."""
    broker = VirtualBroker()
    publisher = broker.connect("p", version)
    publisher.publish("a", b"old", qos=1, retain=True)
    publisher.publish("a", b"new", qos=2, retain=True, packet_id=2)
    publisher.publish("b", b"b", qos=1, retain=True, packet_id=3)
    found = retained(broker, "+", version)
    assert sorted((p.topic, p.payload, p.qos) for p in found) == [("a", b"new", 2), ("b", b"b", 1)]
    assert all(packet.retain for packet in found)


@pytest.mark.mqtt311("3.3.1-7")
@IN_EACH_VERSION
def test_a_retained_message_of_qos_0_takes_the_place_of_another(version: int) -> None:
    """What was retained before is gone."""
    broker = VirtualBroker()
    publisher = broker.connect("p", version)
    publisher.publish("t", b"old", qos=1, retain=True)
    publisher.publish("t", b"new", retain=True)
    assert [packet.payload for packet in retained(broker, "t", version)] == [b"new"]


@pytest.mark.mqtt5("3.3.1-6", "3.3.1-7")
@pytest.mark.mqtt311("3.3.1-10", "3.3.1-11")
@IN_EACH_VERSION
def test_a_retained_message_without_payload_removes_and_is_delivered(version: int) -> None:
    """Who is subscribed gets it, who comes later gets nothing."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version)
    publisher.publish("t", b"old", retain=True)
    publisher.publish("t", b"", retain=True)
    publisher.publish("never", b"", retain=True)
    assert subscriber.payloads() == [b"old", b"", b""]
    assert retained(broker, "#", version) == []


@pytest.mark.mqtt5("3.3.1-8")
@pytest.mark.mqtt311("3.3.1-12")
@pytest.mark.parametrize("payload", [b"x", b""])
@IN_EACH_VERSION
def test_a_message_without_retain_leaves_the_retained_one_alone(
    version: int, payload: bytes
) -> None:
    """It is neither kept nor does it remove or replace anything."""
    broker = VirtualBroker()
    publisher = broker.connect("p", version)
    publisher.publish("t", b"kept", retain=True)
    publisher.publish("t", payload)
    publisher.publish("other", payload)
    assert [(p.topic, p.payload) for p in retained(broker, "#", version)] == [("t", b"kept")]


@pytest.mark.mqtt5("3.3.1-12")
@pytest.mark.mqtt311("3.3.1-9")
@IN_EACH_VERSION
def test_a_subscriber_sees_no_retain_on_what_comes_later(version: int) -> None:
    """RETAIN is for the messages that a subscribe brings."""
    publisher, subscriber = pair(VirtualBroker(), version)
    for number in range(3):
        publisher.publish("t", b"%d" % number, retain=True)
    assert [packet.retain for packet in subscriber.take_all(Publish)] == [False] * 3


# -- topics


@pytest.mark.mqtt5("3.3.2-2", "4.7.0-1")
@pytest.mark.mqtt311("3.3.2-2", "4.7.1-1")
@pytest.mark.parametrize("topic", ["2b", "23", "612f2b", "612f23", "6123", "2b61"])
@IN_EACH_VERSION
def test_a_topic_with_a_wildcard_is_refused(version: int, topic: str) -> None:
    """One cannot publish to many topics at a time."""
    broker = VirtualBroker()
    _, subscriber = pair(broker, version)
    client = broker.connect("c", version)
    client.send_bytes(frame(0x30, f"{len(topic) // 2:04x} {topic} 00"))
    assert_closed(client, MALFORMED)
    assert subscriber.inbox == []


@pytest.mark.mqtt5("3.3.2-3")
@pytest.mark.mqtt311("3.3.2-3")
@IN_EACH_VERSION
def test_subscribers_get_topics_that_match_their_filter(version: int) -> None:
    """Those and no others, under the very names that they were published to."""
    broker = VirtualBroker()
    topics = ["a", "a/b", "a/b/c", "b", "/a", "a/"]
    wanted = {"a/#": {"a", "a/b", "a/b/c", "a/"}, "+": {"a", "b"}, "a/+": {"a/b", "a/"}}
    subscribers = {}
    for number, topic_filter in enumerate(wanted):
        subscribers[topic_filter] = broker.connect(f"s{number}", version)
        subscribers[topic_filter].subscribe(topic_filter)
    publisher = broker.connect("p", version)
    publisher.send(*(Publish(topic) for topic in topics))
    for topic_filter, expected in wanted.items():
        assert {p.topic for p in subscribers[topic_filter].take_all(Publish)} == expected


# -- properties


@pytest.mark.mqtt5("3.3.2-14")
@pytest.mark.parametrize("topic", ["a/+", "#"])
def test_a_response_topic_has_no_wildcard(topic: str) -> None:
    """One answers to one topic."""
    client = VirtualBroker().connect()
    client.publish("t", properties={"response_topic": topic})
    assert_closed(client, PROTOCOL_ERROR)


@pytest.mark.mqtt5("3.3.4-6", "4.13.1-1")
def test_a_publisher_sends_no_subscription_identifier() -> None:
    """Those are the subscribers'."""
    client = VirtualBroker().connect()
    client.publish("t", properties={"subscription_identifier": [1]})
    assert_closed(client, PROTOCOL_ERROR)


# -- several subscriptions, quotas


@pytest.mark.mqtt5("3.3.4-2", "3.3.4-3", "3.3.4-4")
@pytest.mark.mqtt311("3.3.5-1")
@IN_EACH_VERSION
def test_overlapping_subscriptions_bring_the_highest_qos(version: int) -> None:
    """In one copy, with the identifiers of all subscriptions that have one."""
    broker = VirtualBroker()
    subscriber = broker.connect("s", version)
    for number, (topic_filter, qos) in enumerate([("a/#", 1), ("a/b", 2), ("+/b", 0)]):
        identifier = {"subscription_identifier": [number]} if version == 5 and number else {}
        subscriber.subscribe(topic_filter, qos, properties=identifier)
    broker.connect("p", version).publish("a/b", b"x", qos=2)
    packet = subscriber.take(Publish)
    assert packet.qos == 2
    assert subscriber.inbox == []
    if version == 5:
        assert sorted(packet.properties["subscription_identifier"]) == [1, 2]


@pytest.mark.mqtt5("3.3.4-9", "3.3.4-10", "4.9.0-1", "4.9.0-2", "4.9.0-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_receive_maximum_holds_back_publish_and_nothing_else(qos: int) -> None:
    """With the quota used up all other packets are answered, and QoS 0 is delivered."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    client = broker.connect("s", properties={"receive_maximum": 2})
    client.subscribe("t", qos)
    for packet_id in range(1, 5):
        publisher.publish("t", b"%d" % packet_id, qos=qos, packet_id=packet_id)
    assert client.payloads() == [b"1", b"2"]
    client.send(
        PingReq(),
        Subscribe(1, (SubscriptionRequest("u", qos),)),
        Unsubscribe(2, ("u",)),
        Publish("x", qos=1, packet_id=3),
    )
    assert [type(packet) for packet in client.inbox] == [PingResp, SubAck, UnsubAck, PubAck]
    client.inbox.clear()
    publisher.publish("t", b"0")
    assert client.payloads() == [b"0"]


@pytest.mark.mqtt5("3.3.4-9", "4.9.0-2")
def test_a_qos_2_message_keeps_its_place_until_pubcomp() -> None:
    """PUBREC alone makes no room for another message; one that refuses does."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    client = broker.connect("s", properties={"receive_maximum": 1})
    client.subscribe("t", 2)
    for packet_id in range(1, 4):
        publisher.publish("t", b"%d" % packet_id, qos=2, packet_id=packet_id)
    first = client.take(Publish)
    client.send(PubRec(first.packet_id))
    assert client.inbox == [PubRel(first.packet_id)]
    client.inbox.clear()
    client.send(PubComp(first.packet_id))
    second = client.take(Publish)
    assert second.payload == b"2"
    client.send(PubRec(second.packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert client.payloads() == [b"3"]


@pytest.mark.mqtt311("3.3.5-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_is_not_allowed_is_acknowledged_in_mqtt_3_1_1(qos: int) -> None:
    """There is no word for a refusal: the client goes on, and nobody gets the message."""
    access = Access()
    broker = VirtualBroker(access=access)
    publisher, subscriber = pair(broker, 4)
    access.refused.add(("publish", "no"))
    publisher.publish("no", b"x", qos=qos, packet_id=5)
    assert publisher.inbox == [PubAck(5) if qos == 1 else PubRec(5)]
    assert not publisher.is_lost
    assert subscriber.inbox == []


# -- topic aliases


@pytest.mark.mqtt5("3.2.2-17", "3.2.2-18", "3.3.2-9", "4.13.1-1")
@pytest.mark.parametrize(("maximum", "alias"), [(3, 4), (3, 65_535), (0, 1)])
def test_an_alias_beyond_the_brokers_maximum_ends_the_connection(maximum: int, alias: int) -> None:
    """Where CONNACK names no Topic Alias Maximum, every alias is beyond it."""
    broker = VirtualBroker(options=MqttOptions(topic_alias_maximum=maximum))
    client = broker.connect()
    assert client.connack.properties.get("topic_alias_maximum", 0) == maximum
    client.publish("t", properties={"topic_alias": alias})
    assert_closed(client, ReasonCode.TOPIC_ALIAS_INVALID)
