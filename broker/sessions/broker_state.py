"""The state that all connections of one broker share.

The core has no clock and does no I/O. A driver calls it with bytes and `now`. The bytes to be
written are in the connections that were touched, which the driver takes by `take_touched`.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from penstock.broker.access_control import AccessControl, Authenticator
from penstock.broker.config.capabilities import is_restricted
from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.events import Callbacks
from penstock.broker.extensions import (
    DeliveryGate,
    LinkSampler,
    MessageSink,
    MessageSource,
    PayloadStore,
    SessionOwner,
    overridden,
)
from penstock.broker.message import ARRIVAL_SECONDS, Message
from penstock.broker.mqtt.topics import validate_topic_filter
from penstock.broker.outbox.inflight import Inflight
from penstock.broker.outbox.last_clients import LastClients
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.routing.queue_capacity import QueueCapacity
from penstock.broker.routing.retained import RetainedMessages
from penstock.broker.routing.router import Router
from penstock.broker.routing.topic_tree import TopicTree
from penstock.broker.sending.core_context import CoreContext
from penstock.broker.sessions.bans import Bans
from penstock.broker.sessions.lanes import Lanes
from penstock.broker.sessions.login_backoff import LoginBackoff
from penstock.broker.sessions.received_bytes import ReceivedBytes
from penstock.broker.sessions.registry import SessionRegistry
from penstock.broker.sessions.source_subscriptions import Consuming

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits
    from penstock.broker.config.mqtt_options import MqttOptions
    from penstock.broker.extensions import MailRun
    from penstock.broker.message import SizeClass
    from penstock.broker.routing.topic_tree import Plan
    from penstock.broker.sessions.journal import Journal, KeptSessions
    from penstock.broker.sessions.session import Session

TakePublish: TypeAlias = "Callable[[Any, Plan, Message, int, int, float], None]"
"""Takes a message: its client, plan, message, Packet Identifier, first byte, now."""

SORTED_AT_ONCE: Final = 250
"""So many outboxes are looked at before others are served: a millisecond's work."""

_UNSORTED: Final = "changed limits"
"""Is in `OutboxLimits.over_half` until `Core.look_at_sessions` has ended."""


