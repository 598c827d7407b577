"""Entries of a mailbox: what the engine has of a message that waits for a session.

The value of an entry has the publisher, the shared subscription by which the message comes, and the
PUBLISH packet in the form of MQTT 5, with what was left of its Message Expiry Interval. When that
was, the identifier of the entry says, by the engine's clock.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock.broker.message import Message
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
from penstock.plugins.cluster.frames import packet_head

_HEAD: Final = Struct(">HH")
"""The bytes of the publisher's name, and of the shared subscription's."""


def entry_of(message: Message, payload: bytes, now: float) -> bytes:
    """Return the value of an entry.

    Args:
        message: the message.
        payload: of it.
        now: monotonic seconds.
    """
    return _entry(message.publisher, "", packet_head(message, len(payload), now), payload)


def shared_entry(packet: bytes, share: str) -> bytes:
    """Return the value of an entry of a packet, in the form of MQTT 5, of a shared subscription."""
    return _entry("", share, packet)


def entry_of_row(row: MessageRow, share: str, now: float) -> bytes:
    """Return the value of an entry of a message that a session has, and not from a mailbox.

    Args:
        row: the message with its payload, and times of the monotonic clock.
        share: the shared subscription by which it comes; "" for none.
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
    return _entry(row.publisher, share, head, payload)


def _entry(publisher: str, share: str, *packet: bytes) -> bytes:
    name, other = publisher.encode(), share.encode()
    return b"".join((_HEAD.pack(len(name), len(other)), name, other, *packet))


def read_entry(value: bytes, row: int, arrived_at: float) -> tuple[MessageRow, str]:
    """Return the row of a message, and the shared subscription by which it comes; "" for none.

    Args:
        value: of the entry.
        row: the number that the row is to have.
        arrived_at: monotonic seconds when the entry was made.

    Raises:
        PeerError: it is not what `entry_of` has written.
    """
    n_name, n_share = _HEAD.unpack_from(value)
    at = _HEAD.size + n_name
    publisher = value[_HEAD.size : at].decode()
    share = value[at : at + n_share].decode()
    packet = value[at + n_share :]
    _, start = read_variable_byte_integer(packet, 1)
    topic_end, _, at, _ = read_publish_head(packet, packet[0], start, len(packet), MQTT_5)
    properties, at = read_publish_properties(packet, at)
    interval = properties.pop(EXPIRY, None)
    message = MessageRow(
        row,
        packet[start + 2 : topic_end].decode(),
        packet[at:],
        packet[0] >> 1 & 3,
        bool(packet[0] & 1),
        arrived_at,
        None if interval is None else arrived_at + interval,
        write_properties(properties, PUBLISH) if properties else None,
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

    def written(self) -> bytes:
        """Return what the engine has of it."""
        return json.dumps(self).encode()

    @classmethod
    def read(cls, data: bytes) -> Sent:
        """Return what was `written`."""
        return cls._make(json.loads(data))

    @classmethod
    def of(cls, row: DeliveryRow) -> Sent:
        """Return how a delivery was sent."""
        retain = bool(row.retain)
        return cls(row.packet_id, bool(row.is_released), row.qos, retain, row.subscription_ids)
