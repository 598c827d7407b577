"""Chapters 1 and 2: data types, the fixed header, packet identifiers, properties."""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import (
    Connect,
    Packet,
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
    Will,
)
from penstock.broker.mqtt.writer import write_packet
from tests.conformance.clients import (
    IN_EACH_VERSION,
    MALFORMED,
    PROTOCOL_ERROR,
    answer,
    assert_closed,
    assert_refused,
    frame,
    pair,
)
from tests.helpers.virtual import VirtualBroker, VirtualClient

PLACE = "~~~"
"""Three bytes that a test puts others in place of."""

NO_STRINGS = [
    pytest.param("eda080", id="surrogate"),
    pytest.param("61ff62", id="not UTF-8"),
    pytest.param("610062", id="U+0000"),
]


@pytest.mark.mqtt5("1.5.4-1", "1.5.4-2")
@pytest.mark.mqtt311("1.5.3-1", "1.5.3-2")
@pytest.mark.parametrize("digits", NO_STRINGS)
@pytest.mark.parametrize(
    "connect",
    [
        pytest.param(
            {"client_id": PLACE},
            marks=[pytest.mark.mqtt5("3.1.3-4"), pytest.mark.mqtt311("3.1.3-4")],
            id="client identifier",
        ),
        pytest.param(
            {"will": Will(PLACE)},
            marks=[pytest.mark.mqtt5("3.1.3-11"), pytest.mark.mqtt311("3.1.3-10")],
            id="will topic",
        ),
        pytest.param(
            {"username": PLACE},
            marks=[pytest.mark.mqtt5("3.1.3-12"), pytest.mark.mqtt311("3.1.3-11")],
            id="user name",
        ),
    ],
)
@IN_EACH_VERSION
def test_a_connect_with_what_is_no_string_is_refused(
    version: int, connect: dict[str, object], digits: str
) -> None:
    """Each string of a CONNECT is checked; who brings another is closed."""
    client = VirtualClient(VirtualBroker(), version)
    packet = Connect(**{"client_id": "c", "protocol_version": version, **connect})  # type: ignore[arg-type]
    data = write_packet(packet, version)
    assert data.count(PLACE.encode()) == 1
    client.send_bytes(data.replace(PLACE.encode(), bytes.fromhex(digits)))
    assert_refused(client, MALFORMED)


@pytest.mark.mqtt5("1.5.4-1", "1.5.4-2")
@pytest.mark.mqtt311("1.5.3-1", "1.5.3-2")
@pytest.mark.parametrize("digits", NO_STRINGS)
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(
            Publish(PLACE),
            marks=[pytest.mark.mqtt5("3.3.2-1"), pytest.mark.mqtt311("3.3.2-1")],
            id="topic name",
        ),
        pytest.param(
            Subscribe(1, (SubscriptionRequest("ok"), SubscriptionRequest(PLACE))),
            marks=[pytest.mark.mqtt5("3.8.3-1"), pytest.mark.mqtt311("3.8.3-1")],
            id="filter to subscribe",
        ),
        pytest.param(
            Unsubscribe(1, ("ok", PLACE)),
            marks=[pytest.mark.mqtt5("3.10.3-1"), pytest.mark.mqtt311("3.10.3-1")],
            id="filter to unsubscribe",
        ),
    ],
)
@IN_EACH_VERSION
def test_a_packet_with_what_is_no_string_is_refused(
    version: int, packet: Packet, digits: str
) -> None:
    """Topic names and filters are strings; who brings others is closed."""
    client = VirtualBroker().connect("c", version)
    data = write_packet(packet, version)
    client.send_bytes(data.replace(PLACE.encode(), bytes.fromhex(digits)))
    assert_closed(client, MALFORMED)


@pytest.mark.parametrize("digits", NO_STRINGS)
@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"content_type": PLACE}, marks=pytest.mark.mqtt5("3.3.2-19"), id="content"),
        pytest.param({"response_topic": PLACE}, marks=pytest.mark.mqtt5("3.3.2-13"), id="response"),
        pytest.param(
            {"user_property": [(PLACE, "v")]}, marks=pytest.mark.mqtt5("1.5.7-1"), id="name"
        ),
        pytest.param(
            {"user_property": [("n", PLACE)]}, marks=pytest.mark.mqtt5("1.5.7-1"), id="value"
        ),
    ],
)
def test_a_property_with_what_is_no_string_is_refused(
    properties: dict[str, object], digits: str
) -> None:
    """Each string of a PUBLISH's properties is checked, both of a pair too."""
    client = VirtualBroker().connect()
    data = write_packet(Publish("t", properties=properties), 5)
    client.send_bytes(data.replace(PLACE.encode(), bytes.fromhex(digits)))
    assert_closed(client, MALFORMED)


