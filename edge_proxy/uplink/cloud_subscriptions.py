"""What one uplink asks of the cloud: subscriptions, retained messages, and their markers.

It joins `penstock.edge_proxy.uplink.subscriptions` and
`penstock.edge_proxy.uplink.retained_cache`. The relay tells it what the cloud says, and asks it
by `take` what to say to the cloud and to the site's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from logging import Logger
from typing import Final, NamedTuple

from penstock.edge_proxy.uplink.remapping import Remapping
from penstock.edge_proxy.uplink.retained_cache import Marker, RetainedCache
from penstock.edge_proxy.uplink.subscriptions import Request, Subscriptions, local_of

MARKER_SECONDS: Final = 120.0
"""A marker that has not come so long after the last retained message will not come: a broker that
forbids its topic may drop it without a word."""


class CloudRequests(NamedTuple):
    """What is to be sent now, in this order.

    Attributes:
        marker: payload of the marker, to be retained before anything is subscribed to; None for
            none.
        subscribe: filters of the cloud; that of the marker is to follow them.
        unsubscribe: filters of the cloud.
        clear: topics of the site that are retained no more.
        add_records: what is to be stored of the cloud's session.
        remove_records: what was.
        ends_marker: a marker has come, and its topic is used no more for now.
    """

    marker: bytes | None
    subscribe: Sequence[Request]
    unsubscribe: Sequence[str]
    clear: Sequence[str]
    add_records: Sequence[str]
    remove_records: Sequence[str]
    ends_marker: bool


class CloudSubscriptions:
    """What is asked of the cloud, over all connections of one uplink.

    Attributes:
        subscriptions: what the site's clients want, and what the cloud has.
        marker_topic: the uplink's own topic in the cloud; None where nothing is to be cleared.
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
            linger_seconds: as `Subscriptions`.
            marker_topic: as the attribute.
            retained: returns (topic, payload bytes) of what a topic filter of the site matches and
                what came from this cloud.
            new_token: as `RetainedCache`.
            logger: told where the cloud lets no marker pass.
        """
        self.subscriptions = Subscriptions(remapping.down_rules, linger_seconds=linger_seconds)
        self.marker_topic = marker_topic
        self._remapping = remapping
        self._retained = retained
        self._cache = RetainedCache(new_token)
        self._logger = logger
        self._clear: list[str] = []
        self._next_marker: Marker | None = None
        self._has_come = False
        self._came_at: float | None = None
        self._ends_marker = False

    # -- what the cloud says -------------------------------------------------------------------

    def accepted(self, *, session_present: bool, refreshes: bool) -> None:
        """Note a new connection.

        Args:
            session_present: the cloud has the session.
            refreshes: it is asked for retained messages all the same: the outage was long, and
                changes of QoS 0 are lost in it.
        """
        self.subscriptions.connected(session_present=session_present, refreshes=refreshes)

    def lost(self) -> None:
        """Note the end of the connection."""
        self.subscriptions.connection_lost()
        self._cache.connection_lost()
        self._next_marker = None
        self._ends_marker = False

    def subscribed(self, name: str, reason_code: int) -> None:
        """Take one return code of SUBACK."""
        if name != self.marker_topic:
            self.subscriptions.answered(name, reason_code)
        elif reason_code >= 0x80:
            self.marker_refused()

    def unsubscribed(self, name: str) -> None:
        """Take one answer of UNSUBACK."""
        if name != self.marker_topic:
            self.subscriptions.unsubscribed(name)

    def retained_came(self, topic: str) -> None:
        """Note a retained message, by its topic at the site."""
        self._has_come = True
        if self._cache.is_waiting:
            self._cache.came(topic)

    def marker_came(self, payload: bytes) -> None:
        """Take the retained message of `marker_topic`."""
        outcome = self._cache.marker_came(payload)
        self._clear += outcome.clear
        self.subscriptions.retained_came(outcome.complete)
        self._next_marker = outcome.marker
        self._ends_marker = not self._cache.is_waiting

    def marker_refused(self) -> None:
        """Clear nothing: the cloud does not let the marker pass."""
        if self._cache.is_waiting:
            self._logger.warning(
                "the cloud's broker does not let %r pass, to which the uplink publishes and "
                "subscribes: retained messages that it has cleared stay at the site; allow the "
                "topic, or set clear_retained: false",
                self.marker_topic,
            )
            self.subscriptions.retained_came(self._cache.give_up())

    @property
    def is_waiting(self) -> bool:
        """Whether a marker is on its way, so that retained messages are to be told."""
        return self._cache.is_waiting

    # -- what is to be said --------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when `take` has to be called again; None where there is no such time."""
        deadlines = [self.subscriptions.next_deadline()]
        if self._cache.is_waiting and self._came_at is not None:
            deadlines.append(self._came_at + MARKER_SECONDS)
        return min((at for at in deadlines if at is not None), default=None)

    def take(self, now: float) -> CloudRequests:
        """Return what is to be said now; it counts as said."""
        if self._has_come or not self._cache.is_waiting or self._came_at is None:
            self._came_at = now
            self._has_come = False
        elif now >= self._came_at + MARKER_SECONDS:
            self.marker_refused()
        changes = self.subscriptions.changes(now)
        marker, self._next_marker = self._next_marker, None
        wanted = [one.topic_filter for one in changes.subscribe if one.wants_retained]
        if wanted:
            # A filter that the site has nothing retained of needs no marker.
            kept = {topic: n for name in wanted for topic, n in self._kept(name)}
            if kept and self.marker_topic is not None:
                marker = self._cache.begin(wanted, kept.items())
            else:
                self.subscriptions.retained_came(wanted)
        ends_marker = self._ends_marker and marker is None
        self._ends_marker = False
        clear, self._clear = self._clear, []
        added, removed = self.subscriptions.record_changes()
        return CloudRequests(
            None if marker is None else marker.payload,
            changes.subscribe,
            changes.unsubscribe,
            clear,
            added,
            removed,
            ends_marker,
        )

    def _kept(self, remote_filter: str) -> Iterable[tuple[str, int]]:
        """Yield what the site has retained of a filter of the cloud."""
        for rule in self._remapping.down_rules:
            local_filter = local_of(rule, remote_filter)
            if local_filter is not None:
                yield from self._retained(local_filter)
