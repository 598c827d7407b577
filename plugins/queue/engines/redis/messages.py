"""The encoding of messages on the server."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.mqtt.expiry import EXPIRY
from penstock.plugins.queue.batch_format import split_for_segments, write_batch
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.engines.incoming import stored_properties
from penstock.plugins.queue.engines.segments import DELAY_PROPERTY, delay_of, number_of
from penstock.plugins.queue.strategies.message_key import StoredKeyReader
from penstock.plugins.queue.wire.frames import Batch

_HEAD: Final = struct.Struct("<ddddIB")
INFO: Final = struct.Struct("<ddddIBH")
"""The beginning of what the server keeps beside a message: clock, end of its delay, expiry, wall
time, payload bytes, flags, and bytes of the key. Key and topic follow. Flag 1 says that there is a
key. The other flags are the number of bytes before the payload in `BODY`, if it is below 128, else
0."""
BODY: Final = struct.Struct("<BHI")
"""The beginning of a message: QoS, bytes of publisher and of properties. These and the payload
follow."""
_IS_REPEAT: Final = 1
_HAS_KEY: Final = 2


class Row(NamedTuple):
    """A message as the server keeps it.

    Attributes:
        enqueued_at: wall time of its arrival, seconds since the Unix epoch.
        clock: the engine's time of its arrival.
        expires_at: the engine's time of its expiry; 0 for never.
    """

    offset: int
    topic: str
    payload: bytes
    qos: int
    publisher: str
    enqueued_at: float
    properties: str
    clock: float
    expires_at: float


class Stamp(NamedTuple):
    """When a message came.

    Attributes:
        age: seconds since.
        wall: seconds since the Unix epoch.
    """

    age: float
    wall: float


def root_of(incarnation: str) -> str:
    """Return an incarnation without the name of its life, another one after data was lost."""
    return incarnation.partition(".")[0]


def part_key(prefix: str, incarnation: str, number: int) -> str:
    """Return the common beginning of a physical queue's keys, which has a hash tag."""
    return f"{prefix}:{{{root_of(incarnation)}.{number}}}"


def written(new: NewMessage, stamp: Stamp, key_of: StoredKeyReader) -> list[bytes]:
    """Return the arguments of a message that is stored.

    Raises:
        OSError: its payload cannot be read.
        TypeError: its properties are no JSON.
        ValueError: the same, or a text is no Unicode.
    """
    message, identifier, _, is_repeat = new
    payload = message.payload
    if type(payload) is not bytes:
        payload = message.read_payload()
    return _arguments(
        message.topic,
        payload,
        message.qos,
        message.publisher,
        stamp.wall,
        stored_properties(new),
        stamp.age,
        key_of,
        identifier,
        _IS_REPEAT if is_repeat else 0,
    )


def written_row(
    row: Row,
    age: float,
    key_of: StoredKeyReader,
    *,
    identifier: bytes = b"",
    is_repeat: bool = True,
) -> list[bytes]:
    """Return the arguments of a message by its columns: head, key, topic, identifier, body.

    Args:
        row: its offset and clock are not used.
        age: seconds since its arrival.
        key_of: reads its key.
        identifier: deduplication identifier; b"" for none.
        is_repeat: whether it may be stored already.

    Raises:
        ValueError: a text is no Unicode.
    """
    _, topic, payload, qos, publisher, wall, properties, _, _ = row
    flags = _IS_REPEAT if is_repeat else 0
    return _arguments(
        topic, payload, qos, publisher, wall, properties, age, key_of, identifier, flags
    )


def _arguments(
    topic: str,
    payload: bytes,
    qos: int,
    publisher: str,
    wall: float,
    properties: str,
    age: float,
    key_of: StoredKeyReader,
    identifier: bytes,
    flags: int,
) -> list[bytes]:
    own_delay = interval = None
    if properties:
        own_delay = delay_of(properties) if DELAY_PROPERTY in properties else None
        interval = number_of(properties, EXPIRY) if EXPIRY in properties else None
    key = key_of(topic, publisher, properties)
    head = _HEAD.pack(
        max(0.0, age),
        -1.0 if own_delay is None else own_delay,
        -1.0 if interval is None else interval,
        wall,
        len(payload),
        flags if key is None else flags | _HAS_KEY,
    )
    by, text = publisher.encode(), properties.encode()
    body = b"".join((BODY.pack(qos, len(by), len(text)), by, text, payload))
    return [head, b"" if key is None else key.encode(), topic.encode(), identifier, body]


def is_repeat(head: bytes) -> bool:
    """Say of a message's first argument whether the message may be stored already."""
    return bool(head[-1] & _IS_REPEAT)


def as_repeat(head: bytes) -> bytes:
    """Return a message's first argument for one that may be stored already."""
    return head[:-1] + bytes((head[-1] | _IS_REPEAT,))


def arrived_at(info: bytes) -> float:
    """Return the wall time at which a message came."""
    wall: float = INFO.unpack_from(info)[3]
    return wall


def read_row(offset: int, info: bytes, body: bytes) -> Row:
    """Return a message out of what the server keeps of it."""
    clock, _, expires, wall, _, _, key_bytes = INFO.unpack_from(info)
    topic = info[INFO.size + key_bytes :].decode()
    qos, publisher_bytes, properties_bytes = BODY.unpack_from(body)
    at = BODY.size + publisher_bytes
    end = at + properties_bytes
    publisher = body[BODY.size : at].decode()
    return Row(
        offset, topic, body[end:], qos, publisher, wall, body[at:end].decode(), clock, expires
    )


def rows_of(flat: Sequence[Any]) -> Iterator[Row]:
    """Yield messages out of a row of offset, info and body of each."""
    for at in range(0, len(flat), 3):
        yield read_row(flat[at], flat[at + 1], flat[at + 2])


def frames_of(rows: Sequence[Row]) -> list[bytes]:
    """Return messages as frames of the batch format."""
    frames = []
    for run in split_for_segments([len(row.payload) for row in rows]):
        columns = list(map(list, zip(*rows[run], strict=True)))[: len(Batch._fields)]
        frames.append(write_batch(Batch._make(columns)))
    return frames
