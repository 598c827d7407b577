"""What one uplink asks of the cloud: subscriptions, and which retained messages are still there.

Theory of operation. The uplink subscribes in the cloud to what the site's clients want
(`Subscriptions`). What comes down retained is retained by the site's broker, also while the cloud
cannot be reached. A clear that comes down clears it there. Where the cloud's broker has lost the
session, a clear may be missed. The cloud then sends retained messages again for each filter that is
subscribed to, and the site clears what it has and does not get again.

MQTT does not tell when all retained messages have come. A *marker* does: a retained message that
the uplink has just published to a topic of its own, whose filter is the last one in SUBSCRIBE.
Brokers that send retained messages in the order of the filters, as mosquitto and Penstock do, send
the marker last. Penstock may withhold a large message and let a small one pass. So a message that
was large is not cleared before a second marker, which is as large as the largest of them. A message
that comes even later is retained again: a clear that was too early heals itself.

The marker has QoS 1, as QoS 0 would overtake messages that wait for acknowledgements. Where the
cloud does not let it pass, nothing is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import Logger
from typing import Final, NamedTuple

from penstock.edge_proxy.uplink.remapping import Remapping
from penstock.edge_proxy.uplink.subscriptions import Request, Subscriptions, local_of

MARKER_SECONDS: Final = 120.0
"""A marker counts as lost if it has not come so long after the last retained message: a broker that
forbids its topic may drop it silently."""

LARGE_BYTES: Final = 10_000
"""Payload bytes from which on the cloud may withhold a message: Penstock's default."""


class CloudRequests(NamedTuple):
    """Requests that the uplink sends now, in this order.

    Attributes:
        marker: the payload of a marker to retain before all subscriptions, or None.
        subscribe: the filters of the cloud to subscribe to, before the marker's.
        clear: the topics whose retained messages the site's broker is to clear.
        add_records: records of the cloud's session that the site's broker is to store.
        ends_marker: whether the marker has come, so that the cloud need not retain it any longer.
    """

    marker: bytes | None
    subscribe: Sequence[Request]
    unsubscribe: Sequence[str]
    clear: Sequence[str]
    add_records: Sequence[str]
    remove_records: Sequence[str]
    ends_marker: bool


@dataclass(slots=True)
class _Round:
    """One marker on its way.

    Attributes:
        topic_filters: the filters of the cloud whose retained messages come before it.
        missing: the topics of the site that have not come again, with their payload bytes.
    """

    marker: bytes
    topic_filters: Sequence[str]
    missing: dict[str, int]


