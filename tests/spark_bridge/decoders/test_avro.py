from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from penstock.spark_bridge.decoders import avro
from penstock.spark_bridge.decoders.contract import DecodeError
from penstock.spark_bridge.errors import OptionError

ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "x", "type": "float"}, {"name": "next", "type": ["null", "Item"]}],
}
STATE = {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "unit", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "state", "type": STATE},
        {"name": "before", "type": "State"},
        {"name": "more", "type": {"type": "map", "values": "Item"}},
        {"name": "other", "type": ["int", "string"]},
    ],
}
DATUM: dict[str, Any] = {
    "id": 1,
    "unit": None,
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "price": Decimal("12.34"),
    "items": [{"x": 1.5, "next": {"x": 2.0, "next": None}}],
    "state": "ON",
    "before": "OFF",
    "more": {},
    "other": "text",
}


def written() -> bytes:
    """Return the datum as a publisher writes it."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(SCHEMA), DATUM)
    return file.getvalue()


def test_a_datum_becomes_json_with_the_columns_of_its_schema() -> None:
    """Nothing of the schema has to be written twice."""
    decoder = avro.load(json.dumps(SCHEMA).encode())
    assert decoder.schema == (
        "`id` BIGINT, `unit` STRING, `at` TIMESTAMP, `price` DECIMAL(6, 2), "
        "`items` ARRAY<STRUCT<`x`: FLOAT, `next`: STRING>>, `state` STRING, `before` STRING, "
        "`more` MAP<STRING, STRUCT<`x`: FLOAT, `next`: STRING>>, `other` STRING"
    )
    told = DATUM | {"at": "2026-01-01T00:00:00+00:00", "price": "12.34"}
    assert json.loads(decoder.to_json(written())) == told


def test_every_part_of_a_datum_and_what_follows_it_is_an_error() -> None:
    """Bytes of another schema are not taken for a message."""
    decoder, payload = avro.load(json.dumps(SCHEMA).encode()), written()
    for end in range(len(payload)):
        with pytest.raises(DecodeError):
            decoder.to_json(payload[:end])
    with pytest.raises(DecodeError, match=r"^the payload ends within the datum$"):
        decoder.to_json(b"")
    with pytest.raises(DecodeError, match="read 1 bytes after the end"):
        decoder.to_json(payload + b"\x00")


def fingerprint(canonical: str) -> bytes:
    """Return the CRC-64-AVRO of a schema as it is sent, by the specification's own words."""
    empty = 0xC15D213AA4D7A795
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (empty & -(value & 1))  # noqa: PLW2901
        table.append(value)
    found = empty
    for byte in canonical.encode():
        found = found >> 8 ^ table[(found ^ byte) & 0xFF]
    return found.to_bytes(8, "little")


def test_the_single_object_encoding_tells_another_schema() -> None:
    """Its header holds the schema's fingerprint, least byte first."""
    assert fingerprint('"int"').hex() == "8f5c393f1ad57572"  # published with the specification
    schema = (
        b'{"type": "record", "name": "R", "doc": "x", "fields": [{"type": "int", "name": "a"}]}'
    )
    canonical = '{"name":"R","type":"record","fields":[{"name":"a","type":"int"}]}'
    decoder = avro.load(schema)
    header = b"\xc3\x01" + fingerprint(canonical)
    assert decoder.to_json(header + b"\x80\x01") == '{"a": 64}'
    for other in (header[:2] + header[:1:-1], b"\xc3\x01" + bytes(8)):
        with pytest.raises(DecodeError, match="fingerprint of another schema"):
            decoder.to_json(other + b"\x80\x01")
    with pytest.raises(DecodeError, match="read 1 bytes after the end"):
        decoder.to_json(header + b"\x80\x01\x00")


def test_a_datum_of_the_specification_is_read() -> None:
    """The example of binary encoding: a long and a string."""
    fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "test", "fields": fields}).encode()
    assert avro.load(schema).to_json(bytes.fromhex("3606666f6f")) == '{"a": 27, "b": "foo"}'


@pytest.mark.parametrize("text", [b"", b"{}", b'"string"', b'{"type": "record"}', b"\xff"])
def test_what_is_no_schema_of_a_record_is_refused(text: bytes) -> None:
    """Told before anything runs, with the key."""
    with pytest.raises(OptionError, match=r"decode.schema_file: read"):
        avro.load(text)
