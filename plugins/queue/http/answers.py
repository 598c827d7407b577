"""Answers with messages are written as JSON, in the batch format or as Arrow.

Each writer is a work for `penstock.plugins.web.cooperative_work.Slicer` and returns the pieces of
the body.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from aiohttp import web

from penstock.plugins.queue.batch_format import Selection, split_for_segments, write_deliveries
from penstock.plugins.queue.http import arrow
from penstock.plugins.queue.http.requests import JSON_TYPE, Writing
from penstock.plugins.queue.wire.frames import (
    BATCH_CONTENT_TYPE,
    BATCH_HEADER,
    Batch,
    ReceivedMessage,
    read_batch,
)
from penstock.plugins.web.service import RequestError, show

PIECE_BYTES: Final = 64 * 1024

_BASE64_BYTES: Final = 48 * 1024
"""How many payload bytes one step encodes; a multiple of 3, so that the texts can be joined."""


def accepted_type(request: web.Request) -> str:
    """Return the content type for the messages of an answer.

    Raises:
        RequestError: the client accepts none that there is.
    """
    headers = request.headers.getall("Accept", [])
    return _accepted(", ".join(headers) or "*/*", has_arrow=arrow.IS_INSTALLED)


@lru_cache(maxsize=64)
def _accepted(header: str, *, has_arrow: bool) -> str:
    """Return the content type for an Accept header; clients send the same one each time."""
    wanted = [_weighed(item) for item in header.split(",")]
    for _, content_type in sorted(wanted, key=lambda item: -item[0]):
        if content_type in (JSON_TYPE, "application/*", "*/*"):
            return JSON_TYPE
        if content_type == BATCH_CONTENT_TYPE:
            return BATCH_CONTENT_TYPE
        if content_type == arrow.CONTENT_TYPE and has_arrow:
            return content_type
    allowed = f"{JSON_TYPE}, {BATCH_CONTENT_TYPE}, {arrow.CONTENT_TYPE}"
    if not has_arrow:
        allowed = f"{JSON_TYPE}, {BATCH_CONTENT_TYPE}; for Arrow, the server lacks pyarrow"
    raise RequestError(f"Accept: read {show(header)}; allowed: {allowed}", 406)


def _weighed(item: str) -> tuple[float, str]:
    """Return the weight and the content type of an item; what is not accepted has no type."""
    content_type, *parameters = (part.strip() for part in item.split(";"))
    for parameter in parameters:
        if parameter.lower().startswith("q="):
            try:
                weight = float(parameter[2:])
            except ValueError:
                continue
            return (weight, content_type.lower()) if weight > 0 else (0.0, "")
    return 1.0, content_type.lower()


def write_received(deliveries: Sequence[ReceivedMessage], content_type: str) -> Writing:
    """Write received messages."""
    if content_type == JSON_TYPE:
        return _write_json(ReceivedMessage._fields, deliveries)
    if content_type == arrow.CONTENT_TYPE:
        return arrow.write_deliveries(deliveries)
    return _write_batch(deliveries)


def write_range(frames: Sequence[bytes], content_type: str, wanted: Selection) -> Writing:
    """Write frames of records, or what is wanted of them."""
    if content_type == BATCH_CONTENT_TYPE:
        return _select(frames, wanted)
    matching = (found for frame in frames if (found := wanted.matching(frame)))
    columns = [name for name in Batch._fields if name == "offset" or name in wanted.columns]
    if content_type == JSON_TYPE:
        return _write_json(Batch._fields, _rows(matching), columns)
    return arrow.write_batches(map(read_batch, matching), columns)


def write_peeked(found: Sequence[tuple[int, Sequence[bytes]]]) -> Writing:
    """Write frames of several physical queues, by their numbers, as JSON."""
    rows = ((number, *row) for number, frames in found for row in _rows(frames))
    return _write_json(("physical_queue", *Batch._fields), rows)


def count(frames: Iterable[bytes]) -> int:
    """Return how many messages some frames hold."""
    return sum(BATCH_HEADER.unpack_from(frame)[3] for frame in frames)


def _rows(frames: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    for frame in frames:
        yield from zip(*read_batch(frame), strict=True)


def _write_json(
    names: Sequence[str], rows: Iterable[Sequence[Any]], columns: Sequence[str] | None = None
) -> Writing:
    """Write rows under `messages`: payloads in base64, properties as objects."""
    has_properties = columns is None or "properties" in columns
    has_payload = columns is None or "payload" in columns
    pieces: list[bytes] = []
    written = bytearray(b'{"messages": [')
    beginning = b""
    for row in rows:
        fields = dict(zip(names, row, strict=True))
        payload, properties = fields.pop("payload"), fields.pop("properties")
        if columns is not None:
            fields = {name: value for name, value in fields.items() if name in columns}
        written += beginning
        written += json.dumps(fields).encode()[:-1]
        if has_properties:
            # Properties are stored as the text of a JSON object.
            written += b', "properties": %b' % (properties.encode() or b"{}")
        if has_payload:
            written += b', "payload": "'
            for start in range(0, len(payload), _BASE64_BYTES):
                written += base64.b64encode(payload[start : start + _BASE64_BYTES])
                if len(written) >= PIECE_BYTES:
                    pieces.append(bytes(written))
                    written.clear()
                yield
            written += b'"'
        written += b"}"
        beginning = b", "
        yield
    written += b"]}"
    pieces.append(bytes(written))
    return pieces


def _write_batch(deliveries: Sequence[ReceivedMessage]) -> Writing:
    """Write frames as large as those of the storage."""
    pieces: list[bytes] = []
    for run in split_for_segments([len(one.payload) for one in deliveries]):
        pieces.append(write_deliveries(deliveries[run]))
        yield
    return pieces


def _select(frames: Sequence[bytes], wanted: Selection) -> Writing:
    pieces: list[bytes | memoryview] = []
    for frame in frames:
        matching = wanted.matching(frame)
        if matching:
            pieces += wanted.cut(matching)
        yield
    return pieces
