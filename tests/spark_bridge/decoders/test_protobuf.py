from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from penstock.spark_bridge.decoders import protobuf
from penstock.spark_bridge.decoders.contract import DecodeError
from penstock.spark_bridge.errors import OptionError

FIELD = descriptor_pb2.FieldDescriptorProto


def descriptors() -> bytes:
    """Return what protoc writes for a message type ``plant.Reading``."""
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="plant.proto", package="plant", syntax="proto2")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="State")
    kind.value.add(name="OFF", number=0)
    kind.value.add(name="ON", number=1)
    reading = file.message_type.add(name="Reading")
    entry = reading.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)

    def add(name: str, kind: int, type_name: str = "", label: int = 1) -> None:
        number = len(reading.field) + 1
        field: dict[str, Any] = {"name": name, "number": number, "type": kind, "label": label}
        reading.field.add(**field, **({"type_name": type_name} if type_name else {}))

    add("id", FIELD.TYPE_UINT64, label=FIELD.LABEL_REQUIRED)
    add("value", FIELD.TYPE_DOUBLE)
    add("at", FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    add("state", FIELD.TYPE_ENUM, ".plant.State")
    add("raw", FIELD.TYPE_BYTES, label=FIELD.LABEL_REPEATED)
    add("tags", FIELD.TYPE_MESSAGE, ".plant.Reading.TagsEntry", FIELD.LABEL_REPEATED)
    add("before", FIELD.TYPE_MESSAGE, ".plant.Reading")
    written: bytes = files.SerializeToString()
    return written


def payload(**fields: Any) -> bytes:
    """Return a reading as a publisher writes it."""
    kind = protobuf.message_class(descriptors(), "plant.Reading")
    message = kind(id=2**64 - 1, **fields)
    message.at.seconds = 1_767_225_600
    written: bytes = message.SerializeToString()
    return written


def test_a_message_becomes_json_with_the_columns_of_its_descriptor() -> None:
    """Integers stay numbers, times are times, what is not set is null."""
    decoder = protobuf.load(descriptors(), "plant.Reading")
    assert decoder.schema == (
        "`id` DECIMAL(20, 0), `value` DOUBLE, `at` TIMESTAMP, `state` STRING, "
        "`raw` ARRAY<BINARY>, `tags` MAP<STRING, INT>, `before` STRING"
    )
    read = json.loads(decoder.to_json(payload(state=1, raw=[b"\x00"], tags={"a": 1})))
    assert read == {
        "id": 2**64 - 1,
        "value": None,
        "at": "2026-01-01T00:00:00+00:00",
        "state": "ON",
        "raw": ["AA=="],
        "tags": {"a": 1},
        "before": None,
    }


def test_what_is_no_message_or_lacks_a_required_field_is_an_error() -> None:
    """The reason names the field."""
    decoder = protobuf.load(descriptors(), "plant.Reading")
    for noise in (payload()[:-1], b"\xff\xff", b"\x08"):
        with pytest.raises(DecodeError):
            decoder.to_json(noise)
    with pytest.raises(DecodeError, match="read no id; allowed: all required fields"):
        decoder.to_json(b"")


def test_files_and_types_that_cannot_be_used_are_named() -> None:
    """Told before anything runs, with the key."""
    with pytest.raises(OptionError, match=r"decode.schema_file: read"):
        protobuf.load(b"no descriptors", "plant.Reading")
    with pytest.raises(OptionError, match=r"decode.message: read 'plant.Nothing'"):
        protobuf.load(descriptors(), "plant.Nothing")
    alone = descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    del alone.file[0]
    with pytest.raises(OptionError, match="include_imports"):
        protobuf.load(alone.SerializeToString(), "plant.Reading")
