"""Converts the messages of a range to an Arrow record batch, column by column.

A gateway answers with frames. The columns of a frame are Arrow's own buffers, but in another order
and with lengths in place of offsets. So fixed-width columns are joined and used as they are, and a
text is decoded once for all messages of its frame that share it. No Python code runs for each
message, unless their MQTT 5 properties are all different.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.plugins.queue.strategies.message_key import key_reader
from penstock.plugins.queue.wire.frames import (
    BATCH_HEADER,
    BATCH_MAGIC,
    COLUMNS,
    KIND_RECORDS,
    PUBLISHED_AT_PROPERTY,
    RETAIN,
)
from penstock.spark_bridge.schema import BY_NAME, USER_PROPERTIES

_TIME: Final = pa.timestamp("us", tz="UTC")

_TYPES: Final = {
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "TIMESTAMP": _TIME,
    "TINYINT": pa.int8(),
    USER_PROPERTIES: pa.map_(pa.string(), pa.list_(pa.string())),
}
"""Arrow's type for each of Spark's."""

_MICROSECONDS: Final = 1_000_000.0
_LATEST_SECONDS: Final = 253_402_300_799.0
"""The end of the year 9999, where Spark's timestamps end."""

_WIDTHS: Final = {"enqueued_at": 8, "qos": 1}
_FIXED: Final = {
    "offset": pa.int64(),
    "enqueued_at": pa.float64(),
    "qos": pa.int8(),
    "payload_bytes": pa.uint32(),
}
_TEXTS: Final = ("topic", "publisher", "properties")


class RowOrigin(NamedTuple):
    """The origin of messages, and the settings of derived columns.

    Attributes:
        key: the setting of the queue that defines a message's key, or None.
        large_above_bytes: the payload length above which a message is large.
    """

    queue: str
    physical_queue: int
    key: str | None
    large_above_bytes: int


def _type_of(name: str) -> pa.DataType:
    return _TYPES[BY_NAME[name].spark_type]


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return the schema of the source's record batches; Spark compares it with its own."""
    return pa.schema([pa.field(name, _type_of(name), BY_NAME[name].nullable) for name in names])


