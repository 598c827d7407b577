"""Reads packets from bytes, by a table from first bytes to `read_<packet>`.

A returned packet complies with every rule that can be checked on it alone, in either direction. The
caller checks what depends on the connection: which packets may come from this side and when,
whether a client's PUBLISH may hold a Subscription Identifier [MQTT-3.3.4-6], the limits that the
two sides have announced. Only `PeerError` is raised, whatever the bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from penstock.broker.errors import MalformedPacketError, ProtocolError
from penstock.broker.mqtt.data_types import (
    Buffer,
    read_binary_data,
    read_byte,
    read_two_byte_integer,
    read_utf8_string,
)
from penstock.broker.mqtt.enums import BRIDGE_BIT, MQTT_3_1, MQTT_5, PacketType, ProtocolVersion
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
from penstock.broker.mqtt.properties import WILL, read_properties, read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.reason_codes import SUBACK_FAILURE_3_1_1, ReasonCode, describe_reason_code
from penstock.broker.mqtt.topics import SHARE_PREFIX, validate_filters_read, validate_topic

PacketReader: TypeAlias = Callable[[int, Buffer, int, int], Packet]

CONNACK_REASON_CODES: Final = (
    ReasonCode.SUCCESS,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
)
"""The MQTT 5.0 reason codes for the return codes 0 to 5 in an MQTT 3.1.1 CONNACK."""

_BRIDGES: Final = frozenset(
    {BRIDGE_BIT | ProtocolVersion.MQTT_3_1, BRIDGE_BIT | ProtocolVersion.MQTT_3_1_1}
)
_PROTOCOLS: Final = frozenset({("MQIsdp", 3), ("MQTT", 4), ("MQTT", 5)})

_MQTT_3_1_1: Final = int(ProtocolVersion.MQTT_3_1_1)
_HEAD_3_1_1: Final = b"\0\4MQTT\4"
_HEADS: Final = {_HEAD_3_1_1: _MQTT_3_1_1, b"\0\4MQTT\5": MQTT_5}
"""What nearly all CONNECT packets begin with: the names and versions that need no further look."""

_HEAD_BYTES: Final = len(_HEAD_3_1_1)

_OTHER_THAN_CLEAN_START: Final = 0xFD
"""Connect Flags that may contradict each other."""

_NORMAL_DISCONNECT: Final = Disconnect()

_new_tuple: Final = tuple.__new__

SUBACK_CODES_3_1_1: Final = frozenset({0, 1, 2, SUBACK_FAILURE_3_1_1})


def read_packet(
    first_byte: int, body: Buffer, version: int, most_properties: int = sys.maxsize
) -> Packet:
    """Read a packet.

    Args:
        first_byte: packet type and flags.
        body: the bytes after the Remaining Length; a `Publish` keeps no reference to it.
        version: 3, 4 or 5, from the connection's CONNECT; ignored for a CONNECT itself.
        most_properties: maximum number of properties, of the packet and of its will.

    Raises:
        MalformedPacketError: it cannot be parsed.
        ProtocolError: it can be parsed but is not allowed.
    """
    return _READERS[first_byte](first_byte, body, version, most_properties)


def may_be_connect(data: bytes) -> bool:
    """Say whether received bytes, at least one, may be the beginning of a CONNECT.

    In MQTT 3.1 its first byte may have flags, without a meaning. A TLS connection begins like a
    CONNECT of three bytes.
    """
    return data[0] >> 4 == PacketType.CONNECT and not data.startswith(b"\x16\x03")


def answer_version(connect_body: Buffer) -> int:
    """Return the version in which a CONNECT is answered, even an invalid one.

    Call it before the CONNECT is read, as an error of the reader does not tell the version.

    Returns:
        5 for "MQTT" of level 5 and above; 4 otherwise, since a client of MQTT 3.1 or 3.1.1 knows no
        other CONNACK [MQTT-3.1.2-2].
    """
    start = bytes(connect_body[:7])
    if start == _HEAD_3_1_1:
        return _MQTT_3_1_1
    is_mqtt_5 = start[:6] == b"\0\4MQTT" and start[6:] >= b"\5" and start[6] not in _BRIDGES
    return MQTT_5 if is_mqtt_5 else _MQTT_3_1_1


def read_connect(_first_byte: int, body: Buffer, _version: int, most_properties: int) -> Connect:
    """Read a CONNECT (section 3.1).

    Raises:
        ProtocolError: unsupported protocol version, for every other name and level
            [MQTT-3.1.2-1] [MQTT-3.1.2-2].
    """
    level, position = _HEADS.get(bytes(body[:_HEAD_BYTES]), 0), _HEAD_BYTES
    is_bridge = False
    if not level:
        level, is_bridge, position = _read_protocol(body)
    if len(body) < position + 3:
        read_two_byte_integer(body, read_byte(body, position)[1])  # raises the specific error
    flags, keep_alive = body[position], body[position + 1] << 8 | body[position + 2]
    position += 3
    if level == MQTT_3_1:
        flags = _used_connect_flags_3_1(flags)
    if flags & _OTHER_THAN_CLEAN_START:
        _check_connect_flags(flags, level)
    properties: dict[str, Any] = {}
    if level == MQTT_5:
        properties, position = read_properties(body, position, PacketType.CONNECT, most_properties)
        if "authentication_data" in properties and "authentication_method" not in properties:
            raise ProtocolError("CONNECT has authentication data without a method (3.1.2.11.10)")
    client_id, position = read_utf8_string(body, position)
    will = username = password = None
    if flags & 0x04:
        will, position = _read_will(flags, body, position, level, most_properties)
    # In MQTT 3.1 a name or password that its flag announces may be missing at the end.
    may_be_missing = level == MQTT_3_1
    if flags & 0x80 and not (may_be_missing and position == len(body)):
        username, position = read_utf8_string(body, position)
    if flags & 0x40 and not (may_be_missing and position == len(body)):
        password, position = read_binary_data(body, position)
    if position != len(body):
        _check_end(body, position, "CONNECT")
    clean_start = bool(flags & 0x02)
    # By position, as there is one for each client.
    return Connect(
        client_id, level, clean_start, keep_alive, username, password, will, properties, is_bridge
    )


def _read_protocol(body: Buffer) -> tuple[int, bool, int]:
    """Read the Protocol Name and Version of a CONNECT.

    Returns:
        (version; whether the client is a bridge; the position behind them).

    Raises:
        ProtocolError: unsupported protocol version.
    """
    name, position = read_utf8_string(body, 0)
    level, position = read_byte(body, position)
    is_bridge = level in _BRIDGES
    if is_bridge:
        level &= ~BRIDGE_BIT
    if (name, level) not in _PROTOCOLS:
        raise ProtocolError(
            f"protocol {name[:20]!r} level {level}; allowed: 'MQTT' level 4 or 5, 'MQIsdp' level 3",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
    return level, is_bridge, position


def read_connack(_first_byte: int, body: Buffer, version: int, most_properties: int) -> ConnAck:
    """Read a CONNACK (section 3.2)."""
    flags, position = read_byte(body, 0)
    if flags > 1:
        raise MalformedPacketError(
            f"CONNACK flags: read 0x{flags:02X}; allowed: 0 or 1 [MQTT-3.2.2-1]"
        )
    code, position = read_byte(body, position)
    properties: dict[str, Any] = {}
    if version == MQTT_5:
        _check_reason_code(PacketType.CONNACK, code)
        properties, position = read_properties(body, position, PacketType.CONNACK, most_properties)
    elif code < len(CONNACK_REASON_CODES):
        code = CONNACK_REASON_CODES[code]
    else:
        raise ProtocolError(f"CONNACK return code: read {code}; allowed: 0 to 5")
    _check_end(body, position, "CONNACK")
    if code and flags:
        raise ProtocolError("CONNACK refuses and has Session Present [MQTT-3.2.2-6]")
    # In MQTT 3.1 the byte of Session Present is reserved.
    session_present = bool(flags) and version != MQTT_3_1
    return ConnAck(session_present, code, properties)


def read_publish(first_byte: int, body: Buffer, version: int, most_properties: int) -> Publish:
    """Read a PUBLISH (section 3.3); its payload is a copy of its own."""
    topic, _ = read_utf8_string(body, 0)
    _, packet_id, properties_at, payload_at = read_publish_head(
        body, first_byte, 0, len(body), version
    )
    properties: dict[str, Any] = {}
    if version == MQTT_5:
        properties, _ = read_publish_properties(body, properties_at, most_properties)
        if not topic and "topic_alias" not in properties:
            raise ProtocolError("PUBLISH has neither topic nor topic alias (3.3.2.1)")
    if "+" in topic or "#" in topic or (not topic and version != MQTT_5):
        validate_topic(topic)
    return Publish(
        topic,
        bytes(body[payload_at:]),
        first_byte >> 1 & 3,
        first_byte & 0x01 != 0,
        first_byte & 0x08 != 0,
        packet_id,
        properties,
    )


def read_acknowledgement(
    first_byte: int, body: Buffer, version: int, most_properties: int
) -> PubAck | PubRec | PubRel | PubComp:
    """Read a PUBACK, PUBREC, PUBREL or PUBCOMP (sections 3.4 to 3.7)."""
    packet_class = _ACKNOWLEDGEMENTS[first_byte]
    packet_id, position = _read_packet_id(body, 0)
    size = len(body)
    if size == 2:
        return packet_class(packet_id)
    packet_type = packet_class.packet_type
    if version != MQTT_5:
        _check_end(body, position, packet_type.name)
    code = body[2]
    _check_reason_code(packet_type, code)
    if size == 3:
        return packet_class(packet_id, code)
    properties, position = read_properties(body, 3, packet_type, most_properties)
    _check_end(body, position, packet_type.name)
    return packet_class(packet_id, code, properties)


def read_subscribe(_first_byte: int, body: Buffer, version: int, most_properties: int) -> Subscribe:
    """Read a SUBSCRIBE (section 3.8)."""
    packet_id, properties, position = _read_packet_id_and_properties(
        body, version, PacketType.SUBSCRIBE, most_properties
    )
    topic_filters: list[str] = []
    subscriptions = []
    body = bytes(body)
    size = len(body)
    while position < size:
        try:  # inlined `read_utf8_string` and `read_byte`, in half the time
            end = position + 2 + (body[position] << 8 | body[position + 1])
            topic_filter, options = body[position + 2 : end].decode(), body[end]
        except (IndexError, UnicodeDecodeError):
            read_byte(body, read_utf8_string(body, position)[1])  # raises the specific error
            raise
        position = end + 1
        topic_filters.append(topic_filter)
        if options > 2:  # most have only a QoS
            _check_subscription_options(topic_filter, options, version)
            no_local, as_published = bool(options & 0x04), bool(options & 0x08)
            subscription = SubscriptionRequest(
                topic_filter, options & 0x03, no_local, as_published, options >> 4
            )
        else:  # in half the time of a call of its class
            subscription = _new_tuple(SubscriptionRequest, (topic_filter, options, False, False, 0))
        subscriptions.append(subscription)
    if not subscriptions:
        raise ProtocolError("SUBSCRIBE without a topic filter [MQTT-3.8.3-2]")
    validate_filters_read(topic_filters)
    return Subscribe(packet_id, tuple(subscriptions), properties)


def read_suback(_first_byte: int, body: Buffer, version: int, most_properties: int) -> SubAck:
    """Read a SUBACK (section 3.9)."""
    packet_id, properties, position = _read_packet_id_and_properties(
        body, version, PacketType.SUBACK, most_properties
    )
    codes = tuple(body[position:])
    if not codes:
        raise ProtocolError("SUBACK without a reason code [MQTT-3.8.4-6]")
    for code in codes:
        if version == MQTT_5:
            _check_reason_code(PacketType.SUBACK, code)
        elif code not in SUBACK_CODES_3_1_1:
            raise ProtocolError(f"SUBACK return code: read {code}; allowed: 0, 1, 2 and 128")
    return SubAck(packet_id, codes, properties)


def read_unsubscribe(
    _first_byte: int, body: Buffer, version: int, most_properties: int
) -> Unsubscribe:
    """Read an UNSUBSCRIBE (section 3.10)."""
    packet_id, properties, position = _read_packet_id_and_properties(
        body, version, PacketType.UNSUBSCRIBE, most_properties
    )
    topic_filters = []
    while position < len(body):
        topic_filter, position = read_utf8_string(body, position)
        topic_filters.append(topic_filter)
    if not topic_filters:
        raise ProtocolError("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    validate_filters_read(topic_filters)
    return Unsubscribe(packet_id, tuple(topic_filters), properties)


def read_unsuback(_first_byte: int, body: Buffer, version: int, most_properties: int) -> UnsubAck:
    """Read an UNSUBACK (section 3.11); that of MQTT 3.1.1 has no codes."""
    packet_id, properties, position = _read_packet_id_and_properties(
        body, version, PacketType.UNSUBACK, most_properties
    )
    if version != MQTT_5:
        _check_end(body, position, "UNSUBACK")
        return UnsubAck(packet_id)
    codes = tuple(body[position:])
    if not codes:
        raise ProtocolError("UNSUBACK without a reason code (3.11.3)")
    for code in codes:
        _check_reason_code(PacketType.UNSUBACK, code)
    return UnsubAck(packet_id, codes, properties)


def read_pingreq(_first_byte: int, body: Buffer, _version: int, _most_properties: int) -> PingReq:
    """Read a PINGREQ (section 3.12)."""
    _check_end(body, 0, "PINGREQ")
    return PingReq()


def read_pingresp(_first_byte: int, body: Buffer, _version: int, _most_properties: int) -> PingResp:
    """Read a PINGRESP (section 3.13)."""
    _check_end(body, 0, "PINGRESP")
    return PingResp()


def read_disconnect(
    _first_byte: int, body: Buffer, version: int, most_properties: int
) -> Disconnect:
    """Read a DISCONNECT (section 3.14)."""
    if not body:
        return _NORMAL_DISCONNECT
    if version != MQTT_5:
        _check_end(body, 0, "DISCONNECT")
    code = body[0]
    _check_reason_code(PacketType.DISCONNECT, code)
    if len(body) == 1:
        return Disconnect(code)
    properties, position = read_properties(body, 1, PacketType.DISCONNECT, most_properties)
    _check_end(body, position, "DISCONNECT")
    return Disconnect(code, properties)


def read_auth(_first_byte: int, body: Buffer, version: int, most_properties: int) -> Auth:
    """Read an AUTH (section 3.15)."""
    if version != MQTT_5:
        raise ProtocolError("AUTH in MQTT 3.1.1, which has none")
    if not body:
        return Auth()
    code = body[0]
    _check_reason_code(PacketType.AUTH, code)
    properties, position = read_properties(body, 1, PacketType.AUTH, most_properties)
    _check_end(body, position, "AUTH")
    if "authentication_method" not in properties:
        raise ProtocolError("AUTH without an authentication method (3.15.2.2.2)")
    return Auth(code, properties)


def _read_unlisted(first_byte: int, body: Buffer, version: int, most_properties: int) -> Packet:
    """Read packets that are valid in MQTT 3.1 only: flags that a packet does not use may be set.

    The same goes for DUP of PUBREL, SUBSCRIBE and UNSUBSCRIBE, which may be repeated.

    Raises:
        MalformedPacketError: the packet type or its flags do not exist [MQTT-2.1.3-1].
    """
    used = USED_FIRST_BYTES_3_1.get(first_byte)
    if used is not None and (version == MQTT_3_1 or (used == 0x10 and _is_connect_3_1(body))):
        return _READERS[used](used, body, version, most_properties)
    raise _unknown_first_byte(first_byte)


def _is_connect_3_1(body: Buffer) -> bool:
    """Say whether this is the body of a CONNECT of MQTT 3.1, from its own version field."""
    start = bytes(body[:9])
    return start[:8] == b"\0\6MQIsdp" and start[8:] in (b"\3", bytes((BRIDGE_BIT | MQTT_3_1,)))


def _unknown_first_byte(first_byte: int) -> MalformedPacketError:
    """Return the error for a packet type or flags that do not exist [MQTT-2.1.3-1]."""
    packet_type = first_byte >> 4
    if packet_type == 0:
        return MalformedPacketError("packet type: read 0; allowed: 1 to 15")
    name = PacketType(packet_type).name
    if packet_type == PacketType.PUBLISH and first_byte & 0x06 == 0x06:
        return MalformedPacketError("PUBLISH with QoS 3; allowed: 0, 1, 2 [MQTT-3.3.1-4]")
    if packet_type == PacketType.PUBLISH:
        return MalformedPacketError("PUBLISH with QoS 0 and DUP [MQTT-3.3.1-2]")
    return MalformedPacketError(
        f"{name} with flags 0x{first_byte & 0x0F:X}; allowed: those of Table 2-2 [MQTT-2.1.3-1]"
    )


def _table() -> tuple[PacketReader, ...]:
    """Return the reader for each of the 256 first bytes."""
    readers: list[PacketReader] = [_read_unlisted] * 256
    for qos_and_retain in range(6):
        readers[0x30 | qos_and_retain] = read_publish
        if qos_and_retain > 1:
            readers[0x38 | qos_and_retain] = read_publish
    for first_byte in _ACKNOWLEDGEMENTS:
        readers[first_byte] = read_acknowledgement
    readers[0x10] = read_connect
    readers[0x20] = read_connack
    readers[0x82] = read_subscribe
    readers[0x90] = read_suback
    readers[0xA2] = read_unsubscribe
    readers[0xB0] = read_unsuback
    readers[0xC0] = read_pingreq
    readers[0xD0] = read_pingresp
    readers[0xE0] = read_disconnect
    readers[0xF0] = read_auth
    return tuple(readers)


_ACKNOWLEDGEMENTS: Final[dict[int, type[PubAck | PubRec | PubRel | PubComp]]] = {
    0x40: PubAck,
    0x50: PubRec,
    0x62: PubRel,
    0x70: PubComp,
}
_READERS: Final = _table()

USED_FIRST_BYTES_3_1: Final = {
    first_byte | flags: first_byte
    for first_byte in (0x10, 0x20, 0x40, 0x50, 0x62, 0x70, 0x82, 0x90, 0xA2, 0xB0, 0xC0, 0xD0, 0xE0)
    for flags in ((0x1, 0x8, 0x9) if first_byte & 0x02 else range(0x01, 0x10))
}
"""First byte with flags that MQTT 3.1 does not use in this packet, to the byte without them.

