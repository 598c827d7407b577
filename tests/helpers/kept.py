"""Virtual brokers whose sessions another party keeps, in mailboxes that outlive the brokers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.broker.durable.journal import Journal
from penstock.broker.durable.kept_sessions import KeptSessions
from penstock.broker.extensions import Mail, MailRun, SessionOwner, SessionStore
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import publish_header
from penstock.broker.session_rows import (
    Changes,
    DeliveryRow,
    IncomingRow,
    MessageRow,
    SessionRow,
    Stored,
    SubscriptionRow,
)
from penstock.broker.sessions.session import Session
from tests.helpers.virtual import VirtualBroker

EPOCH = 5_000_000.0
"""The store's clock when a virtual broker's monotonic clock is 0."""

WINDOW = 2
"""Messages that a session is given at a time."""

_NUMBERS = itertools.count(1)


@dataclass
class Mailbox:
    """What is kept of one session.

    Attributes:
        owner: the broker that has the session, or had it last.
        session: its row.
        subscriptions: its subscriptions.
        incoming: its packet identifiers.
        entries: what waits for it, in order, by numbers of its own.
        inflight: deliveries of entries that were sent.
    """

    owner: Node
    session: SessionRow
    subscriptions: dict[str, SubscriptionRow] = field(default_factory=dict)
    incoming: set[int] = field(default_factory=set)
    entries: dict[int, Mail] = field(default_factory=dict)
    inflight: dict[int, DeliveryRow] = field(default_factory=dict)


class Mailboxes(dict[str, Mailbox]):
    """The mailboxes of all clients, by Client Identifier."""

    def put(self, client_id: str, topic: str, payload: bytes, qos: int = 1, **mail: Any) -> None:
        """Have a message wait for a client."""
        box = self[client_id]
        retain, expires_at = mail.pop("retain", False), mail.pop("expires_at", None)
        by = mail.pop("by", "")
        row = MessageRow(0, topic, payload, qos, retain, EPOCH, expires_at, None, by)
        box.entries[next(_NUMBERS)] = Mail(row, **mail)
        box.owner.wanting.add(client_id)
        if not box.owner.is_dead:
            box.owner.settle()


class _Store(SessionStore):
    """Does to mailboxes what batches say."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def write(self, batch: Changes) -> None:
        """Do what a batch says."""
        self.apply(batch)

    def epoch(self) -> float:
        """Return the lead of the store's clock."""
        return EPOCH

    def apply(self, batch: Changes) -> None:
        """Do what a batch says, for sessions that are still this broker's."""
        node = self._node
        assert not any((batch.retained, batch.gone_retained, batch.wills, batch.gone_wills))
        for (session_row,) in batch.gone_sessions:
            for box in self._of(session_row):
                del node.boxes[box.session.client_id]
            node.clients.pop(session_row, None)
        for session in batch.sessions:
            client_id = session.client_id
            box = node.boxes.setdefault(client_id, Mailbox(node, session))
            if box.owner is node:
                box.session = session
                node.clients[session.row] = client_id
        for granted in batch.subscriptions:
            for box in self._of(granted.session):
                box.subscriptions[granted.topic_filter] = granted
        for session_row, topic_filter in batch.gone_subscriptions:
            for box in self._of(session_row):
                box.subscriptions.pop(topic_filter, None)
        for incoming in batch.incoming:
            for box in self._of(incoming.session):
                box.incoming.add(incoming.packet_id)
        for session_row, packet_id in batch.gone_incoming:
            for box in self._of(session_row):
                box.incoming.discard(packet_id)
        self._apply_deliveries(batch)

    def subscribed(self, client_id: str, topic_filters: Sequence[str]) -> None:
        """Take note."""
        self._node.owner.told.append(("subscribed", client_id, *topic_filters))

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """Take note."""
        self._node.owner.told.append(("unsubscribed", client_id, topic_filter))

    def drained(self, client_id: str) -> None:
        """Give it more as soon as the broker has settled."""
        self._node.drained.add(client_id)
        self._node.wanting.add(client_id)

    def _of(self, row: int) -> Iterable[Mailbox]:
        """Yield the mailbox of a session, if it is known and still this broker's."""
        box = self._node.boxes.get(self._node.clients.get(row, ""))
        if box is not None and box.owner is self._node:
            yield box

    def _apply_deliveries(self, batch: Changes) -> None:
        node = self._node
        messages = {row.row: row for row in batch.messages}
        for delivery in batch.deliveries:
            for box in self._of(delivery.session):
                number = node.numbers[delivery.row] = next(_NUMBERS)
                box.entries[number] = Mail(messages[delivery.message], delivery.share)
                node.given[box.session.client_id].add(number)
                node.taken[delivery.row] = delivery
                if delivery.packet_id:
                    box.inflight[number] = delivery
        moved = iter(batch.moved_deliveries)
        for session, packet_id, is_released, row in zip(moved, moved, moved, moved, strict=True):
            for box in self._of(session):
                number = node.numbers[row]
                box.inflight[number] = node.taken[row]._replace(
                    packet_id=packet_id, is_released=bool(is_released)
                )
        for row in batch.gone_deliveries:
            number = node.numbers.pop(row, 0)
            for box in node.boxes.values():
                if box.owner is node:
                    box.entries.pop(number, None)
                    box.inflight.pop(number, None)


