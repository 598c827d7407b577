"""The batch format encodes messages: in segments on disk, and in bulk answers over HTTP.

A body of content type ``application/vnd.penstock.batch`` is a row of *frames*; an empty body
holds no messages. All numbers are little-endian. A frame is:

1. header, 20 bytes: magic ``PQB1``, kind (u8: 0 records, 1 deliveries), bit map of the columns
   that are left out (u8), 2 zero bytes, number of messages n (u32), length of the whole frame in
   bytes (u64);
2. ``offset``: n x i64; ``enqueued_at``: n x f64, seconds since the Unix epoch; ``qos``: n x u8;
3. ``topic``, ``publisher``, ``properties``, each as a dictionary: number of distinct texts d
   (u32), their lengths (d x u32), their bytes (UTF-8), and for each message the index of its
   text (n x u32);
4. ``payload``: lengths (n x u32), then bytes;
5. in deliveries only: ``physical_queue`` and ``receive_count`` (n x u32 each), and
   ``receipt_handle``: lengths (n x u32), then bytes.

A reader of a range may leave out columns. Bit 1 of the bit map then stands for ``enqueued_at``, 2
for ``qos``, 3 for ``topic``, 4 for ``publisher``, 5 for ``properties``, 6 for the bytes of payloads
and 7 for their lengths. Stored frames and deliveries have all columns.

Columns make it fast: one call reads a whole column, and a topic is decoded once for all its
messages. The decoder is in `penstock.plugins.queue.wire.frames`, which imports nothing of Penstock.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from penstock.broker.mqtt.topics import matches
from penstock.plugins.queue.wire.frames import (
    BATCH_HEADER,
    BATCH_MAGIC,
    COLUMNS,
    KIND_DELIVERIES,
    KIND_RECORDS,
    Batch,
    ReceivedMessage,
    read_batch,
)

SEGMENT_MAX_MESSAGES = 256
"""The most messages of one frame. One undeleted message keeps at most so many deleted ones on
disk."""
SEGMENT_MAX_BYTES = 256 * 1024
"""The most payload bytes of one frame, unless a single message is longer."""


def write_batch(batch: Batch) -> bytes:
    """Return one frame of records."""
    return _frame(KIND_RECORDS, batch, [])


def write_deliveries(deliveries: Sequence[ReceivedMessage]) -> bytes:
    """Return one frame of deliveries; b"" for none."""
    if not deliveries:
        return b""
    handle, receive_count, physical_queue, offset, *rest = map(list, zip(*deliveries, strict=True))
    topic, payload, qos, publisher, enqueued_at, properties = rest
    n = len(deliveries)
    more = [
        struct.pack(f"<{n}I", *physical_queue),
        struct.pack(f"<{n}I", *receive_count),
        *_slices([text.encode() for text in handle]),
    ]
    batch = Batch(offset, topic, payload, qos, publisher, enqueued_at, properties)
    return _frame(KIND_DELIVERIES, batch, more)


def split_for_segments(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield messages in runs of one segment each.

    Args:
        sizes: their payload bytes.
    """
    start, n_bytes = 0, 0
    for index, size in enumerate(sizes):
        n_bytes += size
        is_full = index - start == SEGMENT_MAX_MESSAGES or n_bytes > SEGMENT_MAX_BYTES
        if is_full and index > start:
            yield slice(start, index)
            start, n_bytes = index, size
    if start < len(sizes):
        yield slice(start, len(sizes))


def cut_frame(frame: bytes, wanted: int, max_messages: int) -> bytes:
    """Return a frame with fewer records.

    Args:
        frame: one whole frame.
        wanted: bit map of the records to keep, bit 0 for the first.
        max_messages: how many of these to keep, beginning with the first.

    Raises:
        ValueError: `frame` is not a whole frame.
    """
    batch = read_batch(frame)
    kept = [index for index in range(len(batch.offset)) if wanted >> index & 1][:max_messages]
    return write_batch(Batch._make([column[index] for index in kept] for column in batch))


def last_offset(frame: bytes) -> int:
    """Return the offset of the last message of a frame."""
    n = BATCH_HEADER.unpack_from(frame)[3]
    offset: int = struct.unpack_from("<q", frame, BATCH_HEADER.size + 8 * (n - 1))[0]
    return offset


