"""The journal: the changes since the last commit, and the clients that wait for the next one.

Theory of operation. The journal writes no log of operations. Code that changes something durable
reports it in one place (`penstock.broker.durable.session_journal` for a session, its subscriptions,
packet identifiers and deliveries; `RetainedMessages`; wills), and the journal notes *what* has
changed, not how. `seal` then looks at the present state of each noted thing and makes the rows of
one commit. A message that came, was delivered and was acknowledged between two commits is therefore
never written. A path that moves deliveries between sessions needs no code here: a delivery is
stored exactly while its outbox or its inflight window holds it. For a stored row that is to be
deleted, only its number waits for the next commit, so the journal keeps no message alive that its
clients have received. Messages that came together are noted as one run
(`penstock.broker.durable.session_journal`).

What a client may learn only after the commit waits here: receipts of publishers (`settle_after`),
and packets that connections hold back (`Sender.hold`). A receipt that waits for nothing but
deliveries is settled as soon as all of them are acknowledged, as nothing of them is left to lose.
The driver seals a batch, writes it and
reports `committed`; one batch at a time is being written. A slow disk causes back-pressure: once
half of the allowed amount waits, each publisher that adds to it is not read from until the next
commit.

A disk may refuse a batch. The same batch is then tried again until it is written. Until then no
waiting client is answered, and new publishes that need the disk are refused (`must_refuse`).
Publishes for which the disk has no room (`measured`) are refused as well; deletions are committed
meanwhile.

Some sessions, such as an uplink's, drop messages at limits of their own, so that their publishers
are never refused. While such a session is away, it loses what the disk does not take (`drops_for`).
No receipt tells which changes it waits for. So messages of a refused batch are dropped only if
nothing else of it has to be stored; all its receipts are settled then. If that batch is written
later, the next one deletes the dropped messages. The same holds for what is noted behind the batch.

The journal has no clock and no I/O: `epoch`, the lead of the database's clock over the monotonic
clock, turns times into those of rows.
"""

# A session's journal and the journal are two parts of one.
# ruff: noqa: SLF001

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.broker.durable.lone_messages import LoneMessages
from penstock.broker.durable.records import (
    Batch,
    message_row,
    row_of_ids,
    subscription_row,
    will_row,
)
from penstock.broker.durable.session_journal import (
    DeliveryJournal,
    SessionJournal,
    ShareJournal,
    drop_unstored,
    put_run,
)
from penstock.broker.message import ROWS_OF_A_BLOCK, Message, Storable
from penstock.broker.outbox.delivery import Delivery, RunPart
from penstock.broker.payload import JOIN_BELOW_BYTES
from penstock.broker.sending.core_context import Holding
from penstock.broker.session_rows import DeliveryRow, IncomingRow, RetainedRow

if TYPE_CHECKING:
    from penstock.broker.routing.subscriber import Subscriber
    from penstock.broker.routing.topic_tree import Plan
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session


ROW_BYTES: Final = 1024
"""A stored message takes so much besides its payload, with a usual topic and properties."""
ROUNDING_BYTES: Final = 4096
"""It takes at most so much more, as two rows of more than half a page do not share a page; never
more than its payload has."""
DELIVERY_BYTES: Final = 64
"""A stored delivery takes so much."""
AMPLE_BYTES: Final = 4 * 1024**3
"""This is more than may wait for a commit: with so much room, what waits need not be counted."""

MADE_BYTES: Final = 2 * 1024**2
"""So much is dropped at a time where a message found no room: more than the pages that messages
leave to changes of stored rows."""

MOST_EXPIRED: Final = 10_000
"""From this number of expired sessions and their messages on, they are deleted even in commits that
clients wait for."""

EXPIRED_AT_A_TIME: Final = 1_000
"""A commit deletes so many of these, or one session. 100,000 that expire together took 0.1 s of the
loop's thread in one commit."""


RETAINED_AT_A_TIME: Final = 1_000
"""A commit stores so many retained messages of QoS 0, which takes some 3 ms of the loop's thread:
nobody waits for them, and 100,000 that came together took 0.3 s."""


