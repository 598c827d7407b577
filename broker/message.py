"""One Application Message on its way through the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.payload import Payload
from broker.records import MessageRecord

Properties = Mapping[str, Any]
"""Property name to value, as `broker.mqtt.properties` lists them."""


class Message:
    """An Application Message: stored once, referred to by every target.

    Immutable by agreement: nothing changes a message after the router has built it, but the
    journal, which notes where it is stored.

    Attributes:
        topic: Topic Name.
        topic_bytes: the same, UTF-8 encoded.
        payload: bytes, or a handle from a `PayloadStore`.
        payload_bytes: length of the payload in bytes.
        qos: QoS it was published with.
        retain: RETAIN flag it was published with.
        is_large: size class: payload longer than threshold_s (paper 002).
        arrived_at: monotonic seconds.
        expires_at: monotonic seconds, or None where it never expires (MQTT 5.0, 3.3.2.3.3).
        properties: PUBLISH properties that travel on to subscribers; empty for most.
        publisher: Client Identifier of the publisher; "" for the broker itself.
        size_bytes: what it counts towards limits of bytes: its payload, and its properties where
            they are not small.
        record: the journal's: where it is stored, or None.
    """

    __slots__ = (
        "arrived_at",
        "expires_at",
        "is_large",
        "payload",
        "payload_bytes",
        "properties",
        "publisher",
        "qos",
        "record",
        "retain",
        "size_bytes",
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
        self.payload_bytes = self.size_bytes = len(payload)
        self.qos = qos
        self.retain = retain
        self.is_large = is_large
        self.arrived_at = arrived_at
        self.expires_at = expires_at
        self.properties: Properties = properties if properties is not None else {}
        self.publisher = publisher
        self.record: MessageRecord | None = None

    def read_payload(self) -> bytes:
        """Return the payload as bytes, from wherever its store keeps it.

        Raises:
            OSError: the store cannot read it back.
        """
        payload = self.payload
        return payload if isinstance(payload, bytes) else payload.read()

    def __repr__(self) -> str:
        """Show topic, size and QoS; never the payload."""
        return f"<Message {self.topic!r} {self.payload_bytes} B QoS {self.qos}>"
