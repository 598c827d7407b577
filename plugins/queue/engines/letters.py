"""Dead letters: how a message is kept in a dead letter queue, and how it comes back.

Theory of operation. Where and why a message died stands beside its properties, under a name that no
MQTT property has: publishers cannot set it, and their user properties stay as they are.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.plugins.queue.client import DEAD_LETTER
from penstock.plugins.queue.engines.segments import Decoded


def letter_row(
    decoded: Decoded,
    index: int,
    *,
    queue: str,
    physical_queue: int,
    group: str,
    reason: str,
    receives: int,
) -> tuple[Any, ...]:
    """Return topic, payload, QoS, publisher, arrival and properties of a dead letter.

    Args:
        decoded: segment of the message.
        index: of the message.
        queue: in which it died.
        physical_queue: the number of the same.
        group: for which it died.
        reason: ``max_receives`` or ``dead``.
        receives: of the group.
    """
    _, topic, payload, qos, publisher, enqueued_at, properties = decoded.row(index)
    values = json.loads(properties) if properties else {}
    values[DEAD_LETTER] = {
        "queue": queue,
        "physical_queue": physical_queue,
        "group": group,
        "reason": reason,
        "receives": receives,
    }
    return topic, payload, qos, publisher, enqueued_at, json.dumps(values, ensure_ascii=False)


def redriven(decoded: Decoded, index: int) -> tuple[str | None, int | None, tuple[Any, ...]]:
    """Return where a dead letter came from, and its columns as they were.

    Returns:
        Queue, number of the physical queue, and columns as of `letter_row`; None twice where the
        message is no dead letter.
    """
    _, topic, payload, qos, publisher, enqueued_at, properties = decoded.row(index)
    values = json.loads(properties) if DEAD_LETTER in properties else {}
    origin = values.pop(DEAD_LETTER, None)
    if origin is None:
        return None, None, (topic, payload, qos, publisher, enqueued_at, properties)
    properties = json.dumps(values, ensure_ascii=False) if values else ""
    row = (topic, payload, qos, publisher, enqueued_at, properties)
    return origin["queue"], origin["physical_queue"], row
