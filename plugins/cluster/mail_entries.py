"""Entries of a mailbox: what the engine has of a message that waits for a session.

An entry is a field and its value: the *head*, which says who has published the message, by which
shared subscription it comes and in the form of which version it is; and the PUBLISH packet, with
what was left of its Message Expiry Interval. When that was, the identifier of the entry says, by
the engine's clock.
"""

from __future__ import annotations

import json
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import MQTT_5, PUBLISH
from penstock.broker.mqtt.expiry import EXPIRY, interval_left
from penstock.broker.mqtt.properties import (
    read_properties,
    read_publish_properties,
    write_properties,
)
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.writer import publish_header
from penstock.broker.session_rows import DeliveryRow, MessageRow

_HEAD: Final = Struct(">BHH")
"""The version, and the bytes of the publisher's name and of the shared subscription's."""
_MOST_HEADS: Final = 1024

Entry = tuple[bytes, bytes, bytes]
"""An entry's identifier, its head and its packet."""


def head_of(publisher: str, share: str = "", version: int = MQTT_5) -> bytes:
    """Return the head of an entry.

    Args:
        publisher: Client Identifier of the publisher.
        share: the shared subscription by which the message comes; "" for none.
        version: the protocol version in whose form the packet is, 4 or 5.
    """
    name, other = publisher.encode(), share.encode()
    return b"".join((_HEAD.pack(version, len(name), len(other)), name, other))


@lru_cache(_MOST_HEADS)
def read_head(head: bytes) -> tuple[int, str, str]:
    """Return version, publisher and shared subscription of an entry, by its head.

    Raises:
        struct.error: it is not what `head_of` has written; and ValueError.
    """
    version, n_name, n_share = _HEAD.unpack_from(head)
    at = _HEAD.size + n_name
    return version, head[_HEAD.size : at].decode(), head[at : at + n_share].decode()


def packet_of_row(row: MessageRow, now: float) -> bytes:
    """Return the packet of an entry for a message that a session has, and not from a mailbox.

    Args:
        row: the message with its payload, and times of the monotonic clock.
        now: monotonic seconds.
    """
    payload = row.payload
    assert isinstance(payload, bytes)  # noqa: S101 (one to be written was read)
    properties: dict[str, Any] = {}
    if row.properties is not None:
        properties, _ = read_properties(row.properties, 0, PUBLISH)
    if row.expires_at is not None:
        properties[EXPIRY] = interval_left(row.expires_at, now)
    head = publish_header(
        row.topic.encode(),
        len(payload),
        row.qos,
        bool(row.retain),
        packet_id=1,
        properties=write_properties(properties, PUBLISH),
        version=MQTT_5,
    )
    return head + payload


def read_entry(head: bytes, packet: bytes, row: int, arrived_at: float) -> tuple[MessageRow, str]:
    """Return the row of a message, and the shared subscription by which it comes; "" for none.

    Args:
        head: of the entry.
        packet: of the entry.
        row: the number that the row is to have.
        arrived_at: monotonic seconds when the entry was made.

    Raises:
        PeerError: it is no PUBLISH packet; and as `read_head`.
    """
    version, publisher, share = read_head(head)
    _, start = read_variable_byte_integer(packet, 1)
    first_byte, encoded, expires_at = packet[0], None, None
    topic_end, _, properties_at, at = read_publish_head(
        packet, first_byte, start, len(packet), version
    )
    if first_byte >> 4 != PUBLISH:
        raise MalformedPacketError(f"entry: first byte {first_byte:#x}; allowed: of a PUBLISH")
    if at - properties_at > 1:
        properties, _ = read_publish_properties(packet, properties_at)
        interval = properties.get(EXPIRY)  # which stays: what has no properties is sent without any
        expires_at = None if interval is None else arrived_at + interval
        encoded = packet[properties_at:at]
    message = MessageRow(
        row,
        packet[start + 2 : topic_end].decode(),
        packet[at:],
        first_byte >> 1 & 3,
        bool(first_byte & 1),
        arrived_at,
        expires_at,
        encoded,
        publisher,
    )
    return message, share


class Sent(NamedTuple):
    """How a message was sent that has a Packet Identifier.

    Attributes:
        packet_id: Packet Identifier.
        is_released: whether its PUBREC has come.
        qos: of the delivery; 0 where it was not noted.
        retain: its RETAIN flag.
        subscription_ids: as in `DeliveryRow`.
    """

    packet_id: int
    is_released: bool
    qos: int = 0
    retain: bool = False
    subscription_ids: str | None = None

    @classmethod
    def read(cls, data: bytes) -> Sent:
        """Return what was `written`."""
        return cls._make(json.loads(data))


def written(how: Sent | DeliveryRow, packet_id: int, is_released: int) -> bytes:
    """Return what the engine has of how a message was sent, whatever it had before."""
    ids = how.subscription_ids
    return json.dumps((packet_id, bool(is_released), how.qos, bool(how.retain), ids)).encode()
