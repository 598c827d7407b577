"""Limits of topics and subscriptions, on a virtual clock: n passes, n + 1 is refused."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.receiving.subscribing import MIN_FILTERS
from tests.helpers.access import finish
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

LIMITS = Limits(topic_bytes=6, topic_levels=3)

WITHIN = ["a/b/c", "abcdef", "a/äö", "//"]
BEYOND = ["a/b/c/d", "abcdefg", "a/äöü", "///", "a\tb", "\x7f"]

INVALID_NAME = "topic name invalid (0x90)"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", WITHIN)
def test_topics_at_the_limits_pass(topic: str, qos: int, version: int) -> None:
    """As many bytes of UTF-8 and levels as are allowed, in publishes, filters and wills."""
    broker = VirtualBroker(LIMITS)
    subscriber = broker.connect("s", version)
    assert subscriber.subscribe(topic, qos) == qos
    publisher = broker.connect("p", version, will=will(topic, b"will"))
    publisher.publish(topic, b"x", qos=qos)
    publisher.lose()
    assert subscriber.payloads() == [b"x", b"will"]
    assert broker.core.counters.subscribe_refused == {}


@pytest.mark.parametrize("topic", BEYOND)
def test_a_topic_beyond_the_limits_is_refused_by_the_acknowledgement(topic: str) -> None:
    """MQTT 5: PUBACK and PUBREC say Topic Name invalid; the connection goes on."""
    broker = VirtualBroker(LIMITS)
    subscriber = broker.connect("s")
    subscriber.subscribe("#")
    publisher = broker.connect("p")
    for _ in range(2):
        publisher.publish(topic, b"x", qos=1)
        refusal = publisher.take(PubAck)
        assert refusal.reason_code == ReasonCode.TOPIC_NAME_INVALID
        assert "allowed" in refusal.properties["reason_string"]
    publisher.publish(topic, b"x", qos=2, packet_id=2)
    assert publisher.take(PubRec).reason_code == ReasonCode.TOPIC_NAME_INVALID
    publisher.publish("fine", b"y", qos=1)
    assert publisher.take(PubAck) == PubAck(1)
    assert subscriber.payloads() == [b"y"]
    assert broker.core.counters.publish_refused == {INVALID_NAME: 3}
    assert topic.encode() not in broker.core.tree.plans


@pytest.mark.parametrize(("version", "qos"), [(5, 0), (4, 0), (4, 1), (4, 2)])
def test_where_no_acknowledgement_can_say_it_the_connection_ends(version: int, qos: int) -> None:
    """At QoS 0 and in MQTT 3.1.1, which has no word for it."""
    broker = VirtualBroker(LIMITS)
    publisher = broker.connect("p", version)
    publisher.publish("a/b/c/d", b"x", qos=qos)
    wanted = [ReasonCode.TOPIC_NAME_INVALID] if version == 5 else []
    assert [packet.reason_code for packet in publisher.take_all(Disconnect)] == wanted
    assert publisher.inbox == []
    assert publisher.is_lost
    assert broker.core.counters.peer_errors == {ReasonCode.TOPIC_NAME_INVALID: 1}


@pytest.mark.parametrize("topic", BEYOND)
@pytest.mark.parametrize(("version", "code"), [(5, ReasonCode.TOPIC_FILTER_INVALID), (4, 0x80)])
def test_a_filter_beyond_the_limits_is_refused_by_suback(
    topic: str, version: int, code: int
) -> None:
    """The other filters of the SUBSCRIBE are granted."""
    broker = VirtualBroker(LIMITS)
    client = broker.connect("c", version)
    client.send(
        Subscribe(
            1, (SubscriptionRequest("a"), SubscriptionRequest(topic), SubscriptionRequest("b", 1))
        )
    )
    assert client.take(SubAck).reason_codes == (0, code, 1)
    assert list(client.session.subscriptions) == ["a", "b"]
    assert broker.core.counters.subscribe_refused == {"topic filter invalid (0x8F)": 1}


@pytest.mark.parametrize("topic", BEYOND)
@pytest.mark.parametrize("version", [4, 5])
def test_a_will_topic_beyond_the_limits_refuses_the_client(topic: str, version: int) -> None:
    """CONNACK says Topic Name invalid in MQTT 5; MQTT 3.1.1 has no return code for it."""
    broker = VirtualBroker(LIMITS)
    client = VirtualClient(broker, version)
    client.send(Connect(client_id="c", protocol_version=version, will=will(topic)))
    codes = [packet.reason_code for packet in client.take_all(ConnAck)]
    assert codes == ([ReasonCode.TOPIC_NAME_INVALID] if version == 5 else [])
    assert client.is_lost
    assert len(broker.core.sessions) == 0


def test_a_topic_of_the_format_s_deepest_kind_costs_little() -> None:
    """A name of 65,535 levels leaves nothing behind, by default too."""
    broker = VirtualBroker()
    client = broker.connect("c")
    client.publish("/" * 65_534, b"x", qos=1, retain=True)
    assert client.take(PubAck).reason_code == ReasonCode.TOPIC_NAME_INVALID
    assert client.subscribe("/" * 65_534) == ReasonCode.TOPIC_FILTER_INVALID
    assert len(broker.core.retained) == broker.core.tree.n_subscriptions == 0


@pytest.mark.parametrize(("version", "code"), [(5, ReasonCode.QUOTA_EXCEEDED), (4, 0x80)])
def test_one_subscription_more_than_allowed_is_refused(version: int, code: int) -> None:
    """One that is there already may be replaced, and one that is given up makes room."""
    broker = VirtualBroker(Limits(subscriptions=2))
    client = broker.connect("c", version)
    assert [client.subscribe(name) for name in ("a", "b", "c")] == [0, 0, code]
    assert client.subscribe("a", 1) == 1
    client.send(Unsubscribe(1, ("b",)))
    assert [client.subscribe(name) for name in ("c", "b")] == [0, code]
    assert broker.connect("other", version).subscribe("b") == 0
    assert broker.core.counters.subscribe_refused == {"quota exceeded (0x97)": 2}
    broker.connect("p").publish("b", b"x")
    assert client.take_all(Publish) == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_one_packet_with_more_filters_than_a_session_may_have_closes(
    kind: type[Subscribe | Unsubscribe], version: int
) -> None:
    """Others do not wait while a hundred thousand filters are read and refused one by one."""
    broker = VirtualBroker(Limits(subscriptions=3))
    client = broker.connect("c", version)

    def send(n_filters: int) -> None:
        if kind is Subscribe:
            client.send(Subscribe(1, (SubscriptionRequest("a"),) * n_filters))
        else:
            client.send(Unsubscribe(1, ("a",) * n_filters))
        finish(client)

    send(MIN_FILTERS)
    (answer,) = client.inbox
    assert isinstance(answer, SubAck | UnsubAck)
    if kind is Subscribe or version == 5:
        assert len(answer.reason_codes) == MIN_FILTERS
    client.inbox.clear()
    send(MIN_FILTERS + 1)
    codes = [packet.reason_code for packet in client.take_all(Disconnect)]
    assert codes == ([ReasonCode.QUOTA_EXCEEDED] if version == 5 else [])
    assert client.inbox == []
    assert client.is_lost
    assert broker.core.counters.peer_errors == {ReasonCode.QUOTA_EXCEEDED: 1}


@pytest.mark.parametrize("topic", ["a\tb", "\x01", "\x9f", "\ufdd0", "a/\U0010ffff"])
def test_control_characters_are_allowed_where_the_policy_file_says_so(topic: str) -> None:
    """The specification advises against them, and does not forbid them."""
    broker = VirtualBroker(Limits(topic_control_characters=True))
    subscriber = broker.connect("s")
    assert subscriber.subscribe(f"$share/a\tb/{topic}", 1) == 1
    broker.connect("p").publish(topic, b"x", qos=1)
    assert subscriber.payloads() == [b"x"]


def test_the_name_of_a_share_has_none_either() -> None:
    """It is shown as topics are."""
    subscriber = VirtualBroker().connect("s")
    assert subscriber.subscribe("$share/a\tb/c") == ReasonCode.TOPIC_FILTER_INVALID
