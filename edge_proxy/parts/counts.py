"""What has been done with messages in parts so far; counters only go up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DROP_REASONS: Final[Mapping[str, str]] = {
    "not_a_part": "the payload is no part",
    "too_many": "it came at QoS 0 while too much waited for the disk",
    "mismatch": "a part contradicts the earlier ones of its message",
    "topic": "a message may not have the topic",
    "too_large": "the message is longer than max_message_bytes or the broker's largest packet",
    "spool_full": "the message does not fit into spool_bytes",
    "disk": "the spool cannot be written",
    "hash": "the payload does not have its SHA-256",
    "expired": "the Message Expiry Interval has passed",
    "replaced": "the sender has retained another one meanwhile, which was put together",
    "incomplete": "a part was lost, and its room was needed",
    "too_old": "no part has come for max_age_seconds",
    "refused": "the broker has refused the message by a reason code of 0x80 or above",
}
"""Every reason for which a message, or what should be a part, is dropped, and its meaning."""


@dataclass(eq=False, slots=True)
class PartsCounts:
    """Counts of the plugin, all from 0.

    Attributes:
        split_messages: messages that were cut.
        split_parts: parts that were published for them, repeats not included.
        split_dropped: messages that were not cut to their end, by reason.
        kept_parts: parts of retained messages that were made for one new subscription each.
        received_parts: parts that have come, and are part of a message that is not whole.
        repeated_parts: parts of which nothing was new.
        overtaken_messages: messages that are not whole while parts of a later one of their sender
            and topic have come: a part was lost.
        assembled_messages: messages that were put together and published.
        dropped: messages that were dropped, and payloads that are no parts, by reason.
    """

    split_messages: int = 0
    split_parts: int = 0
    split_dropped: dict[str, int] = field(default_factory=dict)
    kept_parts: int = 0
    received_parts: int = 0
    repeated_parts: int = 0
    overtaken_messages: int = 0
    assembled_messages: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
