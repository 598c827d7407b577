from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

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


def test_the_single_object_encoding_tells_another_schema() -> None:
    """Its header holds the schema's fingerprint, least byte first."""
    decoder = avro.load(json.dumps(SCHEMA).encode())
    digits = fingerprint(to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO")
    header = b"\xc3\x01" + bytes.fromhex(digits)[::-1]
    assert decoder.to_json(header + written()) == decoder.to_json(written())
    with pytest.raises(DecodeError, match="fingerprint of another schema"):
        decoder.to_json(b"\xc3\x01" + bytes(8) + written())


@pytest.mark.parametrize("text", [b"", b"{}", b'"string"', b'{"type": "record"}', b"\xff"])
def test_what_is_no_schema_of_a_record_is_refused(text: bytes) -> None:
    """Told before anything runs, with the key."""
    with pytest.raises(OptionError, match=r"decode.schema_file: read"):
        avro.load(text)
