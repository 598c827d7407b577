"""The backlog: what waits in all outboxes of one broker together, and its limits.

Theory of operation. A message is stored once for all of its subscribers. So it counts once here,
from the first outbox that takes it to the last that gives it away, with all its memory
(`Message.memory_bytes`); each outbox's own limit counts its payload in full. For each subscriber,
memory is taken by the reference to the message, a `Delivery`: for small messages with very many
subscribers that is nearly everything. To tell the first outbox from the last, a message counts the
outboxes in which it waits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.message import Message

DELIVERY_BYTES: Final = 144
"""Memory that CPython takes for a waiting delivery, with its place in a queue."""

LARGE_DELIVERY_BYTES: Final = 1200
"""Memory that CPython takes for a waiting delivery of a large message. It may be the first of its
topic, which then has a queue of its own."""

_MOST_TEXT_BYTES: Final = 512 * 1024
"""More than a message without properties takes besides its payload: its longest topic, with four
bytes a character, and once more as UTF-8."""


@dataclass(eq=False, slots=True)
class Backlog:
    """The messages that wait in the outboxes of one broker.

    Attributes:
        n_messages: waiting deliveries; a message counts once for each subscriber.
        n_bytes: approximate memory of these and their messages.
        most_bytes: limit of `n_bytes`; with `drops_oldest` it is exceeded by one message at most.
        over_half: the set that contains the backlog while more than half of a limit waits.
    """

    most_messages: int
    most_bytes: int
    n_messages: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    over_half: set[object] = field(default_factory=set, init=False)
    _near_bytes: int = field(init=False)
    _half_messages: int = field(init=False)
    _half_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Compute what each message is compared with."""
        self.change(self.most_messages, self.most_bytes)

    def change(self, most_messages: int, most_bytes: int) -> None:
        """Have other limits from now on."""
        self.most_messages, self.most_bytes = most_messages, most_bytes
        self._near_bytes = self.most_bytes - _MOST_TEXT_BYTES
        self._half_messages = self.most_messages // 2
        self._half_bytes = self.most_bytes // 2
        if self.n_bytes > self._half_bytes or self.n_messages > self._half_messages:
            self.over_half.add(self)
        else:
            self.over_half.discard(self)

    @classmethod
    def of(cls, most_messages: int | None, most_bytes: int | None) -> Backlog | None:
        """Return a backlog with these limits, None for no limit; None where there is neither."""
        if most_messages is None and most_bytes is None:
            return None
        return cls(
            sys.maxsize if most_messages is None else most_messages,
            sys.maxsize if most_bytes is None else most_bytes,
        )

    @property
    def has_plenty(self) -> bool:
        """Whether it is less than a quarter full."""
        return 2 * self.n_bytes < self._half_bytes and 2 * self.n_messages < self._half_messages

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
        """An outbox gives a message away."""
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
        """Say whether an outbox cannot take a message; one that waits already adds a reference."""
        if self.n_messages >= self.most_messages:
            return True
        if self.n_bytes + message.payload_bytes < self._near_bytes and not message.properties:
            return False
        return self.n_bytes + self._cost(message) > self.most_bytes

    def has_room(self, message: Message, n_deliveries: int, *, is_copied: bool) -> bool:
        """Say whether some outboxes can take a message."""
        n_bytes = n_deliveries * (LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES)
        n_bytes += message.memory_bytes * (n_deliveries if is_copied else 1)
        return (
            self.n_messages + n_deliveries <= self.most_messages
            and self.n_bytes + n_bytes <= self.most_bytes
        )

    def is_too_small_for(self, message: Message) -> bool:
        """Say whether an outbox could not take a message even if nothing else waited."""
        n_bytes = LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES
        return message.memory_bytes + n_bytes > self.most_bytes

    def _cost(self, message: Message) -> int:
        """Return the bytes that one more delivery of a message adds."""
        n_bytes = LARGE_DELIVERY_BYTES if message.is_large else DELIVERY_BYTES
        return n_bytes if message.n_waiting else n_bytes + message.memory_bytes

    def takes_in_exchange(self, message: Message, n_bytes: int) -> bool:
        """Say whether a message may replace others that an outbox has given away.

        Those may also wait elsewhere, as copies of one message do, so that nothing is free yet: the
        other outboxes will give theirs away for the same message.
        """
        return (
            n_bytes >= message.memory_bytes
            and self.n_messages < self.most_messages
            and (message.n_waiting > 0 or self.n_bytes <= self.most_bytes)
        )

    def frees_nothing(self, oldest: Message, message: Message) -> bool:
        """Say whether giving the oldest message of an outbox away for another one frees nothing."""
        return (
            self.n_messages < self.most_messages
            and self.n_bytes > self.most_bytes
            and not message.n_waiting
            and oldest.n_waiting > 1
        )
