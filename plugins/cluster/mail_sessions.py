"""The kept sessions that this node has: from the engine, to the broker, and back.

Theory of operation. A session that outlives its connection is in the engine: what it is, and what
waits for it. Where its client connects, the node claims it and gives it to its broker, without what
waits. That is fetched a little at a time, whenever the client has taken what was fetched before.
What the broker changes comes in batches, as for a database, and the parts of sessions that share a
bucket are one call; the engine refuses a part once another node has the session. When the
connection has ended and all is written, the broker forgets the session, and this node lets go of
it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from logging import Logger
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.extensions import LocalClients, Mail, MailRun, SessionStore
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import SHARE_PREFIX, matches
from penstock.broker.plugin_guard import note_fault
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
from penstock.plugins.cluster.mail_engine import MOST_GONE, Commit, MailEngine
from penstock.plugins.cluster.mail_entries import (
    Entry,
    Sent,
    head_of,
    packet_of_row,
    read_entry,
    read_head,
    written,
)
from penstock.plugins.cluster.mail_routes import MARK, MailRoutes
from penstock.plugins.cluster.members import order
from penstock.plugins.redis.calls import heed
from penstock.plugins.redis.stream_reader import FROM_START

if TYPE_CHECKING:
    from penstock.plugins.cluster.announcer import Announcer

FETCHED_MESSAGES: Final = 250
"""Messages that are fetched at once."""
FETCHED_BYTES: Final = 1024 * 1024
"""Bytes of them, and one message of any size."""
LOOK_SECONDS: Final = 20.0
"""All sessions with a connection are looked at in this time: a note may have been lost, as the
engine failed over."""
_LOOKS: Final = 100
RETRY_SECONDS: Final = 1.0


_Entry = tuple[bytes, int, Sent | DeliveryRow]
"""A message of a mailbox that the broker has: the identifier of its entry, the bytes of its packet,
and how it was sent; without QoS where that is as the subscriptions say."""

_PLAIN: Final = Sent(0, is_released=False, qos=1)
_OF_RUNS: Final = {b"\x30": 0, b"\x32": 1}
"""First bytes of packets that may go together, to their QoS."""


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
        adding: is done once the engine has said which entries it has added; None for none.
        noted: entries of which the engine has how they were sent.
        prefix: of the deduplication identifiers of its client's messages, where it was at another
            node; else b"".
        sent: the newest entry that may have been sent before this node had the session.
        fetched: entries that were fetched and not given, and the monotonic time of the engine's 0.
        after: the newest entry that was given.
        has_more: whether the mailbox may have more.
        is_drained: whether the client may take more.
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
        self.adding: asyncio.Future[None] | None = None
        self.noted: set[bytes] = set()
        self.prefix = b""
        self.sent = self.after = FROM_START
        self.fetched: list[Entry] = []
        self.of_engine = 0.0
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
        prefixes: those of all sessions, and since when these are here; see `Kept`.
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
        self.prefixes: dict[bytes, float] = {}
        self.n_fetched = 0
        self.n_unreadable = 0
        self._faults: dict[str, int] = {}
        self._engine = engine
        self._routes = routes
        self._announcer = announcer
        self._clients = clients
        self._clock = clock
        self._logger = logger
        self._rows: dict[int, Kept] = {}  # of sessions and messages
        routes.own = self.sessions
        announcer.own.kept = self.subscriptions

    # -- sessions that come and go -----------------------------------------------------------------

    def begin(self, client_id: str, owner: Row) -> None:
        """Keep a new session."""
        self.sessions[client_id] = Kept(client_id, secrets.token_hex(8), owner)

    async def load(self, client_id: str, owner: Row) -> Stored:
        """Return a session that this node has claimed, for the broker.

        Raises:
            StorageError: the engine cannot be asked, or another node has it by now.
        """
        state = await self._engine.load(client_id, owner)
        found = sorted(state.entries, key=lambda entry: order(entry[0]))
        values = state.values
        kept = Kept(client_id, values[b"origin"].decode(), owner)
        kept.sent = values.get(b"dup", FROM_START)
        kept.noted.update(state.sent)
        stored = Stored()
        kept.row = self._clients.take_rows(1 + len(found))
        now = self._clock()
        *options, origin = json.loads(values[b"options"])
        kept.prefix = bytes.fromhex(origin)
        session = (kept.row, client_id, *options, now, kept.prefix, 0)
        stored.sessions.append(SessionRow._make(session))
        for data in state.filters.values():
            subscription = SubscriptionRow(kept.row, *json.loads(data))
            stored.subscriptions.append(subscription)
            kept.filters[subscription.topic_filter] = None
        for packet_id in state.incoming:
            stored.incoming.append(IncomingRow(kept.row, packet_id))
        for row, (entry, head, packet) in enumerate(found, kept.row + 1):
            read = self._read(client_id, head, packet, row, now)
            if read is None:
                self._erase(kept, [(entry, len(packet), _PLAIN)])
                continue
            message, share = read
            sent = Sent.read(state.sent[entry])
            kept.entries[row] = entry, len(packet), sent
            kept.restored.add(entry)
            stored.messages.append(message)
            granted = _granted(share or message.topic, stored.subscriptions)
            stored.deliveries.append(_delivery(sent, row, kept.row, message, share, granted))
        stored.deliveries.sort(key=lambda row: not row.packet_id)  # what waits is behind the others
        if client_id in self.sessions:
            self._forget(self.sessions[client_id])
        self.sessions[client_id] = kept
        self.prefixes[kept.prefix] = now
        self._rows.update(dict.fromkeys((kept.row, *kept.entries), kept))
        self._tell_filters(kept)
        return stored

    def subscriptions(self) -> Iterator[tuple[str, str]]:
        """Yield what other nodes are told of all subscriptions."""
        for kept in self.sessions.values():
            for topic_filter in kept.filters:
                yield _name(kept.client_id, topic_filter), kept.origin

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

    def discard(self, client_id: str, owner: Row, origin: str, read: bytes = FROM_START) -> None:
        """End a session that this node has claimed, and that is not to go on.

        Args:
            client_id: Client Identifier.
            owner: the claim.
            origin: of the session.
            read: the newest message that the broker had.
        """
        self._engine.finish(client_id, owner, origin, read).add_done_callback(heed)
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
            self.discard(client_id, kept.owner, kept.origin, kept.after)

    def unloaded(self, client_id: str) -> None:
        """Take note that the broker has a session no more, and it has not ended."""
        kept = self.sessions.get(client_id)
        if kept is not None:
            self._forget(kept)

    def _forget(self, kept: Kept) -> None:
        del self.sessions[kept.client_id]
        for row in (kept.row, *kept.entries):
            self._rows.pop(row, None)
        self.prefixes.pop(kept.prefix, None)
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

    async def look(self) -> None:
        """Look from time to time whether anything waits."""
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
        """Take note that a session has room; see `SessionStore`."""
        kept = self.sessions.get(client_id)
        if kept is not None:
            kept.is_drained = True
            self._fetch_soon(kept)

    def _fetch_soon(self, kept: Kept) -> None:
        if kept.fetching is None and (kept.has_more or kept.fetched) and kept.is_drained:
            kept.fetching = asyncio.create_task(self._fetch(kept), name="penstock-cluster mail")

    async def _fetch(self, kept: Kept) -> None:
        most, is_anew = (FETCHED_MESSAGES, FETCHED_BYTES), False
        try:
            while kept.is_drained and (kept.fetched or kept.has_more):
                if not kept.fetched:
                    kept.has_more = False
                    found = await self._engine.fetch(kept.client_id, kept.owner, kept.after, *most)
                    if kept.adding is not None:  # entries among these may be its own
                        await asyncio.shield(kept.adding)
                    if not is_anew and found.now_ms < order(kept.after)[0]:
                        # Another server has taken over, whose clock is behind, and so may be what
                        # is new: all is read anew, but for what the broker has.
                        is_anew = kept.has_more = True
                        kept.restored.update(one[0] for one in kept.entries.values())
                        kept.after = FROM_START
                        continue
                    kept.has_more = kept.has_more or found.has_more
                    kept.of_engine = self._clock() - found.now_ms / 1000
                    kept.fetched = [one for one in found.entries if one[0] not in kept.restored]
                    if found.entries:
                        kept.after = found.entries[-1][0]
                await self._give(kept)
        except FencedError:
            kept.fetching = None
            self._lost(kept)
        except (PenstockError, OSError) as error:  # such as no room for payloads
            self._later(kept, error)
        except Exception as error:  # noqa: BLE001 (whatever it is, the mailbox is to be read)
            note_fault(self._logger, self._faults, "the reading of mailboxes", error)
            self._later(kept, error)
        finally:
            kept.fetching = None

    def _later(self, kept: Kept, error: Exception) -> None:
        """Fetch again later."""
        self._logger.warning("client %s: messages cannot be read: %s", kept.client_id, error)
        kept.is_drained = kept.has_more = True
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self.told, kept.client_id)

    def _read(
        self, client_id: str, head: bytes, packet: bytes, row: int, arrived_at: float
    ) -> tuple[MessageRow, str] | None:
        """Return what an entry stands for; None for one that cannot be read, and is dropped."""
        try:
            return read_entry(head, packet, row, arrived_at)
        except (PeerError, ValueError, LookupError, StructError) as error:
            self.n_unreadable += 1
            self._logger.warning("client %s: a message is dropped: %s", client_id, error)
            return None

    def _erase(self, kept: Kept, done: Sequence[_Entry]) -> None:
        if done:
            ids, n_bytes = [one[0] for one in done], sum([one[1] for one in done])
            self._engine.erase(kept.client_id, kept.owner, ids, n_bytes).add_done_callback(heed)

    async def _give(self, kept: Kept) -> None:
        """Give the broker what was fetched, as far as it takes it."""
        while kept.fetched and kept.is_drained:
            n_taken = self._give_run(kept)
            if n_taken is None:
                await self._give_mail(kept)
            else:
                kept.is_drained = n_taken > 0
                del kept.fetched[:n_taken]

    def _arrived_at(self, kept: Kept, entry: bytes) -> float:
        return min(self._clock(), kept.of_engine + order(entry)[0] / 1000)

    def _give_run(self, kept: Kept) -> int | None:
        """Give the first messages that go together; as `LocalClients.deliver_run`."""
        entry, head, packet = kept.fetched[0]
        first_byte = packet[:1]
        if first_byte not in _OF_RUNS or order(entry) <= order(kept.sent):
            return None
        try:
            version, publisher, share = read_head(head)
        except (ValueError, StructError):
            return None
        if share:
            return None
        packets = []
        for _, other, packet in kept.fetched:
            if other != head or packet[:1] != first_byte:
                break
            packets.append(packet)
        row, qos = self._clients.take_rows(len(packets)), _OF_RUNS[first_byte]
        arrived_at = self._arrived_at(kept, entry)
        run = MailRun(row, b"".join(packets), len(packets), version, qos, publisher, arrived_at)
        n_taken = self._clients.deliver_run(kept.client_id, run)
        if n_taken:
            self.n_fetched += n_taken
            taken = [(one[0], len(one[2]), _PLAIN) for one in kept.fetched[:n_taken]]
            if qos:
                kept.entries.update(enumerate(taken, row))
                self._rows.update(dict.fromkeys(range(row, row + n_taken), kept))
            else:
                self._erase(kept, taken)
        return n_taken

    async def _give_mail(self, kept: Kept) -> None:
        """Give all that was fetched, one by one."""
        sent = order(kept.sent)
        row = self._clients.take_rows(len(kept.fetched))
        mail: list[Mail] = []
        given: list[Entry] = []
        done: list[_Entry] = []
        for one in kept.fetched:
            entry, head, packet = one
            arrived_at = self._arrived_at(kept, entry)
            read = self._read(kept.client_id, head, packet, row, arrived_at)
            if read is None:
                done.append((entry, len(packet), _PLAIN))
                continue
            message, share = read
            given.append(one)
            mail.append(Mail(message, share, order(entry) <= sent))
            kept.entries[row] = entry, len(packet), _PLAIN
            self._rows[row] = kept
            row += 1
        self._erase(kept, done)
        kept.fetched, done = given, []
        if not mail:
            return
        kept.is_drained = False
        try:
            taken = await self._clients.deliver(kept.client_id, mail)
        except Exception:
            self._take_back(kept, mail)
            raise
        if not taken:  # the client is not connected
            self._take_back(kept, mail)
            return
        self.n_fetched += len(mail)
        kept.fetched = []
        for each, delivery in zip(mail, taken, strict=True):
            row = each.message.row
            if delivery is None:
                self._rows.pop(row, None)
                done.append(kept.entries.pop(row))
            elif (known := kept.entries.get(row)) is not None:
                kept.entries[row] = known[0], known[1], delivery
        self._erase(kept, done)

    def _take_back(self, kept: Kept, mail: Sequence[Mail]) -> None:
        """Take note that the broker has not taken messages."""
        for one in mail:
            self._rows.pop(one.message.row, None)
            kept.entries.pop(one.message.row, None)

    # -- what the broker changes -------------------------------------------------------------------

    async def write(self, batch: Changes) -> None:
        """Store the changes of one commit; see `SessionStore`.

        Raises:
            StorageError: the engine cannot be asked, or refuses.
        """
        changes = defaultdict[Kept, list[Any]](list)
        added = defaultdict[Kept, list[tuple[int, int, DeliveryRow]]](list)
        self._sessions_of(batch, changes)
        messages = {message.row: message for message in batch.messages}
        now = self._clock()
        for delivery in batch.deliveries:
            kept, message = self._rows.get(delivery.session), messages.get(delivery.message)
            if kept is None or message is None or message.payload is None:
                continue  # without a payload the broker drops it, and counts it, when it sends it
            packet = packet_of_row(message, now)
            sent = written(delivery, delivery.packet_id, delivery.is_released)
            head = head_of(message.publisher, delivery.share)
            changes[kept] += ("h", head, "", "a", packet, sent)
            added[kept].append((delivery.row, len(packet), delivery))
        moved = batch.moved_deliveries
        for at in range(0, len(moved), 4):
            _, packet_id, is_released, row = moved[at : at + 4]
            kept = self._rows.get(row)
            if kept is not None:
                entry, _, how = kept.entries[row]
                changes[kept] += ("i", entry, written(how, packet_id, is_released))
                kept.noted.add(entry)
        gone = defaultdict[Kept, list[_Entry]](list)
        for row in batch.gone_deliveries:
            kept = self._rows.get(row)
            if kept is not None:
                gone[kept].append(kept.entries[row])
        for kept, entries in gone.items():
            for at in range(0, len(entries), MOST_GONE):
                part = entries[at : at + MOST_GONE]
                ids = [one[0] for one in part]
                if noted := kept.noted.intersection(ids):
                    changes[kept] += ("I", b" ".join(noted), "")
                changes[kept] += ("d", b" ".join(ids), sum([one[1] for one in part]))
        for kept in added:
            kept.adding = kept.adding or asyncio.get_running_loop().create_future()
        commits = [
            Commit(kept.client_id, kept.owner, batch.number, kept.origin, some)
            for kept, some in changes.items()
        ]
        found = await self._engine.commit(commits) if commits else ()
        for kept, answer in zip(changes, found, strict=True):
            if answer is None:
                self._lost(kept)
            elif self.sessions.get(kept.client_id) is kept:
                for (row, n_bytes, how), new in zip(added.get(kept, ()), answer, strict=True):
                    kept.entries[row] = new, n_bytes, how
                    kept.restored.add(new)
                    kept.noted.add(new)
                    self._rows[row] = kept
                if kept.adding is not None:
                    kept.adding.set_result(None)
                    kept.adding = None
        for row in batch.gone_deliveries:
            kept = self._rows.pop(row, None)
            if kept is not None:
                entry = kept.entries.pop(row)[0]
                kept.noted.discard(entry)
                if kept.fetching is None:  # else it may be among what is being fetched
                    kept.restored.discard(entry)

    def _sessions_of(self, batch: Changes, changes: defaultdict[Kept, list[Any]]) -> None:
        """Add what has changed of sessions but their messages."""
        for session in batch.sessions:
            kept = self.sessions.get(session.client_id)
            if kept is None or kept.row not in {0, session.row}:
                continue
            if not kept.row:
                kept.row = session.row
                self._rows[session.row] = kept
            options = json.dumps((*session[2:6], session.origin.hex()))
            expiry = "" if session.expiry_interval is None else str(session.expiry_interval)
            changes[kept] += ("s", "options", options, "s", "expiry", expiry)
        rows = self._rows
        for row, *granted in batch.subscriptions:
            if row in rows:
                changes[rows[row]] += ("f", granted[0], json.dumps(granted))
        for letter, pairs in (
            ("F", batch.gone_subscriptions),
            ("n", batch.incoming),
            ("N", batch.gone_incoming),
        ):
            for row, what in pairs:
                if row in rows:
                    changes[rows[row]] += (letter, what, "")

    async def close(self) -> None:
        """Fetch nothing more."""
        tasks = [one.fetching for one in self.sessions.values() if one.fetching is not None]
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
