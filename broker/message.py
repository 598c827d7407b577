"""One Application Message on its way through the broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from penstock.broker.payload import STORED_ABOVE_BYTES, Payload

Properties = Mapping[str, Any]
"""The properties of a packet by their names in `penstock.broker.mqtt.properties`."""

SizeClass: TypeAlias = Literal["small", "large"]
"""The one class of messages that a subscription takes, where it does not take both."""

SIZE_PROPERTY: Final = "penstock-size"
"""The User Property that names a size class. In a SUBSCRIBE, it is that of the messages to
subscribe to. In a CONNECT that names the other lane, ``large`` says that this lane takes that one's
large messages, whatever subscription they come by, and ``small`` that they are to wait for the
other lane."""

LANE_PROPERTY: Final = "penstock-lane-of"
"""The User Property of a CONNECT that names the client which is the other lane of the same
subscriber."""

LARGE_ABOVE_PROPERTY: Final = "penstock-large-above"
"""The User Property of the CONNACK of a lane: payload bytes above which a message is large."""

YIELDS_PROPERTY: Final = "penstock-yields"
"""The User Property of a CONNECT whose value ``yes`` says that what the broker sends on this lane
yields to the other one. An uplink sets it on its lane of large messages."""

WAITS_PROPERTY: Final = "penstock-waits"
"""The User Property of a CONNECT whose value ``yes`` says that what the client publishes at QoS 1
and 2 waits where there is no room for it, as in MQTT 3.1.1, and is not refused. An uplink sets it.
"""

SITE_PROPERTY: Final = "penstock-site"
"""The User Property of a message that passes uplinks, which names the site where it was first, and
of the CONNACK to an uplink, which names the site of this broker."""

DEFAULT_THRESHOLD_S: Final = 10_000
"""Payload bytes above which a message is large where nothing else says so: more than most sensor
readings and less than most pictures have (paper 002)."""

ARRIVAL_SECONDS: Final = 0.125
"""Messages that arrive in the same eighth of a second share one float object. With a float for each
chunk, a backlog of 100,000 messages had 2,000, and each page that held one kept a MiB from being
returned to the system. An eighth is exact as a binary number."""

NO_PROPERTIES: Final[Properties] = MappingProxyType({})
"""All messages without properties share this; an empty dict for each would take 64 bytes."""

OF_MQTT_3: Final[Properties] = MappingProxyType({})
"""The properties of a message for sinks, none, where a client of MQTT 3.1.1 or its will has
published it: a sink that sends it on may keep it in the order of the client's runs, which are in
the form of that version."""


MESSAGE_BYTES: Final = 232
"""A message takes so much in CPython besides its payload and texts: the object, and the headers of
the others."""

_PROPERTIES_BYTES: Final = 400
_PROPERTY_BYTES: Final = 192
"""The dict of properties takes the first, and each value and user property in it the second besides
its text."""


ROWS_OF_A_BLOCK: Final = 256
"""So many rows share one number object: as many as Python has small numbers that cost nothing."""


class Storable:
    """An object that may have a row of its own in the database.

    A backlog may hold very many of these, and a number above 256 is an object of 32 bytes. So the
    row number is split: the number of its block's first row, one object for all rows of the block,
    and a small index.

    Attributes:
        row_start: number of the first row of its block; 0 while it has no row.
        row_index: the place of its row in the block, below `ROWS_OF_A_BLOCK`.
    """

    __slots__ = ("row_index", "row_start")

    row_start: int
    row_index: int

    @property
    def row(self) -> int:
        """Number of its row; 0 while it has none."""
        return self.row_start + self.row_index

    def forget_row(self) -> None:
        """Drop the row's number: the row is deleted."""
        self.row_start = self.row_index = 0