@dataclass
class Texts:
    """A column of texts: the distinct texts, and the index of each message's text."""

    distinct: list[bytes]
    indexes: list[pa.Array]

    def column(self, values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
        """Return a value for each message, by the values of the distinct texts."""
        indexes = pa.concat_arrays(self.indexes)
        first = values[0]
        if all(value is None for value in values):
            return pa.nulls(len(indexes), arrow_type)
        if all(value == first for value in values):
            return pa.repeat(pa.scalar(first, arrow_type), len(indexes))
        return pa.array(values, arrow_type).take(indexes)


class Columns(Protocol):
    """The columns of messages in their transferred form, perhaps without some columns."""

    n_messages: int
    texts: dict[str, Texts]

    def fixed(self, name: str) -> pa.Array:
        """Return `offset`, `enqueued_at`, `qos` or `payload_bytes` as numbers."""

    def payloads(self) -> pa.Array:
        """Return the payloads."""


class Frames:
    """The columns of frames of kind records that all lack the same columns.

    Raises:
        ValueError: `body` does not consist of whole frames.
    """

    def __init__(self, body: bytes) -> None:
        self.n_messages = 0
        self.pieces: dict[str, list[memoryview]] = {"offset": []}
        self.texts: dict[str, Texts] = {}
        view = memoryview(body)
        at = 0
        while at < len(body):
            magic, kind, left_out, n, n_bytes = BATCH_HEADER.unpack_from(body, at)
            if magic != BATCH_MAGIC or kind != KIND_RECORDS or at + n_bytes > len(body):
                raise ValueError(f"no whole frame of records at byte {at}")
            self._add(view[at : at + n_bytes], left_out, n)
            at += n_bytes

    def _add(self, frame: memoryview, left_out: int, n: int) -> None:
        self.n_messages += n
        at = BATCH_HEADER.size
        self.pieces["offset"].append(frame[at : at + 8 * n])
        at += 8 * n
        kept = [name for bit, name in enumerate(COLUMNS, start=1) if not left_out >> bit & 1]
        for name in kept:
            if name in _WIDTHS:
                n_bytes = _WIDTHS[name] * n
                self.pieces.setdefault(name, []).append(frame[at : at + n_bytes])
                at += n_bytes
            elif name in _TEXTS:
                at = self._add_texts(name, frame, at, n)
        if "payload_bytes" in kept:
            self.pieces.setdefault("payload_bytes", []).append(frame[at : at + 4 * n])
            self.pieces.setdefault("payload", []).append(frame[at + 4 * n :])

    def _add_texts(self, name: str, frame: memoryview, at: int, n: int) -> int:
        """Add a dictionary-coded column; return where the next column begins."""
        (distinct,) = frame[at : at + 4].cast("I")
        at += 4
        lengths = frame[at : at + 4 * distinct].cast("I")
        texts = self.texts.setdefault(name, Texts([], []))
        indexes = numbers([frame[at + 4 * distinct + sum(lengths) :][: 4 * n]], n, pa.uint32())
        if texts.distinct:
            indexes = pc.add(indexes, pa.scalar(len(texts.distinct), pa.uint32()))
        texts.indexes.append(indexes)
        ends = accumulate(lengths, initial=at + 4 * distinct)
        texts.distinct += [bytes(frame[start:end]) for start, end in pairwise(ends)]
        return at + 4 * distinct + sum(lengths) + 4 * n

    def fixed(self, name: str) -> pa.Array:
        """Return a column of numbers."""
        return numbers(self.pieces[name], self.n_messages, _FIXED[name])

    def payloads(self) -> pa.Array:
        """Return the payloads."""
        ends = pc.cumulative_sum(self.fixed("payload_bytes").cast(pa.int32())).buffers()[1]
        offsets = pa.py_buffer(bytes(4) + ends.to_pybytes()[: 4 * self.n_messages])
        data = pa.py_buffer(b"".join(self.pieces["payload"]))
        return pa.Array.from_buffers(pa.binary(), self.n_messages, [None, offsets, data])


def numbers(pieces: Sequence[memoryview], n: int, arrow_type: pa.DataType) -> pa.Array:
    """Return a fixed-width column that comes in pieces, little-endian."""
    return pa.Array.from_buffers(arrow_type, n, [None, pa.py_buffer(b"".join(pieces))])


class _Rows:
    """Messages as the source's columns."""

    def __init__(self, came: Columns, origin: RowOrigin) -> None:
        self.n_messages = came.n_messages
        self.texts = came.texts
        self.came = came
        self.origin = origin

    @cached_property
    def properties(self) -> list[Mapping[str, Any]]:
        """The MQTT 5 properties of each distinct text."""
        return [json.loads(text) if text else {} for text in self.texts["properties"].distinct]

    def of_properties(self, name: str, read: Callable[[Mapping[str, Any]], Any]) -> pa.Array:
        """Return a column that properties have."""
        values = [read(one) for one in self.properties]
        return self.texts["properties"].column(values, _type_of(name))

    def column(self, name: str) -> pa.Array:
        """Return one of the source's columns."""
        if name in _OF_PROPERTIES:
            return self.of_properties(name, _OF_PROPERTIES[name])
        if name in ("topic", "publisher", "properties"):
            texts = [text.decode() for text in self.texts[name].distinct]
            values = texts if name == "topic" else [text or None for text in texts]
            return self.texts[name].column(values, pa.string())
        if name == "key":
            return self._keys()
        if name == "size_class":
            is_large = pc.greater(self.came.fixed("payload_bytes"), self.origin.large_above_bytes)
            return pc.if_else(is_large, pa.scalar("large"), pa.scalar("small"))
        if name == "payload":
            return self.came.payloads()
        if name in ("offset", "qos"):
            return self.came.fixed(name)
        if name == "arrival_time":
            seconds = self.came.fixed("enqueued_at")
            return pc.round(pc.multiply(seconds, _MICROSECONDS)).cast(pa.int64()).cast(_TIME)
        value = self.origin.queue if name == "queue" else self.origin.physical_queue
        return pa.repeat(pa.scalar(value, _type_of(name)), self.n_messages)

    def _keys(self) -> pa.Array:
        """Return the keys; a message's own goes before what the queue's setting says."""
        setting = self.origin.key or ""
        read = key_reader(self.origin.key)
        if setting.startswith("property:") or not setting:
            return self.of_properties("key", lambda one: read("", "", one.get("user_property", ())))
        read_own = key_reader(None)
        own = self.of_properties("key", lambda one: read_own("", "", one.get("user_property", ())))
        texts = self.texts["publisher" if setting == "publisher" else "topic"]
        keys = [read(text.decode(), text.decode(), ()) for text in texts.distinct]
        return pc.coalesce(own, texts.column(keys, pa.string()))


def _user_properties(properties: Mapping[str, Any]) -> list[tuple[str, list[str]]] | None:
    found: dict[str, list[str]] = {}
    for name, value in properties.get("user_property", ()):
        found.setdefault(name, []).append(value)
    return list(found.items()) or None


def _publish_time(properties: Mapping[str, Any]) -> int | None:
    """Return when the publisher says that it published, microseconds since 1970."""
    for name, value in properties.get("user_property", ()):
        if name == PUBLISHED_AT_PROPERTY:
            try:
                seconds = float(value)
            except ValueError:
                return None
            return round(seconds * _MICROSECONDS) if 0 <= seconds <= _LATEST_SECONDS else None
    return None


def _correlation_data(properties: Mapping[str, Any]) -> bytes | None:
    data = properties.get("correlation_data")
    return None if data is None else base64.b64decode(data)


_OF_PROPERTIES: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "retain": lambda one: RETAIN in one,
    "publish_time": _publish_time,
    "content_type": lambda one: one.get("content_type"),
    "response_topic": lambda one: one.get("response_topic"),
    "correlation_data": _correlation_data,
    "expiry_seconds": lambda one: one.get("message_expiry_interval"),
    "user_properties": _user_properties,
}


def to_record_batch(came: Columns, columns: Sequence[str], origin: RowOrigin) -> pa.RecordBatch:
    """Return messages as the named columns of the source, for which `came` has what they need."""
    rows = _Rows(came, origin)
    arrays = [rows.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
