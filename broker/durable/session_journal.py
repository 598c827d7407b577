"""One session's part of the journal: its own changes, and the deliveries that it holds.

Theory of operation. A durable session has a `SessionJournal`, and every QoS 1 and 2 delivery that
it holds is stored with its row. A session that is not durable stores nothing, with one exception:
it is a member of a shared subscription that also has durable members. A message of such a share
must not be lost because it was given to a member whose session ends with the process. The
`ShareJournal` of that session stores what the session holds with no session's row; a restart gives
it to the remaining members. A QoS 2 message that was sent to such a member is no longer stored, as
no other client may get it [MQTT-4.8.2-5].
"""

# A session's journal and the journal are two parts of one.
# ruff: noqa: SLF001

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.broker.durable.records import SessionRow

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.broker.durable.journal import Journal
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.sessions.session import Session


class DeliveryJournal(ABC):
    """The part of a session's journal that follows its deliveries.

    Attributes:
        row: number of the session in the database; 0 where it has none.
    """

    __slots__ = ("_journal", "row")

    def __init__(self, journal: Journal, row: int) -> None:
        self._journal = journal
        self.row = row

    def changed(self, delivery: Delivery) -> None:
        """A QoS 1 or 2 delivery was added to the session, changed its state, or left it."""
        if delivery.is_stored:
            journal = self._journal
            journal._deliveries[delivery] = self
            journal._note()

    def finished(self, delivery: Delivery) -> None:
        """A delivery was acknowledged; if it is not stored yet, it never will be.

        It is forgotten here and not with the next commit, as readers of a backlog may be far ahead
        of the disk.
        """
        journal = self._journal
        was_noted = journal._deliveries.pop(delivery, None) is not None
        if delivery.row_start:
            journal._forget(delivery)
            journal._note()
        elif was_noted and not journal.is_dirty:
            journal._hurry()

    def unstored(self) -> Collection[Delivery]:
        """Return what has come to any session since the last commit, in that order.

        What has changed since is among it as well.
        """
        return self._journal._deliveries

    @abstractmethod
    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Say how a delivery is to be stored.

        Returns:
            (its packet identifier, 0 while it waits; whether its PUBREC has come); None for one
            that is not to be stored.
        """

    @abstractmethod
    def ended(self, *, has_expired: bool) -> None:
        """The session ends; its messages, still in outbox and inflight window, end with it.

        Args:
            has_expired: whether its expiry interval has passed, as a restart would find as well.
        """

    def _take_stored(self, session: Session) -> list[Delivery]:
        """Detach a session from the journal; return its deliveries that are stored."""
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
        session: the session.
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
        """Have outbox and inflight window report to this journal from now on."""
        self.session.outbox.journal = self.session.inflight.journal = self

    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Return the place of a delivery in the session."""
        inflight = self.session.inflight
        if inflight.holds(delivery):
            return delivery.packet_id, inflight.is_released(delivery.packet_id)
        return (0, False) if delivery.is_waiting else None

    def subscription_changed(self, topic_filter: str) -> None:
        """A subscription was made, replaced or removed, or all its retained messages were sent."""
        self._journal._subscriptions[self, topic_filter] = None
        self._journal._note()

    def incoming_changed(self, packet_id: int) -> None:
        """A QoS 2 message was received or released under this packet identifier."""
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
        """The session ends; its messages, still in outbox and inflight window, end with it.

        Args:
            has_expired: whether its expiry interval has passed, as a restart would find as well.
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
            session.origin,
        )


class ShareJournal(DeliveryJournal):
    """The journal of a session that is not durable but shares with durable members."""

    __slots__ = ("_session",)

    def __init__(self, journal: Journal, session: Session | None) -> None:
        """Begin without any delivery.

        Args:
            journal: the journal of the broker.
            session: the session that holds the deliveries; None for those that no session holds.
        """
        super().__init__(journal, 0)
        self._session = session

    def changed(self, delivery: Delivery) -> None:
        """A QoS 1 or 2 delivery was added to the session, changed its state, or left it."""
        if not (delivery.share or delivery.row_start):
            return
        if delivery.row_start or self.place_of(delivery) is not None:
            super().changed(delivery)
        else:
            self._journal._deliveries.pop(delivery, None)

    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Say how a delivery is to be stored: as waiting, for any member."""
        share = self._journal._core.tree.shares.get(delivery.share)
        if share is None or not share.n_durable:
            return None
        session = self._session
        if delivery.is_waiting or (
            session is not None and delivery.qos == 1 and session.inflight.holds(delivery)
        ):
            return 0, False
        return None

    def ended(self, *, has_expired: bool) -> None:  # noqa: ARG002 (the session has no row)
        """The session ends; its messages, still in outbox and inflight window, end with it.

        Args:
            has_expired: not used.
        """
        if self._session is not None:
            for delivery in self._take_stored(self._session):
                self._journal._forget(delivery)
            self._journal._note()
