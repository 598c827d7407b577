"""What one session tells the journal: its own changes, and what comes to it and leaves it.

Theory of operation. A durable session has a `SessionJournal`, and every QoS 1 and 2 delivery in
its hands is stored as its own. A session that is not durable stores nothing, but for one case: as
a member of a shared subscription that has durable members too. What such a share was given is safe
with those, so it must not be lost because it has come, or moved, to a member whose session ends
with the process. The `ShareJournal` of that session stores what it holds as the share's: a restart
gives it to the members that are left. A QoS 2 message that such a member was sent is not stored
any more, as no other client may get it [MQTT-4.8.2-5].
"""

# A session's journal and the journal are two parts of one.
# ruff: noqa: SLF001

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.records import SessionRow

if TYPE_CHECKING:
    from penstock.broker.durable.journal import Journal
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.sessions.session import Session


class DeliveryJournal:
    """Who is told of the deliveries of one session.

    Attributes:
        row: number of the session in the database; 0 where it has none.
    """

    __slots__ = ("_journal", "row")

    def __init__(self, journal: Journal, row: int) -> None:
        self._journal = journal
        self.row = row

    def changed(self, delivery: Delivery) -> None:
        """A QoS 1 or 2 delivery has come to the session, gone on its way, or left it."""
        if delivery.is_stored:
            journal = self._journal
            journal._deliveries[delivery] = self
            journal._note()

    def finished(self, delivery: Delivery) -> None:
        """A delivery was acknowledged: one that is not stored yet never will be.

        It is let go here, not with the next commit: readers of a backlog may be far ahead of the
        disk.
        """
        journal = self._journal
        was_noted = journal._deliveries.pop(delivery, None) is not None
        if delivery.row_start:
            journal._forget(delivery)
            journal._note()
        elif was_noted and not journal.is_dirty:
            journal._hurry()

    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Say how a delivery is to be stored.

        Returns:
            (its packet identifier, 0 while it waits; its PUBREC has come); None where it is not.
        """
        raise NotImplementedError

    def ended(self, *, has_expired: bool) -> None:
        """The session ends: its messages, still in their places, go with it.

        Args:
            has_expired: because its time is over, as a restart would find as well.
        """
        raise NotImplementedError

    def _take_stored(self, session: Session) -> list[Delivery]:
        """Part a session from the journal; return its deliveries that are stored."""
        deliveries = self._journal._deliveries
        stored = []
        for delivery in (*session.outbox.waiting(), *session.inflight):
            deliveries.pop(delivery, None)
            if delivery.row_start:
                stored.append(delivery)
        session.journal = session.outbox.journal = session.inflight.journal = None
        return stored


class SessionJournal(DeliveryJournal):
    """One durable session's side of the journal.

    Attributes:
        session: whose.
        lost_at: monotonic seconds at which its connection ended; None while it has one.
    """

    __slots__ = ("_is_ended", "_is_stored", "lost_at", "session")

    def __init__(self, journal: Journal, session: Session, row: int, *, is_stored: bool) -> None:
        super().__init__(journal, row)
        self._is_stored = is_stored
        self._is_ended = False
        self.session = session
        self.lost_at: float | None = None

    def watch(self) -> None:
        """Be told by outbox and inflight window from now on."""
        self.session.outbox.journal = self.session.inflight.journal = self

    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Say how a delivery is to be stored: where the session has it."""
        inflight = self.session.inflight
        if inflight.holds(delivery):
            return delivery.packet_id, inflight.is_released(delivery.packet_id)
        return (0, False) if delivery.is_waiting else None

    def subscription_changed(self, topic_filter: str) -> None:
        """A subscription was made, replaced, given up, or got the last retained message due."""
        self._journal._subscriptions[self, topic_filter] = None
        self._journal._note()

    def incoming_changed(self, packet_id: int) -> None:
        """A QoS 2 message was received, or released, under this packet identifier."""
        self._journal._incoming[self, packet_id] = None
        self._journal._note()

    def opened(self) -> None:
        """A client has connected to the session."""
        self.lost_at = None
        self._changed()

    def connection_lost(self, now: float) -> None:
        """The session has no connection from now on."""
        self.lost_at = now
        self._changed()

    def ended(self, *, has_expired: bool) -> None:
        """The session ends: its messages, still in their places, go with it.

        Args:
            has_expired: because its time is over, as a restart would find as well.
        """
        self._is_ended = True
        stored = self._take_stored(self.session)
        self._journal._ended(self, stored, has_expired=has_expired and self._is_stored)

    def _changed(self) -> None:
        self._journal._sessions[self] = None
        self._journal._note()

    def _to_row(self, epoch: float) -> SessionRow:
        session = self.session
        return SessionRow(
            self.row,
            session.client_id,
            session.username,
            session.listener,
            session.version,
            session.expiry_interval,
            None if self.lost_at is None else self.lost_at + epoch,
        )


class ShareJournal(DeliveryJournal):
    """What a session that is not durable holds for shares that have durable members."""

    __slots__ = ("_session",)

    def __init__(self, journal: Journal, session: Session | None) -> None:
        """Hold nothing yet.

        Args:
            journal: of the broker.
            session: in whose hands the deliveries are; None for those in nobody's.
        """
        super().__init__(journal, 0)
        self._session = session

    def watch(self) -> None:
        """Be told by outbox and inflight window from now on."""
        assert self._session is not None  # noqa: S101 (there is nothing to watch)
        self._session.outbox.journal = self._session.inflight.journal = self

    def changed(self, delivery: Delivery) -> None:
        """A QoS 1 or 2 delivery has come to the session, gone on its way, or left it."""
        if not (delivery.share or delivery.row_start):
            return
        if delivery.row_start or self.place_of(delivery) is not None:
            super().changed(delivery)
        else:
            self._journal._deliveries.pop(delivery, None)

    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Say how a delivery is to be stored: as one that waits, for whoever is there then."""
        share = self._journal._core.tree.shares.get(delivery.share)
        if share is None or not share.n_durable:
            return None
        session = self._session
        if delivery.is_waiting or (
            session is not None and delivery.qos == 1 and session.inflight.holds(delivery)
        ):
            return 0, False
        return None

    def ended(self, *, has_expired: bool) -> None:  # noqa: ARG002 (a restart knows nothing of it)
        """The session ends: its messages, still in their places, go with it.

        Args:
            has_expired: of no matter.
        """
        if self._session is not None:
            for delivery in self._take_stored(self._session):
                self._journal._forget(delivery)
            self._journal._note()
