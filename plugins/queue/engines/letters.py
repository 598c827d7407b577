"""Dead letters: how a message is kept in a dead letter queue, and how it comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from penstock.plugins.queue.engines.segments import Decoded

DEAD_PREFIX: Final = "penstock-dead-"
"""User properties that tell where and why a message died: ``queue``, ``group``, ``reason``,
``receives`` and ``physical-queue``."""


def letter_row(decoded: Decoded, index: int, marks: Mapping[str, str]) -> tuple[Any, ...]:
    """Return topic, payload, QoS, publisher, arrival and properties of a dead letter.

    Args:
        decoded: segment of the message.
        index: of the message.
        marks: what is told of its death; see `DEAD_PREFIX`.
    """
    _, topic, payload, qos, publisher, enqueued_at, properties = decoded.row(index)
    values, pairs = _split(properties)
    pairs += [[DEAD_PREFIX + name, text] for name, text in marks.items()]
    values["user_property"] = pairs
    text = json.dumps(values, ensure_ascii=False)
    return topic, payload, qos, publisher, enqueued_at, text


def redriven(decoded: Decoded, index: int) -> tuple[str | None, int | None, tuple[Any, ...]]:
    """Return where a dead letter came from, and its columns as they were.

    Returns:
        Queue, number of the physical queue, and columns as of `letter_row`; None for what is not
        known, as the message is no dead letter.
    """
    _, topic, payload, qos, publisher, enqueued_at, properties = decoded.row(index)
    marks: dict[str, str] = {}
    if properties:
        for name, text in json.loads(properties).get("user_property") or ():
            if name.startswith(DEAD_PREFIX):
                marks[name.removeprefix(DEAD_PREFIX)] = text
    if marks:
        values, pairs = _split(properties)
        if pairs:
            values["user_property"] = pairs
        properties = json.dumps(values, ensure_ascii=False) if values else ""
    number = marks.get("physical-queue", "")
    row = (topic, payload, qos, publisher, enqueued_at, properties)
    return marks.get("queue"), int(number) if number.isdecimal() else None, row


def _split(properties: str) -> tuple[dict[str, Any], list[Any]]:
    """Return properties without the user properties, and these without the marks of a death."""
    values = json.loads(properties) if properties else {}
    pairs = values.pop("user_property", None) or []
    return values, [pair for pair in pairs if not pair[0].startswith(DEAD_PREFIX)]