class Core(CoreContext):
    """One broker without its sockets.

    Attributes:
        most_payload_bytes: of a message from a client.
        tree: all subscriptions.
        retained: all retained messages.
        sessions: all sessions.
        sinks: route targets that are not sessions.
        run_sinks: those of them that take runs.
        received: bytes that connections hold of incomplete packets and of topics with an alias.
        authenticators: methods of enhanced authentication, by name.
        claim: `SessionOwner.claim`, or None where every session may be had at once.
        routed: `SessionOwner.routed`, or None where subscriptions hold at once.
        kept: the sessions that the owner keeps; None where it keeps none.
        logins: failed logins, and who has to wait after too many.
        ended: the sum of the ledgers of ended sessions.
        bans: who may not connect for a while.
        last_clients: those whose sessions ended last.
        consuming: subscriptions that sources feed; None where there are no sources.
        router: gives messages to sessions and sinks.
        room: which sessions have room for messages, and which publishers wait for it.
        site: name of the site whose broker this is, which uplinks are told; "" for none.
        why_away: what reports say of a client of a plugin, by its Client Identifier.
        on_sys_subscribed: called with each filter below ``$`` before its retained messages are
            sent; None where no topic is published on demand.
        catch_up: returns a coroutine for which a client that causes events waits, or None while
            the callbacks keep up; itself None where no callback can fall behind.
        is_restricted: each PUBLISH is checked for what the broker does not offer.
        take_unchecked: the short way of a message about which no plugin has to be asked, as
            `penstock.broker.fast_paths` has it; None where each message takes the plain way.
        new_inflight: the class of each session's inflight window.
    """

    new_inflight: ClassVar[type[Inflight]] = Inflight

    def __init__(
        self,
        limits: Limits,
        *,
        options: MqttOptions,
        logger: logging.Logger,
        wake: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        new_client_id: Callable[[], str],
        gate: DeliveryGate | None = None,
        samplers: Sequence[LinkSampler] = (),
        payload_store: PayloadStore | None = None,
        sinks: Sequence[MessageSink] = (),
        sources: Sequence[MessageSource] = (),
        access: AccessControl | None = None,
        authenticators: Sequence[Authenticator] = (),
        session_owner: SessionOwner | None = None,
        callbacks: Callbacks | None = None,
        session_expiry_limit: float | None = None,
        keep_alive_grace: float = 0.0,
        sizes_by_listener: Mapping[str, SizeClass] = MappingProxyType({}),
    ) -> None:
        """Make a broker without clients.

        Args:
            limits: from the policy file.
            options: from the policy file.
            logger: for what an operator should know.
            wake: called when a connection was touched outside of a turn of the driver.
            spawn: takes a coroutine that has to wait; the driver runs it as a task.
            new_client_id: makes a new Client Identifier.
            gate: None for no withholding.
            samplers: write what they learn of each subscriber's path.
            payload_store: None for payloads by reference.
            sinks: route targets that are not sessions.
            sources: feed subscriptions of their own.
            access: None permits every client everything.
            authenticators: methods of enhanced authentication, each with its own name.
            session_owner: None where every session may be had at once.
            callbacks: of events.
            session_expiry_limit: seconds; the most that a session outlives its connection.
            keep_alive_grace: seconds added to the time after which a silent client is gone.
            sizes_by_listener: name of a listener to the size class that its clients subscribe to.
        """
        super().__init__(
            limits,
            options,
            logger=logger,
            wake=wake,
            spawn=spawn,
            gate=gate,
            samplers=samplers,
            payload_store=payload_store,
            access=access,
            callbacks=callbacks,
        )
        self.most_payload_bytes = limits.most_payload_bytes
        self.sinks: tuple[MessageSink, ...] = ()
        self.run_sinks: set[MessageSink] = set()
        self.authenticators = {offered.method: offered for offered in authenticators}
        owner = SessionOwner() if session_owner is None else session_owner
        self.claim = overridden(owner.claim, SessionOwner.claim)
        self.routed = overridden(owner.routed, SessionOwner.routed)
        self.new_client_id = new_client_id
        self.session_expiry_limit = session_expiry_limit
        self.keep_alive_grace = keep_alive_grace
        self.sizes_by_listener = sizes_by_listener
        self.logins = LoginBackoff(limits)
        self.ended = Ledger()
        self.bans = Bans()
        self.last_clients = LastClients()
        self.site = ""
        self.why_away: dict[str, Callable[[], str]] = {}
        self.retained = RetainedMessages(
            limits.retained_messages, _or_none(limits.retained_bytes), timers=self.timers
        )
        self.tree = TopicTree(
            (),
            self.threshold_s,
            rules=self.outbox_rules,
            most_plan_bytes=limits.plan_bytes,
            most_payload_bytes=limits.most_payload_bytes,
        )
        self.sessions = SessionRegistry(self)
        self.lanes = Lanes(
            self.sessions.get,
            self.sessions.take_over,
            self.timers,
            self.counters,
            self.options,
            logger,
        )
        self.received = ReceivedBytes(_or_none(limits.total_received_bytes))
        self.room = QueueCapacity(
            self, rejects=limits.queue_full == "reject", seconds=limits.queue_full_seconds
        )
        self.outbox_rules.on_dropped = self.room.dropped
        for sink in sinks:
            self.add_sink(sink)
        self.on_sys_subscribed: Callable[[str], None] | None = None
        self.catch_up: Callable[[], Coroutine[Any, Any, None] | None] | None = None
        self.is_restricted = is_restricted(options)
        self.take_unchecked: TakePublish | None = None
        self.consuming = Consuming(self, sources) if sources else None
        self.journal: Journal | None = None
        self.kept: KeptSessions | None = None
        self.router = Router(self, self.tree, self.retained, self.sessions.get)
        self._arrived_at = -math.inf

    def change(
        self,
        limits: Limits,
        options: MqttOptions,
        *,
        session_expiry_limit: float | None,
        keep_alive_grace: float,
        sizes_by_listener: Mapping[str, SizeClass],
    ) -> None:
        """Have other limits and options from now on; arguments are as at the beginning.

        What a client was told in its CONNACK holds for as long as it is connected.
        `look_at_sessions` is to follow.
        """
        rules = self.outbox_rules
        self.limits, self.options = limits, options
        self.most_payload_bytes = limits.most_payload_bytes
        self.session_expiry_limit = session_expiry_limit
        self.keep_alive_grace = keep_alive_grace
        self.sizes_by_listener = sizes_by_listener
        self.is_restricted = is_restricted(options)
        rules.change(
            limits.queued_messages,
            limits.queued_bytes,
            drops_oldest=limits.queue_full == "drop_oldest",
        )
        if rules.backlog is not None:
            rules.backlog.change(
                _or_none(limits.total_queued_messages), _or_none(limits.total_queued_bytes)
            )
        rules.over_half.add(_UNSORTED)
        self.room.change(rejects=limits.queue_full == "reject", seconds=limits.queue_full_seconds)
        self.retained.max_messages = limits.retained_messages
        self.retained.max_bytes = _or_none(limits.retained_bytes)
        self.tree.change(limits.plan_bytes, limits.most_payload_bytes)
        self.sessions.quota.change(limits)
        self.logins.change(limits)
        self.received.most_bytes = _or_none(limits.total_received_bytes)
        self.lanes.change(options)

    def gate_changed(self) -> None:
        """Ask anew which messages are large, and for the name of the gate's policy."""
        self.outbox_rules.gate_changed()
        self.tree.void_plans()

    def look_at_sessions(self) -> Iterator[None]:
        """Find out anew which outboxes are more than half full, and ask anew for what is held.

        Sessions are counted anew, too, as a limit for each user or address may be new. It yields
        between slices of sessions. Until it has ended, the room for each message is computed.
        """
        quota = self.sessions.quota
        for number, session in enumerate(list(self.sessions), 1):
            client = session.client
            is_there = self.sessions.get(session.client_id) is session  # since the last slice
            if quota.is_limited and is_there and not (client is not None and client.is_local):
                address = None if client is None else client.remote_address
                quota.count(session, session.username, address)
            if not session.is_unused:
                session.outbox.rules.follow()
                session.outbox.rules = session.outbox.rules
                session.link_changed()
            if not number % SORTED_AT_ONCE:
                yield
        self.outbox_rules.over_half.discard(_UNSORTED)

    def arrived_at(self, now: float, sinks: Sequence[MessageSink] = ()) -> float:
        """Return the arrival time that is stored with a message.

        Args:
            now: monotonic seconds.
            sinks: that get the message; with any of them that takes no runs, the time is exact.

        Returns:
            The start of the current eighth of a second, one object for all messages of it. It
            depends on the time alone, so it is the same on every way that a message may take.
        """
        if sinks and not self.run_sinks.issuperset(sinks):
            return now
        if now - self._arrived_at >= ARRIVAL_SECONDS:
            self._arrived_at = now - now % ARRIVAL_SECONDS
        return self._arrived_at

    def take_mail_run(
        self,
        session: Session,  # noqa: ARG002 (a default, as those below)
        mail: MailRun,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> int | None:
        """Send a kept session messages that waited for it; see `LocalClients.deliver_run`."""
        return None

    def add_sink(self, sink: MessageSink) -> None:
        """Route to one more sink from now on."""
        self.sinks = (*self.sinks, sink)
        if overridden(sink.accept_run, MessageSink.accept_run) is not None:
            self.run_sinks.add(sink)
        sink.on_room = self.room.sink_has_room
        self.tree.add_sink(sink)

    def remove_sink(self, sink: MessageSink) -> None:
        """Route nothing more to a sink."""
        self.sinks = tuple(other for other in self.sinks if other is not sink)
        self.run_sinks.discard(sink)
        self.tree.remove_sink(sink)

    @property
    def n_subscriptions(self) -> int:
        """Subscriptions of all sessions."""
        return self.tree.n_subscriptions + (
            0 if self.kept is None else self.kept.tree.n_subscriptions
        )

    @property
    def subscription_bytes(self) -> int:
        """About what they take of the memory."""
        return self.tree.n_bytes + (0 if self.kept is None else self.kept.tree.n_bytes)

    def ledger(self) -> Ledger:
        """Return the sum of the ledgers of all sessions, ended ones included."""
        total = Ledger()
        total.add(self.ended)
        for session in self.sessions:
            if not session.is_unused:
                total.add(session.settle_direct())
        return total


def _or_none(limit: int | None) -> int:
    """Return a limit; None stands for none."""
    return sys.maxsize if limit is None else limit


class CoreSinks:
    """The `SinkRoutes` that a broker's plugins get: sinks come and go while the broker runs."""

    def __init__(self) -> None:
        """Begin without a broker; `attach` adds the core."""
        self._core: Core

    def attach(self, core: Core) -> None:
        """Add and remove sinks of this core from now on."""
        self._core = core

    def add(self, sink: MessageSink) -> None:
        """Offer messages to one more sink from now on.

        Raises:
            PenstockError: a sink has its name, or a topic filter is not valid.
        """
        core = self._core
        if any(other.name == sink.name for other in core.sinks):
            raise PenstockError(f"sink {sink.name}: there is one; allowed: a name of its own")
        for topic_filter in sink.topic_filters:
            _check_filter(sink, topic_filter)
        core.add_sink(sink)

    def remove(self, sink: MessageSink) -> None:
        """Offer a sink nothing more; it may still be asked to `accept` what it has reserved."""
        if sink in self._core.sinks:
            self._core.remove_sink(sink)

    def add_filter(self, sink: MessageSink, topic_filter: str) -> None:
        """Offer a sink what matches one more topic filter; see `SinkRoutes.add_filter`."""
        core = self._core
        if sink not in core.sinks:
            raise PenstockError(f"sink {sink.name}: not added; allowed: a sink of the broker")
        _check_filter(sink, topic_filter)
        core.tree.add_sink_filter(sink, topic_filter)

    def remove_filter(self, sink: MessageSink, topic_filter: str) -> None:
        """Offer a sink no more what matches a topic filter; see `SinkRoutes.remove_filter`."""
        self._core.tree.remove_sink_filter(sink, topic_filter)


def _check_filter(sink: MessageSink, topic_filter: str) -> None:
    try:
        validate_topic_filter(topic_filter)
    except PeerError as error:
        raise PenstockError(f"sink {sink.name}: {error}") from error
