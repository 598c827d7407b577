"""Retained messages: the last one of each topic, found by topic filter."""

from __future__ import annotations

from collections.abc import Iterator

from broker.message import Message


class _Node:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None


class RetainedMessages:
    """The retained message of each topic (MQTT 5.0, 3.3.1.3).

    Attributes:
        by_topic: Topic Name to message; read it, change it only through `set`.
    """

    def __init__(self) -> None:
        self._root = _Node()
        self.by_topic: dict[str, Message] = {}

    def __len__(self) -> int:
        return len(self.by_topic)

    def set(self, message: Message) -> None:
        """Keep a message in place of its topic's last one; an empty payload removes it.

        [MQTT-3.3.1-5], [MQTT-3.3.1-6].
        """
        if message.payload_bytes == 0:
            self.remove(message.topic)
            return
        node = self._root
        for level in message.topic.split("/"):
            node = node.children.setdefault(level, _Node())
        node.message = message
        self.by_topic[message.topic] = message

    def remove(self, topic: str) -> None:
        """Forget the message of a topic, if there is one."""
        if self.by_topic.pop(topic, None) is None:
            return
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
