"""What waits in all outboxes of one broker together, and how much that may be.

Theory of operation. A message is stored once for all of its subscribers, so that it counts once
here, from the first outbox that takes it to the last that gives it away, with all that it takes of
the memory (`Message.memory_bytes`); each outbox's own limit counts its payload in full. What takes
memory for each subscriber is the reference to it, a `Delivery`: of small messages with very many
subscribers that is nearly everything. To know the first outbox from the last, a message counts
those it waits in.
"""

from __future__ import annotations

import sys
from typing import Final

from penstock.broker.message import Message

DELIVERY_BYTES: Final = 144
"""What a delivery that waits takes in CPython, with its place in a queue."""

LARGE_DELIVERY_BYTES: Final = 1200
"""The same of a large message, which may be the first of a topic: that has a queue of its own."""

_MOST_TEXT_BYTES: Final = 512 * 1024
"""More than a message without properties ever takes beside its payload: its topic at its longest,
four bytes a character, and once more as it is sent."""


class Backlog:
    """The messages that wait in the outboxes of one broker.

    Attributes:
        n_messages: deliveries that wait, a message counted for each subscriber.
        n_bytes: about what these and their messages take of the memory.
        most_messages: limit of `n_messages`.
        most_bytes: limit of `n_bytes`; with `drops_oldest` it is exceeded by one message at most.
        over_half: it is in this set while it is more than half of what it may be.
    """

    __slots__ = (
        "_half_bytes",
        "_half_messages",
        "_near_bytes",
        "most_bytes",
        "most_messages",
        "n_bytes",
        "n_messages",
        "over_half",
    )

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self.n_messages = 0
        self.n_bytes = 0
        self.most_messages = most_messages
        self.most_bytes = most_bytes
        self._near_bytes = most_bytes - _MOST_TEXT_BYTES
        self._half_messages = most_messages // 2
        self._half_bytes = most_bytes // 2
        self.over_half: set[object] = set()

    @classmethod
    def of(cls, most_messages: int | None, most_bytes: int | None) -> Backlog | None:
        """Return one with these limits, None for none; None where neither is set."""
        if most_messages is None and most_bytes is None:
            return None
        return cls(
            sys.maxsize if most_messages is None else most_messages,
            sys.maxsize if most_bytes is None else most_bytes,
        )

    def enter(self, message: Message) -> None:
        """An outbox takes a message."""
        self.n_messages += 1
        n_bytes = LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES
        if not message.n_waiting:
            n_bytes += message.memory_bytes
        message.n_waiting += 1
        self.n_bytes += n_bytes
        if self.n_bytes > self._half_bytes or self.n_messages > self._half_messages:
            self.over_half.add(self)

    def leave(self, message: Message) -> None:
        """An outbox gives a message away that it has taken."""
        self.n_messages -= 1
        n_bytes = LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES
        message.n_waiting -= 1
        if not message.n_waiting:
            n_bytes += message.memory_bytes
        self.n_bytes -= n_bytes
        if (
            self.over_half
            and self.n_bytes <= self._half_bytes
            and self.n_messages <= self._half_messages
        ):
            self.over_half.discard(self)

    def is_full_for(self, message: Message) -> bool:
        """Say whether an outbox cannot take a message; of one that waits already, the reference."""
        if self.n_messages >= self.most_messages:
            return True
        if self.n_bytes + message.payload_bytes < self._near_bytes and not message.properties:
            return False
        return self.n_bytes + self._cost(message) > self.most_bytes

    def has_room(self, message: Message, n_deliveries: int, *, is_copied: bool) -> bool:
        """Say whether some outboxes can take a message.

        Args:
            message: to be routed.
            n_deliveries: how many outboxes.
            is_copied: each has a copy of the payload.
        """
        n_bytes = n_deliveries * (LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES)
        n_bytes += message.memory_bytes * (n_deliveries if is_copied else 1)
        return (
            self.n_messages + n_deliveries <= self.most_messages
            and self.n_bytes + n_bytes <= self.most_bytes
        )

    def is_too_small_for(self, message: Message) -> bool:
        """Say whether an outbox could not take a message if nothing else waited."""
        n_bytes = LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES
        return message.memory_bytes + n_bytes > self.most_bytes

    def _cost(self, message: Message) -> int:
        """Return the bytes that come with one more delivery of a message."""
        n_bytes = LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES
        return n_bytes if message.n_waiting else n_bytes + message.memory_bytes

    def takes_in_exchange(self, message: Message, n_bytes: int) -> bool:
        """Say whether a message may take the place of others that an outbox has given away.

        They may be waiting elsewhere, as copies of one message do, so that nothing is free yet: the
        other outboxes will give theirs away for the same message.

        Args:
            message: to be taken.
            n_bytes: that the messages which were given away for it take of the memory.
        """
        return (
            n_bytes >= message.memory_bytes
            and self.n_messages < self.most_messages
            and (message.n_waiting > 0 or self.n_bytes <= self.most_bytes)
        )

    def frees_nothing(self, oldest: Message, message: Message) -> bool:
        """Say whether an outbox would give its oldest message away for another one in vain."""
        return (
            self.n_messages < self.most_messages
            and self.n_bytes > self.most_bytes
            and not message.n_waiting
            and oldest.n_waiting > 1
        )
