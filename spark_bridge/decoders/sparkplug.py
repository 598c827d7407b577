"""Decodes Sparkplug B (specification 3.0, chapter 6.4): Protocol Buffers with typed metrics.

Group, message type, edge node and device are in the topic. A metric that is sent by its alias has
no name. BIRTH messages have the names of aliases, and a view can join them.
"""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.spark_bridge.decoders.contract import Decoder, column, needed_for, new_decoder, struct
from penstock.spark_bridge.decoders.protobuf import as_dict, failures, message_class, parse

_PACKAGE: Final = "org.eclipse.tahu.protobuf"
_REPEATED: Final = "*"

_MESSAGES: Final = {
    "Payload": "timestamp:4:1 metrics:Metric*:2 seq:4:3 uuid:9:4 body:12:5",
    "Metric": "name:9:1 alias:4:2 timestamp:4:3 datatype:13:4 is_historical:8:5 is_transient:8:6 "
    "is_null:8:7 int_value:13:10 long_value:4:11 float_value:2:12 double_value:1:13 "
    "boolean_value:8:14 string_value:9:15 bytes_value:12:16 dataset_value:DataSet:17 "
    "template_value:Template:18",
    "DataSet": "num_of_columns:4:1 columns:9*:2 types:13*:3 rows:Row*:4",
    "Row": "elements:DataSetValue*:1",
    "DataSetValue": "int_value:13:1 long_value:4:2 float_value:2:3 double_value:1:4 "
    "boolean_value:8:5 string_value:9:6",
    "Template": "version:9:1 metrics:Metric*:2 parameters:Parameter*:3 template_ref:9:4 "
    "is_definition:8:5",
    "Parameter": "name:9:1 type:13:2 int_value:13:3 long_value:4:4 float_value:2:5 "
    "double_value:1:6 boolean_value:8:7 string_value:9:8",
}
"""The fields of each message type, as ``name:type:number``. A type is a number of Protocol Buffers
or a name here. Other fields (metadata, property sets, extensions) are ignored."""

_DATA_TYPES: Final = (
    *("Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float", "Double", "Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes"),
    *("File", "Template"),
)
_SIGNED_BITS: Final = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}

_METRIC: Final = {
    "name": "STRING",
    "alias": "DECIMAL(20, 0)",
    "timestamp": "BIGINT",
    "datatype": "STRING",
    "is_historical": "BOOLEAN",
    "is_transient": "BOOLEAN",
    "is_null": "BOOLEAN",
    "long_value": "DECIMAL(20, 0)",
    "double_value": "DOUBLE",
    "boolean_value": "BOOLEAN",
    "string_value": "STRING",
    "bytes_value": "BINARY",
    "json_value": "STRING",
}
_COLUMNS: Final = {
    "timestamp": "BIGINT",
    "seq": "BIGINT",
    "uuid": "STRING",
    "metrics": f"ARRAY<{struct(_METRIC)}>",
    "body": "BINARY",
}
SCHEMA: Final = ", ".join(column(name, kind) for name, kind in _COLUMNS.items())
"""Times are milliseconds since 1970; ``json_value`` holds data sets and templates."""


def load() -> Decoder:
    """Return the decoder.

    Raises:
        OptionError: protobuf is not installed.
    """
    kind = message_class(_descriptors(), f"{_PACKAGE}.Payload")

    def read(payload: bytes) -> Any:
        fields = as_dict(parse(kind, payload))
        return fields | {"metrics": [_metric(metric) for metric in fields["metrics"]]}

    return new_decoder(read, failures(), SCHEMA)


def _metric(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a metric with its number in one field, signed as its type says."""
    number = fields["datatype"] or 0
    known = number < len(_DATA_TYPES)
    datatype = _DATA_TYPES[number] if known else str(number)
    integer = fields["int_value"] if fields["long_value"] is None else fields["long_value"]
    bits = _SIGNED_BITS.get(datatype)
    if integer is not None and bits is not None:
        # A publisher may have extended the sign to all 32 or 64 bits of the field.
        integer &= (1 << bits) - 1
        integer -= (integer >> (bits - 1)) << bits
    double = fields["float_value"] if fields["double_value"] is None else fields["double_value"]
    other = fields["dataset_value"] or fields["template_value"]
    metric = {name: fields.get(name) for name in _METRIC}
    return metric | {
        "datatype": datatype,
        "is_null": bool(fields["is_null"]),
        "long_value": integer,
        "double_value": double,
        "json_value": None if other is None else json.dumps(other),
    }


def _descriptors() -> bytes:
    with needed_for("sparkplugB"):
        from google.protobuf import descriptor_pb2 as pb2  # noqa: PLC0415 - of an extra
    file = pb2.FileDescriptorProto(name="sparkplug_b.proto", package=_PACKAGE, syntax="proto2")
    label = pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for text in fields.split():
            name, kind, number = text.split(":")
            field = described.field.add(name=name, number=int(number))
            is_repeated = kind.endswith(_REPEATED)
            field.label = label.LABEL_REPEATED if is_repeated else label.LABEL_OPTIONAL
            kind = kind.removesuffix(_REPEATED)
            if kind.isdecimal():
                field.type = int(kind)
            else:
                field.type = label.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    serialized: bytes = pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return serialized
