"""All sessions by Client Identifier: how they begin, are taken over, expire and end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.events import ClientDisconnected, ClientUnsubscribed, SessionEnded
from penstock.broker.link import Link
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.last_clients import LastClient
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.priority_outbox import make_outbox
from penstock.broker.sending.log_fields import Named
from penstock.broker.sessions import redelivery, retained_delivery
from penstock.broker.sessions.client import PublishReceipt
from penstock.broker.sessions.deduplication_release import DeduplicationRelease
from penstock.broker.sessions.session import Session, UnusedSession
from penstock.broker.sessions.session_quota import SessionQuota
from penstock.broker.sessions.wills import send_will, will_bytes, will_delay

if TYPE_CHECKING:
    from penstock.broker.mqtt.packets import Will
    from penstock.broker.outbox.outbox_limits import OutboxLimits
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client


_OWED: Final = (PublishReceipt, DeduplicationRelease)
"""In `Session.incoming`, what a sink has to answer yet."""

FIGHT_TAKEOVERS: Final = 3
FIGHT_SECONDS: Final = 300.0
"""So many takeovers in so many seconds mean that two clients have one Client Identifier, even if
each of them waits for a minute and more before it connects again."""

MOST_CLIENTS: Final = 1_000
"""The most clients whose takeovers are counted at a time. With more, the one whose takeovers began
first is forgotten."""


class Takeovers:
    """Counts takeovers by Client Identifier, to find two clients that have the same one.

    A client that comes back before the broker has noticed that it was gone takes its own connection
    over, once in a while. Two clients with one Client Identifier do so as fast as they reconnect.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[str, list[tuple[float, str]]] = OrderedDict()

    def add(self, client_id: str, peer: str, now: float) -> str:
        """Count a takeover; return what the log should say, or "".

        The peer is the ``ADDRESS:PORT`` of the connection that is taken over.
        """
        recent = self._recent
        taken = [one for one in recent.pop(client_id, []) if now - one[0] < FIGHT_SECONDS]
        taken = [*taken, (now, peer)][-FIGHT_TAKEOVERS:]
        recent[client_id] = taken
        if len(recent) > MOST_CLIENTS:
            recent.popitem(last=False)
        if len(taken) < FIGHT_TAKEOVERS:
            return ""
        peers = " and ".join(dict.fromkeys(peer for _, peer in taken))
        return Named(
            f"its connection was taken over {len(taken)} times in {now - taken[0][0]:.3g} s, of "
            f"{peers}: two clients may have this client id",
            event="two_clients_with_one_id",
            address=peers,
        )


