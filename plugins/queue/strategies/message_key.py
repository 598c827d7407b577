"""The key of a message, by which it has an order, a physical queue and a last value."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

UserProperties: TypeAlias = Sequence[Sequence[str]]
"""MQTT 5 user properties: (name, value), in their order."""

KeyReader: TypeAlias = Callable[[str, str, UserProperties], str | None]
"""A function that returns the key of a message from its topic, publisher and user properties; None
if it has no key."""

StoredKeyReader: TypeAlias = Callable[[str, str, str], str | None]
"""A function that returns the key of a message from its topic, publisher and properties in JSON;
None if it has no key."""

KEY_PROPERTY: Final = "penstock-key"
"""The user property that holds the key of a message. It has precedence over the queue's setting."""


def key_reader(key: str | None) -> KeyReader:
    """Return what reads the keys of a queue.

    Args:
        key: ``topic``, ``topic:N``, ``publisher`` or ``property:NAME``, as in `QueueSpec.key`; None
            where messages have at most keys of their own.

    Raises:
        ValueError: it is none of these.
    """
    if key is None:
        return _or_own(lambda _topic, _publisher, _pairs: None)
    kind, _, detail = key.partition(":")
    if key == "topic":
        return _or_own(lambda topic, _publisher, _pairs: topic)
    if key == "publisher":
        return _or_own(lambda _topic, publisher, _pairs: publisher or None)
    if kind == "topic" and detail.isascii() and detail.isdecimal():
        return _or_own(_level_reader(int(detail)))
    if kind == "property" and detail:
        return _or_own(lambda _topic, _publisher, pairs: _value_of(detail, pairs))
    raise ValueError(f"key: read {key}; allowed: topic, topic:LEVEL, publisher or property:NAME")


def stored_key_reader(key: str | None) -> StoredKeyReader:
    """Return what reads the keys of stored messages, as `key_reader` does."""
    read = key_reader(key)
    # Most properties hold no key, and need not be decoded. JSON escapes nothing in either text.
    is_property = key is not None and key.startswith("property:")
    sign = "user_property" if is_property else KEY_PROPERTY

    def read_stored(topic: str, publisher: str, properties: str) -> str | None:
        pairs = json.loads(properties).get("user_property") if sign in properties else None
        return read(topic, publisher, pairs or ())

    return read_stored


def _level_reader(level: int) -> KeyReader:
    def read(topic: str, _publisher: str, _pairs: UserProperties) -> str | None:
        levels = topic.split("/", level + 1)
        return levels[level] if level < len(levels) else None

    return read


def _or_own(read: KeyReader) -> KeyReader:
    """Return a reader that takes the message's own key where there is one."""

    def read_own(topic: str, publisher: str, pairs: UserProperties) -> str | None:
        own = _value_of(KEY_PROPERTY, pairs) if pairs else None
        return own if own is not None else read(topic, publisher, pairs)

    return read_own


def _value_of(name: str, pairs: UserProperties) -> str | None:
    """Return the first value of a user property."""
    return next((value for found, value in pairs if found == name), None)
