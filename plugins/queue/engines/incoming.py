"""New messages of one transaction are encoded as segments of a physical queue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat

from penstock.broker.message import Message
from penstock.broker.mqtt.expiry import EXPIRY
from penstock.plugins.queue.batch_format import properties_json, split_for_segments, write_batch
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.engines.partition import PhysicalQueue
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.segments import DELAY_PROPERTY, Decoded
from penstock.plugins.queue.engines.store import DELAYED, EXPIRES, Segment
from penstock.plugins.queue.wire.frames import RETAIN, Batch


class Incoming:
    """What one transaction appends to one physical queue."""

    def __init__(self, queue: LocalQueue, physical: PhysicalQueue) -> None:
        self.queue = queue
        self.physical = physical
        self.base = physical.next
        self._rows: list[tuple[str, bytes, int, str, float, str]] = []
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
        payload = message.payload
        if type(payload) is not bytes:
            payload = message.read_payload()
        properties = stored_properties(new)
        topic, publisher = message.topic, message.publisher
        if not (topic.isascii() and publisher.isascii() and properties.isascii()):
            # A lone surrogate cannot be stored.
            topic.encode()
            publisher.encode()
            properties.encode()
        enqueued_at = message.arrived_at + epoch
        rows = self._rows  # as `add_row`, without its call
        rows.append((topic, payload, message.qos, publisher, enqueued_at, properties))
        return self.base + len(rows) - 1

    def add_plain(self, news: Sequence[NewMessage], epoch: float) -> list[int] | None:
        """Add messages column by column, which takes a fraction of the time.

        Returns:
            Their offsets; None where one of them needs a look of its own, and none was added.
        """
        if not news:
            return []
        messages, identifiers, delays, _ = zip(*news, strict=True)
        if any(identifiers) or delays.count(None) < len(delays):
            return None
        if any(one.properties or one.retain or one.expires_at is not None for one in messages):
            return None
        payloads = [one.payload for one in messages]
        topics = [one.topic for one in messages]
        publishers = [one.publisher for one in messages]
        is_ascii = "".join(topics).isascii() and "".join(publishers).isascii()
        if not is_ascii or set(map(type, payloads)) != {bytes}:
            return None
        first = self.base + len(self._rows)
        self._rows += zip(
            topics,
            payloads,
            [one.qos for one in messages],
            publishers,
            [one.arrived_at + epoch for one in messages],
            repeat(""),
            strict=False,
        )
        return list(range(first, self.base + len(self._rows)))

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
        self._rows.append((topic, payload, qos, publisher, enqueued_at, properties))
        return self.base + len(self._rows) - 1

    def encode(self, clock_offset: float) -> Iterator[tuple[Segment, bytes, Decoded]]:
        """Yield the messages as segments."""
        sizes = [len(row[1]) for row in self._rows]
        for run in split_for_segments(sizes):
            first = self.base + run.start
            columns = map(list, zip(*self._rows[run], strict=True))
            batch = Batch(list(range(first, self.base + run.stop)), *columns)
            frame = write_batch(batch)
            flags = 0
            for text in set(batch.properties):
                flags |= EXPIRES if EXPIRY in text else 0
                flags |= DELAYED if DELAY_PROPERTY in text else 0
            newest_at = max(batch.enqueued_at)
            n_bytes = sum(sizes[run])
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
    is_plain = not properties and message.expires_at is None and not message.retain
    if is_plain and new.delay_seconds is None:
        return ""
    if new.delay_seconds is not None:
        pairs = [
            pair for pair in properties.get("user_property") or () if pair[0] != DELAY_PROPERTY
        ]
        pairs.append((DELAY_PROPERTY, f"{new.delay_seconds}"))
        properties = {**properties, "user_property": pairs}
    if message.expires_at is not None and EXPIRY not in properties:
        interval = math.ceil(message.expires_at - message.arrived_at)
        properties = {**properties, EXPIRY: max(0, interval)}
    if message.retain:
        properties = {**properties, RETAIN: True}
    return properties_json(properties) if properties else ""