class Waiting(Protocol):
    """A receipt that needs the commit among its answers.

    Attributes:
        n_messages: how many it stands for.
    """

    n_messages: int

    def settle(self, reason_code: int) -> None:
        """Take the answer of the commit."""


class Journal:
    """The changes since the last commit of one broker, and who waits for the next one.

    Invariants: at most one batch is sealed and not committed. A message has a row exactly while
    stored deliveries and retained messages refer to it.

    Attributes:
        number: the number of the commit that the next change will be in.
        n_changes: changes noted so far; equal before and after a call that changed nothing.
        sealed: the batch that is being written, or None.
        lone: messages that are on their way and not noted.
        is_failing: the disk refused the sealed batch, which is tried again and again.
        is_full: the disk had no room for a message, and has had none since.
        is_awake: there is something to commit, or a client waits, since the last `seal`.
        is_urgent: a client waits for what only the commit can tell it: no acknowledgement of
            another client can come before.
    """

    def __init__(
        self,
        core: Core,
        *,
        wake: Callable[[], None],
        hurry: Callable[[], None],
        look_later: Callable[[], None],
        is_near: Callable[[int], bool],
        new_origin: Callable[[], bytes],
        max_pending_messages: int,
        max_pending_bytes: int,
        keeps: Callable[[Session], bool] | None = None,
    ) -> None:
        """Make the journal of a broker, and have the broker use it.

        Args:
            core: the broker, still without sessions.
            wake: called when there is something to commit and there was nothing before, and again
                when the first client waits for it.
            hurry: called when a client begins to wait that only the commit can answer, or when
                there is nothing left to write while one waits.
            look_later: called where `look_at_lone` is to be called some time later.
            is_near: see `LoneMessages`.
            new_origin: returns a few bytes that it has never returned, in any process.
            max_pending_messages: publishes that may wait for their commit.
            max_pending_bytes: payload bytes of such publishes.
            keeps: says which new sessions are durable, where a plugin has the store; this has
                nothing else, and each session its own row of a message. None: all that outlive
                their connection, and retained messages and wills.
        """
        self.number = 1
        self.n_changes = 0
        self.sealed: Batch | None = None
        self.is_failing = False
        self.is_full = self._has_made_room = False
        self._room_bytes = self._lacking_bytes = sys.maxsize
        self._core = core
        self._wake = wake
        self._hurry_driver = hurry
        self.lone = LoneMessages(look_later, is_near)
        self._new_origin = new_origin
        self._max_pending_messages = max_pending_messages
        self._max_pending_bytes = max_pending_bytes
        self._most_lone = min(max_pending_messages, max_pending_bytes // JOIN_BELOW_BYTES) // 2
        self.is_awake = self.is_urgent = False
        self._next_row = self._block_start = 1
        self._sessions: dict[SessionJournal, None] = {}
        self._subscriptions: dict[tuple[SessionJournal, str], None] = {}
        self._incoming: dict[tuple[SessionJournal, int], None] = {}
        # A part that was unfolded since stands for its deliveries.
        self._deliveries: dict[Delivery | RunPart, DeliveryJournal] = {}
        self._n_in_runs = 0
        self._on_its_way = ShareJournal(self, None)
        self._gone_deliveries, self._gone_messages = array("q"), array("q")
        # The rows of sessions, which hold no session; and stored deliveries.
        self._expired: dict[str, tuple[int, list[Delivery]]] = {}
        self._n_expired = 0
        self._gone_sessions: list[tuple[int]] = []
        self._retained: dict[str, None] = {}
        self._unawaited_retained: dict[str, None] = {}
        self._unplaced_retained: dict[str, None] = {}
        self._stored_retained: dict[str, Message] = {}
        self._wills: dict[str, None] = {}
        self._stored_wills: set[str] = set()
        self._receipts: dict[Waiting, int] = {}  # with the bytes of its payloads
        self._awaited: dict[object, list[Any]] = {}
        self._n_messages = 0
        self._connections: dict[Holding, None] = {}
        self._n_bytes = 0
        self._slowed: dict[Client, None] = {}
        self._limited: dict[Session, None] = {}
        self._sealed_receipts: dict[Waiting, int] = {}
        self._sealed_awaited: dict[object, list[Any]] = {}
        self._n_sealed_messages = self._n_sealed_in_runs = 0
        self._sealed_connections: dict[Holding, None] = {}
        self._sealed_bytes = 0
        # Nobody waits for these: messages that were acknowledged, and retained ones of QoS 0.
        self._n_spared_messages = self._spared_bytes = self._sealed_retained_bytes = 0
        # New in the sealed batch; None where they are not noted, as no session was limited.
        self._unstored: dict[Delivery | RunPart, DeliveryJournal] | None = {}
        self._calls: list[Callable[[], object]] = []
        self._sealed_calls: list[Callable[[], object]] = []
        self._keeps = keeps
        core.journal = self
        if keeps is None:
            core.retained.on_change = self.retained_changed

    # -- what has changed -----------------------------------------------------------------

    def _note(self) -> None:
        self.n_changes += 1
        if not self.is_awake:
            self._be_awake()

    def opened(self, session: Session) -> None:
        """A client has connected, and its session is as its CONNECT asks.

        A session that outlives its connection is durable from here to its end.
        """
        expired = self._expired.pop(session.client_id, None)
        if expired is not None:  # the database has one session and one will for each client
            self._forget_expired(*expired)
        if session.journal is not None:
            session.journal.opened()
        elif session.expiry_interval != 0 and (self._keeps is None or self._keeps(session)):
            self._keep(session)
        self.will_changed(session)

    def connection_lost(self, session: Session, now: float) -> None:
        """A session has lost its connection; its will was sent if it was due."""
        if session.journal is not None:
            session.journal.connection_lost(now)
        self.will_changed(session)

    def keep(self, session: Session) -> None:
        """Make a session durable from now on, unless an owner decides about that."""
        if self._keeps is None:
            self._keep(session)

    def _keep(self, session: Session) -> None:
        own = session.journal = SessionJournal(self, session, self._next_row, is_stored=False)
        self._next_row += 1
        session.origin = self._new_origin()
        own.watch()
        own._changed()

    def _ended(self, own: SessionJournal, stored: list[Delivery], *, has_expired: bool) -> None:
        """A session has ended.

        If its stored row says that it has expired, a restart would end it at once. Then it may be
        deleted in a commit that no client waits for, or together with others, as their rows lie on
        the same pages.
        """
        self._limited.pop(own.session, None)
        if not has_expired or own in self._sessions or self.is_failing:
            self._sessions[own] = None
            for delivery in stored:
                self._forget(delivery)
            self._note()
            return
        self._expired[own.session.client_id] = own.row, stored
        self._n_expired += 1 + len(stored)
        self._be_awake()

    def _forget_expired(self, row: int, stored: list[Delivery]) -> None:
        """Delete an expired session in the next commit; it is taken out of `_expired`."""
        self._n_expired -= 1 + len(stored)
        self._gone_sessions.append((row,))
        for delivery in stored:
            self._forget(delivery)

    def keep_for_share(self, session: Session) -> None:
        """Keep what a session that is not durable holds for shares with durable members."""
        if session.outbox.journal is None:
            session.outbox.journal = session.inflight.journal = ShareJournal(self, session)

    def departed(self, delivery: Delivery) -> None:
        """A share's delivery was taken from a session, and no session has it until `arrived`."""
        if delivery.qos:
            delivery.is_waiting = True
            self._on_its_way.changed(delivery)

    def arrived(self, delivery: Delivery) -> None:
        """A delivery given to `departed` was given to another member, or dropped."""
        if delivery.qos:
            delivery.is_waiting = False
            self._on_its_way.changed(delivery)

    def restored(
        self, session: Session, row: int, lost_at: float | None, sent_up_to: int
    ) -> SessionJournal:
        """A session was read from the database; call `watch` once its deliveries are restored.

        It lost its connection at `lost_at`; None where it still had one. `sent_up_to` is as in
        `SessionRow`.
        """
        own = session.journal = SessionJournal(self, session, row, is_stored=True)
        own.lost_at = lost_at
        own.sent_up_to = sent_up_to
        self._next_row = max(self._next_row, row + 1, sent_up_to + 1)
        return own

    def restored_message(self, message: Message, row: int) -> None:
        """A message was read from the database, before the rows that refer to it."""
        self._store_at(message, row)

    def restored_delivery(self, delivery: Delivery, row: int) -> None:
        """A delivery was read from the database; its session has it from now on."""
        self._store_at(delivery, row)
        delivery.message.n_references += 1

    def as_stored(self, delivery: Delivery) -> None:
        """A delivery of `restored_delivery` waits in an outbox: there is nothing to write."""
        self._deliveries.pop(delivery, None)

    def take_rows(self, n_rows: int) -> int:
        """Return the first of so many row numbers, which are used from now on."""
        first = self._next_row
        self._next_row += n_rows
        return first

    def restored_retained(self, message: Message) -> None:
        """A topic's retained message was read from the database."""
        message.n_references += 1
        self._stored_retained[message.topic] = message

    def restored_will(self, client_id: str) -> None:
        """A client's will was read from the database."""
        self._stored_wills.add(client_id)

    def retained_changed(self, topic: str) -> None:
        """The retained message of a topic was set or removed."""
        if not topic.startswith("$SYS/"):  # the broker sets these itself, and again soon
            message = self._core.retained.by_topic.get(topic)
            is_awaited = message is None or message.qos
            (self._retained if is_awaited else self._unawaited_retained)[topic] = None
            self._note()

    def note_all(self) -> None:
        """Have the next commit take all that may wait for a later one, as the broker stops."""
        self.lone.note_all()
        self._retained |= self._unawaited_retained
        self._unawaited_retained.clear()

    def will_changed(self, session: Session) -> None:
        """A client's will may have come, been sent or become void."""
        if self._keeps is not None:
            return
        if session.will is not None or session.client_id in self._stored_wills:
            self._wills[session.client_id] = None
            self._note()

    # -- who waits ------------------------------------------------------------------------

    def settle_after(
        self,
        receipt: Waiting,
        n_bytes: int,
        publisher: Client,
        published: object = None,
        n_deliveries: int = 0,
    ) -> None:
        """Settle a receipt once everything that has changed so far is committed.

        Where there is nothing to be kept but deliveries, it is settled as soon as all of them are
        acknowledged.

        Args:
            receipt: the receipt of one publish, or of a run.
            n_bytes: the length of its payloads in bytes.
            publisher: the client to stop reading from if too much waits already.
            published: the message or the run, if only its deliveries are to be kept.
            n_deliveries: how many noted changes it has caused, of which each delivery, or each part
                of a run, is one.
        """
        if not self._receipts:
            self._be_awake()
        self._receipts[receipt] = n_bytes
        self._n_messages += receipt.n_messages
        self._n_bytes += n_bytes
        if published is not None:
            self._awaited[published] = [receipt, n_deliveries]
        elif not self.is_urgent:
            self._be_urgent()
        if self._is_pending(2) and not self.is_failing:
            self._slowed[publisher] = None
            publisher.wait_for_disk(waits=True)

    def _is_pending(self, part: int) -> bool:
        """Say whether at least one `part`-th of what may wait for a commit waits."""
        n_messages = self._n_messages + self._n_sealed_messages + len(self.lone)
        n_bytes = self._n_bytes + self._sealed_bytes
        return (
            n_messages * part >= self._max_pending_messages
            or n_bytes * part >= self._max_pending_bytes
        )

    def _let_slowed_go(self) -> None:
        slowed, self._slowed = self._slowed, {}
        for publisher in slowed:
            publisher.wait_for_disk(waits=False)

    def _acknowledged(self, published: object) -> None:
        """One of the deliveries of a message, or parts of a run, is acknowledged by its client."""
        for awaited in (self._awaited, self._sealed_awaited):
            found = awaited.get(published)
            if found is not None:
                found[1] -= 1
                if not found[1]:
                    del awaited[published]
                    self._settle(found[0])
                return

    def _settle(self, receipt: Waiting) -> None:
        """Settle a receipt that waits, as nothing has to be kept for it any more."""
        n_bytes = self._receipts.pop(receipt, None)
        if n_bytes is not None:
            self._n_bytes -= n_bytes
            self._n_messages -= receipt.n_messages
        else:
            n_bytes = self._sealed_receipts.pop(receipt, None)
            if n_bytes is None:
                return
            self._sealed_bytes -= n_bytes
            self._n_sealed_messages -= receipt.n_messages
            self._spared_bytes += n_bytes  # the disk gets them all the same
            self._n_spared_messages += receipt.n_messages
        if self._slowed and not self._is_pending(2):
            self._let_slowed_go()
        receipt.settle(0)

    def takes_lone(self) -> bool:
        """Say whether one more message may be on its way that is not noted.

        There is room for it on the disk, should it have to be stored.
        """
        return (
            not (self.is_failing or self._slowed)  # less than half waits already
            and self._room_bytes >= AMPLE_BYTES
            and len(self.lone) < self._most_lone
        )

    def look_at_lone(self) -> None:
        """Note the lone messages that were there at the last look already."""
        if self.lone.look():
            self._hurry()

    def when_committed(self, call: Callable[[], object]) -> None:
        """Call something once all that has changed so far is committed."""
        self._calls.append(call)
        if not self.is_awake:
            self._be_awake()

    def hold_for(self, connection: Holding) -> int:
        """Note that a connection holds a packet back; return the number of the commit it needs."""
        self._connections[connection] = None
        if not self.is_urgent:
            self._be_urgent()
        return self.number

    @property
    def is_awaited(self) -> bool:
        """True if a client, or a caller of `when_committed`, waits for the next commit."""
        return bool(self._receipts or self._connections or self._calls)

    def _be_awake(self) -> None:
        self.is_awake = True
        self._wake()

    def _be_urgent(self) -> None:
        """Have the next commit begin as soon as none is being written: only it can answer."""
        self.is_awake = self.is_urgent = True
        if self.sealed is None:
            self._hurry_driver()

    def _hurry(self) -> None:
        if self.sealed is None and self.is_awaited:
            self._hurry_driver()

    def limited(self, session: Session) -> None:
        """A session loses messages at limits of its own, and no publisher is refused."""
        self._limited[session] = None

    def lacks_room(self, message: Message) -> bool:
        """Say whether the disk refuses, or has no room for a message behind those that wait.

        In the latter case the driver is to look until there is room.
        """
        if self.is_failing:
            return True
        if self._room_bytes >= AMPLE_BYTES:
            return False
        n_bytes = self._bytes_with(len(message.payload))
        if n_bytes <= self._room_bytes:
            return False
        self._has_no_room(n_bytes)
        self._be_awake()
        return True

    def takes_run(self, n_messages: int, n_bytes: int, n_sessions: int) -> bool:
        """Say whether messages for durable sessions can surely be committed in time.

        Where not, each of them is asked about by itself (`must_refuse`). Their payloads have
        `n_bytes` at most, and `n_sessions` at most get each of them.
        """
        if self.is_failing:
            return False
        n_waiting = self._n_messages + self._n_sealed_messages + len(self.lone)
        if (
            n_waiting + n_messages > self._max_pending_messages
            or self._n_bytes + self._sealed_bytes + n_bytes > self._max_pending_bytes
        ):
            return False
        if self._room_bytes >= AMPLE_BYTES:
            return True
        n_deliveries = n_messages * n_sessions
        return self._bytes_with(n_bytes, n_messages, n_deliveries) <= self._room_bytes

    def _bytes_with(self, n_bytes: int, n_messages: int = 1, n_deliveries: int = 0) -> int:
        """Return what all that waits for its commit takes of the disk, with further messages."""
        n_messages += self._n_messages + self._n_sealed_messages + self._n_spared_messages
        n_bytes += self._n_bytes + self._sealed_bytes + self._spared_bytes
        n_deliveries += len(self._deliveries) + self._n_in_runs + self._n_sealed_in_runs
        if self.sealed is not None:
            n_messages += len(self.sealed.retained)
            n_bytes += self._sealed_retained_bytes
            n_deliveries += len(self.sealed.deliveries)
        n_bytes += min(n_bytes, n_messages * ROUNDING_BYTES)
        return n_bytes + n_messages * ROW_BYTES + n_deliveries * DELIVERY_BYTES

    def _has_no_room(self, n_bytes: int) -> None:
        self._lacking_bytes = min(self._lacking_bytes, n_bytes)
        self.is_full = True

    def make_room(self, session: Subscriber, delivery: Delivery) -> None:
        """Have a session that loses a message lose older ones, too: the next ones find room.

        Their place in the file is free after the next commit. Until there is room it is done once:
        where others have filled the disk, it does not help.
        """
        if not self.is_failing and not self._has_made_room:
            self._has_made_room = True
            n_bytes = max(MADE_BYTES, 2 * len(delivery.message.payload))
            session.outbox.make_room_on_disk(delivery, n_bytes)

    def drops_for(self, session: Subscriber) -> bool:
        """Say whether a session loses what the disk does not take, if it comes by no share."""
        outbox = session.outbox
        is_dropping = outbox.rules.is_of_one and not outbox.rules.refuses
        return is_dropping and session.client is None and outbox.place is outbox

    def must_refuse(self, publisher: Session, plan: Plan, message: Message) -> bool:
        """Say whether a QoS 1 or 2 publish needs the disk and could not be committed in time."""
        lacks_room = self.lacks_room(message)
        if not lacks_room and not self._is_pending(1):
            return False
        removes = not message.payload and not self.is_failing and not self._is_pending(1)
        is_retained = message.retain and self._keeps is None
        if (is_retained and not removes) or (message.qos == 2 and publisher.journal is not None):
            return True
        members = chain.from_iterable(share.members for share in plan.shares)
        return any(m.qos and m.session.is_durable for m in members) or any(
            target.qos
            and target.session.is_durable
            and not (lacks_room and self.drops_for(target.session))
            for target in plan.targets
        )

    @property
    def is_dirty(self) -> bool:
        """True if a change is in no batch yet."""
        return bool(
            self._deliveries
            or self._gone_deliveries
            or self._gone_messages
            or self._sessions
            or self._gone_sessions
            or self._subscriptions
            or self._incoming
            or self._retained
            or self._unawaited_retained
            or self._wills
        )

    @property
    def is_settled(self) -> bool:
        """True if every change is committed."""
        return self.sealed is None and not self.is_dirty

    # -- commits --------------------------------------------------------------------------

    def seal(self, epoch: float, away: float = 0.0) -> Batch | None:
        """Make the rows of what has changed; the batch before must have been committed.

        Args:
            epoch: seconds of the database's clock at which the monotonic clock was 0.
            away: seconds among these that passed while no broker ran; lost connections do not count
                them.

        Returns:
            The batch, to be written and then reported by `committed`; it may be empty. None where
            nothing has changed and no client waits.
        """
        assert self.sealed is None  # noqa: S101 (one at a time)
        if len(self.lone):  # a session that is asked for its places notes all that it has
            for own in set(self._deliveries.values()):
                own.note_lone()
        self.is_urgent = False
        if self._n_expired >= MOST_EXPIRED or not self.is_awaited:
            least = self._n_expired - EXPIRED_AT_A_TIME
            while self._expired and self._n_expired > least:
                self._forget_expired(*self._expired.popitem()[1])
        for topic in list(islice(self._unawaited_retained, RETAINED_AT_A_TIME)):
            self._retained[topic] = self._unawaited_retained.pop(topic)
        self.is_awake = bool(self._expired or self._unawaited_retained)  # for a commit behind it
        if not self._deliveries:
            self._n_in_runs = 0
        if not (self.is_dirty or self.is_awaited):
            return None
        batch = self.sealed = Batch(number=self.number)
        self.number += 1
        self._put_sessions(batch, epoch - away)
        self._unstored = {} if self._limited or not self._deliveries else None
        self._put_deliveries(batch, epoch)
        self._put_retained(batch, epoch)
        self._put_wills(batch)
        batch.gone_deliveries, self._gone_deliveries = self._gone_deliveries, array("q")
        batch.gone_messages, self._gone_messages = self._gone_messages, array("q")
        # Who waits from now on waits for the next batch.
        self._sealed_receipts, self._receipts = self._receipts, {}
        self._sealed_awaited, self._awaited = self._awaited, {}
        self._n_sealed_messages, self._n_messages = self._n_messages, 0
        self._sealed_connections, self._connections = self._connections, {}
        self._sealed_calls, self._calls = self._calls, []
        self._sealed_bytes, self._n_bytes = self._n_bytes, 0
        return batch

    def committed(self) -> None:
        """The sealed batch is written: answer those who waited for it."""
        assert self.sealed is not None  # noqa: S101 (a batch was sealed)
        number = self.sealed.number
        # Cleared first: what a receipt or connection does next may note changes of the next batch.
        self.sealed = None
        self._unstored = {}
        self.is_failing = False
        receipts, self._sealed_receipts = self._sealed_receipts, {}
        self._sealed_awaited = {}
        connections, self._sealed_connections = self._sealed_connections, {}
        calls, self._sealed_calls = self._sealed_calls, []
        self._n_sealed_messages = self._n_sealed_in_runs = self._n_spared_messages = 0
        self._sealed_bytes = self._spared_bytes = self._sealed_retained_bytes = 0
        for receipt in receipts:
            receipt.settle(0)
        for connection in connections:
            connection.send_held(number)
        for call in calls:
            call()
        self._let_slowed_go()

    def measured(self, room_bytes: int) -> None:
        """The disk has room for so many bytes of messages."""
        self._room_bytes = room_bytes
        if room_bytes >= self._lacking_bytes:
            self.is_full = self._has_made_room = False
            self._lacking_bytes = sys.maxsize
            unplaced, self._unplaced_retained = self._unplaced_retained, {}
            for topic in unplaced:
                self.retained_changed(topic)

    def failed(self) -> None:
        """The disk has refused the sealed batch, which will be tried again."""
        self.is_failing = True
        self.lone.note_all()  # or one that is noted below would be settled with those who lose
        drop_unstored(self)
        self._let_slowed_go()
        for connection in (*self._sealed_connections, *self._connections):
            connection.send_held_connack()

    def _store_at(self, storable: Storable, row: int) -> None:
        """Note the row of a message or a delivery, for most of them the next free one."""
        self._next_row = max(self._next_row, row + 1)
        index = (row - 1) % ROWS_OF_A_BLOCK
        if row - index != self._block_start:  # rows of one block share one int object
            self._block_start = row - index
        storable.row_start = self._block_start
        storable.row_index = index

    def _put_sessions(self, batch: Batch, epoch: float) -> None:
        batch.gone_sessions, self._gone_sessions = self._gone_sessions, []
        for own in self._sessions:
            if not own._is_ended:
                own._is_stored = True
                batch.sessions.append(own._to_row(epoch))
            elif own._is_stored:
                batch.gone_sessions.append((own.row,))
        self._sessions.clear()
        for own, topic_filter in self._subscriptions:
            found = None if own._is_ended else own.session.subscriptions.get(topic_filter)
            if found is None:
                batch.gone_subscriptions.append((own.row, topic_filter))
            else:
                is_due = topic_filter in own.session.retained_due
                batch.subscriptions.append(
                    subscription_row(own.row, topic_filter, found, is_retained_due=is_due)
                )
        self._subscriptions.clear()
        for own, packet_id in self._incoming:
            if not own._is_ended and packet_id in own.session.incoming:
                batch.incoming.append(IncomingRow(own.row, packet_id))
            else:
                batch.gone_incoming.append((own.row, packet_id))
        self._incoming.clear()

    def _put_deliveries(self, batch: Batch, epoch: float) -> None:
        gone: list[Delivery] = []
        for noted, own in self._deliveries.items():
            if isinstance(noted, Delivery):
                self._put_delivery(batch, noted, own, gone, epoch)
                continue
            if not noted.row and noted.run.messages and noted.deliveries is None:
                own.unfold()  # a message must have no two rows
            if noted.deliveries is not None:
                for delivery in noted.deliveries:
                    self._put_delivery(batch, delivery, own, gone, epoch)
            elif not noted.row:
                put_run(self, batch, noted.run, epoch)
            elif self._keeps is not None:  # the owner has the rows, and no runs
                for at in range(noted.n_finished, noted.run.n_messages):
                    place = noted.first_packet_id + at, at < noted.n_released, noted.row + at
                    batch.moved_deliveries.extend((own.row, *place))
            elif noted.n_released > noted.n_finished:
                first, last = noted.row + noted.n_finished, noted.row + noted.n_released - 1
                batch.released.append((first, last))
        self._deliveries.clear()
        self._n_sealed_in_runs, self._n_in_runs = self._n_in_runs, 0
        for delivery in gone:  # last, so that a message with a new delivery keeps its row
            if delivery.row_start:  # it was noted by itself and in its run, too
                self._forget(delivery)

    def _put_delivery(
        self,
        batch: Batch,
        delivery: Delivery,
        own: DeliveryJournal,
        gone: list[Delivery],
        epoch: float,
    ) -> None:
        place = own.place_of(delivery)
        if place is None:
            if delivery.row_start:
                gone.append(delivery)
            return
        packet_id, is_released = place
        if delivery.row_start:
            batch.moved_deliveries.extend((own.row, packet_id, is_released, delivery.row))
            return
        message = delivery.message
        self._refer(batch, message, epoch)
        self._store_at(delivery, self._next_row)
        if self._unstored is not None:
            self._unstored[delivery] = own
        batch.deliveries.append(
            DeliveryRow(
                delivery.row,
                own.row,
                message.row,
                delivery.qos,
                delivery.retain,
                row_of_ids(delivery.subscription_ids),
                packet_id,
                is_released,
                delivery.share,
            )
        )

    def _put_retained(self, batch: Batch, epoch: float) -> None:
        by_topic = self._core.retained.by_topic
        for topic in self._retained:
            before = self._stored_retained.get(topic)
            message = by_topic.get(topic)
            if message is not None and not self._has_place(message, before):
                self._unplaced_retained[topic] = None
                message = None
            if message is before:
                continue
            if message is not None:
                self._refer(batch, message, epoch)
                batch.retained.append(RetainedRow(topic, message.row))
                self._stored_retained[topic] = message
            else:
                batch.gone_retained.append((topic,))
                del self._stored_retained[topic]
            if before is not None:
                self._release(before)
        self._retained.clear()

    def _has_place(self, message: Message, before: Message | None) -> bool:
        """Say whether a retained message may be stored; one of QoS 0 waits until there is room.

        Its publisher could not be refused it. Until it is stored, its topic has none on the disk: a
        broker may discard a retained message of QoS 0 at any time (MQTT 3.1.1, 3.3.1.3). It takes
        the place of a message before it that is no shorter.
        """
        n_payload = len(message.payload)
        if message.qos or message.row_start:
            return True
        if before is None or n_payload > len(before.payload):
            n_bytes = self._bytes_with(n_payload)
            if n_bytes > self._room_bytes:
                self._has_no_room(n_bytes)
                return False
        self._sealed_retained_bytes += n_payload
        return True

    def _put_wills(self, batch: Batch) -> None:
        for client_id in self._wills:
            session = self._core.sessions.get(client_id)
            will = session.will if session is not None else None
            if session is None or will is None:
                batch.gone_wills.append((client_id,))
                self._stored_wills.discard(client_id)
                continue
            self._stored_wills.add(client_id)
            batch.wills.append(will_row(session, will))
        self._wills.clear()

    def _refer(self, batch: Batch, message: Message, epoch: float) -> None:
        """Count one more reference to a message; the first one stores the message."""
        is_new = not message.row_start
        if is_new:
            self._store_at(message, self._next_row)
        if is_new or self._keeps is not None:
            core = self._core
            # None records the loss: it cannot be delivered either.
            payload = core.guard.call(core.payload_store, message.read_payload, otherwise=None)
            batch.messages.append(message_row(message, payload, epoch))
        message.n_references += 1

    def _forget(self, delivery: Delivery) -> None:
        """Delete the row of a stored delivery."""
        self._gone_deliveries.append(delivery.row)
        delivery.forget_row()
        self._release(delivery.message)

    def _release(self, message: Message) -> None:
        """Count one reference less to a stored message; its row is deleted with the last one."""
        message.n_references -= 1
        if not message.n_references:
            self._gone_messages.append(message.row)
            message.forget_row()
