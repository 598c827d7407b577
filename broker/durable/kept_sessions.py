"""Sessions that an owner keeps: they are here while their clients are connected.

Theory of operation. What is published for a kept session goes to where its owner keeps it
(`penstock.broker.extensions.SessionOwner`); the owner gives it the messages one window after the
other. So its topic filters stand in a tree of their own, which routes nothing: it says what the
session has subscribed to when a message is given to it. Shared subscriptions stand in no tree: the
owner says by which of them a message comes. `$SYS`, and what sources feed, is the broker's own
matter, and these subscriptions are as those of any session.

A session that has lost its connection is unloaded once all that has changed of it is committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.broker.durable.records import row_of_ids
from penstock.broker.durable.recovery import messages_of, restore_sessions
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, Mail, SessionOwner, SessionStore
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import SHARE_PREFIX
from penstock.broker.outbox.delivery import Delivery, Repeat
from penstock.broker.routing.topic_tree import Subscription, Target, TopicTree
from penstock.broker.session_rows import DeliveryRow, MessageRow, Stored
from penstock.broker.sessions import retained_delivery

if TYPE_CHECKING:
    from penstock.broker.durable.journal import Journal
    from penstock.broker.message import Message
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

_OF_THE_BROKER: Final = "$SYS/"
"""What is published below it is the broker's own, and comes without the owner."""


