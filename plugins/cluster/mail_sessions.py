"""The kept sessions that this node has: from the engine, to the broker, and back.

Theory of operation. A session that outlives its connection is in the engine: what it is, and what
waits for it. Where its client connects, the node claims it and gives it to its broker, without what
waits. That is fetched a little at a time, whenever the client has taken what was fetched before.
What the broker changes comes in batches, as for a database, and each session's part is one call,
which the engine refuses once another node has the session. When the connection has ended and all is
written, the broker forgets the session, and this node lets go of it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from logging import Logger
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.extensions import LocalClients, Mail, SessionStore
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import SHARE_PREFIX, matches
from penstock.broker.session_rows import (
    Changes,
    DeliveryRow,
    IncomingRow,
    MessageRow,
    SessionRow,
    Stored,
    SubscriptionRow,
)
from penstock.plugins.cluster.engine import FencedError, Row
from penstock.plugins.cluster.mail_engine import FROM_START, MailEngine
from penstock.plugins.cluster.mail_entries import Sent, entry_of_row, read_entry
from penstock.plugins.cluster.mail_routes import MARK, MailRoutes
from penstock.plugins.cluster.members import order
from penstock.plugins.redis.errors import StorageError

if TYPE_CHECKING:
    from penstock.plugins.cluster.announcer import Announcer

FETCHED_MESSAGES: Final = 100
"""Messages that are fetched at once."""
FETCHED_BYTES: Final = 1024 * 1024
"""Bytes of them, and one message of any size."""
LOOK_SECONDS: Final = 20.0
"""All sessions with a connection are looked at in this time: a note may have been lost, as the
engine failed over."""
_LOOKS: Final = 100
RETRY_SECONDS: Final = 1.0


class _Entry(NamedTuple):
    """A message of a mailbox that the broker has.

    Attributes:
        identifier: of the entry.
        n_bytes: of its value.
        sent: how it was sent; without QoS where that is as the subscriptions say.
    """

    identifier: bytes
    n_bytes: int
    sent: Sent


class Kept:
    """A kept session that this node has.

    Attributes:
        client_id: Client Identifier.
        origin: which no other session has.
        owner: the claim by which this node has it.
        filters: its topic filters.
        row: the number of its row in the broker.
        entries: rows of messages that the broker has, with their entries.
        restored: entries that it had from the beginning, or not from the mailbox.
        unreleased: deduplication identifiers of messages that its client has sent to other nodes.
        sent: the newest entry that may have been sent before this node had the session.
        after: the newest entry that was fetched.
        has_more: whether the mailbox may have more.
        is_drained: whether the client has taken what was fetched.
        fetching: fetches.
    """

    def __init__(self, client_id: str, origin: str, owner: Row) -> None:
        self.client_id = client_id
        self.origin = origin
        self.owner = owner
        self.filters: dict[str, None] = {}
        self.row = 0
        self.entries: dict[int, _Entry] = {}
        self.restored: set[bytes] = set()
        self.unreleased: set[bytes] = set()
        self.sent = self.after = FROM_START
        self.has_more = True
        self.is_drained = False
        self.fetching: asyncio.Task[None] | None = None


class KeptSessions(SessionStore):
    """Has the kept sessions of one node.

    Args:
        engine: calls of the engine.
        routes: whose mailboxes get what.
        announcer: tells other nodes of subscriptions.
        clients: the broker's sessions.
        clock: returns monotonic seconds.
        logger: gets faults.

    Attributes:
        sessions: by client.
        unreleased: those of all sessions; see `Kept`.
        n_fetched: messages that came from mailboxes.
        n_unreadable: messages that could not be read, and were dropped.
    """

    def __init__(
        self,
        engine: MailEngine,
        routes: MailRoutes,
        announcer: Announcer,
        clients: LocalClients,
        clock: Callable[[], float],
        logger: Logger,
    ) -> None:
        self.sessions: dict[str, Kept] = {}
        self.unreleased: set[bytes] = set()
        self.n_fetched = 0
        self.n_unreadable = 0
        self._engine = engine
        self._routes = routes
        self._announcer = announcer
        self._clients = clients
        self._clock = clock
        self._logger = logger
        self._rows: dict[int, Kept] = {}  # of sessions and messages
        self._looking: asyncio.Task[None] | None = None

    # -- sessions that come and go -----------------------------------------------------------------

    def begin(self, client_id: str, owner: Row) -> None:
        """Keep a new session."""
        self._have(Kept(client_id, secrets.token_hex(8), owner))

    def _have(self, kept: Kept) -> None:
        self.sessions[kept.client_id] = kept
        self._routes.own.add(kept.client_id)

    async def load(self, client_id: str, owner: Row) -> Stored:
        """Return a session that this node has claimed, for the broker.

        Raises:
            StorageError: the engine cannot be asked, or another node has it by now.
        """
        state = await self._engine.load(client_id, owner)
        found = await self._engine.entries(client_id, sorted(state.sent, key=order))
        values = state.values
        kept = Kept(client_id, values[b"origin"].decode(), owner)
        kept.sent = values.get(b"dup", FROM_START)
        stored = Stored()
        kept.row = self._clients.take_rows(1 + len(found))
        now = self._clock()
        *options, origin = json.loads(values[b"options"])
        session = (kept.row, client_id, *options, now, bytes.fromhex(origin), 0)
        stored.sessions.append(SessionRow._make(session))
        for data in state.filters.values():
            subscription = SubscriptionRow(kept.row, *json.loads(data))
            stored.subscriptions.append(subscription)
            kept.filters[subscription.topic_filter] = None
        for packet_id in state.incoming:
            stored.incoming.append(IncomingRow(kept.row, packet_id))
            kept.unreleased.add(bytes.fromhex(origin) + packet_id.to_bytes(2, "big"))
        for row, (entry, value) in enumerate(found, kept.row + 1):
            read = self._read(client_id, value, row, now)
            if read is None:
                self._engine.erase(client_id, owner, [(entry, len(value))]).add_done_callback(_heed)
                continue
            message, share = read
            sent = Sent.read(state.sent[entry])
            kept.entries[row] = _Entry(entry, len(value), sent)
            kept.restored.add(entry)
            stored.messages.append(message)
            granted = _granted(share or message.topic, stored.subscriptions)
            stored.deliveries.append(_delivery(sent, row, kept.row, message, share, granted))
        stored.deliveries.sort(key=lambda row: not row.packet_id)  # what waits is behind the others
        if client_id in self.sessions:
            self._forget(self.sessions[client_id])
        self._have(kept)
        self.unreleased |= kept.unreleased
        self._rows.update(dict.fromkeys((kept.row, *kept.entries), kept))
        self._tell_filters(kept)
        return stored

    def _tell_filters(self, kept: Kept) -> None:
        """See that all nodes know the filters that a session has: the last change may be lost.

        Those of shared subscriptions are told in any case: their member is back.
        """
        box = self._routes.boxes.get(kept.client_id)
        known = {} if box is None else box.filters
        for topic_filter, origin in [*known.items()]:
            if topic_filter not in kept.filters:
                self._change(kept.client_id, topic_filter, f"-{origin}")
        for topic_filter in kept.filters:
            if known.get(topic_filter) != kept.origin or topic_filter.startswith(SHARE_PREFIX):
                self._change(kept.client_id, topic_filter, kept.origin)

    def _change(self, client_id: str, topic_filter: str, value: str) -> None:
        self._routes.set(client_id, topic_filter, value)
        self._announcer.change_kept(_name(client_id, topic_filter), value)

    def discard(self, client_id: str, owner: Row, origin: str) -> None:
        """End a session that this node has claimed, and that is not to go on."""
        self._engine.finish(client_id, owner, origin).add_done_callback(_heed)
        self.gone(client_id, origin)

    def gone(self, client_id: str, origin: str) -> None:
        """Tell all nodes that a session has ended."""
        box = self._routes.boxes.get(client_id)
        for topic_filter, one in [] if box is None else [*box.filters.items()]:
            if one == origin:
                self._change(client_id, topic_filter, f"-{origin}")

    def ended(self, client_id: str) -> None:
        """Take note that the broker has ended a session; nothing happens where it was not kept."""
        kept = self.sessions.get(client_id)
        if kept is not None:
            self._forget(kept)
            self.discard(client_id, kept.owner, kept.origin)

    def unloaded(self, client_id: str) -> None:
        """Take note that the broker has a session no more, and it has not ended."""
        kept = self.sessions.get(client_id)
        if kept is not None:
            self._forget(kept)

    def _forget(self, kept: Kept) -> None:
        del self.sessions[kept.client_id]
        self._routes.own.discard(kept.client_id)
        for row in (kept.row, *kept.entries):
            self._rows.pop(row, None)
        for topic_filter in kept.filters:
            self._announcer.forget_kept(_name(kept.client_id, topic_filter))
        self.unreleased -= kept.unreleased
        if kept.fetching is not None:
            kept.fetching.cancel()

    def lost(self, client_id: str) -> None:
        """Forget a session that another node may have by now."""
        self._forget(self.sessions[client_id])
        self._clients.drop(client_id, ReasonCode.SESSION_TAKEN_OVER)

    def _lost(self, kept: Kept) -> None:
        if self.sessions.get(kept.client_id) is kept:
            self.lost(kept.client_id)

    def is_loaded(self, client_id: str) -> bool:
        """Say whether the broker has a session."""
        return self._clients.subscriptions(client_id) is not None

    def subscribed(self, client_id: str, topic_filters: Sequence[str]) -> None:
        """Tell all nodes of subscriptions of a kept session."""
        kept = self.sessions[client_id]
        for topic_filter in topic_filters:
            kept.filters[topic_filter] = None
            self._change(client_id, topic_filter, kept.origin)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """Tell all nodes of the end of a subscription of a kept session."""
        kept = self.sessions[client_id]
        kept.filters.pop(topic_filter, None)
        self._change(client_id, topic_filter, f"-{kept.origin}")

    # -- what waits --------------------------------------------------------------------------------

    def start(self) -> None:
        """Look from time to time whether anything waits."""
        self._looking = asyncio.create_task(self._look(), name="penstock-cluster look")

    async def _look(self) -> None:
        while True:
            clients = list(self.sessions)
            n = 1 + len(clients) // _LOOKS
            for at in range(_LOOKS):
                await asyncio.sleep(LOOK_SECONDS / _LOOKS)
                for client_id in clients[at * n : (at + 1) * n]:
                    self.told(client_id)

    def told(self, client_id: str) -> None:
        """Take note that something may wait for a session."""
        kept = self.sessions.get(client_id)
        if kept is not None:
            kept.has_more = True
            self._fetch_soon(kept)

    def drained(self, client_id: str) -> None:
        """Take note that a session has room; see `SessionOwner`."""
        kept = self.sessions.get(client_id)
        if kept is not None:
            kept.is_drained = True
            self._fetch_soon(kept)

    def _fetch_soon(self, kept: Kept) -> None:
        if kept.fetching is None and kept.has_more and kept.is_drained:
            kept.fetching = asyncio.create_task(self._fetch(kept), name="penstock-cluster mail")

    async def _fetch(self, kept: Kept) -> None:
        most, is_anew = (FETCHED_MESSAGES, FETCHED_BYTES), False
        try:
            while kept.has_more and kept.is_drained:
                kept.has_more = False
                found = await self._engine.fetch(kept.client_id, kept.owner, kept.after, *most)
                if not is_anew and found.now_ms < order(kept.after)[0]:
                    # Another server has taken over, whose clock is behind, and so may be what is
                    # new: all is read anew, but for what the broker has.
                    is_anew = kept.has_more = True
                    kept.restored.update(one.identifier for one in kept.entries.values())
                    kept.after = FROM_START
                    continue
                kept.has_more = kept.has_more or found.has_more
                await self._give(kept, found.now_ms, found.entries)
        except FencedError:
            kept.fetching = None
            self._lost(kept)
        except StorageError as error:
            self._later(kept, error)
        finally:
            kept.fetching = None

    def _later(self, kept: Kept, error: Exception) -> None:
        """Fetch again later."""
        self._logger.warning("client %s: messages cannot be read: %s", kept.client_id, error)
        kept.is_drained = kept.has_more = True
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self.told, kept.client_id)

    def _read(
        self, client_id: str, value: bytes, row: int, arrived_at: float
    ) -> tuple[MessageRow, str] | None:
        """Return what an entry stands for; None for one that cannot be read, and is dropped."""
        try:
            return read_entry(value, row, arrived_at)
        except (PeerError, ValueError, LookupError, StructError) as error:
            self.n_unreadable += 1
            self._logger.warning("client %s: a message is dropped: %s", client_id, error)
            return None

    async def _give(self, kept: Kept, now_ms: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Give entries to the broker."""
        fresh = [one for one in entries if one[0] not in kept.restored]
        now = self._clock()
        row = self._clients.take_rows(len(fresh)) if fresh else 0
        mail: list[Mail] = []
        done: list[tuple[bytes, int]] = []
        for entry, value in fresh:
            arrived_at = now - max(0, now_ms - order(entry)[0]) / 1000
            read = self._read(kept.client_id, value, row, arrived_at)
            if read is None:
                done.append((entry, len(value)))
                continue
            message, share = read
            mail.append(Mail(message, share, is_repeat=order(entry) <= order(kept.sent)))
            kept.entries[row] = _Entry(entry, len(value), Sent(0, is_released=False))
            self._rows[row] = kept
            row += 1
        if mail:
            kept.is_drained = False
            try:
                taken = await self._clients.deliver(kept.client_id, mail)
            except (PenstockError, OSError) as error:  # such as no room for payloads
                self._take_back(kept, mail)
                raise StorageError(str(error)) from error
            if not taken:  # the client is not connected
                self._take_back(kept, mail)
                return
            self.n_fetched += len(mail)
            for one, delivery in zip(mail, taken, strict=True):
                row = one.message.row
                if delivery is None:
                    self._rows.pop(row, None)
                    done.append(kept.entries.pop(row)[:2])
                elif (known := kept.entries.get(row)) is not None:
                    kept.entries[row] = known._replace(sent=Sent.of(delivery))
        if entries:
            kept.after = entries[-1][0]
        if done:
            self._engine.erase(kept.client_id, kept.owner, done).add_done_callback(_heed)

    def _take_back(self, kept: Kept, mail: Sequence[Mail]) -> None:
        """Take note that the broker has not taken messages."""
        for one in mail:
            self._rows.pop(one.message.row, None)
            kept.entries.pop(one.message.row, None)
        kept.has_more = True

    # -- what the broker changes -------------------------------------------------------------------

    async def write(self, batch: Changes) -> None:
        """Store the changes of one commit; see `SessionStore`.

        Raises:
            StorageError: the engine cannot be asked, or refuses.
        """
        changes: dict[Kept, list[Any]] = {}
        added: dict[Kept, list[tuple[int, int, Sent]]] = {}
        self._sessions_of(batch, changes)
        messages = {message.row: message for message in batch.messages}
        now = self._clock()
        for delivery in batch.deliveries:
            kept, message = self._rows.get(delivery.session), messages.get(delivery.message)
            if kept is None or message is None or message.payload is None:
                continue  # without a payload the broker drops it, and counts it, when it sends it
            value, sent = entry_of_row(message, delivery.share, now), Sent.of(delivery)
            changes.setdefault(kept, []).extend(("a", value, sent.written()))
            added.setdefault(kept, []).append((delivery.row, len(value), sent))
        moved = batch.moved_deliveries
        for at in range(0, len(moved), 4):
            _, packet_id, is_released, row = moved[at : at + 4]
            kept = self._rows.get(row)
            if kept is not None:
                entry = kept.entries[row]
                sent = entry.sent._replace(packet_id=packet_id, is_released=bool(is_released))
                changes.setdefault(kept, []).extend(("i", entry.identifier, sent.written()))
        for row in batch.gone_deliveries:
            kept = self._rows.get(row)
            if kept is not None:
                changes.setdefault(kept, []).extend(("d", *kept.entries[row][:2]))
        calls = (self._commit(kept, batch.number, some) for kept, some in changes.items())
        found = await asyncio.gather(*calls, return_exceptions=True)
        for kept, answer in zip(changes, found, strict=True):
            if isinstance(answer, FencedError):
                self._lost(kept)
            elif isinstance(answer, BaseException):
                raise answer
        for kept, answer in zip(changes, found, strict=True):
            if isinstance(answer, list) and self.sessions.get(kept.client_id) is kept:
                for (row, n_bytes, sent), new in zip(added.get(kept, ()), answer, strict=True):
                    kept.entries[row] = _Entry(new, n_bytes, sent)
                    kept.restored.add(new)
                    self._rows[row] = kept
        for row in batch.gone_deliveries:
            kept = self._rows.pop(row, None)
            if kept is not None:
                del kept.entries[row]

    async def _commit(self, kept: Kept, number: int, changes: Sequence[Any]) -> list[bytes]:
        return await self._engine.commit(kept.client_id, kept.owner, number, kept.origin, changes)

    def _sessions_of(self, batch: Changes, changes: dict[Kept, list[Any]]) -> None:
        """Add what has changed of sessions but their messages."""
        for session in batch.sessions:
            kept = self.sessions.get(session.client_id)
            if kept is None or kept.row not in {0, session.row}:
                continue
            if not kept.row:
                kept.row = session.row
                self._rows[session.row] = kept
            options = (*session[2:6], session.origin.hex())
            expiry = session.expiry_interval
            some = changes.setdefault(kept, [])
            some += ("s", "options", json.dumps(options))
            some += ("s", "expiry", "" if expiry is None else str(expiry))
        rows = self._rows
        for subscription in batch.subscriptions:
            if subscription.session in rows:
                some = changes.setdefault(rows[subscription.session], [])
                some += ("f", subscription.topic_filter, json.dumps(subscription[1:]))
        for row, topic_filter in batch.gone_subscriptions:
            if row in rows:
                changes.setdefault(rows[row], []).extend(("F", topic_filter, ""))
        for row, packet_id in batch.incoming:
            if row in rows:
                changes.setdefault(rows[row], []).extend(("n", packet_id, ""))
        for row, packet_id in batch.gone_incoming:
            if row in rows:
                changes.setdefault(rows[row], []).extend(("N", packet_id, ""))

    async def close(self) -> None:
        """Fetch nothing more."""
        tasks = [] if self._looking is None else [self._looking]
        tasks += [one.fetching for one in self.sessions.values() if one.fetching is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _name(client_id: str, topic_filter: str) -> str:
    """Return what other nodes are told a subscription by."""
    return f"{MARK}{client_id}{MARK}{topic_filter}"


def _granted(topic: str, subscriptions: Sequence[SubscriptionRow]) -> int:
    """Return the greatest QoS of subscriptions to a topic, or of that to a share."""
    return max((one.qos for one in subscriptions if matches(one.topic_filter, topic)), default=2)


def _delivery(
    sent: Sent, row: int, session: int, message: MessageRow, share: str, granted: int
) -> DeliveryRow:
    """Return the row of a message that has a Packet Identifier, or waits though it was added."""
    return DeliveryRow(
        row,
        session,
        message.row,
        sent.qos or (2 if sent.is_released else min(message.qos, granted)),
        sent.retain,
        sent.subscription_ids,
        sent.packet_id,
        sent.is_released,
        share,
    )


def _heed(call: asyncio.Future[Any]) -> None:
    """Take the error of a call that nobody waits for."""
    if not call.cancelled():
        call.exception()
