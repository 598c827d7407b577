from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.spark_bridge.decoders import sparkplug
from penstock.spark_bridge.decoders.contract import DecodeError
from penstock.spark_bridge.decoders.sparkplug import SCHEMA


def field(number: int, value: int | bytes) -> bytes:
    """Return a field on the wire: a number as a varint, bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def metrics(*written: bytes) -> list[dict[str, Any]]:
    """Return what is read of a payload with these metrics, without what is null."""
    payload = field(1, 1_767_225_600_000) + b"".join(field(2, one) for one in written)
    read = json.loads(sparkplug.load().to_json(payload + field(3, 7)))
    assert (read["timestamp"], read["seq"]) == (1_767_225_600_000, 7)
    return [
        {name: value for name, value in one.items() if value is not None and name != "is_null"}
        for one in read["metrics"]
    ]


def test_metrics_are_read_by_their_type() -> None:
    """Signed integers travel in unsigned fields, of the type's own width or of the field's."""
    assert metrics(
        field(1, b"level") + field(4, 1) + field(10, 0xFF),
        field(2, 12) + field(4, 3) + field(10, 2**32 - 5),
        field(2, 13) + field(4, 4) + field(11, 2**64 - 6),
        field(2, 14) + field(4, 8) + field(11, 2**64 - 6),
        field(1, b"on") + field(4, 11) + field(14, 1),
        field(1, b"name") + field(4, 12) + field(15, "é".encode()),
        field(1, b"gone") + field(4, 9) + field(7, 1),
        field(1, b"new") + field(4, 99) + field(15, b"x"),
    ) == [
        {"name": "level", "datatype": "Int8", "long_value": -1},
        {"alias": 12, "datatype": "Int32", "long_value": -5},
        {"alias": 13, "datatype": "Int64", "long_value": -6},
        {"alias": 14, "datatype": "UInt64", "long_value": 2**64 - 6},
        {"name": "on", "datatype": "Boolean", "boolean_value": True},
        {"name": "name", "datatype": "String", "string_value": "é"},
        {"name": "gone", "datatype": "Float"},
        {"name": "new", "datatype": "99", "string_value": "x"},
    ]


def test_doubles_and_data_sets_are_read() -> None:
    """A data set has no fixed columns: it is JSON."""
    data_set = field(1, 1) + field(2, b"x") + field(4, field(1, field(1, 5)))
    double = varint(13 << 3 | 1) + b"\x00\x00\x00\x00\x00\x80\x35\x40"
    first, second = metrics(field(4, 10) + double, field(4, 16) + field(17, data_set))
    assert first == {"datatype": "Double", "double_value": 21.5}
    read = json.loads(second["json_value"])
    assert (read["columns"], read["rows"][0]["elements"][0]["int_value"]) == (["x"], 5)


def test_noise_is_an_error_and_the_columns_are_fixed() -> None:
    """What is on a topic of Sparkplug need not be Sparkplug."""
    assert sparkplug.load().schema == SCHEMA
    with pytest.raises(DecodeError):
        sparkplug.load().to_json(b"ONLINE")
