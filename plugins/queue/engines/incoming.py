"""Messages on their way into the storage, as segments of one physical queue."""

from __future__ import annotations

import math
from collections.abc import Iterator

from penstock.broker.message import Message
from penstock.broker.mqtt.expiry import EXPIRY
from penstock.plugins.queue.batch_format import (
    properties_json,
    split_for_segments,
    write_batch,
)
from penstock.plugins.queue.client import Batch
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.engines.physical import PhysicalQueue
from penstock.plugins.queue.engines.queues import LogicalQueue
from penstock.plugins.queue.engines.segments import (
    DELAY_PROPERTY,
    Decoded,
)
from penstock.plugins.queue.engines.store import (
    DELAYED,
    EXPIRES,
    Segment,
)


class Incoming:
    """What one transaction appends to one physical queue."""

    def __init__(self, queue: LogicalQueue, physical: PhysicalQueue) -> None:
        self.queue = queue
        self.physical = physical
        self.base = physical.next
        self.topics: list[str] = []
        self.payloads: list[bytes] = []
        self.qos: list[int] = []
        self.publishers: list[str] = []
        self.arrived_at: list[float] = []
        self.properties: list[str] = []
        self.segments: list[tuple[Segment, Decoded]] = []

    def add(self, new: NewMessage, epoch: float) -> int:
        """Add a message.

        Returns:
            Its offset.

        Raises:
            OSError: its payload cannot be read.
            TypeError: its properties are no JSON.
            ValueError: the same, or a text is no Unicode.
        """
        message: Message = new.message
        payload = message.read_payload()
        properties = stored_properties(new)
        # A lone surrogate cannot be stored.
        properties.encode()
        message.topic.encode()
        message.publisher.encode()
        return self.add_row(
            message.topic,
            payload,
            message.qos,
            message.publisher,
            message.arrived_at + epoch,
            properties,
        )

    def add_row(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        publisher: str,
        enqueued_at: float,
        properties: str,
    ) -> int:
        """Add a message by its columns; return its offset."""
        self.topics.append(topic)
        self.payloads.append(payload)
        self.qos.append(qos)
        self.publishers.append(publisher)
        self.arrived_at.append(enqueued_at)
        self.properties.append(properties)
        return self.base + len(self.topics) - 1

    def encode(self, clock_offset: float) -> Iterator[tuple[Segment, bytes, Decoded]]:
        """Yield the messages as segments."""
        for run in split_for_segments(list(map(len, self.payloads))):
            first = self.base + run.start
            properties = self.properties[run]
            batch = Batch(
                list(range(first, self.base + run.stop)),
                self.topics[run],
                self.payloads[run],
                self.qos[run],
                self.publishers[run],
                self.arrived_at[run],
                properties,
            )
            frame = write_batch(batch)
            flags = 0
            for text in set(properties):
                flags |= EXPIRES if EXPIRY in text else 0
                flags |= DELAYED if DELAY_PROPERTY in text else 0
            newest_at = max(batch.enqueued_at)
            n_bytes = sum(map(len, batch.payload))
            segment = Segment(
                first,
                run.stop - run.start,
                n_bytes,
                len(frame),
                newest_at,
                newest_at + clock_offset,
                flags,
            )
            yield segment, frame, Decoded(segment, batch)


def stored_properties(new: NewMessage) -> str:
    """Return the properties with which a message is stored.

    Raises:
        TypeError: they are no JSON.
        ValueError: the same.
    """
    message = new.message
    properties = message.properties
    if new.delay_seconds is not None:
        pairs = [*(properties.get("user_property") or ()), (DELAY_PROPERTY, f"{new.delay_seconds}")]
        properties = {**properties, "user_property": pairs}
    if message.expires_at is not None and EXPIRY not in properties:
        interval = math.ceil(message.expires_at - message.arrived_at)
        properties = {**properties, EXPIRY: max(0, interval)}
    return properties_json(properties) if properties else ""
