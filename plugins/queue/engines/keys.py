"""The key of a message: what order and last-value retention are kept by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.plugins.queue.engines.segments import KEY_PROPERTY, user_property

KeyReader: TypeAlias = Callable[[str, str, str], str | None]
"""Returns the key of a message from its topic, publisher and properties in JSON; None for none."""


def key_reader(key: str | None) -> KeyReader:
    """Return what reads keys.

    User property ``penstock-key`` comes before what the queue's settings say.

    Args:
        key: as in `QueueSpec.key`.
    """
    kind, _, argument = (key or "").partition(":")

    def read(topic: str, publisher: str, properties: str) -> str | None:
        if properties:
            own = user_property(properties, KEY_PROPERTY)
            if own is None and kind == "property":
                own = user_property(properties, argument)
            if own is not None:
                return own
        if kind == "topic":
            return topic_level(topic, int(argument)) if argument else topic
        return publisher or None if kind == "publisher" else None

    return read


def topic_level(topic: str, number: int) -> str | None:
    """Return a level of a topic, counted from 0; None where it has fewer."""
    levels = topic.split("/", number + 1)
    return levels[number] if number < len(levels) else None
