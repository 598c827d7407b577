"""Arrow IPC streams of messages, where pyarrow is installed.

Columns of an answer, in this order; the first two only of received messages:

* ``receipt_handle`` (string), ``receive_count`` (uint32), ``physical_queue`` (uint32);
* ``offset`` (int64), ``topic`` (string), ``payload`` (binary), ``qos`` (uint8), ``publisher``
  (string), ``enqueued_at`` (timestamp of microseconds in UTC), ``properties`` (string; MQTT 5
  properties as a JSON object, "" for none).

Columns of messages to be stored: ``topic`` and ``payload``, and perhaps ``publisher``,
``properties``, ``qos``, ``key``, ``delay_seconds`` (float64) and ``deduplication_id`` (string). A
null is as good as a missing column. Bodies must not be compressed and have no dictionaries: a
little of these may stand for very much.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from penstock.plugins.queue.wire.frames import Batch, ReceivedMessage
from penstock.plugins.web.service import RequestError

CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"

ROWS_IN_A_STEP: Final = 256

IS_INSTALLED: Final = find_spec("pyarrow") is not None

_ALLOWED_TYPES: Final = {
    "topic": ("string", "large_string"),
    "payload": ("binary", "large_binary", "string", "large_string"),
    "publisher": ("string", "large_string"),
    "properties": ("string", "large_string"),
    "key": ("string", "large_string"),
    "deduplication_id": ("string", "large_string"),
    "qos": ("uint8", "int8", "int16", "int32", "int64"),
    "delay_seconds": ("double", "float", "int32", "int64"),
}
"""The types of each column of messages to be stored, by its name."""

_NEEDED: Final = ("topic", "payload")

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The continuation marker and a length of 0."""


async def load() -> None:
    """Import pyarrow, which takes some 0.1 s at its first time; further calls do nothing.

    A thread does it, so that the loop goes on between the modules.
    """
    await asyncio.to_thread(_warm_up)


@cache
def _warm_up() -> None:
    """Use what loads further modules at its first use."""
    batch = Batch([0], [""], [b""], [0], [""], [0.0], [""])
    for _ in write_batches(iter([batch]), Batch._fields):
        pass


@cache
def _pyarrow() -> Any:
    import pyarrow.ipc  # noqa: PLC0415 (an optional package, of 40 MB)

    return pyarrow


def write_batches(
    batches: Iterator[Batch], columns: Sequence[str]
) -> Generator[None, None, list[memoryview]]:
    """Write messages of a range; a work for `penstock.plugins.web.cooperative_work.Slicer`."""
    whole = _schema(is_delivery=False)
    schema = _pyarrow().schema([whole.field(name) for name in columns])
    rows = (
        [getattr(batch, name)[at : at + ROWS_IN_A_STEP] for name in columns]
        for batch in batches
        for at in range(0, len(batch.offset), ROWS_IN_A_STEP)
    )
    return (yield from _write(rows, schema))


def write_deliveries(
    deliveries: Sequence[ReceivedMessage],
) -> Generator[None, None, list[memoryview]]:
    """Write received messages; a work for `penstock.plugins.web.cooperative_work.Slicer`."""
    starts = range(0, len(deliveries), ROWS_IN_A_STEP)
    columns = (zip(*deliveries[at : at + ROWS_IN_A_STEP], strict=True) for at in starts)
    return (yield from _write(map(tuple, columns), _schema(is_delivery=True)))


def _write(
    rows: Iterator[Sequence[Sequence[Any]]], schema: Any
) -> Generator[None, None, list[memoryview]]:
    """Write the messages of a stream, each of which is a piece: one sink for all would be moved."""
    pa = _pyarrow()
    pieces = [memoryview(schema.serialize())]
    for columns in rows:
        arrays = [_array(pa, column, field) for column, field in zip(columns, schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        pieces.append(memoryview(batch.serialize()))
        yield
    pieces.append(memoryview(_END_OF_STREAM))
    return pieces


def _array(pa: Any, column: Sequence[Any], field: Any) -> Any:
    if pa.types.is_timestamp(field.type):
        column = [round(moment * 1e6) for moment in column]
        return pa.array(column, pa.int64()).cast(field.type)
    return pa.array(column, field.type)


@cache
def _schema(*, is_delivery: bool) -> Any:
    pa = _pyarrow()
    received = [
        ("receipt_handle", pa.string()),
        ("receive_count", pa.uint32()),
        ("physical_queue", pa.uint32()),
    ]
    stored = [
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("qos", pa.uint8()),
        ("publisher", pa.string()),
        ("enqueued_at", pa.timestamp("us", tz="UTC")),
        ("properties", pa.string()),
    ]
    return pa.schema((received if is_delivery else []) + stored)


def read_rows(data: bytearray, most: int) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a stream; None where only work was done.

    Raises:
        RequestError: it is no such stream, or has other columns than are allowed.
    """
    pa = _pyarrow()
    n_rows = 0
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(bytes(data)))
        head = _next(messages)
        # pyarrow has checked the references in the schema of a message of this type alone.
        if head is None or head.type != "schema":
            raise RequestError("body: read no Arrow IPC stream; allowed: one with a schema")
        schema = pa.ipc.read_schema(head)
        _check_schema(schema)
        while (message := _next(messages)) is not None:
            if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
                raise RequestError(
                    f"body: read a compressed batch, or a {message.type}; allowed: record batches "
                    "that are not compressed"
                )
            batch = pa.ipc.read_record_batch(message, schema)
            n_rows += batch.num_rows
            if n_rows > most:
                raise RequestError(f"body: read {n_rows} messages or more; allowed: {most}")
            batch.validate(full=True)
            yield None
            for start in range(0, batch.num_rows, ROWS_IN_A_STEP):
                for row in batch.slice(start, ROWS_IN_A_STEP).to_pylist():
                    payload = row["payload"]
                    if row["topic"] is None or payload is None:
                        raise RequestError("topic, payload: read null; allowed: values")
                    if isinstance(payload, str):
                        row["payload"] = payload.encode()
                    yield row
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise RequestError(f"body: read no Arrow IPC stream ({error})") from error


def _next(messages: Any) -> Any:
    try:
        return messages.read_next_message()
    except StopIteration:
        return None


def _check_schema(schema: Any) -> None:
    names = list(schema.names)
    for name in names:
        if name not in _ALLOWED_TYPES or names.count(name) > 1:
            allowed = ", ".join(_ALLOWED_TYPES)
            raise RequestError(f"body: read column {name!r}; allowed, each once: {allowed}")
        if str(schema.field(name).type) not in _ALLOWED_TYPES[name]:
            raise RequestError(
                f"column {name}: read type {schema.field(name).type}; allowed: "
                f"{', '.join(_ALLOWED_TYPES[name])}"
            )
    for name in _NEEDED:
        if name not in names:
            raise RequestError(f"body: read no column {name}; allowed: with it")


def _is_compressed(metadata: bytes) -> bool:
    """Say whether the body of a record batch is compressed.

    Its metadata are a flatbuffer: table `Message` has the table `RecordBatch` as its third field,
    which has `compression` as its fourth.
    """
    message = int.from_bytes(metadata[:4], "little")
    header = _field(metadata, message, 2)
    if header is None:
        return False
    batch = header + int.from_bytes(metadata[header : header + 4], "little")
    return _field(metadata, batch, 3) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return the place of a field of a flatbuffer's table; None where it is absent."""
    (distance,) = struct.unpack_from("<i", metadata, table)
    vtable = table - distance
    (n_bytes,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * number >= n_bytes:
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + offset if offset else None