class Message(Storable):
    """An Application Message: stored once, referred to by every target.

    Immutable by agreement: nothing changes a message after the router has built it, except the
    journal, which notes where it is stored, and the backlog, which counts where it waits. Very many
    may wait, so a number that can be computed is no attribute: it would be an object of its own.

    Attributes:
        topic: Topic Name.
        topic_bytes: the Topic Name in UTF-8.
        payload: bytes, or a handle from a `PayloadStore`.
        qos: QoS it was published with.
        retain: RETAIN flag it was published with.
        is_large: size class: payload longer than threshold_s (paper 002).
        arrived_at: monotonic seconds; up to `ARRIVAL_SECONDS` too early for a small message that no
            sink gets. So it tells which of two messages came first only where they differ by more.
        expires_at: monotonic seconds, or None where it never expires (MQTT 5.0, 3.3.2.3.3).
        properties: PUBLISH properties that subscribers get; empty for most messages.
        encoded_properties: those properties that are the same for all subscribers, encoded with
            their length before them; set when the message is first sent with properties; see
            `penstock.broker.sending.outgoing_properties`.
        publisher: Client Identifier of the publisher; "" for the broker itself.
        more_bytes: bytes that count towards limits besides the payload: properties that are not
            small.
        n_references: owned by the journal: stored deliveries and retained messages that refer to
            it.
        n_waiting: owned by the backlog: its deliveries that wait.
    """

    __slots__ = (
        "arrived_at",
        "encoded_properties",
        "expires_at",
        "is_large",
        "more_bytes",
        "n_references",
        "n_waiting",
        "payload",
        "properties",
        "publisher",
        "qos",
        "retain",
        "topic",
        "topic_bytes",
    )

    def __init__(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 0,
        retain: bool = False,
        arrived_at: float = 0.0,
        is_large: bool = False,
        expires_at: float | None = None,
        properties: Properties | None = None,
        publisher: str = "",
        topic_bytes: bytes | None = None,
    ) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode() if topic_bytes is None else topic_bytes
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.is_large = is_large
        self.arrived_at = arrived_at
        self.expires_at = expires_at
        self.properties = properties or NO_PROPERTIES
        self.encoded_properties = b""
        self.publisher = publisher
        self.more_bytes = self.n_references = self.n_waiting = 0
        self.row_start = self.row_index = 0

    @property
    def payload_bytes(self) -> int:
        """Length of the payload in bytes."""
        return len(self.payload)

    @property
    def size_bytes(self) -> int:
        """Bytes that count towards limits."""
        return len(self.payload) + self.more_bytes

    @property
    def memory_bytes(self) -> int:
        """Approximate bytes of memory that it takes, once for all references; constant over time.

        A payload in a store that bounds its memory itself counts as none. A topic counts in full
        although messages may share it: those of a client that makes up topics do not.
        """
        payload = self.payload
        n_bytes = MESSAGE_BYTES + sys.getsizeof(self.topic) + len(self.topic_bytes)
        n_bytes += len(self.publisher)
        if isinstance(payload, bytes):
            n_bytes += len(payload)
        return n_bytes + properties_bytes(self.properties) if self.properties else n_bytes

    def is_expired(self, now: float) -> bool:
        """Say whether its Message Expiry Interval has passed [MQTT-3.3.2-5]."""
        return self.expires_at is not None and now >= self.expires_at

    def read_payload(self) -> bytes:
        """Return the payload as bytes; a store may have to read it from a file.

        Raises:
            OSError: the store cannot read it back.
        """
        payload = self.payload
        return payload if isinstance(payload, bytes) else payload.read()

    def with_payload(self, copy_payload: Callable[[Payload], Payload]) -> Message:
        """Return the message for one subscriber, with a payload of its own.

        Args:
            copy_payload: called for payloads that are long enough for a store.
        """
        if len(self.payload) <= STORED_ABOVE_BYTES:
            return self
        own = copy(self)
        own.payload = copy_payload(self.payload)
        own.n_references = own.n_waiting = 0
        own.forget_row()
        return own

    def __repr__(self) -> str:
        """Show topic, size and QoS; never the payload."""
        return f"<Message {self.topic!r} {self.payload_bytes} B QoS {self.qos}>"


def properties_bytes(properties: Properties) -> int:
    """Return roughly what properties take of the memory: their texts as values, and encoded."""
    n_bytes = _PROPERTIES_BYTES
    for value in properties.values():
        if isinstance(value, list | tuple):
            for item in value:
                n_bytes += _PROPERTY_BYTES
                if isinstance(item, tuple):
                    n_bytes += 2 * sum(map(len, item))
        elif isinstance(value, str | bytes):
            n_bytes += _PROPERTY_BYTES + 2 * len(value)
    return n_bytes
