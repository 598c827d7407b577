"""Retained messages, as operators see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.mqtt.topics import validate_topic_filter
from penstock.broker.operations_contract import RetainedContent, RetainedRow

if TYPE_CHECKING:
    from penstock.broker.message import Message
    from penstock.broker.routing.retained import RetainedMessages

SLICE: Final = 100
"""So many topic levels are looked at in one slice, some 0.5 ms."""


async def retained_rows(
    retained: RetainedMessages, topic_filter: str, clock: Callable[[], float]
) -> list[RetainedRow]:
    """Return the retained messages that match a filter; other tasks run in between.

    Raises:
        PenstockError: it is no valid topic filter.
    """
    try:
        validate_topic_filter(topic_filter)
    except PeerError as error:
        raise PenstockError(f"retained messages: {error.args[0]}") from error
    walk = retained.walk(topic_filter)
    rows: list[RetainedRow] = []
    while not walk.is_done:
        now = clock()
        for _ in range(SLICE):
            message = walk.step(now)
            if message is not None:
                rows.append(_row_of(message, now))
        await asyncio.sleep(0)
    return rows


def content_of(message: Message, now: float) -> RetainedContent:
    """Return a retained message with its payload."""
    return RetainedContent(
        _row_of(message, now), message.read_payload(), dict(message.properties or {})
    )


def _row_of(message: Message, now: float) -> RetainedRow:
    expires_at = message.expires_at
    return RetainedRow(
        message.topic,
        message.payload_bytes,
        message.qos,
        message.publisher,
        round(max(0.0, now - message.arrived_at), 3),
        None if expires_at is None else round(max(0.0, expires_at - now), 3),
    )