class CloudSubscriptions:
    """The requests to the cloud, over all connections of one uplink.

    Attributes:
        subscriptions: the subscriptions that the site wants, and those that the cloud has.
        marker_topic: the uplink's own topic in the cloud; None if nothing is to be cleared.
    """

    def __init__(
        self,
        remapping: Remapping,
        *,
        linger_seconds: float,
        marker_topic: str | None,
        retained: Callable[[str], Iterable[tuple[str, int]]],
        new_token: Callable[[], bytes],
        logger: Logger,
    ) -> None:
        """Begin without a connection.

        Args:
            remapping: rules of the uplink.
            linger_seconds: how long a filter is kept that no client wants any more.
            marker_topic: see the attribute.
            retained: returns (topic, payload bytes) of the retained messages of the site that a
                filter matches and that came from this cloud.
            new_token: returns a payload that no other marker has.
            logger: gets a warning where the cloud lets no marker pass.
        """
        self.subscriptions = Subscriptions(remapping.down_rules, linger_seconds=linger_seconds)
        self.marker_topic = marker_topic
        self._remapping = remapping
        self._retained = retained
        self._new_token = new_token
        self._logger = logger
        self._rounds: list[_Round] = []
        self._clear: list[str] = []
        self._next_marker: bytes | None = None
        self._has_come = False
        self._came_at: float | None = None
        self._ends_marker = False

    # -- what the cloud says -------------------------------------------------------------------

    def lost(self) -> None:
        """Note the end of the connection: the next one asks for the filters again."""
        self.subscriptions.connection_lost()
        self._rounds.clear()
        self._next_marker = None
        self._ends_marker = False

    def subscribed(self, name: str, reason_code: int) -> None:
        """Take one reason code of a SUBACK."""
        if name != self.marker_topic:
            self.subscriptions.answered(name, reason_code)
        elif reason_code >= 0x80:
            self.marker_refused()

    def unsubscribed(self, name: str) -> None:
        """Take one reason code of an UNSUBACK."""
        if name != self.marker_topic:
            self.subscriptions.unsubscribed(name)

    @property
    def is_waiting(self) -> bool:
        """Whether a marker is on its way, so that retained messages must be reported."""
        return bool(self._rounds)

    def retained_came(self, topic: str) -> None:
        """Note a retained message of the cloud, by its topic at the site."""
        self._has_come = True
        for one in self._rounds:
            one.missing.pop(topic, None)

    def marker_came(self, payload: bytes) -> None:
        """Take the retained message of `marker_topic`.

        It stands for all markers that were sent before it. One of an earlier connection means
        nothing.
        """
        n_done = next((n for n, one in enumerate(self._rounds, 1) if one.marker == payload), 0)
        done, self._rounds = self._rounds[:n_done], self._rounds[n_done:]
        clear: set[str] = set()
        large: dict[str, int] = {}
        waiting: list[str] = []
        for one in done:
            left = {
                topic: n_bytes
                for topic, n_bytes in one.missing.items()
                if n_bytes >= LARGE_BYTES and len(payload) < n_bytes
            }
            clear |= one.missing.keys() - left.keys()
            large |= left
            if left:
                waiting += one.topic_filters
            else:
                self.subscriptions.retained_came(one.topic_filters)
        self._clear += sorted(clear)
        self._next_marker = self._begin(waiting, large, max(large.values())) if large else None
        self._ends_marker = not self._rounds

    def _begin(self, topic_filters: Sequence[str], missing: dict[str, int], n_bytes: int) -> bytes:
        """Return the payload of a new marker of a size."""
        marker = self._new_token().ljust(n_bytes)
        self._rounds.append(_Round(marker, topic_filters, missing))
        return marker

    def marker_refused(self) -> None:
        """Clear nothing: the cloud does not let the marker pass."""
        if self._rounds:
            self._logger.warning(
                "the cloud's broker does not let %r pass, to which the uplink publishes and "
                "subscribes: retained messages that it has cleared stay at the site; allow the "
                "topic, or set clear_retained: false",
                self.marker_topic,
            )
            for one in self._rounds:
                self.subscriptions.retained_came(one.topic_filters)
            self._rounds.clear()

    # -- what is to be said --------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when `take` has to be called again; None where there is no such time."""
        deadlines = [self.subscriptions.next_deadline()]
        if self._rounds and self._came_at is not None:
            deadlines.append(self._came_at + MARKER_SECONDS)
        return min((at for at in deadlines if at is not None), default=None)

    def take(self, now: float) -> CloudRequests:
        """Return what is to be sent now; it counts as sent."""
        if self._has_come or not self._rounds or self._came_at is None:
            self._came_at = now
            self._has_come = False
        elif now >= self._came_at + MARKER_SECONDS:
            self.marker_refused()
        changes = self.subscriptions.changes(now)
        marker, self._next_marker = self._next_marker, None
        wanted = [one.topic_filter for one in changes.subscribe if one.wants_retained]
        if wanted:
            # Filters of which the site retains nothing need no marker.
            kept = {topic: n for name in wanted for topic, n in self._kept(name)}
            if kept and self.marker_topic is not None:
                marker = self._begin(wanted, kept, 0)
            else:
                self.subscriptions.retained_came(wanted)
        ends_marker = self._ends_marker and marker is None
        self._ends_marker = False
        clear, self._clear = self._clear, []
        added, removed = self.subscriptions.record_changes()
        subscribe, unsubscribe = changes
        return CloudRequests(marker, subscribe, unsubscribe, clear, added, removed, ends_marker)

    def _kept(self, remote_filter: str) -> Iterable[tuple[str, int]]:
        """Yield what the site retains of a filter of the cloud."""
        for rule in self._remapping.down_rules:
            local_filter = local_of(rule, remote_filter)
            if local_filter is not None:
                yield from self._retained(local_filter)
