"""Topic Aliases both ways: the tables alone, and between clients on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.errors import ProtocolError
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import Disconnect, PubAck, Publish, PubRec
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.virtual import VirtualBroker, VirtualClient

KEEP: dict[str, Any] = {"clean_start": False}


def taker(broker: VirtualBroker, maximum: int = 10, qos: int = 0, **more: int) -> VirtualClient:
    """Connect a client that takes Topic Aliases and subscribes to everything."""
    properties = {"topic_alias_maximum": maximum, "session_expiry_interval": 60, **more}
    client = broker.connect("s", clean_start=False, properties=properties)
    client.subscribe("#", qos)
    return client


def seen(client: VirtualClient) -> list[tuple[str, int]]:
    """Take all PUBLISH packets off a client; return their topics and aliases."""
    return [(p.topic, p.properties.get("topic_alias", 0)) for p in client.take_all(Publish)]


# -- the tables


def test_an_incoming_alias_stands_for_its_newest_topic() -> None:
    """3.3.2.3.4: a topic that comes with an alias replaces what it stood for."""
    aliases = IncomingAliases(2)
    assert aliases.resolve(2, b"a") == b"a"
    assert aliases.resolve(2, b"") == b"a"
    assert aliases.resolve(2, b"b") == b"b"
    assert aliases.resolve(2, b"") == b"b"


@pytest.mark.parametrize(
    ("maximum", "alias", "topic", "allowed", "code"),
    [
        (0, 1, b"a", "none, Topic Alias Maximum is 0", 0x94),
        (0, 1, b"", "none, Topic Alias Maximum is 0", 0x94),
        (2, 3, b"a", "1 to 2", 0x94),
        (2, 3, b"", "1 to 2", 0x94),
        (2, 0, b"a", "1 to 2", 0x94),
        (2, 0, b"", "1 to 2", 0x94),
        (2, 1, b"", "one that was sent with a topic before", 0x82),
    ],
)
def test_a_wrong_incoming_alias_says_what_is_allowed(
    maximum: int, alias: int, topic: bytes, allowed: str, code: int
) -> None:
    """E2: what was read and what may stand there; the reason code is that of section 3.3.4."""
    with pytest.raises(ProtocolError, match=allowed) as caught:
        IncomingAliases(maximum).resolve(alias, topic)
    assert caught.value.reason_code == code


def test_outgoing_aliases_are_given_to_topics_that_gain_by_them() -> None:
    """The first topics come first; one of three bytes or less would only get longer."""
    aliases = OutgoingAliases(2)
    assert aliases.use(b"long/a") == (1, False)
    assert aliases.use(b"abc") == (0, False)
    assert aliases.use(b"long/b") == (2, False)
    assert aliases.use(b"long/a") == (1, True)
    assert aliases.use(b"long/c") == (0, False)


def test_an_alias_goes_to_a_topic_that_is_used_more() -> None:
    """The topic that came twice since the other one's last message has the alias."""
    aliases = OutgoingAliases(1)
    assert aliases.use(b"was/busy") == (1, False)
    assert aliases.use(b"is/busy") == (0, False)
    assert aliases.use(b"was/busy") == (1, True)
    assert aliases.use(b"is/busy") == (0, False)
    assert aliases.use(b"is/busy") == (1, False)
    assert aliases.use(b"is/busy") == (1, True)
    assert aliases.use(b"was/busy") == (0, False)


def test_more_topics_in_turn_than_aliases_do_not_push_each_other_out() -> None:
    """Those that have an alias keep it: every message of theirs is shorter."""
    aliases = OutgoingAliases(4)
    topics = [b"topic/%d" % number for number in range(10)]
    for topic in topics:
        aliases.use(topic)
    known = [aliases.use(topic)[1] for _ in range(20) for topic in topics]
    assert sum(known) == 20 * 4


def test_an_alias_that_was_not_told_is_free_again() -> None:
    """`forget` undoes the choice of a message that was not sent."""
    aliases = OutgoingAliases(1)
    assert aliases.use(b"too/large") == (1, False)
    aliases.forget(b"too/large")
    assert aliases.use(b"other") == (1, False)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 12), st.booleans())))