PUBREL, SUBSCRIBE and UNSUBSCRIBE have QoS 1.
"""


def _used_connect_flags_3_1(flags: int) -> int:
    """Return the Connect Flags that MQTT 3.1 uses, and 0 for the others.

    Bit 0 is not used, and Will QoS and Will Retain are ignored without a Will (3.1 of MQTT 3.1).
    """
    return flags & 0xFE if flags & 0x04 else flags & 0xC6


def _check_connect_flags(flags: int, level: int) -> None:
    """Refuse Connect Flags that contradict each other (3.1.2.3)."""
    if flags & 0x01:
        raise MalformedPacketError("CONNECT with its reserved flag set [MQTT-3.1.2-3]")
    if flags & 0x18 == 0x18:
        raise MalformedPacketError("CONNECT with Will QoS 3; allowed: 0, 1, 2 [MQTT-3.1.2-14]")
    if not flags & 0x04 and flags & 0x38:
        raise MalformedPacketError(
            "CONNECT with Will QoS or Will Retain and no Will [MQTT-3.1.2-13] [MQTT-3.1.2-15]"
        )
    if level != MQTT_5 and flags & 0xC0 == 0x40:
        raise ProtocolError(
            "CONNECT with a password and no user name, which only MQTT 5.0 allows [MQTT-3.1.2-22]"
        )


def _read_will(
    flags: int, body: Buffer, position: int, level: int, most_properties: int
) -> tuple[Will, int]:
    """Read the Will of a CONNECT (3.1.3.2 to 3.1.3.4)."""
    properties: dict[str, Any] = {}
    if level == MQTT_5:
        properties, position = read_properties(body, position, WILL, most_properties)
    topic, position = read_utf8_string(body, position)
    validate_topic(topic)
    payload, position = read_binary_data(body, position)
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), properties), position


def _read_packet_id(body: Buffer, start: int) -> tuple[int, int]:
    """Read a packet id, which is never 0 [MQTT-2.2.1-3]."""
    packet_id, position = read_two_byte_integer(body, start)
    if packet_id == 0:
        raise ProtocolError("packet id: read 0; allowed: 1 to 65535 [MQTT-2.2.1-3]")
    return packet_id, position


def _read_packet_id_and_properties(
    body: Buffer, version: int, packet_type: PacketType, most_properties: int
) -> tuple[int, dict[str, Any], int]:
    """Read the common beginning of SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK."""
    packet_id, position = _read_packet_id(body, 0)
    if version != MQTT_5:
        return packet_id, {}, position
    properties, position = read_properties(body, position, packet_type, most_properties)
    return packet_id, properties, position


def _check_subscription_options(topic_filter: str, options: int, version: int) -> None:
    """Refuse Subscription Options that do not exist (3.8.3.1)."""
    if options & (0xC0 if version == MQTT_5 else 0xFC):
        raise MalformedPacketError(
            f"subscription options: read 0x{options:02X}, a reserved bit is set [MQTT-3.8.3-5]"
        )
    if options & 0x03 == 3:
        raise ProtocolError("subscription with QoS 3; allowed: 0, 1, 2 (3.8.3.1)")
    if options & 0x30 == 0x30:
        raise ProtocolError("subscription with Retain Handling 3; allowed: 0, 1, 2 (3.8.3.1)")
    if options & 0x04 and topic_filter.startswith(SHARE_PREFIX):
        raise ProtocolError("shared subscription with No Local [MQTT-3.8.3-4]")


def _check_reason_code(packet_type: PacketType, code: int) -> None:
    """Refuse a reason code that this packet may not hold."""
    if code not in REASON_CODES[packet_type]:
        raise ProtocolError(
            f"{packet_type.name} reason code: read {describe_reason_code(code)}; allowed: those "
            "of MQTT 5.0 section 2.4 for this packet"
        )


def _check_end(body: Buffer, position: int, packet_name: str) -> None:
    """Refuse bytes after the last field."""
    if position != len(body):
        raise MalformedPacketError(
            f"{packet_name} ends at byte {position} and has {len(body)}; allowed: nothing after it"
        )
