"""Small messages of QoS 0 that wait for a full connection of a client."""

from __future__ import annotations

from collections import deque


class Qos0Backlog:
    """The waiting messages as bytes, oldest first.

    A client that is merely slow gets everything in the order in which it came. So packets that are
    like their neighbours stay together, and cost the proxy as little as those that pass at once.

    Attributes:
        n_messages: how many messages wait.
        n_bytes: their payload bytes.
    """

    __slots__ = ("_runs", "n_bytes", "n_messages")

    def __init__(self) -> None:
        self._runs: deque[tuple[bytes, int, int]] = deque()
        self.n_messages = 0
        self.n_bytes = 0

    def add(self, data: bytes, n_messages: int, n_bytes: int) -> None:
        """Add packets, with the number of messages (at least one) and of their payload bytes."""
        self._runs.append((data, n_messages, n_bytes))
        self.n_messages += n_messages
        self.n_bytes += n_bytes

    def take(self) -> tuple[bytes, int]:
        """Remove and return the oldest (packets, number of messages); there must be some."""
        data, n_messages, n_bytes = self._runs.popleft()
        self.n_messages -= n_messages
        self.n_bytes -= n_bytes
        return data, n_messages

    def clear(self) -> int:
        """Drop everything and return how many messages that were."""
        n_messages = self.n_messages
        self._runs.clear()
        self.n_messages = self.n_bytes = 0
        return n_messages
