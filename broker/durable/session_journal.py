"""One session's part of the journal: its own changes, and the deliveries that it holds.

Theory of operation. A durable session has a `SessionJournal`, and every QoS 1 and 2 delivery that
it holds is stored with its row. A session that is not durable stores nothing, with one exception:
it is a member of a shared subscription that also has durable members. A message of such a share
must not be lost because it was given to a member whose session ends with the process. The
`ShareJournal` of that session stores what the session holds with no session's row; a restart gives
it to the remaining members. A QoS 2 message that was sent to such a member is no longer stored, as
no other client may get it [MQTT-4.8.2-5].

Messages that came together and were sent at once are a *run*: one entry of the journal, where each
of them would be one. If it has to be stored, its messages and, for each session, its deliveries get
row numbers that follow each other, and the thread that writes makes the rows of the bytes that came
(`RunRows`, `RunDeliveryRows`). The rows are those of single messages, so a restart knows no runs.
While a session acknowledges in order, numbers alone are deleted. If its run is unfolded, each
delivery gets the number of its row. A message of a run is in use by the sessions whose part of the
run has not come to it, and once one of them was unfolded by as many as the message counts itself.
"""

# A session's journal and the journal are two parts of one.
# ruff: noqa: SLF001, B027 (and what follows runs does nothing by default)

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.broker.durable.lone_messages import MOST_NOTED_MESSAGES, NOTED_MESSAGES
from penstock.broker.durable.records import RunDeliveryRows, RunRows
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.session_rows import SessionRow

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.broker.durable.journal import Journal
    from penstock.broker.durable.records import Batch
    from penstock.broker.outbox.delivery import Run, RunPart
    from penstock.broker.sessions.client import PublishReceipt
    from penstock.broker.sessions.session import Session