class SessionRegistry:
    """All sessions of one broker, at most one for each Client Identifier [MQTT-3.1.4-3].

    Attributes:
        quota: how many there may be.
        will_bytes: about what the wills of all take of the memory.
        n_local: how many are of clients in the broker's own process.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sessions: dict[str, Session] = {}
        self.quota = SessionQuota(core.limits)
        self.will_bytes = self.n_local = 0
        self._leaving: dict[Session, tuple[Client, float]] = {}
        self._takeovers = Takeovers()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def n_of_clients(self) -> int:
        """The sessions of clients alone."""
        return len(self._sessions) - self.n_local

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every session."""
        return list(self._sessions)

    def get(self, client_id: str) -> Session | None:
        """Return the session of a client, or None."""
        return self._sessions.get(client_id)

    def open(self, client_id: str, *, clean_start: bool, now: float) -> tuple[Session, bool]:
        """Find or make the session for a client that connects.

        A connection that the session has is taken over [MQTT-3.1.4-3]; with `clean_start` an
        existing session ends first [MQTT-3.1.2-4].

        Returns:
            (the session, without a connection; Session Present).
        """
        session = self._sessions.get(client_id)
        if session is None:
            return self.create(client_id), False
        if self.take_over(session, now):
            session = self._sessions.get(client_id)  # closing may have ended it
        if session is not None and clean_start:
            self._core.lanes.cleared(session)
            self.end(session, now)
            session = None
        if session is not None:
            for timer in (session.expiry_timer, session.will_timer):
                if timer is not None:
                    timer.cancel()  # [MQTT-3.1.3-9]
            session.expiry_timer = session.will_timer = None
            self.set_will(session, None)
            session.inflight.unpark()
            return session, True
        return self.create(client_id), False

    def _client_of(self, session: Session) -> Client | None:
        """Return the client whose connection a session has, or that is leaving it."""
        leaving = self._leaving.get(session)
        return leaving[0] if leaving is not None else session.client

    def release(
        self, client_id: str, reason_code: ReasonCode, now: float, *, ends: bool = False
    ) -> None:
        """Close the connection of a client that another broker has, and end or unload its session.

        A will that is delayed is not published: the client is back [MQTT-3.1.3-9]. But it is where
        the client `ends` its session, by Clean Start [MQTT-3.1.2-8].
        """
        session = self._sessions.get(client_id)
        if session is None:
            return
        client = self._client_of(session)
        if client is not None:
            client.close(reason_code, now)  # which may end the session
        if ends:
            send_will(self._core, session, now)
        if session.will_timer is not None:
            session.will_timer.cancel()
            session.will_timer = None
        self.set_will(session, None)
        if self._is_kept(session):
            self._leave(session)
        else:
            self.end(session, now)

    def drop(self, client_id: str, reason_code: ReasonCode, now: float) -> None:
        """Close the connection of a client whose kept session is another broker's, and forget it.

        Nothing more of it is written, and its will is not published.
        """
        session = self._sessions.get(client_id)
        if session is None or not self._is_kept(session):
            return
        self.set_will(session, None)
        client = self._client_of(session)
        if client is not None:
            client.close(reason_code, now)
        for receipt in list(session.incoming.values()):
            if isinstance(receipt, PublishReceipt) and not receipt.was_routed:
                receipt.settle(reason_code)  # access control may answer yet: it is not routed then
        self._unload(session)

    def look(self, client_id: str) -> None:
        """See that a kept session is unloaded whose client has gone, once nothing keeps it here."""
        session = self._sessions.get(client_id)
        if session is not None and session.client is None and self._is_kept(session):
            self._leave(session)

    def unload(self, session: Session) -> None:
        """Forget a kept session that still has no connection, and no will to be published.

        Nor while a sink has to store or to forget a message of it: what the client sends again
        elsewhere would be another message to that sink.
        """
        is_owed = any(isinstance(one, _OWED) for one in session.incoming.values())
        if self._client_of(session) is None and session.will_timer is None and not is_owed:
            self._unload(session)

    def _is_kept(self, session: Session) -> bool:
        kept = self._core.kept
        return kept is not None and kept.has(session)

    def _leave(self, session: Session) -> None:
        if self._core.kept is not None:
            self._core.kept.left(session)

    def _unload(self, session: Session) -> None:
        """Forget a kept session, which does not end."""
        if self._sessions.get(session.client_id) is not session or session.journal is None:
            return
        core = self._core
        self.set_will(session, None)
        self._take_out(session)
        session.journal.unloaded()
        core.room.session_ended(session.client_id)
        self._drop_messages(session, "")
        core.lanes.ended(session)
        if core.kept is not None:
            core.kept.unloaded(session)

    def take_over(self, session: Session, now: float) -> bool:
        """Close the connection that a session has, or that is leaving it, for another client's.

        Returns:
            True where there was one; its end may have ended the session.
        """
        client = self._client_of(session)
        if client is None:
            return False
        peer = f"{client.remote_address}:{client.remote_port}"
        told = self._takeovers.add(session.client_id, peer, now)
        core = self._core
        if told and core.told.is_due(f"takeovers {session.client_id}", now):
            core.logger.warning("client %s: %s", session.client_id, told)
        client.close(ReasonCode.SESSION_TAKEN_OVER, now)
        return True

    def create(self, client_id: str) -> Session:
        """Make a session for a client that has none, and return it."""
        session = self._sessions[client_id] = UnusedSession(client_id, self._core)
        self.n_local += session.is_local
        return session

    def set_will(self, session: Session, will: Will | None) -> None:
        """Give a session its will, or none, in place of the one that it had."""
        if will is not session.will:
            self.will_bytes += will_bytes(will) - will_bytes(session.will)
            session.will = will

    def has_room_for(self, will: Will | None, client_id: str) -> bool:
        """Say whether a client that connects may have a will: no other is refused."""
        most_bytes = self._core.limits.total_will_bytes
        if will is None or most_bytes is None:
            return True
        session = self._sessions.get(client_id)
        n_bytes = self.will_bytes - (0 if session is None else will_bytes(session.will))
        return n_bytes + will_bytes(will) <= most_bytes

    def remove_subscription(self, session: Session, topic_filter: str, now: float) -> None:
        """End one of a session's subscriptions [MQTT-3.10.4-1]."""
        core = self._core
        del session.subscriptions[topic_filter]
        if core.consuming is not None:
            core.consuming.remove(session, topic_filter)
        if core.kept is not None and core.kept.routes(session, topic_filter):
            core.kept.unsubscribed(session, topic_filter)
        else:
            core.tree.remove(session, topic_filter)
        redelivery.unsubscribed(session, topic_filter, now)
        retained_delivery.unsubscribed(session, topic_filter)
        if session.journal is not None:
            session.journal.subscription_changed(topic_filter)
        if core.callbacks.client_unsubscribed:
            event = ClientUnsubscribed(session, topic_filter)
            core.guard.tell(core.callbacks.client_unsubscribed, event)

    def peer_left(self, session: Session, client: Client, now: float) -> None:
        """A client is gone, but what it has sent is not handled to its end: it gets nothing more.

        Will and session wait for `connection_lost`, as what it has sent comes before its will.
        """
        if session.client is not client:
            return
        self._leaving[session] = (client, now)
        self._part(session)
        if session.expiry_interval == 0:  # it will not come back for what is published meanwhile
            for topic_filter in session.subscriptions:
                self._core.tree.remove(session, topic_filter)

    def connection_lost(self, session: Session, client: Client, now: float) -> None:
        """A session has lost its connection: decide on its will and its end."""
        since = now
        leaving = self._leaving.get(session)
        if leaving is not None and leaving[0] is client:
            del self._leaving[session]
            since = leaving[1]
        elif session.client is client:
            self._part(session)
        else:
            return
        core = self._core
        if session.shares:
            redelivery.connection_lost(session, now)
        if core.consuming is not None and (session.subscriptions or not session.is_unused):
            core.consuming.connection_lost(session)
        if not session.is_unused:
            session.outbox.connection_lost(now)
        if session.retained_due:
            retained_delivery.connection_lost(session)
        if core.callbacks.client_disconnected:
            peer = f"{client.remote_address}:{client.remote_port}"
            event = ClientDisconnected(session, peer, client.end_reason)
            core.guard.tell(core.callbacks.client_disconnected, event)
        if core.journal is not None:
            core.journal.connection_lost(session, since)
        if core.lanes.has_lanes:
            core.lanes.connection_lost(session, now)
        self.count_absence(session, since, now)

    def _part(self, session: Session) -> None:
        """Part a session from its connection: nothing more is sent to the client."""
        if session.client is not None and not session.client.is_local:
            self._core.counters.clients_connected -= 1
        session.client = session.sender = None
        del session.outgoing
        session.is_direct = False
        if session.probe is not None and not session.probe.packet_id:
            session.probe = None  # it was for this connection
        if session.look_timer is not None:
            session.look_timer.cancel()
            session.look_timer = None
        if session.large_ahead is not None:
            session.large_ahead.connection_lost()

    def count_absence(self, session: Session, since: float, now: float) -> None:
        """Let the time run that will and session have without a connection.

        It was lost at `since`, now or before a restart.
        """
        core = self._core
        interval = session.expiry_interval
        if session.will is not None:
            will_at = since + will_delay(session)
            if will_at > now and (interval is None or interval > 0):
                session.will_timer = core.timers.at(
                    will_at, lambda at: self._will_is_due(session, at)
                )
            else:
                send_will(core, session, now)
        if interval is not None and since + interval <= now:
            self.end(session, now)
            return
        if core.outbox_rules.backlog is not None:
            session.inflight.park(core.outbox_rules.backlog)
        if interval is not None:
            session.expiry_timer = core.timers.at(
                since + interval, lambda at: self.end(session, at, has_expired=True)
            )
        if self._is_kept(session):
            self._leave(session)

    def _will_is_due(self, session: Session, now: float) -> None:
        send_will(self._core, session, now)
        if self._is_kept(session):
            self._leave(session)

    def end(self, session: Session, now: float, *, has_expired: bool = False) -> None:
        """End a session: its will is due, its subscriptions and messages go.

        [MQTT-3.1.3-9] for a delayed will. It `has_expired` where it ends for its Session Expiry
        Interval.
        """
        if self._sessions.get(session.client_id) is not session:
            return
        core = self._core
        core.counters.sessions_expired += has_expired
        topic_filters = self._take_out(session)
        if session.is_unused:
            names = session.client_id, session.username, session.listener
            core.last_clients.add_unused(
                *names[:2], partial(_last_unused, *names, core.outbox_rules, now)
            )
        else:
            core.room.session_ended(session.client_id)
            if core.tree.shares:
                redelivery.session_ended(session, now)
            core.lanes.ended(session)
            if session.outbox.journal is not None:
                session.outbox.journal.ended(has_expired=has_expired)
            self._drop_messages(session, "session_ended")
            core.last_clients.add(_last_client(session, now))
        if session.will is not None:
            send_will(core, session, now)
        if core.callbacks.session_ended:
            core.guard.tell(core.callbacks.session_ended, SessionEnded(session, topic_filters))

    def _take_out(self, session: Session) -> Sequence[str]:
        """Remove a session and its subscriptions; return their topic filters."""
        core = self._core
        del self._sessions[session.client_id]
        self.n_local -= session.is_local
        self.quota.forget(session)
        for timer in (session.expiry_timer, session.look_timer, session.overflow_timer):
            if timer is not None:
                timer.cancel()
        if core.consuming is not None and (session.subscriptions or not session.is_unused):
            core.consuming.forget(session)
        if not session.subscriptions:
            return ()
        topic_filters = list(session.subscriptions)
        for topic_filter in topic_filters:
            core.tree.remove(session, topic_filter)
            if self._is_kept(session) and core.kept is not None:
                core.kept.tree.remove(session, topic_filter)
        session.subscriptions.clear()
        return topic_filters

    def _drop_messages(self, session: Session, reason: str) -> None:
        """End all that a session has been sent, or was to be; "" counts it as moved."""
        core = self._core
        session.outbox.drop_all(reason)
        session.resend.clear()
        session.retained_due.clear()
        n_inflight = session.inflight.clear()
        if reason:
            session.ledger.drop(reason, n_inflight)
        else:
            session.ledger.moved += n_inflight
        if session.settle_direct().matched:
            core.ended.add(session.ledger)
        core.forget(session.link)


def _last_client(session: Session, now: float) -> LastClient:
    """Return what is remembered of a client whose session has ended."""
    return LastClient(
        session.client_id,
        session.username,
        session.listener,
        session.link,
        session.outbox,
        session.ledger,
        now,
    )


def _last_unused(
    client_id: str, username: str | None, listener: str, rules: OutboxLimits, now: float
) -> LastClient:
    """Return the same of a client that nothing was sent to; nothing keeps its session."""
    link, ledger = Link(client_id, username, listener), Ledger()
    outbox = make_outbox(link, ledger, rules)
    return LastClient(client_id, username, listener, link, outbox, ledger, now)
