"""What waits in all outboxes of one broker together, and how much that may be.

Theory of operation. A payload is stored once for all of its subscribers, so that it counts once
here, from the first outbox that takes it to the last that gives it away; each outbox's own limit
counts it in full. To know the first from the last, references are counted by message.
"""

from __future__ import annotations

import sys

from broker.message import Message


class Backlog:
    """The messages that wait in the outboxes of one broker.

    Attributes:
        n_messages: deliveries that wait, a message counted for each subscriber.
        n_bytes: of the messages that wait, each counted once.
        most_messages: limit of `n_messages`.
        most_bytes: limit of `n_bytes`; with `drops_oldest` it is exceeded by one message at most.
    """

    __slots__ = ("_references", "most_bytes", "most_messages", "n_bytes", "n_messages")

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self.n_messages = 0
        self.n_bytes = 0
        self.most_messages = most_messages
        self.most_bytes = most_bytes
        self._references: dict[Message, int] = {}

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
        references = self._references
        n_references = references.get(message, 0)
        references[message] = n_references + 1
        self.n_messages += 1
        if not n_references:
            self.n_bytes += message.size_bytes

    def leave(self, message: Message) -> None:
        """An outbox gives a message away that it has taken."""
        references = self._references
        n_references = references[message] - 1
        self.n_messages -= 1
        if n_references:
            references[message] = n_references
        else:
            del references[message]
            self.n_bytes -= message.size_bytes

    def is_full_for(self, message: Message) -> bool:
        """Say whether an outbox cannot take a message: one that waits already takes no bytes."""
        if self.n_messages >= self.most_messages:
            return True
        more_bytes = 0 if message in self._references else message.size_bytes
        return self.n_bytes + more_bytes > self.most_bytes

    def takes_in_exchange(self, message: Message, n_bytes: int) -> bool:
        """Say whether a message may take the place of others that an outbox has given away.

        They may be waiting elsewhere, as copies of one message do, so that nothing is free yet: the
        other outboxes will give theirs away for the same message.

        Args:
            message: to be taken.
            n_bytes: of what was given away for it.
        """
        return (
            n_bytes >= message.size_bytes
            and self.n_messages < self.most_messages
            and (message in self._references or self.n_bytes <= self.most_bytes)
        )

    def frees_nothing(self, oldest: Message, message: Message) -> bool:
        """Say whether an outbox would give its oldest message away for another one in vain."""
        return (
            self.n_messages < self.most_messages
            and self.n_bytes > self.most_bytes
            and message not in self._references
            and self._references[oldest] > 1
        )
