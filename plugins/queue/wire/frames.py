"""Messages in answers of the HTTP API, and the decoder of the batch format.

`penstock.plugins.queue.batch_format` documents the format and encodes it. This module imports only
the standard library, so that an executor of Spark needs no broker.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, Final, NamedTuple, TypeVar

_T = TypeVar("_T")

BATCH_CONTENT_TYPE: Final = "application/vnd.penstock.batch"

BATCH_MAGIC: Final = b"PQB1"

BATCH_HEADER: Final = struct.Struct("<4sBB2xIQ")
"""The header of a frame: magic, kind, bit map of the columns that are left out, number of messages,
bytes of the whole frame; little-endian, as every number."""

COLUMNS: Final = (
    "enqueued_at",
    "qos",
    "topic",
    "publisher",
    "properties",
    "payload",
    "payload_bytes",
)
"""The columns of a range that a reader may leave out, in the order of the header's bits from 1 on.
``payload_bytes`` are the lengths, which come along with payloads. The offset always comes."""

KIND_RECORDS: Final = 0

KIND_DELIVERIES: Final = 1

NEXT_OFFSET_HEADER: Final = "Penstock-Next-Offset"
"""The header of the answer to a range with the offset from which to read on."""

LOOKED_AT_HEADER: Final = "Penstock-Messages"
"""The header of the answer to a range with the number of messages below that offset, those that the
topic filter left out included."""

NOT_ACKNOWLEDGED_HEADER: Final = "Penstock-Not-Acknowledged"
"""The header with the handles that a receive could not acknowledge: JSON, their indexes by reason.
It is missing where all were acknowledged."""

RETAIN: Final = "retain"
"""The key, beside the properties, of a message that was published with the RETAIN flag: true. No
publisher can set it."""

PUBLISHED_AT_PROPERTY: Final = "penstock-published-at"
"""The user property in which a publisher may tell when it published, in seconds since the Unix
epoch."""

DEAD_LETTER: Final = "dead_letter"
"""The key, beside the properties, of a dead letter: an object with ``queue``, ``physical_queue``,
``group``, ``reason`` (``max_receives`` or ``dead``) and ``receives``. No publisher can set it."""


class Batch(NamedTuple):
    """Messages of one physical queue as parallel lists, each `n_messages` long.

    Attributes:
        offset: offset in the physical queue, ascending.
        topic: Topic Name.
        payload: payload bytes.
        qos: QoS the message was published with.
        publisher: Client Identifier of the publisher; "" where there is none.
        enqueued_at: arrival at the broker, seconds since the Unix epoch.
        properties: MQTT 5 properties as a JSON object, binary values in base64; "" for none. Those
            of a dead letter have `DEAD_LETTER`.
    """

    offset: list[int]
    topic: list[str]
    payload: list[bytes]
    qos: list[int]
    publisher: list[str]
    enqueued_at: list[float]
    properties: list[str]


class ReceivedMessage(NamedTuple):
    """One received message; settle it by its `receipt_handle` once it is processed.

    Attributes:
        receipt_handle: names this receive of the message; opaque.
        receive_count: how often the group has received the message, including this time.
        physical_queue: number of its physical queue.
        offset: its offset there.
        topic: Topic Name.
        payload: payload bytes.
        qos: QoS the message was published with.
        publisher: Client Identifier of the publisher; "" where there is none.
        enqueued_at: arrival at the broker, seconds since the Unix epoch.
        properties: the properties, as of `Batch`.
    """

    receipt_handle: str
    receive_count: int
    physical_queue: int
    offset: int
    topic: str
    payload: bytes
    qos: int
    publisher: str
    enqueued_at: float
    properties: str


class _FrameReader:
    """Reads the columns of one frame in their order."""

    def __init__(self, body: bytes, position: int, count: int) -> None:
        self.body = body
        self.position = position
        self.count = count

    def numbers(self, code: str, count: int | None = None) -> tuple[Any, ...]:
        """Read one fixed-width column; `code` is a `struct` format character."""
        column = struct.Struct(f"<{self.count if count is None else count}{code}")
        values = column.unpack_from(self.body, self.position)
        self.position += column.size
        return values

    def slices(self, count: int | None = None) -> list[bytes]:
        """Read a column of byte strings: all lengths, then all bytes."""
        lengths = self.numbers("I", count)
        body = self.body
        ends = accumulate(lengths, initial=self.position)
        values = [body[start:end] for start, end in pairwise(ends)]
        self.position += sum(lengths)
        return values

    def dictionary(self) -> tuple[list[str], tuple[int, ...]]:
        """Read a dictionary-coded column: the distinct texts, and an index for each message."""
        (distinct,) = self.numbers("I", 1)
        if distinct > self.count:
            raise ValueError(f"{distinct} distinct texts in a frame of {self.count} messages")
        return [value.decode() for value in self.slices(distinct)], self.numbers("I")

    def texts(self) -> list[str]:
        """Read a dictionary-coded column as the text of each message."""
        dictionary, indexes = self.dictionary()
        return [dictionary[index] for index in indexes]

    def batch(self) -> Batch:
        """Read the columns that every frame has."""
        offset = list(self.numbers("q"))
        enqueued_at = list(self.numbers("d"))
        qos = list(self.numbers("B"))
        topic, publisher, properties = self.texts(), self.texts(), self.texts()
        return Batch(offset, topic, self.slices(), qos, publisher, enqueued_at, properties)

    def offsets(self) -> tuple[int, ...]:
        """Check the columns that every frame has, and return the offsets.

        Accepts what `batch` accepts, without making an object for each message.
        """
        offset = self.numbers("q")
        self.position += 9 * self.count  # times and QoS
        for _ in range(3):
            dictionary, indexes = self.dictionary()
            if max(indexes, default=-1) >= len(dictionary):
                raise IndexError("a text that the dictionary does not have")
        payload_bytes = self.numbers("I")
        self.position += sum(payload_bytes)
        return offset


def _frames(
    body: bytes, kind: int, read: Callable[[_FrameReader], _T]
) -> Iterator[tuple[_FrameReader, _T]]:
    """Yield each frame of `body`, its common columns read.

    Raises:
        ValueError: `body` is not a row of whole frames of this kind.
    """
    position = 0
    while position < len(body):
        try:
            magic, found, left_out, count, frame_bytes = BATCH_HEADER.unpack_from(body, position)
            if magic != BATCH_MAGIC or found != kind or position + frame_bytes > len(body):
                raise ValueError(f"no whole frame of kind {kind} at byte {position}")
            if left_out:
                raise ValueError(f"the frame at byte {position} leaves out columns")
            reader = _FrameReader(body, position + BATCH_HEADER.size, count)
            yield reader, read(reader)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"broken frame at byte {position}: {error}") from error
        if reader.position != position + frame_bytes:
            raise ValueError(f"broken frame at byte {position}: its columns do not fill it")
        position = reader.position


def read_batch(body: bytes) -> Batch:
    """Return the messages of a row of frames of kind `KIND_RECORDS` as one batch.

    Raises:
        ValueError: `body` is not a row of whole frames.
    """
    batches = [batch for _, batch in _frames(body, KIND_RECORDS, _FrameReader.batch)]
    return batches[0] if len(batches) == 1 else join_batches(batches)


def read_offsets(body: bytes) -> list[int]:
    """Return the offsets of a row of frames of kind `KIND_RECORDS`.

    Raises:
        ValueError: `read_batch` would not read `body`.
    """
    read = _frames(body, KIND_RECORDS, _FrameReader.offsets)
    return [offset for _, offsets in read for offset in offsets]


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the messages of all, in their order."""
    columns = (
        list(chain.from_iterable(batch[number] for batch in batches))
        for number in range(len(Batch._fields))
    )
    return Batch._make(columns)


def read_deliveries(body: bytes) -> list[ReceivedMessage]:
    """Return the messages of a row of frames of kind `KIND_DELIVERIES`.

    Raises:
        ValueError: `body` is not a row of whole frames.
    """
    deliveries: list[ReceivedMessage] = []
    for reader, batch in _frames(body, KIND_DELIVERIES, _FrameReader.batch):
        physical_queue, receive_count = reader.numbers("I"), reader.numbers("I")
        handles = [handle.decode() for handle in reader.slices()]
        columns = (handles, receive_count, physical_queue, *batch)
        deliveries += received_messages(zip(*columns, strict=True))
    return deliveries


def received_messages(rows: Iterable[tuple[Any, ...]]) -> Iterator[ReceivedMessage]:
    """Return rows of `ReceivedMessage`'s fields as such, without a call in Python for each."""
    return map(tuple.__new__, repeat(ReceivedMessage), rows)