class DeliveryJournal(ABC):
    """The part of a session's journal that follows its deliveries.

    As it is, it notes no run and no lone message.

    Attributes:
        row: number of the session in the database; 0 where it has none.
        n_lone: lone messages that are on their way to the session and not noted.
        is_short: see `penstock.broker.sessions.journal.SessionWatcher`.
    """

    __slots__ = ("_journal", "is_short", "n_lone", "row")

    def __init__(self, journal: Journal, row: int) -> None:
        self._journal = journal
        self.row = row
        self.n_lone = 0
        self.is_short = False

    def changed(self, delivery: Delivery) -> None:
        """A QoS 1 or 2 delivery was added to the session, changed its state, or left it."""
        if delivery.is_stored:
            if self.n_lone:
                self.note_lone()
            journal = self._journal
            journal._deliveries[delivery] = self
            journal._note()

    def finished(self, delivery: Delivery) -> None:
        """A delivery was acknowledged; if it is not stored yet, it never will be.

        It is forgotten here and not with the next commit, as readers of a backlog may be far ahead
        of the disk.
        """
        if self.is_short:
            self.made_room()
        journal = self._journal
        was_noted = journal._deliveries.pop(delivery, None) is not None
        if delivery.row_start:
            journal._forget(delivery)
            journal._note()
        elif not was_noted:
            return
        journal._acknowledged(delivery.message)
        if not journal.is_dirty:
            journal._hurry()

    def made_room(self) -> None:
        """See that what waits for the session elsewhere is asked for: it has room."""
        self.is_short = False

    def may_go_alone(self) -> bool:
        """Say whether a message may be sent to the session that is not noted yet."""
        return False

    def note_lone(self) -> None:
        """Note each lone message as a run of one: something comes behind them."""

    def run_sent(self, part: RunPart) -> None:
        """A run was sent to the session."""

    def run_released(self, part: RunPart) -> None:
        """PUBRECs of a run have come."""

    def run_finished(self, part: RunPart, n_before: int) -> None:
        """Messages of a run were acknowledged, from this one of it on."""

    def run_unfolded(self, part: RunPart) -> None:
        """The rest of a run was made into deliveries."""

    def unstored(self) -> Collection[Delivery]:
        """Return what has come to any session since the last commit, in that order.

        What has changed since is among it as well.
        """
        found: list[Delivery] = []
        for noted in self._journal._deliveries:
            found += (noted,) if isinstance(noted, Delivery) else noted.deliveries or ()
        return found

    @abstractmethod
    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Say how a delivery is to be stored.

        Returns:
            (its packet identifier, 0 while it waits; whether its PUBREC has come); None for one
            that is not to be stored.
        """

    def unfold(self) -> None:
        """Make deliveries of all runs that the session has."""

    @abstractmethod
    def ended(self, *, has_expired: bool) -> None:
        """The session ends; its messages, still in outbox and inflight window, end with it.

        With `has_expired` a restart would find as well that its expiry interval has passed.
        """

    def _take_stored(self, session: Session) -> list[Delivery]:
        """Detach a session from the journal; return its deliveries that are stored."""
        deliveries = self._journal._deliveries
        session.inflight.unfold()
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
        sent_up_to: as in `SessionRow`.
    """

    __slots__ = (
        "_is_ended",
        "_is_near",
        "_is_stored",
        "_n_noted",
        "_n_noted_next",
        "lost_at",
        "sent_up_to",
        "session",
    )

    def __init__(self, journal: Journal, session: Session, row: int, *, is_stored: bool) -> None:
        super().__init__(journal, row)
        self._is_stored = is_stored
        self._is_ended = False
        self.session = session
        self.lost_at: float | None = None
        self.sent_up_to = 0
        self._is_near: bool | None = None  # of the connection; None: not asked
        self._n_noted = 0  # so many messages are to be noted at once
        self._n_noted_next = NOTED_MESSAGES  # when one is late

    def watch(self) -> None:
        """Have outbox and inflight window report to this journal from now on."""
        self.session.outbox.journal = self.session.inflight.journal = self

    def made_room(self) -> None:
        """See that what waits for the session elsewhere is asked for: it has room."""
        self.is_short = False
        self.session.outgoing.want_pump()

    def unfold(self) -> None:
        """Make deliveries of all runs that the session has."""
        self.session.inflight.unfold()

    def place_of(self, delivery: Delivery) -> tuple[int, bool] | None:
        """Return the place of a delivery in the session."""
        inflight = self.session.inflight
        if inflight.holds(delivery):
            return delivery.packet_id, inflight.is_released(delivery.packet_id)
        return (0, False) if delivery.is_waiting else None

    def may_go_alone(self) -> bool:
        """Say whether a message may be sent to the session that is not noted yet."""
        if not self._journal.lone.is_busy:
            return False
        if self._n_noted:
            self._n_noted -= 1
            return False
        if self._is_near is None:
            client = self.session.client
            if client is None:
                return False
            self._is_near = self._journal.lone.is_near(client.outgoing.served.fileno)
        return self._is_near and self._journal.takes_lone()

    def lone_sent(self, receipt: PublishReceipt) -> None:
        """A lone message was sent to the session."""
        self.n_lone += 1
        lone = self._journal.lone
        lone.new[receipt] = self
        if not lone.is_looking:
            lone.look_soon()

    def lone_finished(self, receipt: PublishReceipt) -> None:
        """A lone message was acknowledged: nothing of it has to be kept."""
        self.n_lone -= 1
        lone = self._journal.lone
        if lone.new.pop(receipt, None) is None:
            del lone.old[receipt]
        receipt.settle(0)

    def note_lone(self) -> None:
        """Note each lone message as a run of one: something comes behind them."""
        if not self.n_lone:
            return
        self.n_lone = 0
        journal = self._journal
        for part, receipt in self.session.inflight.fold_lone():
            if journal.lone.new.pop(receipt, None) is None:
                del journal.lone.old[receipt]
            self.run_sent(part)
            n_bytes = part.run.payload_bytes
            journal.settle_after(receipt, n_bytes, receipt.client, part.run, 1)

    def lone_are_late(self) -> None:
        """Lone messages were not acknowledged in time: note them, and the next ones at once."""
        self._n_noted = self._n_noted_next
        self._n_noted_next = min(2 * self._n_noted, MOST_NOTED_MESSAGES)
        self.note_lone()

    def run_sent(self, part: RunPart) -> None:
        """A run was sent to the session."""
        if self.n_lone:
            self.note_lone()
        journal = self._journal
        part.row = part.run.row  # of messages that an owner has given, which have it before
        part.run.parts.append(part)
        journal._deliveries[part] = self
        journal._n_in_runs += part.run.n_messages
        journal._note()

    def run_released(self, part: RunPart) -> None:
        """PUBRECs of a run have come."""
        self._journal._deliveries[part] = self
        self._journal._note()

    def run_finished(self, part: RunPart, n_before: int) -> None:
        """Messages of a run were acknowledged, from this one of it on."""
        if self.is_short:
            self.made_room()
        journal = self._journal
        run = part.run
        if part.row:
            _forget_of_run(journal, part, n_before)
            journal._note()
        if part.n_finished == run.n_messages:
            journal._deliveries.pop(part, None)
            run.parts.remove(part)
            journal._acknowledged(run)
            if not journal.is_dirty:
                journal._hurry()

    def run_unfolded(self, part: RunPart) -> None:
        """The rest of a run was made into deliveries.

        Where the run is noted, it stands for them: they came before what is noted behind it.
        """
        part.run.parts.remove(part)
        if part.row:
            _unfold_rows(self._journal, part)

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
        self.lost_at = self._is_near = None
        self._n_noted, self._n_noted_next = 0, NOTED_MESSAGES
        self._changed()

    def connection_lost(self, now: float) -> None:
        """The session has no connection from now on."""
        self.lost_at = now
        self.note_lone()
        self._changed()

    def ended(self, *, has_expired: bool) -> None:
        """The session ends, as its row may say if its interval has passed."""
        self._is_ended = True
        stored = self._take_stored(self.session)
        self._journal._ended(self, stored, has_expired=has_expired and self._is_stored)

    def unloaded(self) -> None:
        """The session is gone from memory, and nothing of it is written any more."""
        self._is_ended, self._is_stored = True, False  # so that it has no row to delete
        self._take_stored(self.session)

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
            self.sent_up_to,
        )


