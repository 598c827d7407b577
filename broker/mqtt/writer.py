"""Writes packets to bytes, by a table from packet classes to `write_<packet>`.

Only the payload of a PUBLISH is large, so the broker asks for the bytes before it
(`publish_header`) and passes header and payload to the transport separately.

MQTT 3.1.1 has no properties: they are left out. Anything else that it does not have is a
ValueError, since to leave that out would change the meaning of the packet.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from penstock.broker.mqtt.data_types import (
    write_binary_data,
    write_two_byte_integer,
    write_utf8_string,
    write_variable_byte_integer,
)
from penstock.broker.mqtt.enums import (
    BRIDGE_BIT,
    MAX_PACKET_ID,
    MQTT_3_1,
    MQTT_5,
    PUBLISH,
    PacketType,
)
from penstock.broker.mqtt.packets import (
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
)
from penstock.broker.mqtt.properties import WILL, Properties, write_properties
from penstock.broker.mqtt.reason_codes import (
    CONNACK_RETURN_CODES,
    SUBACK_FAILURE_3_1_1,
    describe_reason_code,
)

NO_PROPERTIES: Properties = {}

_pack_short_header = Struct(">BBH").pack
_pack_header = Struct(">BBBH").pack
_pack_short_acknowledgement = Struct(">BBH").pack


def publish_header(
    topic_bytes: bytes,
    payload_bytes: int,
    qos: int = 0,
    retain: bool = False,  # noqa: FBT001, FBT002 (hot: a keyword takes longer than its value)
    dup: bool = False,  # noqa: FBT001, FBT002
    packet_id: int = 0,
    properties: Properties | bytes = NO_PROPERTIES,
    version: int = MQTT_5,
) -> bytes:
    """Return the bytes of a PUBLISH before its payload.

    Args:
        topic_bytes: valid Topic Name in UTF-8; b"" where `properties` hold a Topic Alias.
        payload_bytes: length of the payload in bytes.
        qos: 0, 1 or 2.
        retain: RETAIN.
        dup: DUP; False with QoS 0 [MQTT-3.3.1-2].
        packet_id: 1 to 65,535 with QoS 1 and 2; unused with QoS 0.
        properties: left out with MQTT 3.1.1; bytes are encoded properties with their length before
            them.
        version: 3, 4 or 5.

    Raises:
        ValueError: the packet is longer than the format allows, or a property is not valid.
    """
    topic_size = len(topic_bytes)
    first_byte = 0x30 | dup << 3 | qos << 1 | retain
    packet_id_bytes = packet_id.to_bytes(2) if qos else b""
    if version != MQTT_5:
        encoded = b""
    elif isinstance(properties, bytes):
        encoded = properties
    else:
        encoded = write_properties(properties, PUBLISH) if properties else b"\0"
    remaining = 2 + topic_size + len(packet_id_bytes) + len(encoded) + payload_bytes
    if remaining < 0x80:
        header = _pack_short_header(first_byte, remaining, topic_size)
        return header + topic_bytes + packet_id_bytes + encoded
    if remaining < 0x4000:
        header = _pack_header(first_byte, remaining & 0x7F | 0x80, remaining >> 7, topic_size)
        return header + topic_bytes + packet_id_bytes + encoded
    header = first_byte.to_bytes(1) + write_variable_byte_integer(remaining)
    # Properties may be long, so they are copied only once.
    return b"".join((header, topic_size.to_bytes(2), topic_bytes, packet_id_bytes, encoded))


def write_packet(packet: Packet, version: int) -> bytes:
    """Return a whole packet.

    Args:
        packet: the packet of any class; its values are assumed valid, as
            `penstock.broker.mqtt.reader` checks them.
        version: 3, 4 or 5; a CONNECT is written in its own `protocol_version`.

    Raises:
        ValueError: a field does not fit its place on the wire, or MQTT 3.1.1 does not have it.
    """
    return _WRITERS[type(packet)](packet, version)


def write_connect(packet: Connect, _version: int) -> bytes:
    """Write a CONNECT (section 3.1)."""
    is_mqtt_5 = packet.protocol_version == MQTT_5
    if packet.password is not None and packet.username is None and not is_mqtt_5:
        raise ValueError("MQTT 3.1.1 has no password without a user name [MQTT-3.1.2-22]")
    flags = packet.clean_start << 1
    payload = write_utf8_string(packet.client_id)
    will = packet.will
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        if is_mqtt_5:
            payload += write_properties(will.properties, WILL)
        payload += write_utf8_string(will.topic) + write_binary_data(will.payload)
    if packet.username is not None:
        flags |= 0x80
        payload += write_utf8_string(packet.username)
    if packet.password is not None:
        flags |= 0x40
        payload += write_binary_data(packet.password)
    level = packet.protocol_version | (BRIDGE_BIT if packet.is_bridge else 0)
    name = "MQIsdp" if packet.protocol_version == MQTT_3_1 else "MQTT"
    header = write_utf8_string(name) + bytes((level, flags))
    header += write_two_byte_integer(packet.keep_alive)
    if is_mqtt_5:
        header += write_properties(packet.properties, PacketType.CONNECT)
    return _frame(0x10, header + payload)


def write_connack(packet: ConnAck, version: int) -> bytes:
    """Write a CONNACK (section 3.2); MQTT 3.1.1 has five return codes."""
    code = packet.reason_code
    if version != MQTT_5:
        if code not in CONNACK_RETURN_CODES:
            raise _unspeakable("CONNACK", code)
        # In MQTT 3.1 the byte of Session Present is reserved.
        session_present = packet.session_present and version != MQTT_3_1
        return bytes((0x20, 2, session_present, CONNACK_RETURN_CODES[code]))
    return _frame(
        0x20,
        bytes((packet.session_present, code))
        + write_properties(packet.properties, PacketType.CONNACK),
    )


def write_publish(packet: Publish, version: int) -> bytes:
    """Write a whole PUBLISH (section 3.3)."""
    if packet.qos:
        _check_packet_id(packet.packet_id)
    header = publish_header(
        packet.topic.encode(),
        len(packet.payload),
        qos=packet.qos,
        retain=packet.retain,
        dup=packet.dup,
        packet_id=packet.packet_id,
        properties=packet.properties,
        version=version,
    )
    return header + packet.payload


def write_acknowledgement(packet: PubAck | PubRec | PubRel | PubComp, version: int) -> bytes:
    """Write a PUBACK, PUBREC, PUBREL or PUBCOMP (sections 3.4 to 3.7), as short as it can be."""
    packet_id = packet.packet_id
    _check_packet_id(packet_id)
    first_byte = _ACKNOWLEDGEMENTS[type(packet)]
    code = packet.reason_code
    if version != MQTT_5:
        if code >= 0x80:
            raise _unspeakable(packet.packet_type.name, code)
        return _pack_short_acknowledgement(first_byte, 2, packet_id)
    if packet.properties:
        return _frame(
            first_byte,
            packet_id.to_bytes(2)
            + code.to_bytes(1)
            + write_properties(packet.properties, packet.packet_type),
        )
    if code:
        return _pack_short_acknowledgement(first_byte, 3, packet_id) + code.to_bytes(1)
    return _pack_short_acknowledgement(first_byte, 2, packet_id)


def write_subscribe(packet: Subscribe, version: int) -> bytes:
    """Write a SUBSCRIBE (section 3.8)."""
    body = _packet_id_and_properties(packet, version)
    for subscription in packet.subscriptions:
        body += write_utf8_string(subscription.topic_filter)
        body += _subscription_options(subscription, version).to_bytes(1)
    return _frame(0x82, body)


def write_suback(packet: SubAck, version: int) -> bytes:
    """Write a SUBACK (section 3.9); MQTT 3.1.1 has one code for every refusal."""
    codes = packet.reason_codes
    if version != MQTT_5 and max(codes) > SUBACK_FAILURE_3_1_1:
        codes = tuple(min(code, SUBACK_FAILURE_3_1_1) for code in codes)
    return _frame(0x90, _packet_id_and_properties(packet, version) + bytes(codes))


def write_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    """Write an UNSUBSCRIBE (section 3.10)."""
    body = _packet_id_and_properties(packet, version)
    return _frame(0xA2, body + b"".join(map(write_utf8_string, packet.topic_filters)))


def write_unsuback(packet: UnsubAck, version: int) -> bytes:
    """Write an UNSUBACK (section 3.11); that of MQTT 3.1.1 has no codes."""
    codes = packet.reason_codes if version == MQTT_5 else ()
    return _frame(0xB0, _packet_id_and_properties(packet, version) + bytes(codes))


def write_pingreq(_packet: PingReq, _version: int) -> bytes:
    """Write a PINGREQ (section 3.12)."""
    return b"\xc0\0"


def write_pingresp(_packet: PingResp, _version: int) -> bytes:
    """Write a PINGRESP (section 3.13)."""
    return b"\xd0\0"


def write_disconnect(packet: Disconnect, version: int) -> bytes:
    """Write a DISCONNECT (section 3.14), as short as it can be."""
    code = packet.reason_code
    if version != MQTT_5:
        if code:
            raise _unspeakable("DISCONNECT", code)
        return b"\xe0\0"
    if packet.properties:
        encoded = write_properties(packet.properties, PacketType.DISCONNECT)
        return _frame(0xE0, code.to_bytes(1) + encoded)
    return b"\xe0\1" + code.to_bytes(1) if code else b"\xe0\0"


def write_auth(packet: Auth, version: int) -> bytes:
    """Write an AUTH (section 3.15)."""
    if version != MQTT_5:
        raise ValueError("MQTT 3.1.1 has no AUTH")
    if not packet.reason_code and not packet.properties:
        return b"\xf0\0"
    encoded = write_properties(packet.properties, PacketType.AUTH)
    return _frame(0xF0, packet.reason_code.to_bytes(1) + encoded)


_ACKNOWLEDGEMENTS: Final[dict[type, int]] = {
    PubAck: 0x40,
    PubRec: 0x50,
    PubRel: 0x62,
    PubComp: 0x70,
}

_WRITERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    Connect: write_connect,
    ConnAck: write_connack,
    Publish: write_publish,
    PubAck: write_acknowledgement,
    PubRec: write_acknowledgement,
    PubRel: write_acknowledgement,
    PubComp: write_acknowledgement,
    Subscribe: write_subscribe,
    SubAck: write_suback,
    Unsubscribe: write_unsubscribe,
    UnsubAck: write_unsuback,
    PingReq: write_pingreq,
    PingResp: write_pingresp,
    Disconnect: write_disconnect,
    Auth: write_auth,
}


def _packet_id_and_properties(
    packet: Subscribe | SubAck | Unsubscribe | UnsubAck, version: int
) -> bytes:
    """Write the common beginning of these four."""
    _check_packet_id(packet.packet_id)
    encoded = packet.packet_id.to_bytes(2)
    if version != MQTT_5:
        return encoded
    return encoded + write_properties(packet.properties, packet.packet_type)


def _subscription_options(subscription: SubscriptionRequest, version: int) -> int:
    """Return the options byte of one subscription (3.8.3.1)."""
    if version == MQTT_5:
        return (
            subscription.qos
            | subscription.no_local << 2
            | subscription.retain_as_published << 3
            | subscription.retain_handling << 4
        )
    if subscription.no_local or subscription.retain_as_published or subscription.retain_handling:
        raise ValueError(
            f"subscription to {subscription.topic_filter!r}: MQTT 3.1.1 has no option but QoS"
        )
    return subscription.qos


def _frame(first_byte: int, body: bytes) -> bytes:
    """Put the fixed header before a body."""
    return first_byte.to_bytes(1) + write_variable_byte_integer(len(body)) + body


def _check_packet_id(packet_id: int) -> None:
    """Refuse a packet id that the format does not have."""
    if not 0 < packet_id <= MAX_PACKET_ID:
        raise ValueError(f"packet id: read {packet_id}; allowed: 1 to {MAX_PACKET_ID}")


def _unspeakable(packet_name: str, code: int) -> ValueError:
    """Return the error for a reason code that MQTT 3.1.1 does not have."""
    return ValueError(f"MQTT 3.1.1 has no {packet_name} that says {describe_reason_code(code)}")
