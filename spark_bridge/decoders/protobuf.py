"""Decodes Protocol Buffers by a descriptor file, the output of ``protoc --include_imports``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TYPES: Final = {
    1: "DOUBLE",
    2: "FLOAT",
    3: "BIGINT",
    4: "DECIMAL(20, 0)",
    5: "INT",
    6: "DECIMAL(20, 0)",
    7: "BIGINT",
    8: "BOOLEAN",
    9: "STRING",
    12: "BINARY",
    13: "BIGINT",
    14: "STRING",
    15: "INT",
    16: "BIGINT",
    17: "INT",
    18: "BIGINT",
}
"""Spark's type for each type of a FieldDescriptor; unsigned ones get the next larger type."""
_ENUM: Final = 14


def load(descriptors: bytes, message: str) -> Decoder:
    """Return the decoder of one message type.

    Raises:
        OptionError: protobuf is not installed, or there is no such type.
    """
    kind = message_class(descriptors, message)

    def read(payload: bytes) -> Any:
        return as_dict(parse(kind, payload))

    columns = ", ".join(column(*each) for each in _fields(kind.DESCRIPTOR, frozenset()).items())
    return new_decoder(read, failures(), columns)


def failures() -> tuple[type[Exception], ...]:
    """Return what `parse` raises for bytes that are no message."""
    from google.protobuf import message  # noqa: PLC0415 - of an extra

    return (message.DecodeError,)


def message_class(descriptors: bytes, message: str) -> Any:
    """Return the class of a message type; arguments and errors are those of `load`."""
    with needed_for("protobuf"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - of an extra
    pool = descriptor_pool.DescriptorPool()
    unusable: tuple[type[Exception], ...] = (*failures(), TypeError)
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
    except unusable as error:
        raise OptionError(
            f"decode.schema_file: read {error}; allowed: the output of "
            "protoc --include_imports -o FILE"
        ) from error
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except (KeyError, TypeError) as error:  # the name's, or that of a file that is not imported
        raise OptionError(
            f"decode.message: read {message!r} ({' '.join(str(error).split())}); allowed: the full "
            "name of a message type in decode.schema_file"
        ) from error


def parse(kind: Any, payload: bytes) -> Any:
    """Return the message in a payload.

    Raises:
        DecodeError: a required field is missing.
        Exception: one of `failures`, where it is no message.
    """
    message = kind.FromString(payload)
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise DecodeError(f"read no {missing}; allowed: all required fields")
    return message


def as_dict(message: Any) -> dict[str, Any]:
    """Return a message's fields by name, those without a value as None.

    Integers stay numbers, which protobuf's own JSON form writes as texts.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            values = getattr(message, field.name)
            if _is_map(field):
                kind = field.message_type.fields_by_name["value"]
                fields[field.name] = {str(key): _value(kind, values[key]) for key in values}
            else:
                fields[field.name] = [_value(field, value) for value in values]
        elif field.has_presence and not message.HasField(field.name):
            fields[field.name] = None
        else:
            fields[field.name] = _value(field, getattr(message, field.name))
    return fields


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
        return as_dict(value)
    if field.type == _ENUM:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _fields(descriptor: Any, parents: frozenset[str]) -> dict[str, str]:
    """Return name and type of each field of a message type."""
    parents |= {descriptor.full_name}
    fields = {}
    for field in descriptor.fields:
        if _is_map(field):
            kind = _type(field.message_type.fields_by_name["value"], parents)
            fields[field.name] = f"MAP<STRING, {kind}>"
        else:
            kind = _type(field, parents)
            fields[field.name] = f"ARRAY<{kind}>" if field.is_repeated else kind
    return fields


def _type(field: Any, parents: frozenset[str]) -> str:
    if field.message_type is None:
        return _TYPES[field.type]
    if field.message_type.full_name == _TIMESTAMP:
        return "TIMESTAMP"
    # Spark has neither a struct that holds itself nor one without fields.
    if field.message_type.full_name in parents or not field.message_type.fields:
        return JSON_OBJECT
    return struct(_fields(field.message_type, parents))
