from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from penstock.broker.errors import MalformedPacketError, PeerError, ProtocolError
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.properties import (
    PROPERTIES,
    WILL,
    Property,
    read_properties,
    read_publish_properties,
    write_properties,
)
from tests.broker.mqtt.strategies import properties_of
from tests.helpers.effort import examples

CARRIERS = [WILL, *PacketType]

BYTES_OF = {
    "BYTE": "01",
    "TWO_BYTE_INTEGER": "0102",
    "FOUR_BYTE_INTEGER": "01020304",
    "VARIABLE_BYTE_INTEGER": "8001",
    "UTF8_STRING": "0001 61",
    "BINARY_DATA": "0001 ff",
    "STRING_PAIR": "0001 61 0001 62",
}
VALUE_OF: dict[str, Any] = {
    "BYTE": 1,
    "TWO_BYTE_INTEGER": 0x0102,
    "FOUR_BYTE_INTEGER": 0x01020304,
    "VARIABLE_BYTE_INTEGER": 128,
    "UTF8_STRING": "a",
    "BINARY_DATA": b"\xff",
    "STRING_PAIR": ("a", "b"),
}
PAHO_TYPES = {
    "Byte": "BYTE",
    "Two Byte Integer": "TWO_BYTE_INTEGER",
    "Four Byte Integer": "FOUR_BYTE_INTEGER",
    "Variable Byte Integer": "VARIABLE_BYTE_INTEGER",
    "UTF-8 Encoded String": "UTF8_STRING",
    "Binary Data": "BINARY_DATA",
    "UTF-8 String Pair": "STRING_PAIR",
}


def table_of_paho() -> dict[int, tuple[str, str, frozenset[int]]]:
    """Return identifier to (name, type, carriers), as paho-mqtt has them of Table 2-4."""
    paho = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's
    names = {identifier: name.lower().replace(" ", "_") for name, identifier in paho.names.items()}
    return {
        identifier: (
            names[identifier],
            PAHO_TYPES[paho.types[type_index]],
            frozenset(
                WILL if carrier == PacketTypes.WILLMESSAGE else carrier for carrier in carriers
            ),
        )
        for identifier, (type_index, carriers) in paho.properties.items()
    }


TABLE = table_of_paho()


def test_table_has_the_names_and_carriers_that_a_client_knows() -> None:
    """Our table is the one that paho-mqtt, which is not ours, has of Table 2-4."""
    ours = {row.identifier: (row.name, row.carriers) for row in PROPERTIES}
    theirs = {identifier: (name, carriers) for identifier, (name, _, carriers) in TABLE.items()}
    assert ours == theirs


@pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.name)
def test_each_property_in_each_packet(row: Property) -> None:
    """A property is read where it may stand, and malformed where it may not (2.2.2.2)."""
    _, type_name, carriers = TABLE[row.identifier]
    encoded = bytes([row.identifier]) + bytes.fromhex(BYTES_OF[type_name])
    data = bytes([len(encoded)]) + encoded
    value = VALUE_OF[type_name]
    for carrier in CARRIERS:
        expected = {row.name: [value] if row.repeats else value}
        if carrier in carriers:
            assert read_properties(data, 0, carrier) == (expected, len(data))
            assert write_properties(expected, carrier) == data
        else:
            with pytest.raises(MalformedPacketError, match=f"property {row.name} in "):
                read_properties(data, 0, carrier)
            with pytest.raises(ValueError, match=f"read '{row.name}'"):
                write_properties(expected, carrier)


@pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.name)
def test_property_twice(row: Property) -> None:
    """A second one is a Protocol Error, but for the two that are lists."""
    _, type_name, carriers = TABLE[row.identifier]
    encoded = (bytes([row.identifier]) + bytes.fromhex(BYTES_OF[type_name])) * 2
    data = bytes([len(encoded)]) + encoded
    for carrier in carriers:
        lists = row.name == "user_property" or (
            row.name == "subscription_identifier" and carrier == PacketType.PUBLISH
        )
        if lists:
            found, _ = read_properties(data, 0, carrier)
            assert found == {row.name: [VALUE_OF[type_name]] * 2}
        else:
            with pytest.raises(ProtocolError, match=f"property {row.name} stands twice"):
                read_properties(data, 0, carrier)


@pytest.mark.parametrize(
    ("carrier", "digits", "reason_code"),
    [
        (PacketType.PUBLISH, "01 02", 0x82),  # payload_format_indicator 2
        (PacketType.PUBLISH, "0b 00", 0x82),  # subscription_identifier 0
        (PacketType.SUBSCRIBE, "0b 00", 0x82),
        (PacketType.PUBLISH, "23 0000", 0x94),  # topic_alias 0 [MQTT-3.3.2-8]
        (PacketType.PUBLISH, "08 0001 23", 0x82),  # response_topic # [MQTT-3.3.2-14]
        (WILL, "08 0000", 0x82),  # response_topic "" [MQTT-4.7.3-1]
        (PacketType.CONNECT, "21 0000", 0x82),  # receive_maximum 0
        (PacketType.CONNACK, "27 00000000", 0x82),  # maximum_packet_size 0
        (PacketType.CONNECT, "17 02", 0x82),  # request_problem_information 2
        (PacketType.CONNECT, "19 ff", 0x82),  # request_response_information 255
        (PacketType.CONNACK, "24 02", 0x82),  # maximum_qos 2
        (PacketType.CONNACK, "25 02", 0x82),
        (PacketType.CONNACK, "28 02", 0x82),
        (PacketType.CONNACK, "29 02", 0x82),
        (PacketType.CONNACK, "2a 02", 0x82),
    ],
)
def test_values_that_are_not_allowed(carrier: int, digits: str, reason_code: int) -> None:
    """A value of the right type and out of range is a Protocol Error."""
    encoded = bytes.fromhex(digits)
    with pytest.raises(ProtocolError) as refusal:
        read_properties(bytes([len(encoded)]) + encoded, 0, carrier)
    assert refusal.value.reason_code == reason_code