class _Owner(SessionOwner):
    """Claims sessions from the other brokers of the mailboxes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.told: list[tuple[Any, ...]] = []

    def claim(self, client_id: str, *, clean_start: bool) -> Awaitable[Stored | None] | None:
        """Have a session that is another's, or that is not in memory."""
        node = self._node
        box = node.boxes.get(client_id)
        if box is None or node.core.sessions.get(client_id) is not None:
            return None
        if box.owner is not node and not box.owner.is_dead:
            box.owner.core.sessions.release(client_id, ReasonCode.SESSION_TAKEN_OVER, node.now)
            box.owner.settle()
            box = node.boxes.get(client_id)
        if box is None:
            return None
        if clean_start:
            del node.boxes[client_id]
            return None
        box.owner = node
        return self._restored(box)

    async def _restored(self, box: Mailbox) -> Stored:
        if self._node.wait is not None:
            await self._node.wait
        return self._node.stored(box)

    def keeps(self, client_id: str, expiry_interval: float | None) -> bool:
        """Keep all that outlives its connection."""
        self._node.given.setdefault(client_id, set())
        return expiry_interval != 0

    def unloaded(self, client_id: str) -> None:
        """Take note: what it was given waits again."""
        self.told.append(("unloaded", client_id))
        self._node.given[client_id] = set()