class Selection(NamedTuple):
    """What a reader wants of the messages of a range.

    Attributes:
        columns: some of `penstock.plugins.queue.wire.frames.COLUMNS`.
        topic_filters: valid MQTT topic filters, of which one must match; empty for all messages.
    """

    columns: frozenset[str] = frozenset(COLUMNS)
    topic_filters: tuple[str, ...] = ()

    def matching(self, frame: bytes) -> bytes:
        """Return a stored frame without messages that no topic filter matches; b"" for none.

        Raises:
            ValueError: `frame` is not a whole frame.
        """
        if not self.topic_filters:
            return frame
        topics = _distinct_topics(frame)
        wanted = {
            topic for topic in topics if any(matches(one, topic) for one in self.topic_filters)
        }
        if not wanted or len(wanted) == len(topics):
            return frame if wanted else b""
        batch = read_batch(frame)
        bits = sum(1 << index for index, topic in enumerate(batch.topic) if topic in wanted)
        return cut_frame(frame, bits, len(batch.topic))

    def cut(self, frame: bytes) -> list[bytes | memoryview]:
        """Return the pieces of a stored frame without the columns that are not wanted."""
        left_out = [name not in self.columns for name in COLUMNS]
        # Lengths belong to payloads.
        left_out[_PAYLOAD_BYTES] &= left_out[_PAYLOAD]
        if not any(left_out):
            return [frame]
        magic, kind, _, n, _ = BATCH_HEADER.unpack_from(frame)
        view = memoryview(frame)
        at = BATCH_HEADER.size
        pieces = [view[at : at + 8 * n]]
        at += 8 * n
        for name, n_bytes in zip(COLUMNS, _column_bytes(frame, at, n), strict=True):
            if name in ("payload", "payload_bytes"):
                break
            if name in self.columns:
                pieces.append(view[at : at + n_bytes])
            at += n_bytes
        if not left_out[_PAYLOAD_BYTES]:
            pieces.append(view[at : at + 4 * n])
        if not left_out[_PAYLOAD]:
            pieces.append(view[at + 4 * n :])
        bits = sum(is_out << bit for bit, is_out in enumerate(left_out, start=1))
        frame_bytes = BATCH_HEADER.size + sum(map(len, pieces))
        return [BATCH_HEADER.pack(magic, kind, bits, n, frame_bytes), *pieces]


_PAYLOAD = COLUMNS.index("payload")
_PAYLOAD_BYTES = COLUMNS.index("payload_bytes")


def _distinct_topics(frame: bytes) -> list[str]:
    """Return the topics of a stored frame, each once."""
    at = BATCH_HEADER.size + 17 * BATCH_HEADER.unpack_from(frame)[3]
    (distinct,) = struct.unpack_from("<I", frame, at)
    lengths = struct.unpack_from(f"<{distinct}I", frame, at + 4)
    ends = accumulate(lengths, initial=at + 4 + 4 * distinct)
    return [frame[start:end].decode() for start, end in pairwise(ends)]


def _column_bytes(frame: bytes, at: int, n: int) -> Iterator[int]:
    """Yield how many bytes each column of a stored frame takes, payloads last and as 0.

    Args:
        frame: one whole frame.
        at: where the columns behind the offsets begin.
        n: messages.
    """
    yield 8 * n
    yield n
    at += 9 * n
    for _ in ("topic", "publisher", "properties"):
        (distinct,) = struct.unpack_from("<I", frame, at)
        n_bytes = 4 + 4 * distinct + sum(struct.unpack_from(f"<{distinct}I", frame, at + 4))
        n_bytes += 4 * n
        yield n_bytes
        at += n_bytes
    yield 0
    yield 0


def properties_json(properties: Mapping[str, Any]) -> str:
    """Return MQTT 5 properties as a JSON object, binary values in base64."""
    return json.dumps(dict(properties), default=_base64, ensure_ascii=False)


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode()


def _frame(kind: int, batch: Batch, more: list[bytes]) -> bytes:
    n = len(batch.offset)
    parts = [
        b"",
        struct.pack(f"<{n}q", *batch.offset),
        struct.pack(f"<{n}d", *batch.enqueued_at),
        bytes(batch.qos),
        *_texts(batch.topic),
        *_texts(batch.publisher),
        *_texts(batch.properties),
        *_slices(batch.payload),
        *more,
    ]
    frame_bytes = BATCH_HEADER.size + sum(map(len, parts))
    parts[0] = BATCH_HEADER.pack(BATCH_MAGIC, kind, 0, n, frame_bytes)
    return b"".join(parts)


def _texts(values: Sequence[str]) -> list[bytes]:
    """Write a dictionary-coded column."""
    index = {value: number for number, value in enumerate(dict.fromkeys(values))}
    indexes = map(index.__getitem__, values)
    return [
        struct.pack("<I", len(index)),
        *_slices([value.encode() for value in index]),
        struct.pack(f"<{len(values)}I", *indexes),
    ]


def _slices(values: Sequence[bytes]) -> list[bytes]:
    """Write a column of byte strings."""
    return [struct.pack(f"<{len(values)}I", *map(len, values)), *values]
