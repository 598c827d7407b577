"""The ledger: where every message of one subscriber is; its sums must balance."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Ledger:
    """One subscriber's account of the messages that matched its subscriptions.

    Invariant, at any moment: ``matched == delivered + expired + moved + sum(dropped.values()) +
    messages in its outbox (queued and withheld) + inflight messages``.

    Attributes:
        delivered: QoS 0: handed to the connection; QoS 1 and 2: acknowledged.
        expired: removed as their Message Expiry Interval had passed.
        moved: moved to another member of their shared subscription or to the other lane, where they
            count as matched again; given to the other lane already; given back to the source of the
            subscription; or with a kept session, to whom keeps it.
        dropped: removed for another reason, by its name; see `DROP_REASONS`.
        large: those of them that were large for the subscriber when they came to its outbox; not
            part of the sum.
        withheld_total: large messages that the gate has refused, or that have waited behind such a
            one; not part of the sum, as each of them is counted in another place.
        released_total: those of them that left through the gate.
    """

    matched: int = 0
    delivered: int = 0
    expired: int = 0
    moved: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    large: int = 0
    withheld_total: int = 0
    released_total: int = 0

    def drop(self, reason: str, n_messages: int = 1) -> None:
        """Count messages as dropped."""
        if n_messages:
            self.dropped[reason] = self.dropped.get(reason, 0) + n_messages

    def add(self, other: Ledger) -> None:
        """Add another account to this one, as the broker does when a session ends."""
        self.matched += other.matched
        self.delivered += other.delivered
        self.expired += other.expired
        self.moved += other.moved
        self.large += other.large
        self.withheld_total += other.withheld_total
        self.released_total += other.released_total
        for reason, n_messages in other.dropped.items():
            self.drop(reason, n_messages)

    def outstanding(self) -> int:
        """Return how many messages must be queued, withheld or inflight now."""
        n_left = self.delivered + self.expired + self.moved + sum(self.dropped.values())
        return self.matched - n_left


DROP_REASONS = {
    "broker_full": "all outboxes together were at their limit of messages or bytes",
    "connection_lost": "QoS 0, waiting when the subscriber's connection ended",
    "not_authorized": "waiting when a user who may not receive it took the session up",
    "not_stored": "the disk had no room, and the subscriber is an uplink's, which was away",
    "offline": "QoS 0, for a subscriber that is not connected",
    "operator": "held by the gate when an operator dropped it",
    "packet_too_large": "longer than the subscriber's Maximum Packet Size [MQTT-3.1.2-24]",
    "payload_lost": "its payload store could not read it back",
    "properties": "more properties than a proxy reads",
    "pushed_out": "waiting longest when the outbox was full, with queue_full: drop_oldest",
    "queue_full": "the outbox was at its limit of messages or bytes",
    "refused": "the subscriber answered with a reason code of 0x80 or above",
    "session_ended": "waiting or inflight when the session ended",
    "share_refused": "moved from a member of a share to none: the others may not receive it, "
    "or take messages of the other size alone",
    "superseded": "QoS 0, large and waiting when the next large one of its topic came",
    "too_old": "waiting longer than an uplink lets it (max_age_seconds)",
}
"""Every reason for which a message may be dropped, and its meaning."""

BACKLOG_REASONS = frozenset({"broker_full", "not_stored", "pushed_out", "queue_full", "too_old"})
"""The reasons that mean that a subscriber's backlog was too large, or too old."""