class KeptSessions:
    """The sessions of one broker that an owner keeps.

    Attributes:
        store: what is written of them.
        tree: their subscriptions, but for shared ones and those that the broker itself serves.
    """

    def __init__(self, core: Core, owner: SessionOwner, store: SessionStore) -> None:
        self._core = core
        self._owner = owner
        self._journal: Journal
        self.store = store
        self.tree = TopicTree()
        core.kept = self

    def attach(self, journal: Journal) -> None:
        """Have a journal, which is one of what is kept."""
        self._journal = journal

    def _tell(self, tell: Callable[..., None], *args: object) -> None:
        self._core.guard.call("session owner", tell, *args, otherwise=None)

    def keeps(self, session: Session) -> bool:
        """Ask whether a new session is kept."""
        client_id = session.client_id
        return not client_id.startswith(LOCAL_CLIENT_PREFIX) and self._core.guard.call(
            "session owner", self._owner.keeps, client_id, session.expiry_interval, otherwise=False
        )

    @staticmethod
    def has(session: Session) -> bool:
        """Say whether a session is a kept one: nothing else is durable."""
        return session.journal is not None

    # -- subscriptions ---------------------------------------------------------------------------

    def routes(self, session: Session, topic_filter: str) -> bool:
        """Say whether the owner routes messages to a session's subscription."""
        if not self.has(session) or topic_filter.startswith(_OF_THE_BROKER):
            return False
        consuming = self._core.consuming
        return consuming is None or not consuming.source_of(topic_filter)

    def add(self, subscription: Subscription) -> None:
        """Add or replace a subscription that the owner routes messages to."""
        if not subscription.topic_filter.startswith(SHARE_PREFIX):
            self.tree.add(subscription)

    def subscribed(self, session: Session, topic_filters: Sequence[str]) -> None:
        """Tell the owner of filters that a session did not have."""
        if topic_filters:
            self._tell(self.store.subscribed, session.client_id, topic_filters)

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        """Remove a subscription that the owner routes messages to."""
        self.tree.remove(session, topic_filter)
        self._tell(self.store.unsubscribed, session.client_id, topic_filter)

    def restore(self, stored: Stored, now: float) -> None:
        """Bring a kept session into the broker, for a client that is about to open it.

        What is stored has payloads as they are, no retained messages and no wills.

        Raises:
            PeerError: stored properties cannot be decoded.
            OSError: a payload cannot be kept.
        """
        core, epoch = self._core, self.store.epoch()
        stored = replace(stored, messages=self._kept_payloads(stored.messages))
        try:
            restored = restore_sessions(core, self._journal, stored, epoch=epoch, now=now)
        except BaseException:
            for known in stored.sessions:
                core.sessions.drop(known.client_id, ReasonCode.UNSPECIFIED_ERROR, now)
            raise
        for session, subscription in restored.due:
            retained_delivery.restore(session, subscription)

    def _kept_payloads(self, rows: Iterable[MessageRow]) -> list[MessageRow]:
        keep = self._core.keep
        return [
            row._replace(payload=keep(row.payload)) if isinstance(row.payload, bytes) else row
            for row in rows
        ]

    # -- messages --------------------------------------------------------------------------------

    def deliver(
        self, session: Session, mail: Sequence[Mail], now: float, *, refused: Container[int] = ()
    ) -> list[DeliveryRow | None]:
        """Give a connected session what waits for it; return what it has taken of each message.

        It may not receive the messages whose rows are `refused`.

        Raises:
            PeerError: stored properties cannot be decoded.
            OSError: a payload cannot be kept.
        """
        rows = self._kept_payloads([each.message for each in mail])
        messages = messages_of(self._core, self._journal, rows, self.store.epoch())
        matching: dict[str, Sequence[Subscription]] = {}
        taken: list[DeliveryRow | None] = []
        for each in mail:
            message, row = messages[each.message.row], None
            if each.message.row not in refused:
                target = self._target(session, message, each.share, matching)
                if target is not None:
                    row = self._deliver(session, each, message, target, now)
            taken.append(row)
        self._core.turn.congested.clear()  # there is no publisher to slow down
        if session.client is not None:
            session.outgoing.want_pump()
            self.pumped(session)  # there is no pump while the connection takes nothing
        return taken

    def _deliver(
        self, session: Session, mail: Mail, message: Message, target: Target, now: float
    ) -> DeliveryRow | None:
        """Give a session a message; return what is to be kept until it is acknowledged."""
        own = session.journal
        if message.is_expired(now):
            session.ledger.matched += 1
            session.ledger.expired += 1
            return None
        qos = min(message.qos, target.qos)
        retain = message.retain and target.retain_as_published
        ids = target.subscription_ids
        if not qos or own is None:
            session.deliver(message, 0, retain=retain, subscription_ids=ids, now=now)
            return None
        delivery = (Repeat if mail.is_repeat and qos == 1 else Delivery)(
            message, qos, retain=retain, subscription_ids=ids
        )
        journal, sender = self._journal, session.sender
        row = DeliveryRow(
            message.row, own.row, message.row, qos, retain, row_of_ids(ids), 0, False, mail.share
        )
        journal.restored_delivery(delivery, message.row)
        session.ledger.matched += 1
        if sender is not None and not message.is_large and session.sends_at_once(qos):
            sender.send_delivery(delivery, now)
            return row
        if session.retained_due:
            retained_delivery.send_before(session, message.topic, now)
        session.is_direct = False
        if session.outbox.add(delivery, is_restored=True):
            journal.as_stored(delivery)
        else:
            own.changed(delivery)
        return row

    def _target(
        self,
        session: Session,
        message: Message,
        share: str,
        matching: dict[str, Sequence[Subscription]],
    ) -> Target | None:
        """Return how a session has subscribed to a message; None where it gets none.

        In `matching`, the session's subscriptions that match a topic are found once.
        """
        topic = message.topic
        if share:
            member = session.subscriptions.get(share)
            all_found: Sequence[Subscription] = () if member is None else (member,)
        elif topic in matching:
            all_found = matching[topic]
        else:
            all_found = matching[topic] = self.tree.subscriptions_of(session, topic)
        takes = session.outbox.takes
        found = [each for each in all_found if each.sizes is None or takes(each.sizes, message)]
        if not found:
            return None
        target = Target(session, found)
        return target.for_own if message.publisher == session.client_id else target

    def pumped(self, session: Session) -> None:
        """Tell the owner if a connected session can be given more: small messages pass others."""
        if session.resend or session.retained_due:
            return
        outbox, rules = session.outbox, session.outbox.rules
        if not outbox.n_messages or (
            next(outbox.ready(), None) is None and rules.has_plenty(outbox)
        ):
            self._tell(self.store.drained, session.client_id)

    # -- the end of a connection -----------------------------------------------------------------

    def left(self, session: Session) -> None:
        """Unload a session without a connection once what has changed of it is committed.

        Thousands may have lost their connections at once. The driver runs a number of timers before
        others have their turn.
        """
        core = self._core
        unload = core.sessions.unload
        self._journal.when_committed(lambda: core.timers.at(-math.inf, lambda _: unload(session)))

    def unloaded(self, session: Session) -> None:
        """Tell the owner that a session is gone."""
        self._tell(self._owner.unloaded, session.client_id)
