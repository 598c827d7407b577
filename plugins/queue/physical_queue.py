"""The receiving state of a physical queue, beside its storage.

Messages are read ahead a page at a time, in the order of their offsets, so that a dequeue of a
hundred messages costs no read. Every message below the cursor was read ahead once: it waits in
`_ready`, is leased, or is gone. Only messages that become visible again are read a second time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from penstock.plugins.queue.leases import Lease, LeaseTable


class ReadMessage(NamedTuple):
    """A message as read from its segment.

    Attributes:
        offset: in the physical queue.
        topic: Topic Name.
        payload: payload bytes.
        qos: QoS it was published with.
        publisher: Client Identifier of the publisher.
        enqueued_at: seconds since the Unix epoch.
        properties: JSON, or "".
        segment: first offset of its segment.
        segment_count: messages in the segment when it was stored.
    """

    offset: int
    topic: str
    payload: bytes
    qos: int
    publisher: str
    enqueued_at: float
    properties: str
    segment: int
    segment_count: int


class PhysicalQueue:
    """The receiving side of one physical queue.

    Args:
        earliest: first offset that may still exist.
        visibility_timeout: seconds.

    Attributes:
        earliest: everything below is gone from the queue.
        cursor: next offset to be read ahead.
        leases: messages received and not deleted.
    """

    def __init__(self, earliest: int, visibility_timeout: float) -> None:
        self.earliest = earliest
        self.cursor = earliest
        self.leases = LeaseTable(visibility_timeout)
        self._ready: deque[ReadMessage] = deque()

    def must_read(self, n_max: int, next_offset: int) -> bool:
        """Say whether a page must be read ahead before `n_max` messages can be taken."""
        return len(self._ready) < n_max and self.cursor < next_offset

    def feed(self, messages: Iterable[ReadMessage], cursor: int) -> None:
        """Take a page that was read ahead.

        Args:
            messages: those of the page that are not deleted.
            cursor: the offset after the page.
        """
        self._ready.extend(message for message in messages if message.offset >= self.earliest)
        self.cursor = max(self.cursor, cursor)

    def take_ready(self, n_max: int, max_bytes: int) -> list[ReadMessage]:
        """Take messages that were never received, at most `max_bytes` of payload.

        Args:
            n_max: most messages.
            max_bytes: bytes of payload that the answer still holds; 0 or less takes nothing.
        """
        taken: list[ReadMessage] = []
        while self._ready and len(taken) < n_max and max_bytes > 0:
            max_bytes -= len(self._ready[0].payload)
            if max_bytes < 0 and taken:
                break
            taken.append(self._ready.popleft())
        return taken

    def lease(self, message: ReadMessage, lease_id: int, now: float) -> Lease:
        """Record the first receive of a message."""
        lease = Lease(message.offset, message.segment, message.segment_count)
        self.leases.lease(lease, lease_id, now)
        return lease

    def drop_below(self, offset: int) -> None:
        """Forget everything below `offset`: it is gone from the queue."""
        self.earliest = max(self.earliest, offset)
        self.cursor = max(self.cursor, offset)
        self.leases.drop_below(offset)
        while self._ready and self._ready[0].offset < offset:
            self._ready.popleft()

    def drop_segment(self, first_offset: int) -> None:
        """Forget the messages of a segment: it was set aside."""
        self.leases.drop_segment(first_offset)
        self._ready = deque(message for message in self._ready if message.segment != first_offset)
