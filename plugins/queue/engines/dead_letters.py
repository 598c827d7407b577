"""Dead letters: how a message is marked when it dies, and restored when it is moved back.

Theory of operation. Where and why a message died stands beside its properties, under a name that no
MQTT property has: publishers cannot set it, and their user properties stay as they are.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.wire.frames import DEAD_LETTER


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
    """Return topic, payload, QoS, publisher, arrival and properties of a dead letter."""
    *_, properties = row = decoded.row(index)
    dead = dead_properties(
        properties,
        queue=queue,
        physical_queue=physical_queue,
        group=group,
        reason=reason,
        receives=receives,
    )
    return *row[1:-1], dead


def dead_properties(
    properties: str, *, queue: str, physical_queue: int, group: str, reason: str, receives: int
) -> str:
    """Return the properties of a dead letter; see `letter_row` for the arguments."""
    values = json.loads(properties) if properties else {}
    values[DEAD_LETTER] = {
        "queue": queue,
        "physical_queue": physical_queue,
        "group": group,
        "reason": reason,
        "receives": receives,
    }
    return json.dumps(values, ensure_ascii=False)


def redriven(decoded: Decoded, index: int) -> tuple[str | None, int | None, tuple[Any, ...]]:
    """Return where a dead letter came from, and its columns as they were.

    Returns:
        Queue, number of the physical queue, and columns as of `letter_row`; None twice where the
        message is no dead letter.
    """
    *_, properties = row = decoded.row(index)
    queue, number, properties = origin_of(properties)
    return queue, number, (*row[1:-1], properties)


def origin_of(properties: str) -> tuple[str | None, int | None, str]:
    """Return queue and physical queue in which a letter died, and its properties before."""
    values = json.loads(properties) if DEAD_LETTER in properties else {}
    origin = values.pop(DEAD_LETTER, None)
    if origin is None:
        return None, None, properties
    properties = json.dumps(values, ensure_ascii=False) if values else ""
    return origin["queue"], origin["physical_queue"], properties
