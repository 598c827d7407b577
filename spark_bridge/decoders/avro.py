"""Decodes Avro by fastavro: one datum, with or without the header of the single-object encoding."""

from __future__ import annotations

import io
import json
from typing import Any, Final

from penstock.spark_bridge.decoders.contract import (
    JSON_OBJECT,
    DecodeError,
    Decoder,
    column,
    needed_for,
    new_decoder,
    struct,
)
from penstock.spark_bridge.errors import OptionError

_MARK: Final = b"\xc3\x01"
"""The first bytes of the single-object encoding; the fingerprint of the schema follows."""
_HEADER_BYTES: Final = len(_MARK) + 8

_TYPES: Final = {
    "null": "STRING",
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "fixed": "BINARY",
    "string": "STRING",
    "enum": "STRING",
}
_LOGICAL_TYPES: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "time-millis": "STRING",
    "time-micros": "STRING",
    "uuid": "STRING",
}


def load(schema_text: bytes) -> Decoder:
    """Return the decoder of one record schema.

    Raises:
        OptionError: fastavro is not installed, or it is no schema of a record.
    """
    with needed_for("avro"):
        import fastavro  # noqa: PLC0415 - of an extra
        from fastavro import schema as rules  # noqa: PLC0415
    try:
        written = json.loads(schema_text)
        schema = fastavro.parse_schema(written)
        canonical = rules.to_parsing_canonical_form(written)
        fingerprint = rules.fingerprint(canonical, "CRC-64-AVRO")
    except (ValueError, KeyError, TypeError, rules.SchemaParseException) as error:
        raise OptionError(
            f"decode.schema_file: read {error}; allowed: an Avro schema in JSON"
        ) from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise OptionError("decode.schema_file: read no record; allowed: an Avro schema of a record")
    # The digits of fastavro are those of the bytes on the wire, with the least byte first.
    header = _MARK + bytes.fromhex(fingerprint)

    def read(payload: bytes) -> Any:
        if payload.startswith(_MARK):
            if not payload.startswith(header):
                raise DecodeError("read the fingerprint of another schema")
            payload = payload[_HEADER_BYTES:]
        file = io.BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(file, schema)
        except EOFError:  # its text names the buffer's address, by which no detail equals another
            raise DecodeError("the payload ends within the datum") from None
        if file.tell() != len(payload):
            raise DecodeError(f"read {len(payload) - file.tell()} bytes after the end of the datum")
        return value

    fields = _Types().of_fields(schema)
    columns = ", ".join(column(name, kind) for name, kind in fields.items())
    return new_decoder(read, (), columns)


class _Types:
    """The conversion of an Avro schema to Spark's types."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()

    def of_fields(self, record: dict[str, Any]) -> dict[str, str]:
        """Return name and type of each field."""
        self._named[record["name"]] = record
        self._open.add(record["name"])
        fields = {field["name"]: self._of(field["type"]) for field in record["fields"]}
        self._open.remove(record["name"])
        return fields

    def _of(self, schema: Any) -> str:
        if isinstance(schema, list):
            return self._of_union(schema)
        if isinstance(schema, str):
            if schema in _TYPES:
                return _TYPES[schema]
            # A record that holds itself has no fixed columns.
            return JSON_OBJECT if schema in self._open else self._of(self._named[schema])
        kind = schema["type"]
        logical = schema.get("logicalType")
        if logical == "decimal":
            return f"DECIMAL({schema['precision']}, {schema.get('scale', 0)})"
        if logical in _LOGICAL_TYPES:
            return _LOGICAL_TYPES[logical]
        if kind in ("record", "error"):
            return struct(self.of_fields(schema))
        if kind == "array":
            return f"ARRAY<{self._of(schema['items'])}>"
        if kind == "map":
            return f"MAP<STRING, {self._of(schema['values'])}>"
        if "name" in schema:
            self._named[schema["name"]] = schema
        return self._of(kind)

    def _of_union(self, members: list[Any]) -> str:
        types = {self._of(member) for member in members if member != "null"}
        # Values of several types can only be kept as the text that JSON has for them.
        return types.pop() if len(types) == 1 else JSON_OBJECT
