"""The key of a stored message: what order and last-value retention are kept by."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from penstock.plugins.queue.strategies import message_key

KeyReader: TypeAlias = Callable[[str, str, str], str | None]
"""Returns the key of a message from its topic, publisher and properties in JSON; None for none."""


def key_reader(key: str | None) -> KeyReader:
    """Return what reads keys as `penstock.plugins.queue.strategies.message_key` does.

    Args:
        key: as in `QueueSpec.key`.
    """
    read = message_key.key_reader(key)
    # Most properties hold no key, and need not be decoded. JSON escapes nothing in either text.
    is_property = key is not None and key.startswith("property:")
    sign = "user_property" if is_property else message_key.KEY_PROPERTY

    def read_stored(topic: str, publisher: str, properties: str) -> str | None:
        pairs = json.loads(properties).get("user_property") if sign in properties else None
        return read(topic, publisher, pairs or ())

    return read_stored