class ShareJournal(DeliveryJournal):
    """The journal of a session that is not durable but shares with durable members."""

    __slots__ = ("_session",)

    def __init__(self, journal: Journal, session: Session | None) -> None:
        """Begin without any delivery; None stands for those that no session holds."""
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
        """The session ends: what it holds for shares is forgotten."""
        if self._session is not None:
            for delivery in self._take_stored(self._session):
                self._journal._forget(delivery)
            self._journal._note()


def drop_unstored(journal: Journal) -> None:
    """Drop what limited sessions lose, where that is all that receipts wait for."""
    batch = journal.sealed
    assert batch is not None  # noqa: S101 (it was refused)
    if batch.incoming or batch.retained or batch.gone_retained or journal._unstored is None:
        return
    sealed = _lost_of(journal, journal._unstored) if journal._sealed_receipts else set()
    if sealed is None:
        return
    later = None
    if journal._receipts and not (journal._incoming or journal._retained):
        later = _lost_of(journal, {d: own for d, own in journal._deliveries.items() if not d.row})
    lost = sealed | (later or set())
    if not lost:
        return
    for session in journal._limited:
        if journal.drops_for(session):
            session.outbox.drop_unstored(lost)
    receipts, journal._sealed_receipts = journal._sealed_receipts, {}
    journal._sealed_awaited = {}
    journal._sealed_bytes = journal._n_sealed_messages = 0
    if later is not None:
        receipts |= journal._receipts
        journal._receipts = {}
        journal._awaited = {}
        journal._n_bytes = journal._n_messages = 0
    for receipt in receipts:
        receipt.settle(0)


def _lost_of(
    journal: Journal, unstored: dict[Delivery | RunPart, DeliveryJournal]
) -> set[Delivery] | None:
    """Say which of the deliveries that are not on the disk limited sessions can lose.

    Each stands with the journal that had it when it was noted.

    Returns:
        Those that still wait; None where any of the deliveries has to be stored.
    """
    lost = set()
    for delivery, noted in unstored.items():
        if not isinstance(delivery, Delivery):  # its client was there
            if delivery in delivery.run.parts or any(
                noted.place_of(one) is not None for one in delivery.deliveries or ()
            ):
                return None
            continue
        own = journal._deliveries.get(delivery, noted)  # it may have moved since
        if delivery.share:  # a member that got it since has a delivery of its own
            return None
        if own.place_of(delivery) is None:
            continue
        if not (
            isinstance(own, SessionJournal)
            and journal.drops_for(own.session)
            and delivery.is_waiting
        ):
            return None
        lost.add(delivery)
    return lost


def put_run(journal: Journal, batch: Batch, run: Run, epoch: float) -> None:
    """Store a run for all sessions that have any of it: they got it together.

    The journal has all parts of the run among what is noted, and no message of it has a row.
    """
    run.row = journal._next_row
    journal._next_row += run.n_messages
    batch.runs.append(RunRows(run, min(part.n_finished for part in run.parts), epoch))
    for part in run.parts:
        own = journal._deliveries[part]
        n_finished = part.n_finished
        part.row = journal._next_row
        journal._next_row += run.n_messages
        if journal._unstored is not None:
            journal._unstored[part] = own
        batch.run_deliveries.append(
            RunDeliveryRows(
                part.row + n_finished,
                own.row,
                run.row + n_finished,
                run.n_messages - n_finished,
                run.qos,
                part.first_packet_id + n_finished,
                max(0, part.n_released - n_finished),
            )
        )


def _unfold_rows(journal: Journal, part: RunPart) -> None:
    """Give the deliveries of a stored part, and their messages, the numbers of their rows."""
    run = part.run
    deliveries = part.deliveries or []
    for index, delivery in enumerate(deliveries, part.n_finished):
        journal._store_at(delivery, part.row + index)
    for index, delivery in enumerate(deliveries, part.n_finished):
        message = delivery.message
        if not message.row_start:
            journal._store_at(message, run.row + index)
            others = sum(other.n_finished <= index for other in run.parts)
            message.n_references = 1 + others


def _forget_of_run(journal: Journal, part: RunPart, n_before: int) -> None:
    """Delete the rows of deliveries of a stored part, and of messages without any more.

    A message that was unfolded counts its references itself. Any other one is referred to by the
    parts that have not come to it. The rows of the first `n_before` are gone.
    """
    run = part.run
    stop = part.n_finished
    journal._gone_deliveries.extend(range(part.row + n_before, part.row + stop))
    others = [other.n_finished for other in run.parts if other is not part]
    n_gone = min(others, default=stop)
    if not run.messages:
        journal._gone_messages.extend(range(run.row + n_before, run.row + min(stop, n_gone)))
        return
    for index in range(n_before, stop):
        message = run.messages.get(index)
        if message is not None and message.row_start:
            journal._release(message)
        elif index < n_gone:
            journal._gone_messages.append(run.row + index)