@pytest.mark.mqtt5("2.1.3-1")
@pytest.mark.mqtt311("2.2.2-1", "2.2.2-2")
@pytest.mark.parametrize(
    ("first_byte", "body"),
    [
        pytest.param(
            0x60,
            "0001",
            marks=[pytest.mark.mqtt5("3.6.1-1"), pytest.mark.mqtt311("3.6.1-1")],
            id="PUBREL",
        ),
        pytest.param(
            0x80,
            "0001 {} 0001 61 00",
            marks=[pytest.mark.mqtt5("3.8.1-1"), pytest.mark.mqtt311("3.8.1-1")],
            id="SUBSCRIBE",
        ),
        pytest.param(
            0xA0,
            "0001 {} 0001 61",
            marks=[pytest.mark.mqtt5("3.10.1-1"), pytest.mark.mqtt311("3.10.1-1")],
            id="UNSUBSCRIBE",
        ),
        pytest.param(
            0xE1,
            "",
            marks=[pytest.mark.mqtt5("3.14.1-1"), pytest.mark.mqtt311("3.14.1-1")],
            id="DISCONNECT",
        ),
        pytest.param(0xF1, "", marks=pytest.mark.mqtt5("3.15.1-1"), id="AUTH"),
        pytest.param(0x41, "0001", id="PUBACK"),
        pytest.param(0x52, "0001", id="PUBREC"),
        pytest.param(0x74, "0001", id="PUBCOMP"),
        pytest.param(0xC8, "", id="PINGREQ"),
    ],
)
@IN_EACH_VERSION
def test_reserved_flags_of_the_fixed_header_are_checked(
    version: int, first_byte: int, body: str
) -> None:
    """Another value than the table's is malformed."""
    client = VirtualBroker().connect("c", version)
    client.send_bytes(frame(first_byte, body.format("00" if version == 5 else "")))
    assert_closed(client, MALFORMED)


@pytest.mark.mqtt5("2.1.3-1", "3.1.4-1")
@pytest.mark.mqtt311("2.2.2-2")
@IN_EACH_VERSION
def test_a_connect_with_flags_is_closed(version: int) -> None:
    """The very first byte has the flags of the table, or there is no MQTT."""
    client = VirtualClient(VirtualBroker(), version)
    client.send_bytes(b"\x11" + write_packet(Connect(protocol_version=version), version)[1:])
    assert client.is_lost
    assert client.inbox == []


@pytest.mark.mqtt5("2.2.1-2")
@pytest.mark.mqtt311("2.3.1-5")
@IN_EACH_VERSION
def test_a_qos_0_publish_has_no_packet_identifier(version: int) -> None:
    """Neither as it is read nor as it is written: the payload comes at once."""
    broker = VirtualBroker()
    subscriber = broker.connect("s", version)
    subscriber.subscribe("t", 2)
    properties = "00" if version == 5 else ""
    packet = frame(0x30, f"0001 74 {properties} 0001 78")
    publisher = broker.connect("p", version)
    publisher.send_bytes(packet)
    assert subscriber.take(Publish).payload == b"\0\1x"
    assert answer(subscriber, frame(0x30, f"0001 74 {properties} 0001 78")) == packet


@pytest.mark.mqtt5("2.2.1-3")
@pytest.mark.mqtt311("2.3.1-1")
@pytest.mark.parametrize(
    ("first_byte", "body"),
    [
        pytest.param(0x32, "0001 74 0000 {}", id="PUBLISH QoS 1"),
        pytest.param(0x34, "0001 74 0000 {}", id="PUBLISH QoS 2"),
        pytest.param(0x82, "0000 {} 0001 61 00", id="SUBSCRIBE"),
        pytest.param(0xA2, "0000 {} 0001 61", id="UNSUBSCRIBE"),
    ],
)
@IN_EACH_VERSION
def test_packet_identifier_0_is_refused(version: int, first_byte: int, body: str) -> None:
    """A packet that needs an identifier has one that is not 0."""
    client = VirtualBroker().connect("c", version)
    client.send_bytes(frame(first_byte, body.format("00" if version == 5 else "")))
    assert_closed(client, PROTOCOL_ERROR)


@pytest.mark.mqtt5("2.2.1-4", "4.3.2-1", "4.3.3-1")
@pytest.mark.mqtt311("2.3.1-1", "2.3.1-4")
@IN_EACH_VERSION
def test_the_brokers_packet_identifiers_are_free_ones(version: int) -> None:
    """No two messages that are under way to a client have the same, and none has 0."""
    publisher, subscriber = pair(VirtualBroker(), version, 2)
    in_use: set[int] = set()
    for number in range(1, 60):
        publisher.publish("t", b"x", qos=1 + number % 2, packet_id=number)
        packet = subscriber.take(Publish)
        assert packet.packet_id > 0
        assert packet.packet_id not in in_use
        in_use.add(packet.packet_id)
        if number % 3 == 0 and packet.qos == 1:
            subscriber.send(PubAck(packet.packet_id))
            in_use.remove(packet.packet_id)


@pytest.mark.mqtt5("2.2.1-5")
@pytest.mark.mqtt311("2.3.1-6")
@IN_EACH_VERSION
def test_acknowledgements_repeat_the_packet_identifier(version: int) -> None:
    """Those of messages that come in, and those of messages that go out."""
    publisher, subscriber = pair(VirtualBroker(), version, 2)
    publisher.publish("t", b"1", qos=1, packet_id=0x1234)
    publisher.publish("t", b"2", qos=2, packet_id=0xFFFF)
    publisher.send(PubRel(0xFFFF))
    assert publisher.inbox == [PubAck(0x1234), PubRec(0xFFFF), PubComp(0xFFFF)]
    _, second = subscriber.take_all(Publish)
    subscriber.send(PubRec(second.packet_id))
    assert subscriber.inbox == [PubRel(second.packet_id)]


@pytest.mark.mqtt5("2.2.1-6", "3.8.4-2", "3.10.4-5")
@pytest.mark.mqtt311("2.3.1-7", "3.8.4-2", "3.10.4-4")
@IN_EACH_VERSION
def test_suback_and_unsuback_repeat_the_packet_identifier(version: int) -> None:
    """Each answer is found by the identifier of its request."""
    client = VirtualBroker().connect("c", version)
    client.send(Subscribe(0x4321, (SubscriptionRequest("a"),)), Unsubscribe(0x8765, ("a",)))
    assert client.take(SubAck).packet_id == 0x4321
    assert client.take(UnsubAck).packet_id == 0x8765
