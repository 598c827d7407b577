"""The format of a part: what stands before its data in the payload of a PUBLISH.

A part is an ordinary message of QoS 1, so that any broker of any version of MQTT carries it. All
that the other end needs is in the payload, as MQTT 3.1.1 has no properties. Integers are
big-endian.

    bytes  0 to 3    "PART"
    byte   4         version of this form, 1
    byte   5         flags: bits 0 and 1 QoS of the message, bit 2 RETAIN, bit 3: the last part,
                     bit 4: the message was retained before its receiver subscribed
    bytes  6 to 21   identifier of the message: stream (6 bytes), number (6), random (4)
    bytes 22 to 25   offset of the data in the message's payload
    bytes 26 to 29   length of the message's payload
    last part alone: SHA-256 of the message's payload (32 bytes), then the properties of the message
                     in the form of MQTT 5 (2.2.2), with their length
    then             the data

Each splitter has a stream of its own, and cuts one message after another. So the parts of a message
of a stream stand behind all parts of messages with lower numbers in the same topic.

The hash is in the last part, so that a message can be cut while it is being received. The topic is
that of the PUBLISH without the prefix of all parts: an uplink renames it as any other.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.mqtt.properties import read_publish_properties

MAGIC: Final = b"PART"
VERSION: Final = 1
ID_BYTES: Final = 16
STREAM_BYTES: Final = 6
NUMBER_BYTES: Final = 6
HASH_BYTES: Final = 32

_HEAD: Final = Struct("!4sBB16sII")
_RETAIN: Final = 4
_LAST: Final = 8
_KEPT: Final = 16
_KNOWN_FLAGS: Final = 31

_OF_ONE_HOP: Final = frozenset({"topic_alias", "subscription_identifier"})

HEAD_BYTES: Final = _HEAD.size
"""Bytes before the data of all parts but the last."""


class PartError(PenstockError):
    """A payload is not a part; the message says what was read and what is allowed."""


class Trailer(NamedTuple):
    """What only the last part of a message has.

    Attributes:
        digest: SHA-256 of the payload.
        properties: properties of the message, encoded as in MQTT 5 with their length.
    """

    digest: bytes
    properties: bytes


class Part(NamedTuple):
    """One part of a message.

    Attributes:
        message_id: identifier that all parts of the message have in common, 16 bytes.
        offset: offset of `data` in the message's payload.
        total_bytes: length of the message's payload.
        retain: RETAIN flag of the message.
        trailer: what the last part has in addition; None in the others.
        data: bytes of the payload.
        is_kept: whether the message was retained before its receiver subscribed. Each new
            subscription may bring it again, with the same identifier.
    """

    message_id: bytes
    offset: int
    total_bytes: int
    qos: int
    retain: bool
    trailer: Trailer | None
    data: bytes | memoryview
    is_kept: bool = False


def write_part(part: Part) -> bytes:
    """Return a part as the payload of a PUBLISH."""
    flags = part.qos | (_RETAIN if part.retain else 0) | (_LAST if part.trailer else 0)
    if part.is_kept:
        flags |= _KEPT
    head = _HEAD.pack(MAGIC, VERSION, flags, part.message_id, part.offset, part.total_bytes)
    if part.trailer is None:
        return b"".join((head, part.data))
    return b"".join((head, *part.trailer, part.data))


def read_part(payload: bytes | memoryview) -> Part:
    """Decode the payload of a PUBLISH as a part.

    Raises:
        PartError: it is not one.
    """
    view = memoryview(payload)
    if len(view) < HEAD_BYTES:
        raise PartError(f"read {len(view)} bytes; allowed: {HEAD_BYTES} or more")
    magic, version, flags, message_id, offset, total_bytes = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise PartError(f"read {magic!r} at its begin; allowed: {MAGIC!r}")
    if version != VERSION:
        raise PartError(f"read version {version}; allowed: {VERSION}")
    qos = flags & 3
    if flags & ~_KNOWN_FLAGS or qos == 3:
        raise PartError(f"read flags {flags:#x}; allowed: QoS 0 to 2, RETAIN, last, kept")
    position = HEAD_BYTES
    trailer = None
    if flags & _LAST:
        trailer, position = _read_trailer(view, position)
    data = view[position:]
    end = offset + len(data)
    if end > total_bytes:
        raise PartError(f"read data up to byte {end}; allowed: up to {total_bytes}")
    if (end == total_bytes) != (trailer is not None):
        raise PartError(
            f"read data up to byte {end} of {total_bytes}; allowed: the last has the hash"
        )
    if not data and total_bytes:
        raise PartError(
            f"read no data at byte {offset} of {total_bytes}; allowed: one byte or more"
        )
    is_retained, is_kept = bool(flags & _RETAIN), bool(flags & _KEPT)
    return Part(message_id, offset, total_bytes, qos, is_retained, trailer, data, is_kept)


def _read_trailer(view: memoryview, position: int) -> tuple[Trailer, int]:
    properties_at = position + HASH_BYTES
    if len(view) <= properties_at:
        raise PartError(
            f"read {len(view)} bytes of a last part; allowed: {properties_at + 1} or more"
        )
    try:
        properties, end = read_publish_properties(view, properties_at)
    except PeerError as error:
        raise PartError(f"properties: {error.args[0]}") from error
    for name in _OF_ONE_HOP & properties.keys():
        raise PartError(f"properties: read {name}; allowed: those of the message itself")
    return Trailer(bytes(view[position:properties_at]), bytes(view[properties_at:end])), end
