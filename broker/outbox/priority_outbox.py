"""The outbox of a broker in which messages of some topics leave before all others.

Theory of operation. Messages of priority topics, large or small, have ready places of their own and
leave from there in order of arrival; the gate is not asked about them. As all messages of such a
topic are there, the order of each topic is kept. The other messages are not starved: after
`PASSED_BYTES` of priority messages, and four times the payload of the oldest large message where
only that waits, one of the others is sent.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.delivery import NO_QUEUE, NOTHING_BEFORE, Delivery, first_of
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxLimits

PASSED_BYTES: Final = 65_536
"""Bytes that pass a message of another topic: half a second at 1 Mbit/s, which alarms alone will
hardly fill. Without a bound, a flood on one topic would delay a subscriber's others."""


PASSED_RATIO: Final = 4
"""Bytes that pass for each payload byte of a waiting large message: it gets a fifth of a link that
priority topics fill, and no more."""


class PriorityOutbox(Outbox):
    """An outbox with places for priority messages."""

    __slots__ = ("_first", "_first0", "_first_bytes")

    def __init__(self, link: Link, ledger: Ledger, rules: OutboxLimits) -> None:
        super().__init__(link, ledger, rules)
        self._first0: deque[Delivery] = NO_QUEUE
        self._first: deque[Delivery] = NO_QUEUE
        self._first_bytes = 0

    def _is_first(self, message: Message) -> bool:
        is_first = self._rules.is_first
        return is_first is not None and is_first(message.topic)

    def _lanes(self) -> tuple[deque[Delivery], ...]:
        return self._first, self._first0, *super()._lanes()

    def add(self, delivery: Delivery, *, is_restored: bool = False) -> bool:
        """Let a message wait, with an order of arrival over all places."""
        if self._is_first(delivery.message):
            self._sequence += 1
        return super().add(delivery, is_restored=is_restored)

    def _place(self, delivery: Delivery) -> None:
        if not self._is_first(delivery.message):
            super()._place(delivery)
        elif delivery.qos:
            if self._first is NO_QUEUE:
                self._first = deque()
            self._first.append(delivery)
        else:
            if self._first0 is NO_QUEUE:
                self._first0 = deque()
            self._first0.append(delivery)

    def _oldest_for(self, delivery: Delivery) -> tuple[Delivery | None, deque[Delivery] | None]:
        """Return the message to evict; a priority message is never evicted for another topic's."""
        oldest, source = super()._oldest_for(delivery)
        if oldest is None and self._is_first(delivery.message):
            source = self._first0 or (self._first if delivery.qos else None)
            return (source[0], source) if source else (None, None)
        return oldest, source

    def take(self, now: float, *, has_quota: bool = True) -> Delivery | None:
        """Return the next delivery that may be sent now, or None; see `Outbox.take`."""
        while True:
            source = first_of(self._first0, self._first, has_quota=has_quota)
            if source is None or self._first_bytes >= self._most_passed():
                self._first_bytes = 0
                delivery = super().take(now, has_quota=has_quota)
                if delivery is not None or source is None:
                    return delivery
            delivery = source.popleft()
            self._remove(delivery)
            if self._has_expired(delivery, now):
                continue
            if delivery.message.is_large and self.is_large(delivery.message):
                delivery.after = NOTHING_BEFORE  # it leaves alone, as other large ones
                self._rules.note_leaving(self._link, delivery, now)
            if self.n_messages > len(self._first) + len(self._first0):
                self._first_bytes += delivery.link_bytes
            return delivery

    def releases(self, message: Message, now: float) -> bool:
        """Say whether a large message could leave now; priority ones do not ask the gate."""
        return self._is_first(message) or super().releases(message, now)

    def _most_passed(self) -> int:
        """Return how many bytes pass the messages in other places."""
        large = self._next_large()
        if large is None or self._ready or self._ready0:
            return PASSED_BYTES
        return max(PASSED_BYTES, PASSED_RATIO * large.message.payload_bytes)


def make_outbox(link: Link, ledger: Ledger, rules: OutboxLimits) -> Outbox:
    """Return an empty outbox of the class that the rules need."""
    kind = Outbox if rules.is_first is None else PriorityOutbox
    return kind(link, ledger, rules)