class Node(VirtualBroker):
    """A virtual broker whose sessions are kept in mailboxes; `settle` commits and gives.

    Attributes:
        boxes: the mailboxes.
        owner: what the broker asks.
        kept: the broker's kept sessions.
        is_dead: the broker has ended without a word.
        is_refusing: the store takes no batch.
        gives_runs: what waits is given together where it may be.
        n_in_runs: messages that were.
        wait: what a claim waits for; None for nothing.
        wanting: clients that are to be given what waits.
        drained: clients that may be given more.
        given: entries that sessions in memory have been given.
        clients: Client Identifiers by the rows of sessions.
        numbers: entries by the rows of deliveries.
        taken: deliveries as they are to be stored, by their rows.
    """

    def __init__(self, boxes: Mailboxes, **extensions: Any) -> None:
        self.owner = _Owner(self)
        super().__init__(session_owner=self.owner, **extensions)
        self.boxes = boxes
        self.is_dead = self.is_refusing = False
        self.gives_runs = True
        self.n_in_runs = 0
        self.wait: Awaitable[None] | None = None
        self.wanting: set[str] = set()
        self.drained: set[str] = set()
        self.given: dict[str, set[int]] = {}
        self.clients: dict[int, str] = {}
        self.numbers: dict[int, int] = {}
        self.taken: dict[int, DeliveryRow] = {}
        self._store = _Store(self)
        self.kept = KeptSessions(self.core, self.owner, self._store)
        self.journal = Journal(
            self.core,
            wake=lambda: None,
            hurry=lambda: None,
            look_later=lambda: None,
            is_near=lambda _fileno: False,
            new_origin=lambda: next(_NUMBERS).to_bytes(8, "big"),
            max_pending_messages=1000,
            max_pending_bytes=1_000_000,
            keeps=self.kept.keeps,
        )
        self.kept.attach(self.journal)

    def settle(self) -> None:
        """Serve every connection, commit, and give clients what waits, until nothing is left."""
        super().settle()
        while not self.is_dead and (self.commit() or self._run_timers() or self._give_some()):
            super().settle()

    def _run_timers(self) -> bool:
        """Run what is due, such as the end of sessions; return whether there was anything."""
        timers = self.core.timers
        is_due = (timers.next_deadline() or math.inf) <= self.now
        if is_due:
            timers.run(self.now)
        return is_due

    def commit(self) -> bool:
        """Commit what has changed; return whether there was anything."""
        batch = self.journal.sealed or self.journal.seal(EPOCH)
        if batch is None or (self.is_refusing and self.journal.is_failing):
            return False
        if self.is_refusing and not batch.is_empty():
            self.journal.failed()
            return False
        self._store.apply(batch)
        self.journal.committed()
        return True

    def _give_some(self) -> bool:
        wanting, self.wanting = self.wanting, set()
        return sum(self._give(client_id) for client_id in wanting) > 0

    def _give(self, client_id: str) -> bool:
        box, session = self.boxes.get(client_id), self.core.sessions.get(client_id)
        if box is None or box.owner is not self or session is None or session.client is None:
            return False
        if client_id not in self.drained:
            return False  # the broker will say when it wants more
        given = self.given.setdefault(client_id, set())
        waiting = [number for number in box.entries if number not in given][:WINDOW]
        first = self.journal.take_rows(len(waiting))
        mail = []
        for row, number in enumerate(waiting, first):
            each = box.entries[number]
            mail.append(each._replace(message=each.message._replace(row=row)))
            self.numbers[row] = number
        n_taken = self._give_run(session, mail) if self.gives_runs else None
        if n_taken is not None:
            given.update(waiting[:n_taken])
            if n_taken:
                self.wanting.add(client_id)
            return n_taken > 0
        given.update(waiting)
        if mail:
            self.drained.discard(client_id)
        for each, taken in zip(mail, self.kept.deliver(session, mail, self.now), strict=True):
            if taken is None:
                del box.entries[self.numbers.pop(each.message.row)]
            else:
                self.taken[taken.row] = taken
        return bool(waiting)

    def _give_run(self, session: Session, mail: Sequence[Mail]) -> int | None:
        """Give the first messages together, if they are for that way."""
        packets = b""
        n_messages = 0
        for message, share, is_repeat in mail:
            if share or is_repeat or message.qos != 1 or message.retain or message.expires_at:
                break
            if message.publisher != mail[0].message.publisher:
                break
            payload = message.payload
            assert isinstance(payload, bytes)
            head = publish_header(
                message.topic.encode(), len(payload), 1, packet_id=9, version=session.version
            )
            packets += head + payload
            n_messages += 1
        if not n_messages:
            return None
        first = mail[0].message
        run = MailRun(first.row, packets, n_messages, session.version, 1, first.publisher, self.now)
        n_taken = self.core.take_mail_run(session, run, self.now)
        self.n_in_runs += n_taken or 0
        own = session.journal
        assert own is not None
        for row in range(first.row, first.row + (n_taken or 0)):
            self.taken[row] = DeliveryRow(row, own.row, row, 1, False, None, 0, False, "")
        return n_taken

    def stored(self, box: Mailbox) -> Stored:
        """Return what a claimant gets of a mailbox."""
        client_id = box.session.client_id
        inflight = sorted(box.inflight.items(), key=lambda item: item[0])
        first = self.journal.take_rows(1 + len(inflight))
        stored = Stored(
            sessions=[box.session._replace(row=first)],
            subscriptions=[each._replace(session=first) for each in box.subscriptions.values()],
            incoming=[IncomingRow(first, packet_id) for packet_id in box.incoming],
        )
        self.clients[first] = client_id
        self.given[client_id] = set(box.inflight)
        for row, (number, delivery) in enumerate(inflight, first + 1):
            stored.messages.append(box.entries[number].message._replace(row=row))
            stored.deliveries.append(delivery._replace(row=row, session=first, message=row))
            self.numbers[row] = number
            self.taken[row] = delivery
        return stored

    def die(self) -> None:
        """End without a word."""
        self.is_dead = True