@pytest.mark.parametrize(
    ("digits", "reason"),
    [
        ("02 7f 00", "property 0x7F in PUBLISH"),
        ("02 80 00", "property 0x80 in PUBLISH"),
        ("01 01", "goes on after the end"),
        ("04 02 000000", "goes on after the end"),
        ("03 03 0001 61", "goes on after the property length"),
        ("01 01 01", "goes on after the property length"),
        ("ff", "variable byte integer"),
        ("05 01 01", "go on after the end of the packet"),
        ("", "variable byte integer"),
    ],
)
def test_bytes_that_are_no_properties(digits: str, reason: str) -> None:
    """Unknown identifiers and lengths that disagree are malformed."""
    data = bytes.fromhex(digits)
    with pytest.raises(MalformedPacketError, match=reason):
        read_publish_properties(data, 0)


@pytest.mark.mqtt5("2.2.2-1")
def test_no_properties_is_a_length_of_zero() -> None:
    """No properties are one byte [MQTT-2.2.2-1], and a dict of the caller's own."""
    assert write_properties({}, PacketType.PUBLISH) == b"\0"
    first, end = read_publish_properties(b"xx\0payload", 2)
    second, _ = read_publish_properties(b"\0", 0)
    assert (first, end) == ({}, 3)
    assert first is not second


def test_empty_lists_are_not_written() -> None:
    """A list without members is no property."""
    assert write_properties({"user_property": []}, PacketType.PUBLISH) == b"\0"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"colour": "red"}, "read 'colour'; allowed: content_type, correlation_data"),
        ({"message_expiry_interval": -1}, "message_expiry_interval: integer of 4 bytes: read -1"),
        ({"message_expiry_interval": "60"}, "message_expiry_interval"),
        ({"content_type": b"x"}, "content_type"),
        ({"user_property": [("a",)]}, "user_property"),
        ({"subscription_identifier": 5}, "subscription_identifier"),
    ],
)
def test_wrong_properties_are_not_written(properties: dict[str, Any], reason: str) -> None:
    """A wrong property of ours is named, with what is allowed."""
    with pytest.raises(ValueError, match=reason):
        write_properties(properties, PacketType.PUBLISH)


@pytest.mark.mqtt5("3.3.2-18")
@pytest.mark.parametrize("carrier", CARRIERS)
@given(data=st.data())
@settings(max_examples=examples(30), deadline=None)
def test_properties_survive_in_their_order(carrier: int, data: st.DataObject) -> None:
    """What is written is read, user properties in order [MQTT-3.3.2-18]."""
    properties = data.draw(properties_of(carrier, 5))
    encoded = write_properties(properties, carrier)
    assert read_properties(b"\xff" + encoded, 1, carrier) == (properties, len(encoded) + 1)


@given(st.sampled_from(CARRIERS), st.binary(max_size=40))
@settings(max_examples=examples(500), deadline=None)
def test_random_bytes_raise_only_errors_of_the_peer(carrier: int, data: bytes) -> None:
    """Whatever comes in, only `PeerError` escapes."""
    for candidate in (data, bytes([len(data)]) + data):
        try:
            _, end = read_properties(candidate, 0, carrier)
        except PeerError:
            continue
        assert end <= len(candidate)


@pytest.mark.mqtt5("1.5.7-1", "1.5.4-1", "1.5.4-2")
@pytest.mark.parametrize(
    ("digits", "text"),
    [
        ("05 26 0001 61 00", "UTF-8 string at byte 5 goes on"),  # cut in the value's length
        ("06 26 0001 61 0001", "UTF-8 string at byte 5 goes on"),
        ("04 26 0002 61", "goes on"),
        ("07 26 0001 ff 0001 62", "invalid start byte in its byte 0"),
        ("07 26 0001 61 0001 ff", "UTF-8 string at byte 5: invalid start byte"),
        ("07 26 0001 00 0001 62", "holds U\\+0000"),
        ("07 26 0001 61 0001 00", "UTF-8 string at byte 5 holds U\\+0000"),
        ("06 26 0001 61 0001 62", "the last property goes on after the property length"),
        ("0c 26 0001 61 0001 62 26 0001 61 00", "goes on"),
    ],
)
def test_each_user_property_of_a_row_is_checked(digits: str, text: str) -> None:
    """Those that follow each other are read at once, with the words of one."""
    for before in ("", "26 0000 0000"):
        row = bytes.fromhex(digits)
        data = bytes([row[0] + len(bytes.fromhex(before))]) + bytes.fromhex(before) + row[1:]
        with pytest.raises(MalformedPacketError) as caught:
            read_properties(data, 0, PacketType.CONNECT)
        if not before:
            assert re.search(text, str(caught.value))


def test_user_properties_between_others_keep_their_order() -> None:
    """Wherever they stand."""
    data = bytes.fromhex("17 26 0001 61 0001 31 03 0001 63 26 0001 61 0001 32 26 0000 0000")
    found, end = read_properties(data, 0, PacketType.PUBLISH)
    assert found == {"user_property": [("a", "1"), ("a", "2"), ("", "")], "content_type": "c"}
    assert end == len(data)
