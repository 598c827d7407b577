"""Hypothesis strategies for valid packets of either version."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.broker.mqtt import properties as table
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import (
    REASON_CODES,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
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
    Will,
)
from penstock.broker.mqtt.properties import PROPERTIES, WILL, Property
from penstock.broker.mqtt.reader import CONNACK_REASON_CODES, SUBACK_CODES_3_1_1

MQTT_5 = 5

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXTS = st.text(CHARACTERS, max_size=20)
TOPICS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=20
).filter(lambda topic: not topic.startswith("$share/"))
TOPIC_FILTERS = st.builds(
    lambda levels, ending: "/".join([*levels, ending]),
    st.lists(st.just("+") | TOPICS.map(lambda topic: topic.replace("/", "_")), max_size=4),
    st.sampled_from(["#", "+", "end"]),
)
SHARED = st.builds(
    "$share/{}/{}".format, TOPICS.map(lambda name: name.replace("/", "_")), TOPIC_FILTERS
)
BINARY = st.binary(max_size=20)
PACKET_IDS = st.integers(1, 65535)
QOS = st.integers(0, 2)

VALUES: dict[table.DataType, st.SearchStrategy[Any]] = {
    table.BYTE: st.integers(0, 1),
    table.TWO_BYTE_INTEGER: st.integers(1, 0xFFFF),
    table.FOUR_BYTE_INTEGER: st.integers(1, 0xFFFFFFFF),
    table.VARIABLE_BYTE_INTEGER: st.integers(1, 268_435_455),
    table.UTF8_STRING: TEXTS,
    table.BINARY_DATA: BINARY,
    table.STRING_PAIR: st.tuples(TEXTS, TEXTS),
}


def values_of(row: Property, carrier: int) -> st.SearchStrategy[Any]:
    """Return valid values of one property."""
    values = TOPICS if row.name == "response_topic" else VALUES[row.data_type]
    if not row.repeats:
        return values
    once = row.name == "subscription_identifier" and carrier == PacketType.SUBSCRIBE
    return st.lists(values, min_size=1, max_size=1 if once else 3)


def properties_of(carrier: int, version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return valid sets of properties."""
    if version != MQTT_5:
        return st.just({})
    return st.fixed_dictionaries(
        {},
        optional={
            row.name: values_of(row, carrier) for row in PROPERTIES if carrier in row.carriers
        },
    )


def wills(version: int) -> st.SearchStrategy[Will]:
    """Return valid wills."""
    return st.builds(Will, TOPICS, BINARY, QOS, st.booleans(), properties_of(WILL, version))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    """Return valid CONNECT packets."""
    properties = draw(properties_of(PacketType.CONNECT, version))
    if "authentication_method" not in properties:
        properties.pop("authentication_data", None)
    username = draw(st.none() | TEXTS)
    password = draw(st.none() | BINARY) if version == MQTT_5 or username is not None else None
    return Connect(
        client_id=draw(TEXTS),
        protocol_version=version,
        clean_start=draw(st.booleans()),
        keep_alive=draw(st.integers(0, 0xFFFF)),
        username=username,
        password=password,
        will=draw(st.none() | wills(version)),
        properties=properties,
        is_bridge=version != MQTT_5 and draw(st.booleans()),
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> ConnAck:
    """Return valid CONNACK packets."""
    codes = REASON_CODES[PacketType.CONNACK] if version == MQTT_5 else CONNACK_REASON_CODES
    code = draw(st.sampled_from(sorted(codes)))
    session_present = draw(st.booleans()) if code == 0 else False
    return ConnAck(session_present, code, draw(properties_of(PacketType.CONNACK, version)))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    """Return valid PUBLISH packets, of payloads that take one to three bytes of length."""
    qos = draw(QOS)
    properties = draw(properties_of(PacketType.PUBLISH, version))
    no_topic = "topic_alias" in properties and draw(st.booleans())
    return Publish(
        topic="" if no_topic else draw(TOPICS),
        payload=draw(BINARY) * draw(st.sampled_from([1, 100, 1000])),
        qos=qos,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) if qos else False,
        packet_id=draw(PACKET_IDS) if qos else 0,
        properties=properties,
    )


def acknowledgements(version: int) -> st.SearchStrategy[Packet]:
    """Return valid PUBACK, PUBREC, PUBREL and PUBCOMP packets."""
    classes: list[Any] = [PubAck, PubRec, PubRel, PubComp]
    return st.sampled_from(classes).flatmap(
        lambda packet_class: st.builds(
            packet_class,
            PACKET_IDS,
            codes_of(packet_class.packet_type, version),
            properties_of(packet_class.packet_type, version),
        )
    )


def codes_of(packet_type: PacketType, version: int) -> st.SearchStrategy[int]:
    """Return the reason codes of a packet; MQTT 3.1.1 has no other than 0 for most."""
    if version == MQTT_5:
        return st.sampled_from(sorted(REASON_CODES[packet_type]))
    return st.sampled_from(sorted(SUBACK_CODES_3_1_1)) if packet_type == 9 else st.just(0)


def subscriptions(version: int) -> st.SearchStrategy[SubscriptionRequest]:
    """Return valid subscriptions."""
    if version != MQTT_5:
        return st.tuples(TOPIC_FILTERS | SHARED, QOS).map(lambda sent: SubscriptionRequest(*sent))
    handling = st.integers(0, 2)
    return st.builds(
        SubscriptionRequest, TOPIC_FILTERS, QOS, st.booleans(), st.booleans(), handling
    ) | st.builds(SubscriptionRequest, SHARED, QOS, st.just(value=False), st.booleans(), handling)


def lists_for(
    packet_class: Any, version: int, items: st.SearchStrategy[Any]
) -> st.SearchStrategy[Packet]:
    """Return packets of a packet id, a tuple and properties."""
    properties = properties_of(packet_class.packet_type, version)
    return st.builds(
        packet_class, PACKET_IDS, st.lists(items, min_size=1, max_size=4).map(tuple), properties
    )


def unsubacks(version: int) -> st.SearchStrategy[Packet]:
    """Return valid UNSUBACK packets."""
    if version != MQTT_5:
        return st.builds(UnsubAck, PACKET_IDS)
    return lists_for(UnsubAck, version, codes_of(PacketType.UNSUBACK, version))


def endings(version: int) -> st.SearchStrategy[Packet]:
    """Return valid DISCONNECT packets, and AUTH packets where the version has them."""
    disconnects = st.builds(
        Disconnect,
        codes_of(PacketType.DISCONNECT, version),
        properties_of(PacketType.DISCONNECT, version),
    )
    if version != MQTT_5:
        return disconnects
    auths = st.builds(
        lambda code, properties, method: Auth(code, properties | {"authentication_method": method}),
        codes_of(PacketType.AUTH, version),
        properties_of(PacketType.AUTH, version),
        TEXTS,
    )
    return disconnects | auths


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Return valid packets of every type."""
    return st.one_of(
        connects(version),
        connacks(version),
        publishes(version),
        acknowledgements(version),
        lists_for(Subscribe, version, subscriptions(version)),
        lists_for(SubAck, version, codes_of(PacketType.SUBACK, version)),
        lists_for(Unsubscribe, version, TOPIC_FILTERS | SHARED),
        unsubacks(version),
        st.just(PingReq()),
        st.just(PingResp()),
        endings(version),
    )
