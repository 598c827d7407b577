"""The properties of MQTT 5.0 (section 2.2.2): one table, one reader, one writer.

A set of properties is a dict of the specification's names, in snake_case. Values are int, str or
bytes; `user_property` is a list of (name, value) in their order, and `subscription_identifier` a
list of int, since both may occur more than once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.broker.errors import MalformedPacketError, ProtocolError
from penstock.broker.mqtt import data_types
from penstock.broker.mqtt.data_types import Buffer
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import validate_topic

Properties: TypeAlias = Mapping[str, Any]
Check: TypeAlias = Callable[[str, Any], None]

WILL: Final = 0
"""Carrier of the Will Properties, besides the packet types; no packet has type 0."""


class DataType(NamedTuple):
    """Reader and writer of one type."""

    read: Callable[[Buffer, int], tuple[Any, int]]
    write: Callable[[Any], bytes]


BYTE = DataType(data_types.read_byte, data_types.write_byte)
TWO_BYTE_INTEGER = DataType(data_types.read_two_byte_integer, data_types.write_two_byte_integer)
FOUR_BYTE_INTEGER = DataType(data_types.read_four_byte_integer, data_types.write_four_byte_integer)
VARIABLE_BYTE_INTEGER = DataType(
    data_types.read_variable_byte_integer, data_types.write_variable_byte_integer
)
UTF8_STRING = DataType(data_types.read_utf8_string, data_types.write_utf8_string)
BINARY_DATA = DataType(data_types.read_binary_data, data_types.write_binary_data)
STRING_PAIR = DataType(data_types.read_string_pair, data_types.write_string_pair)


class Property(NamedTuple):
    """A row of the table.

    Attributes:
        identifier: Property Identifier.
        name: name in snake_case.
        data_type: type of its value.
        carriers: packet types that may carry it, and `WILL`.
        check: raises `ProtocolError` for values of the type that are not allowed; None where all
            values are.
        repeats: whether one packet may hold several; the value is then a list.
    """

    identifier: int
    name: str
    data_type: DataType
    carriers: frozenset[int]
    check: Check | None = None
    repeats: bool = False


def _check_flag(name: str, value: int) -> None:
    """Allow 0 and 1."""
    if value > 1:
        raise ProtocolError(f"property {name}: read {value}; allowed: 0 or 1")


def _check_not_zero(name: str, value: int) -> None:
    """Allow all values but 0."""
    if value == 0:
        raise ProtocolError(f"property {name}: read 0; allowed: 1 or more")


def _check_topic_alias(name: str, value: int) -> None:
    """Allow all values but 0 [MQTT-3.3.2-8]."""
    if value == 0:
        raise ProtocolError(
            f"property {name}: read 0; allowed: 1 or more", ReasonCode.TOPIC_ALIAS_INVALID
        )


def _check_response_topic(name: str, value: str) -> None:
    """Allow Topic Names [MQTT-3.3.2-14]."""
    try:
        validate_topic(value)
    except MalformedPacketError as error:
        raise ProtocolError(f"property {name}: {error}") from None


def _table() -> tuple[Property, ...]:
    """Return Table 2-4 of MQTT 5.0, with the limits from the sections that it refers to."""
    p = PacketType
    acknowledgements = {p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP, p.SUBACK, p.UNSUBACK}
    message = frozenset({p.PUBLISH, WILL})
    connect = frozenset({p.CONNECT})
    connack = frozenset({p.CONNACK})
    both_ways = connect | connack
    authenticating = both_ways | {p.AUTH}
    endings = frozenset({p.CONNACK, p.DISCONNECT})
    reasons = endings | acknowledgements | {p.AUTH}
    all_carriers = reasons | connect | message | {p.SUBSCRIBE, p.UNSUBSCRIBE}
    subscribing = frozenset({p.PUBLISH, p.SUBSCRIBE})
    return (
        Property(0x01, "payload_format_indicator", BYTE, message, _check_flag),
        Property(0x02, "message_expiry_interval", FOUR_BYTE_INTEGER, message),
        Property(0x03, "content_type", UTF8_STRING, message),
        Property(0x08, "response_topic", UTF8_STRING, message, _check_response_topic),
        Property(0x09, "correlation_data", BINARY_DATA, message),
        Property(
            0x0B,
            "subscription_identifier",
            VARIABLE_BYTE_INTEGER,
            subscribing,
            _check_not_zero,
            repeats=True,
        ),
        Property(0x11, "session_expiry_interval", FOUR_BYTE_INTEGER, connect | endings),
        Property(0x12, "assigned_client_identifier", UTF8_STRING, connack),
        Property(0x13, "server_keep_alive", TWO_BYTE_INTEGER, connack),
        Property(0x15, "authentication_method", UTF8_STRING, authenticating),
        Property(0x16, "authentication_data", BINARY_DATA, authenticating),
        Property(0x17, "request_problem_information", BYTE, connect, _check_flag),
        Property(0x18, "will_delay_interval", FOUR_BYTE_INTEGER, frozenset({WILL})),
        Property(0x19, "request_response_information", BYTE, connect, _check_flag),
        Property(0x1A, "response_information", UTF8_STRING, connack),
        Property(0x1C, "server_reference", UTF8_STRING, endings),
        Property(0x1F, "reason_string", UTF8_STRING, reasons),
        Property(0x21, "receive_maximum", TWO_BYTE_INTEGER, both_ways, _check_not_zero),
        Property(0x22, "topic_alias_maximum", TWO_BYTE_INTEGER, both_ways),
        Property(0x23, "topic_alias", TWO_BYTE_INTEGER, frozenset({p.PUBLISH}), _check_topic_alias),
        Property(0x24, "maximum_qos", BYTE, connack, _check_flag),
        Property(0x25, "retain_available", BYTE, connack, _check_flag),
        Property(0x26, "user_property", STRING_PAIR, all_carriers, repeats=True),
        Property(0x27, "maximum_packet_size", FOUR_BYTE_INTEGER, both_ways, _check_not_zero),
        Property(0x28, "wildcard_subscription_available", BYTE, connack, _check_flag),
        Property(0x29, "subscription_identifier_available", BYTE, connack, _check_flag),
        Property(0x2A, "shared_subscription_available", BYTE, connack, _check_flag),
    )


PROPERTIES: Final = _table()

_USER_PROPERTY: Final = 0x26

_BY_IDENTIFIER: Final = {
    carrier: {
        row.identifier: (row.name, row.data_type.read, row.check, row.repeats)
        for row in PROPERTIES
        if carrier in row.carriers
    }
    for carrier in (WILL, *PacketType)
}
_BY_NAME: Final = {
    carrier: {
        row.name: (row.identifier.to_bytes(1), row.data_type.write, row.repeats)
        for row in PROPERTIES
        if carrier in row.carriers
    }
    for carrier in (WILL, *PacketType)
}


def read_properties(
    data: Buffer, start: int, carrier: int, most_properties: int = sys.maxsize
) -> tuple[dict[str, Any], int]:
    """Read a Property Length and the properties after it.

    Args:
        data: bytes of the packet.
        start: position of the Property Length.
        carrier: packet type, or `WILL`.
        most_properties: maximum number of User Properties. A server adds as many Subscription
            Identifiers as subscriptions match; those of a client are limited by their bytes.

    Returns:
        (properties, position after them).

    Raises:
        MalformedPacketError: an identifier that is unknown or not for this carrier (2.2.2.2), or a
            value that is not of its type or extends beyond the Property Length.
        ProtocolError: a property occurs twice or too often, or its value is not allowed.
    """
    size_bytes, position = data_types.read_variable_byte_integer(data, start)
    end = position + size_bytes
    if end > len(data):
        raise MalformedPacketError(
            f"properties of {size_bytes} bytes at byte {position} go on after the end of the packet"
        )
    allowed = _BY_IDENTIFIER[carrier]
    found: dict[str, Any] = {}
    while position < end:
        if data[position] == _USER_PROPERTY and _USER_PROPERTY in allowed:
            pairs = found.setdefault("user_property", [])
            position = _read_user_properties(data, position, end, pairs, most_properties)
            if len(pairs) > most_properties:
                raise _too_many(carrier, most_properties)
            continue
        row = allowed.get(data[position])
        if row is None:
            raise _unwanted(data[position], carrier)
        name, read, check, repeats = row
        value, position = read(data, position + 1)
        if check is not None:
            check(name, value)
        if repeats:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise ProtocolError(f"property {name} stands twice; allowed: once")
        else:
            found[name] = value
    if position != end:
        raise MalformedPacketError("the last property goes on after the property length")
    if carrier == PacketType.SUBSCRIBE and len(found.get("subscription_identifier", ())) > 1:
        raise ProtocolError("property subscription_identifier stands twice; allowed: once")
    return found, end


def _read_user_properties(
    data: Buffer, start: int, end: int, pairs: list[tuple[str, str]], most: int
) -> int:
    """Read successive User Properties, of which a packet may hold very many.

    Returns:
        The position after the last one that was read.

    Raises:
        MalformedPacketError: one is not of its type.
    """
    position = start
    while position < end and data[position] == _USER_PROPERTY and len(pairs) <= most:
        try:  # inlined `read_string_pair`, in a third of the time
            name_at = position + 3
            name_end = name_at + (data[position + 1] << 8 | data[position + 2])
            value_at = name_end + 2
            value_end = value_at + (data[name_end] << 8 | data[name_end + 1])
            name, value = (
                str(data[name_at:name_end], "utf-8"),
                str(data[value_at:value_end], "utf-8"),
            )
            is_good = value_end <= end and "\0" not in name and "\0" not in value
        except (IndexError, UnicodeDecodeError):
            is_good = False
        if not is_good:
            data_types.read_string_pair(data, position + 1)  # raises the specific error
            raise MalformedPacketError("the last property goes on after the property length")
        pairs.append((name, value))
        position = value_end
    return position


def read_publish_properties(
    data: Buffer, start: int, most_properties: int = sys.maxsize
) -> tuple[dict[str, Any], int]:
    """Read the properties of a PUBLISH.

    Args:
        data: bytes that hold the packet; if more bytes follow it, the caller checks that the
            returned position is inside the packet.
        start: position of the Property Length.
        most_properties: the maximum number, as in `read_properties`.

    Returns:
        (properties, position of the payload).

    Raises:
        MalformedPacketError: as `read_properties`.
        ProtocolError: as `read_properties`.
    """
    if start < len(data) and data[start] == 0:
        return {}, start + 1
    return read_properties(data, start, PacketType.PUBLISH, most_properties)


def write_properties(properties: Properties, carrier: int) -> bytes:
    """Write properties after their Property Length.

    Raises:
        ValueError: a name that does not exist or is not for this carrier, or a value that is
            not of its type.
    """
    if not properties:
        return b"\0"
    allowed = _BY_NAME[carrier]
    chunks: list[bytes] = []
    for name, value in properties.items():
        row = allowed.get(name)
        if row is None:
            raise ValueError(
                f"property in {_carrier_name(carrier)}: read {name!r}; allowed: "
                + ", ".join(sorted(allowed))
            )
        identifier, write, repeats = row
        try:
            for item in value if repeats else (value,):
                chunks += identifier, write(item)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"property {name}: {error}") from None
    encoded = b"".join(chunks)
    return data_types.write_variable_byte_integer(len(encoded)) + encoded


def _unwanted(identifier: int, carrier: int) -> MalformedPacketError:
    """Return the error for an identifier that is not for this carrier (2.2.2.2)."""
    names = (row.name for row in PROPERTIES if row.identifier == identifier)
    what = next(names, f"0x{identifier:02X}")
    return MalformedPacketError(f"property {what} in {_carrier_name(carrier)} is not allowed")


def _too_many(carrier: int, most_properties: int) -> ProtocolError:
    """Return the error for too many User Properties."""
    return ProtocolError(
        f"{_carrier_name(carrier)}: more properties user_property than are allowed: "
        f"{most_properties}",
        ReasonCode.QUOTA_EXCEEDED,
    )


def _carrier_name(carrier: int) -> str:
    """Return a carrier's name for errors."""
    return "will properties" if carrier == WILL else PacketType(carrier).name