def test_a_client_always_knows_which_topic_is_meant(
    maximum: int, messages: list[tuple[int, bool]]
) -> None:
    """What its table says of an alias is the topic, also where a message was not sent."""
    aliases = OutgoingAliases(maximum)
    table: dict[int, bytes] = {}
    for number, is_sent in messages:
        topic = b"topic/%d" % number
        alias, is_known = aliases.use(topic)
        assert 0 <= alias <= maximum
        if is_known:
            assert table[alias] == topic
        elif alias and is_sent:
            table[alias] = topic
        elif alias:
            aliases.forget(topic)


# -- from clients


@pytest.mark.mqtt5("3.2.2-17", "3.3.2-12")
def test_connack_says_how_many_aliases_a_client_may_use() -> None:
    """Every one from 1 to the maximum is taken; by default there are some."""
    broker = VirtualBroker(options=MqttOptions(topic_alias_maximum=3))
    watcher, client = broker.connect("w"), broker.connect("p")
    watcher.subscribe("#")
    assert client.connack.properties["topic_alias_maximum"] == 3
    for alias in (1, 2, 3):
        client.publish(f"t{alias}", b"x", properties={"topic_alias": alias})
    for alias in (3, 1, 2):
        client.publish("", b"y", properties={"topic_alias": alias})
    assert [p.topic for p in watcher.take_all(Publish)] == ["t1", "t2", "t3", "t3", "t1", "t2"]
    none = VirtualBroker(options=MqttOptions(topic_alias_maximum=0)).connect()
    assert "topic_alias_maximum" not in none.connack.properties
    assert VirtualBroker().connect().connack.properties["topic_alias_maximum"] == 64


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("more", [{}, {"content_type": "text/plain"}])
def test_a_message_with_an_alias_is_a_message_of_its_topic(qos: int, more: dict[str, str]) -> None:
    """The alias is between the publisher and the broker: no subscriber sees it."""
    broker = VirtualBroker()
    subscriber, publisher = broker.connect("s"), broker.connect("p")
    subscriber.subscribe("some/topic", 2)
    for number, topic in enumerate(["some/topic", "", ""], 1):
        publisher.publish(
            topic,
            b"%d" % number,
            qos=qos,
            packet_id=number if qos else 0,
            properties={"topic_alias": 5, **more},
        )
    packets = subscriber.take_all(Publish)
    assert [(p.topic, p.payload, p.properties) for p in packets] == [
        ("some/topic", b"%d" % number, more) for number in (1, 2, 3)
    ]
    answers = {0: [], 1: [PubAck(n) for n in (1, 2, 3)], 2: [PubRec(n) for n in (1, 2, 3)]}
    assert publisher.inbox == answers[qos]


@pytest.mark.mqtt5("3.3.2-8", "3.3.2-9")
@pytest.mark.parametrize(
    ("alias", "code"),
    [
        (0, ReasonCode.TOPIC_ALIAS_INVALID),
        (65, ReasonCode.TOPIC_ALIAS_INVALID),
        (7, ReasonCode.PROTOCOL_ERROR),
    ],
)
@pytest.mark.parametrize("more", [b"", b"\x01\x00"])
@pytest.mark.parametrize("qos", [0, 1])
def test_an_alias_that_is_not_allowed_ends_the_connection(
    alias: int, code: ReasonCode, more: bytes, qos: int
) -> None:
    """3.3.4: 0x94 for 0 or above the maximum, 0x82 for one that stands for nothing."""
    client = VirtualBroker().connect()
    body = b"\0\0" + b"\0\1" * qos
    body += bytes((3 + len(more),)) + more + b"\x23" + alias.to_bytes(2) + b"payload"
    client.send_bytes(bytes((0x30 | qos << 1, len(body))) + body)
    packet = client.take(Disconnect)
    assert packet.reason_code == code
    assert client.is_lost


