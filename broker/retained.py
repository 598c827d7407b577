"""Retained messages: the last one of each topic, found by topic filter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from broker.message import Message

LEVEL_BYTES: Final = 256
"""What a topic level takes in CPython that no other topic shares."""


class _Node:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None


class RetainedMessages:
    """The retained message of each topic (MQTT 5.0, 3.3.1.3).

    Invariant: `n_limited` and `n_bytes` are those of all messages in `by_topic` but the broker's
    own under `$SYS`, which no limit holds back.

    Attributes:
        by_topic: Topic Name to message; read it, change it only through `set`.
        n_limited: messages that count towards the limit.
        n_bytes: about what these take of the memory: payload, topic, 256 bytes for each level.
    """

    def __init__(self, max_messages: int = sys.maxsize, max_bytes: int = sys.maxsize) -> None:
        """Keep nothing yet.

        Args:
            max_messages: limit of `n_limited`.
            max_bytes: limit of `n_bytes`.
        """
        self._root = _Node()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.by_topic: dict[str, Message] = {}
        self.n_limited = 0
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self.by_topic)

    def has_room(self, message: Message) -> bool:
        """Say whether `set` would keep a message, or remove one for its empty payload."""
        if not message.payload_bytes:
            return True
        n_messages, n_bytes = _cost(message)
        if not n_messages:
            return True
        last = self.by_topic.get(message.topic)
        if last is not None:
            n_messages, n_bytes = n_messages - 1, n_bytes - _cost(last)[1]
        return (
            self.n_limited + n_messages <= self._max_messages
            and self.n_bytes + n_bytes <= self._max_bytes
        )

    def set(self, message: Message) -> bool:
        """Keep a message in place of its topic's last one; an empty payload removes it.

        [MQTT-3.3.1-5], [MQTT-3.3.1-6]. Where there is no room, the topic has no retained
        message any more: the last one is not its last word ([MQTT-3.3.1-7] of MQTT 3.1.1).

        Returns:
            False where there was no room.
        """
        has_room = self.has_room(message)
        if not message.payload_bytes or not has_room:
            self.remove(message.topic)
            return has_room
        last = self.by_topic.get(message.topic)
        if last is not None:
            self._count(last, -1)
        self._count(message, 1)
        node = self._root
        for level in message.topic.split("/"):
            node = node.children.setdefault(level, _Node())
        node.message = message
        self.by_topic[message.topic] = message
        return True

    def remove(self, topic: str) -> None:
        """Forget the message of a topic, if there is one."""
        message = self.by_topic.pop(topic, None)
        if message is None:
            return
        self._count(message, -1)
        path = []
        node = self._root
        for level in topic.split("/"):
            path.append((node, level))
            node = node.children[level]
        node.message = None
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.message is not None:
                break
            del parent.children[level]

    def _count(self, message: Message, sign: int) -> None:
        n_messages, n_bytes = _cost(message)
        self.n_limited += sign * n_messages
        self.n_bytes += sign * n_bytes

    def match(self, topic_filter: str, now: float) -> Iterator[Message]:
        """Yield the messages whose topic matches a filter and that have not expired.

        Expired ones are forgotten on the way [MQTT-3.3.2-5].
        """
        found: list[Message] = []
        self._collect(topic_filter.split("/"), found)
        for message in found:
            if message.expires_at is not None and now >= message.expires_at:
                self.remove(message.topic)
            else:
                yield message

    def _collect(self, levels: list[str], found: list[Message]) -> None:
        n_levels = len(levels)
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if depth == n_levels:
                if node.message is not None:
                    found.append(node.message)
                continue
            level = levels[depth]
            if level == "#":
                self._collect_all(node, found, skip_dollar=depth == 0)
            elif level == "+":
                for name, child in node.children.items():
                    if depth or not name.startswith("$"):  # [MQTT-4.7.2-1]
                        stack.append((child, depth + 1))
            elif (child_of_level := node.children.get(level)) is not None:
                stack.append((child_of_level, depth + 1))

    def _collect_all(self, root: _Node, found: list[Message], *, skip_dollar: bool) -> None:
        stack = [root]
        while stack:
            node = stack.pop()
            if node.message is not None:
                found.append(node.message)
            for name, child in node.children.items():
                if not (skip_dollar and node is root and name.startswith("$")):
                    stack.append(child)


def _cost(message: Message) -> tuple[int, int]:
    """Return what a retained message counts towards the limits: messages and bytes."""
    if message.topic.startswith("$SYS") and not message.publisher:
        return 0, 0
    n_levels = message.topic.count("/") + 1
    return 1, message.payload_bytes + len(message.topic_bytes) + n_levels * LEVEL_BYTES
