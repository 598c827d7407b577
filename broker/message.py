"""One Application Message on its way through the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from broker.payload import STORED_ABOVE_BYTES, Payload
from broker.records import Storable

Properties = Mapping[str, Any]
"""Property name to value, as `broker.mqtt.properties` lists them."""


NO_PROPERTIES: Final[Properties] = MappingProxyType({})
"""Those of a message without any: an empty dict of its own takes 64 bytes."""


class Message(Storable):
    """An Application Message: stored once, referred to by every target.

    Immutable by agreement: nothing changes a message after the router has built it, but the
    journal, which notes where it is stored. Very many may wait: a number that can be found out
    is no attribute, as it would be an object of its own.

    Attributes:
        topic: Topic Name.
        topic_bytes: the same, UTF-8 encoded.
        payload: bytes, or a handle from a `PayloadStore`.
        qos: QoS it was published with.
        retain: RETAIN flag it was published with.
        is_large: size class: payload longer than threshold_s (paper 002).
        arrived_at: monotonic seconds; up to `broker.core.ARRIVAL_SECONDS` too early where no sink
            gets it.
        expires_at: monotonic seconds, or None where it never expires (MQTT 5.0, 3.3.2.3.3).
        properties: PUBLISH properties that travel on to subscribers; empty for most.
        publisher: Client Identifier of the publisher; "" for the broker itself.
        more_bytes: what it counts towards limits of bytes beside its payload: its properties,
            where they are not small.
        n_references: the journal's: deliveries and retained messages stored that refer to it.
    """

    __slots__ = (
        "arrived_at",
        "expires_at",
        "is_large",
        "more_bytes",
        "n_references",
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
        self.publisher = publisher
        self.more_bytes = self.n_references = self.row_start = self.row_index = 0

    @property
    def payload_bytes(self) -> int:
        """Length of the payload in bytes."""
        return len(self.payload)

    @property
    def size_bytes(self) -> int:
        """What it counts towards limits of bytes."""
        return len(self.payload) + self.more_bytes

    def read_payload(self) -> bytes:
        """Return the payload as bytes, from wherever its store keeps it.

        Raises:
            OSError: the store cannot read it back.
        """
        payload = self.payload
        return payload if isinstance(payload, bytes) else payload.read()

    def with_payload(self, copy: Callable[[Payload], Payload]) -> Message:
        """Return the message for one subscriber alone, with a payload of its own.

        Args:
            copy: makes that of the payload; it is called where the payload is one for a store.
        """
        if len(self.payload) <= STORED_ABOVE_BYTES:
            return self
        own = Message(
            self.topic,
            copy(self.payload),
            qos=self.qos,
            retain=self.retain,
            arrived_at=self.arrived_at,
            is_large=self.is_large,
            expires_at=self.expires_at,
            properties=self.properties,
            publisher=self.publisher,
            topic_bytes=self.topic_bytes,
        )
        own.more_bytes = self.more_bytes
        return own

    def __repr__(self) -> str:
        """Show topic, size and QoS; never the payload."""
        return f"<Message {self.topic!r} {self.payload_bytes} B QoS {self.qos}>"
