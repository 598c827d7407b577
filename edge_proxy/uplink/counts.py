"""What an uplink has done so far; counters only go up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DROP_REASONS: Final[Mapping[str, str]] = {
    "hops": "it went up too many uplinks, or comes from this site: a loop",
    "not_mapped": "no rule has a name for its topic on the other side",
    "properties": "its User Properties cannot be read",
    "too_large": "larger than the Maximum Packet Size of the broker that is to get it",
    "refused": "the broker that is to get it has refused it by a reason code of 0x80 or above, or "
    "has ended the connection at it twice",
}
"""Every reason for which a message does not pass an uplink, and its meaning."""

CHANGE_REASONS: Final[Mapping[str, str]] = {
    "qos_lowered": "the cloud's broker has a lower Maximum QoS",
    "retain_cleared": "the cloud's broker retains nothing (Retain Available), or has ended the "
    "connection at a retained message and taken it without the flag",
}
"""Every reason for which a message passes otherwise than it came, and its meaning."""


@dataclass(eq=False, slots=True)
class UplinkCounts:
    """Counts of one uplink, all from 0.

    Attributes:
        connected: the cloud's broker has accepted the connection, which stands: 1; else 0.
        connections: times that it was accepted.
        taken_over: it is a lane that the other one has taken over: 1; else 0.
        takeovers: times that this has begun.
        order_given_up: messages that are unacknowledged on this lane, and for which later ones of
            their topics have ceased to wait.
        paced: times that what goes up on it has begun to yield to the lane of small messages.
        failures: attempts that failed and connections that ended, by reason.
        up_messages: PUBLISH packets sent to the cloud, repeats included.
        up_bytes: of these packets.
        down_messages: PUBLISH packets from the cloud that the site's broker was given.
        down_bytes: of these packets.
        up_dropped: messages that did not go up, by reason.
        down_dropped: messages that did not come down, by reason.
        changed: messages that went up otherwise than they came, by reason.
        subscribe_refused: topic filters that the cloud's broker has refused.
        retained_repeated: retained messages, and clears, that went up again after an outage.
        retained_cleared: retained messages of the site that the cloud's broker has no more.
    """

    connected: int = 0
    connections: int = 0
    taken_over: int = 0
    takeovers: int = 0
    order_given_up: int = 0
    paced: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    up_messages: int = 0
    up_bytes: int = 0
    down_messages: int = 0
    down_bytes: int = 0
    up_dropped: dict[str, int] = field(default_factory=dict)
    down_dropped: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    subscribe_refused: int = 0
    retained_repeated: int = 0
    retained_cleared: int = 0

    def has_yielded(self) -> None:
        """Count that what goes up has begun to yield."""
        self.paced += 1
