"""The visible messages of a queue: as a heap of the simulation, or as the product's own leases."""

from __future__ import annotations

import heapq
from typing import Protocol

from penstock.models.kernels.lease_setting import Order
from penstock.plugins.queue.engines.contract import GroupSpec
from penstock.plugins.queue.engines.leases import LeaseRequest, LocalGroup, LocalPlace
from penstock.plugins.queue.engines.partition import PhysicalQueue
from penstock.plugins.queue.engines.receipts import Receipts
from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.engines.store import GroupRow, PhysicalRow, Segment
from penstock.plugins.queue.strategies.message_key import stored_key_reader
from penstock.plugins.queue.wire.frames import Batch


class Messages(Protocol):
    """The messages of a queue, by number."""

    def add(self, message: int, now: float) -> None:
        """Store a message; in order, they come by ascending numbers."""

    def take(self, now: float, deadline: float) -> int:
        """Receive a message until a deadline; -1 where none is visible."""

    def settle(self, message: int) -> None:
        """Delete a message."""

    def give_back(self, message: int) -> None:
        """Make a received message visible."""

    def expire(self, message: int, now: float) -> None:
        """Make a received message visible, whose deadline is now."""


class VisibleMessages:
    """A heap of visible messages.

    Args:
        order: the order in which they are received; with `any`, the order in which they became
            visible.
    """

    def __init__(self, order: Order) -> None:
        self._is_ordered = order != "any"
        self._is_serial = order == "settled"
        self._visible: list[tuple[int, int]] = []
        self._is_there: set[int] = set()
        self._received = -1
        self._n_shown = 0

    def add(self, message: int, now: float) -> None:  # noqa: ARG002 - of the protocol
        """Store a message."""
        self._is_there.add(message)
        self._show(message)

    def take(self, now: float, deadline: float) -> int:  # noqa: ARG002 - of the protocol
        """Receive a message; -1 where none is visible."""
        if self._is_serial and self._received >= 0:
            return -1
        while self._visible:
            _, message = heapq.heappop(self._visible)
            if message in self._is_there:
                self._received = message
                return message
        return -1

    def settle(self, message: int) -> None:
        """Delete a message."""
        self._is_there.discard(message)
        self._received = -1

    def give_back(self, message: int) -> None:
        """Make a message visible."""
        self._received = -1
        self._show(message)

    def expire(self, message: int, now: float) -> None:  # noqa: ARG002 - of the protocol
        """Make a message visible."""
        self.give_back(message)

    def _show(self, message: int) -> None:
        self._n_shown += 1
        heapq.heappush(self._visible, (message if self._is_ordered else self._n_shown, message))


class LeasedMessages:
    """A group of kind `lease` of the queue, over a physical queue without storage.

    A segment holds one message. Storing, settling and cutting do to the group what the engine's
    transactions do.

    Args:
        order: the order in which messages are received; `settled` is the queue's order of keys,
            with one key for all messages.
    """

    def __init__(self, order: Order) -> None:
        self._physical = PhysicalQueue(PhysicalRow(1, 1, 0, 0, 0, 0, 0, 0))
        spec = GroupSpec(order="key" if order == "settled" else "any", max_receives=None)
        row = GroupRow(1, 1, "default", "", 0, 0.0)
        self._group = LocalGroup(row, spec, Receipts(b"", "model", 1), stored_key_reader("topic"))
        self._place = self._group.places[0] = LocalPlace(self._group, self._physical, 0)
        self._segments: dict[int, Decoded] = {}
        self._messages: list[int] = []
        self._offsets: dict[int, int] = {}
        self._nonces: dict[int, int] = {}
        self._n_received = 0

    def add(self, message: int, now: float) -> None:
        """Store a message."""
        offset = self._physical.next
        segment = Segment(offset, 1, 1, 1, now, now, 0)
        self._physical.index.append(segment)
        self._physical.next += 1
        self._segments[offset] = Decoded(
            segment, Batch([offset], ["t"], [b"x"], [1], [""], [now], [""])
        )
        self._messages.append(message)
        self._offsets[message] = offset

    def take(self, now: float, deadline: float) -> int:
        """Receive a message until a deadline; -1 where none is visible."""
        self._n_received += 1
        take = LeaseRequest(now, deadline, 1, 1, self._n_received % 65_536)
        missing = self._place.take(take, lambda _, first: self._segments.get(first))
        if missing or not take.received:
            return -1
        offset = take.received[0].offset
        self._nonces[offset] = take.nonce
        return self._messages[offset]

    def settle(self, message: int) -> None:
        """Delete a message, whether it is received or visible again."""
        offset = self._offsets.pop(message)
        others, _ = self._place.begin_settling_leased([offset], self._nonces.pop(offset))
        if others:
            self._place.begin_settling(offset)
        self._place.settled[offset] = 1
        self._place.settled_now([offset])
        self._physical.index.remove(offset)
        del self._segments[offset]

    def give_back(self, message: int) -> None:
        """Make a received message visible."""
        self._place.nack(self._offsets[message], None)

    def expire(self, message: int, now: float) -> None:  # noqa: ARG002 - the group knows which
        """Make those messages visible whose leases end by now."""
        self._group.expire(now)
