"""The encoding of rows: in the stage file, and as PUBLISH packets.

A kept row is a head (`_HEAD`), the topic, the properties without their length, and the payload. The
properties end with `QOS_PROPERTY`. A Message Expiry Interval is in the head instead, as it is
counted down from the time at which the row was staged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.extensions import QOS_PROPERTY
from penstock.broker.mqtt.data_types import read_variable_byte_integer, write_variable_byte_integer
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.properties import write_properties
from penstock.broker.mqtt.writer import publish_header

_HEAD: Final = struct.Struct(">BIHII")
"""The head of a row: QoS with `_RETAIN` and `_EXPIRES`; seconds of expiry; bytes of topic,
properties and payload."""

_RETAIN: Final = 0x04
_EXPIRES: Final = 0x08

_EXPIRY_IDENTIFIER: Final = b"\x02"
"""The identifier of the Message Expiry Interval (MQTT 5.0, 3.3.2.3.3)."""

ROW_BYTES: Final = 64
"""How many bytes a row counts besides its topic, properties and payload."""


class StagedRow(NamedTuple):
    """A row.

    Attributes:
        topic: Topic Name in UTF-8.
        payload: payload bytes.
        qos: 0, 1 or 2.
        expiry: seconds from the staging on after which it is not published; None for never.
        properties: encoded, with `QOS_PROPERTY`, without expiry and without their length.
    """

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    expiry: int | None
    properties: bytes

    @property
    def n_bytes(self) -> int:
        """Bytes that count towards the limits of the stage."""
        return len(self.topic) + len(self.payload) + len(self.properties) + ROW_BYTES

    @property
    def asked_byte(self) -> int:
        """First byte of the PUBLISH as everybody but the relay sees it."""
        return PacketType.PUBLISH << 4 | self.qos << 1 | self.retain

    def encoded_properties(self, age_seconds: int) -> bytes:
        """Return the properties of the PUBLISH with their length, `age_seconds` after staging."""
        expiry = b""
        if self.expiry is not None:
            expiry = _EXPIRY_IDENTIFIER + max(1, self.expiry - age_seconds).to_bytes(4)
        length = write_variable_byte_integer(len(expiry) + len(self.properties))
        return b"".join((length, expiry, self.properties))

    def is_expired(self, age_seconds: float) -> bool:
        """Say whether its expiry has passed."""
        return self.expiry is not None and age_seconds >= self.expiry

    def header(self, packet_id: int, age_seconds: int, *, is_repeat: bool) -> bytes:
        """Return the bytes of its PUBLISH before the payload."""
        return publish_header(
            self.topic,
            len(self.payload),
            2,
            self.retain,
            is_repeat,
            packet_id,
            self.encoded_properties(age_seconds),
            MQTT_5,
        )


def new_row(
    topic: str, payload: bytes, qos: int, *, retain: bool, properties: Mapping[str, Any]
) -> StagedRow:
    """Return a row."""
    others = dict(properties)
    expiry = others.pop("message_expiry_interval", None)
    pairs = [*others.pop("user_property", ()), (QOS_PROPERTY, str(qos))]
    encoded = write_properties(others | {"user_property": pairs}, PacketType.PUBLISH)
    _, start = read_variable_byte_integer(encoded, 0)
    return StagedRow(topic.encode(), payload, qos, retain, expiry, encoded[start:])


def write_rows(rows: Sequence[StagedRow]) -> bytes:
    """Return rows as they are kept."""
    pieces: list[bytes] = []
    for row in rows:
        flags = row.qos | (_RETAIN if row.retain else 0)
        if row.expiry is not None:
            flags |= _EXPIRES
        head = _HEAD.pack(
            flags, row.expiry or 0, len(row.topic), len(row.properties), len(row.payload)
        )
        pieces += head, row.topic, row.properties, row.payload
    return b"".join(pieces)


def read_rows(kept: bytes) -> Iterator[StagedRow]:
    """Yield kept rows."""
    at = 0
    while at < len(kept):
        flags, expiry, *sizes = _HEAD.unpack_from(kept, at)
        at += _HEAD.size
        pieces: list[bytes] = []
        for size in sizes:
            pieces.append(kept[at : at + size])
            at += size
        topic, properties, payload = pieces
        yield StagedRow(
            topic,
            payload,
            flags & 3,
            bool(flags & _RETAIN),
            expiry if flags & _EXPIRES else None,
            properties,
        )
