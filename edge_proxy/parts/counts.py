"""What has been done with messages in parts so far; counters only go up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

DROP_REASONS: Final[Mapping[str, str]] = {
    "not_a_part": "the payload is no part",
    "mismatch": "a part contradicts the earlier ones of its message",
    "topic": "a message may not have the topic",
    "too_large": "the message is longer than max_message_bytes or the broker's largest packet",
    "spool_full": "the message does not fit into spool_bytes",
    "disk": "the spool cannot be written",
    "hash": "the payload does not have its SHA-256",
    "expired": "the Message Expiry Interval has passed",
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
        received_parts: parts that have come, and are part of a message that is not whole.
        repeated_parts: parts of which nothing was new.
        assembled_messages: messages that were put together and published.
        dropped: messages that were dropped, and payloads that are no parts, by reason.
    """

    split_messages: int = 0
    split_parts: int = 0
    split_dropped: dict[str, int] = field(default_factory=dict)
    received_parts: int = 0
    repeated_parts: int = 0
    assembled_messages: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def figures(self) -> dict[str, int]:
        """Return all of them, each reason below the name of its counter."""
        found: dict[str, int] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int):
                found[each.name] = value
            else:
                found |= {f"{each.name}/{reason}": n for reason, n in sorted(value.items())}
        return found