@pytest.mark.mqtt5("3.3.2-7")
def test_an_alias_ends_with_its_connection() -> None:
    """On the next one it stands for nothing, though the session goes on."""
    broker = VirtualBroker()
    keep = {"session_expiry_interval": 60}
    client = broker.connect("p", properties=keep, **KEEP)
    client.publish("t", b"x", properties={"topic_alias": 1})
    client.lose()
    client = broker.connect("p", properties=keep, **KEEP)
    client.publish("", b"y", properties={"topic_alias": 1})
    assert client.take(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_a_repeated_qos2_message_sets_its_alias() -> None:
    """[MQTT-4.3.3-10]: it is not delivered again; its alias is new on this connection."""
    broker = VirtualBroker()
    subscriber = broker.connect("s")
    subscriber.subscribe("#")
    publisher = broker.connect("p")
    for dup in (False, True):
        publisher.publish(
            "t", b"once", qos=2, packet_id=1, dup=dup, properties={"topic_alias": 1 + dup}
        )
    publisher.publish("", b"more", properties={"topic_alias": 2})
    assert subscriber.payloads() == [b"once", b"more"]


# -- to clients


@pytest.mark.mqtt5("3.1.2-26", "3.3.2-11")
def test_the_broker_uses_no_more_aliases_than_the_client_takes() -> None:
    """Its own limit counts too; the topic is left out from the second message on."""
    broker = VirtualBroker(options=MqttOptions(outgoing_topic_aliases=2))
    for maximum, wanted in ((1, 1), (5, 2)):
        client = taker(broker, maximum)
        publisher = broker.connect("p")
        for _ in range(2):
            for name in ("topic/1", "topic/2", "topic/3"):
                publisher.publish(name, b"x")
        first = seen(client)[:3]
        assert sorted(alias for _, alias in first if alias) == list(range(1, wanted + 1))
        assert [topic for topic, _ in first] == ["topic/1", "topic/2", "topic/3"]


@pytest.mark.mqtt5("3.1.2-27")
@pytest.mark.parametrize("maximum", [None, 0])
def test_without_the_clients_word_no_alias_is_sent(maximum: int | None) -> None:
    """Absent or 0: none; and none where the operator has switched them off."""
    properties = {} if maximum is None else {"topic_alias_maximum": maximum}
    broker = VirtualBroker()
    plain = broker.connect("plain", properties=properties)
    plain.subscribe("#")
    off = VirtualBroker(options=MqttOptions(outgoing_topic_aliases=0))
    willing = taker(off)
    for on in (broker, off):
        publisher = on.connect("p")
        for _ in range(3):
            publisher.publish("some/topic", b"x")
    assert seen(plain) == [("some/topic", 0)] * 3
    assert seen(willing) == [("some/topic", 0)] * 3


@pytest.mark.parametrize("qos", [0, 1])
def test_aliases_save_bytes_and_others_get_the_packet_as_it_came(qos: int) -> None:
    """A run of QoS 0 messages passes as it is to who takes no alias, in order to both."""
    broker = VirtualBroker(core_class=FastCore)
    client, other = taker(broker, qos=qos), broker.connect("other")
    other.subscribe("#", qos)
    publisher = broker.connect("p")
    packets = [
        Publish("some/topic", b"%d" % n, qos=qos, packet_id=n if qos else 0) for n in range(1, 9)
    ]
    publisher.send(packets[0])
    publisher.send(*packets[1:])
    assert [p.payload for p in other.take_all(Publish)] == [p.payload for p in packets]
    received = client.take_all(Publish)
    assert [p.payload for p in received] == [p.payload for p in packets]
    assert [p.topic for p in received] == ["some/topic"] + [""] * 7
    assert {p.properties["topic_alias"] for p in received} == {1}
    client.session.check_invariants()


def test_messages_that_are_sent_again_have_their_topic() -> None:
    """[MQTT-3.3.2-7]: the new connection knows no alias yet."""
    broker = VirtualBroker()
    client = taker(broker, qos=1)
    publisher = broker.connect("p")
    for _ in range(3):
        publisher.publish("some/topic", b"x", qos=1)
    assert seen(client) == [("some/topic", 1), ("", 1), ("", 1)]
    client.lose()
    client = taker(broker, qos=1)
    assert seen(client) == [("some/topic", 1), ("", 1), ("", 1)]
    client.lose()
    client = broker.connect("s", clean_start=False)
    assert seen(client) == [("some/topic", 0)] * 3


@pytest.mark.mqtt5("3.1.2-24", "3.1.2-25")
def test_a_message_that_fits_only_without_its_alias_goes_without() -> None:
    """The property would push it over the client's Maximum Packet Size."""
    broker = VirtualBroker()
    plain = len(write_packet(Publish("some/topic", b"x" * 50), 5))
    client = taker(broker, maximum_packet_size=plain)
    publisher = broker.connect("p")
    publisher.publish("some/topic", b"x" * 50)
    publisher.publish("some/topic", b"x" * 51)
    publisher.publish("some/topic", b"x")
    publisher.publish("some/topic", b"x" * 51)
    assert seen(client) == [("some/topic", 0), ("some/topic", 1), ("", 1)]
    assert client.session.ledger.dropped == {"packet_too_large": 1}
    client.session.check_invariants()
