"""The rows that stand for a session outside of the process, and the changes of one commit.

All times are seconds of the store's own clock, as a row outlives the monotonic clock. Row numbers
only rise while a broker runs, so that their order is the order of arrival.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.message import SizeClass
from penstock.broker.payload import Payload


class SessionRow(NamedTuple):
    """One session that outlives its connection.

    Attributes:
        row: the row's number.
        client_id: Client Identifier.
        username: user name of the newest connection, or None.
        listener: name of the newest connection's listener.
        version: protocol version of the newest connection.
        expiry_interval: seconds for which it outlives its connection; None without limit.
        lost_at: the time at which its connection ended, less `StorageClock.away`; None while it has
            one.
        origin: bytes that no other session has, of this or any other time.
        sent_up_to: its QoS 1 deliveries with rows up to this one may have been sent before a
            process ended; 0 for none.
    """

    row: int
    client_id: str
    username: str | None
    listener: str
    version: int
    expiry_interval: float | None
    lost_at: float | None
    origin: bytes
    sent_up_to: int


class SubscriptionRow(NamedTuple):
    """One subscription of a session; see `penstock.broker.routing.topic_tree.Subscription`.

    Attributes:
        session: row of the session.
        topic_filter: Topic Filter, as the client gave it.
        qos: granted QoS.
        no_local: No Local, as the client gave it.
        retain_as_published: Retain As Published, as the client gave it.
        subscription_id: Subscription Identifier, or 0 for none.
        is_retained_due: retained messages that match are still to be sent to it.
        sizes: the size class of the messages that it takes; None for both.
    """

    session: int
    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    subscription_id: int
    is_retained_due: bool
    sizes: SizeClass | None = None


class MessageRow(NamedTuple):
    """One message, once for all that refer to it.

    Attributes:
        row: the row's number.
        topic: Topic Name.
        payload: bytes in a row to be written, `keep`'s result in a row that was read; None where
            the payload store could not read it back.
        qos: QoS with which it was published.
        retain: RETAIN flag with which it was published.
        arrived_at: the time of its arrival.
        expires_at: the time at which it expires, or None for never.
        properties: the properties, encoded as in a PUBLISH, or None for none.
        publisher: Client Identifier of the publisher.
    """

    row: int
    topic: str
    payload: Payload | None
    qos: int
    retain: bool
    arrived_at: float
    expires_at: float | None
    properties: bytes | None
    publisher: str


class DeliveryRow(NamedTuple):
    """One message on its way to one session.

    Attributes:
        row: the row's number, in the order of arrival within a session.
        session: row of the session; 0 for a delivery of a share that no durable session holds.
        message: row of the message.
        qos: the QoS of the delivery.
        retain: RETAIN flag of the delivery.
        subscription_ids: numbers with a comma between them, or None for none.
        packet_id: Packet Identifier while it is inflight, otherwise 0.
        is_released: whether its PUBREC has come.
        share: topic filter of the shared subscription by which it came, or "".
    """

    row: int
    session: int
    message: int
    qos: int
    retain: bool
    subscription_ids: str | None
    packet_id: int
    is_released: bool
    share: str


class IncomingRow(NamedTuple):
    """The packet identifier of a QoS 2 message that was received and not released."""

    session: int
    packet_id: int


class RetainedRow(NamedTuple):
    """The retained message of a topic."""

    topic: str
    message: int


class WillRow(NamedTuple):
    """The will of a client, also of one whose session ends with its connection."""

    client_id: str
    username: str | None
    listener: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes


@dataclass(slots=True)
class Stored:
    """What a store holds; deliveries in the order of their rows."""

    sessions: list[SessionRow] = field(default_factory=list)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    messages: list[MessageRow] = field(default_factory=list)
    deliveries: list[DeliveryRow] = field(default_factory=list)
    incoming: list[IncomingRow] = field(default_factory=list)
    retained: list[RetainedRow] = field(default_factory=list)
    wills: list[WillRow] = field(default_factory=list)


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Changes(Stored):
    """The changes of one commit: rows to insert or replace, and keys to delete.

    Writing them twice has the same result as writing them once. While a backlog is read, each
    commit has thousands of deliveries: those already stored are given as numbers in arrays, which
    need no objects.

    Attributes:
        number: the number of the commit; commits are written in order.
        gone_sessions: rows of sessions, to delete with their subscriptions and packet identifiers.
        gone_subscriptions: (session, topic filter).
        moved_deliveries: (session, packet identifier, its PUBREC has come, row) of each delivery
            that is already stored, one after the other, as in `DeliveryRow`.
        gone_messages: rows.
        gone_deliveries: rows.
        gone_incoming: (session, packet identifier).
        gone_retained: topics.
        gone_wills: client identifiers.
    """

    number: int = 0
    gone_sessions: list[tuple[int]] = field(default_factory=list)
    gone_subscriptions: list[tuple[int, str]] = field(default_factory=list)
    moved_deliveries: array[int] = field(default_factory=_numbers)
    gone_messages: array[int] = field(default_factory=_numbers)
    gone_deliveries: array[int] = field(default_factory=_numbers)
    gone_incoming: list[tuple[int, int]] = field(default_factory=list)
    gone_retained: list[tuple[str]] = field(default_factory=list)
    gone_wills: list[tuple[str]] = field(default_factory=list)
