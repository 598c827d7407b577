"""Small messages of QoS 0 that wait for a full connection, as the bytes that came.

A client that is merely slow gets everything in the order in which it came. So what is like its
neighbours stays in one piece, and costs the proxy as little as what passes at once.
"""

from __future__ import annotations

from collections import deque


class Qos0Backlog:
    """Whole packets, oldest first.

    Attributes:
        n_messages: that wait.
        n_bytes: of their payloads.
    """

    __slots__ = ("_runs", "n_bytes", "n_messages")

    def __init__(self) -> None:
        self._runs: deque[tuple[bytes, int, int]] = deque()
        self.n_messages = 0
        self.n_bytes = 0

    def add(self, data: bytes, n_messages: int, n_bytes: int) -> None:
        """Let messages wait.

        Args:
            data: their packets.
            n_messages: how many, at least one.
            n_bytes: of their payloads.
        """
        self._runs.append((data, n_messages, n_bytes))
        self.n_messages += n_messages
        self.n_bytes += n_bytes

    def take(self) -> tuple[bytes, int]:
        """Remove the oldest run, which there must be; return (its packets, how many they are)."""
        data, n_messages, n_bytes = self._runs.popleft()
        self.n_messages -= n_messages
        self.n_bytes -= n_bytes
        return data, n_messages

    def clear(self) -> int:
        """Drop everything; return how many messages that were."""
        n_messages = self.n_messages
        self._runs.clear()
        self.n_messages = self.n_bytes = 0
        return n_messages
