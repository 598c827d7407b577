"""The route target of all kept sessions: what they are to get goes into their mailboxes.

Theory of operation. What the sink accepts in one turn of the loop goes to each bucket, which some
mailboxes share, by one call of the engine. While a call of a bucket is on its way, the next one
collects. A publisher of QoS 1 or 2 is acknowledged when all buckets have answered. The answers say
how full the mailboxes are, and which nodes are to be told that something has come.

Publishers are held back while too much is on its way to the engine; and, with `queue_full: reject`,
while a mailbox whose client is connected is full, though not for longer than
`queue_full_seconds`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from penstock.broker.counters import count
from penstock.broker.extensions import Receipt, SinkRun
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.cluster.bounded_sink import MESSAGE_BYTES, BoundedSink, charge
from penstock.plugins.cluster.engine import outcome
from penstock.plugins.cluster.frames import by_topic, packet, packets_of
from penstock.plugins.cluster.mail_engine import IF_CONNECTED, IF_THERE, MailEngine, Posted
from penstock.plugins.cluster.mail_entries import head_of
from penstock.plugins.cluster.mail_routes import Mailbox, MailRoutes
from penstock.plugins.cluster.node_sink import Give, Shared

MOST_POST_BYTES: Final = 1024 * 1024
"""Bytes of one call, and one message of any size."""
MOST_POST_COPIES: Final = 1000
"""Messages in mailboxes that one call makes, and those of one more: the engine does nothing else
meanwhile."""
LOOK_AGAIN_SECONDS: Final = 0.25
"""The interval at which full mailboxes are looked at while publishers are held back."""
KNOWN_SECONDS: Final = 7 * 86_400.0
"""The engine tells a QoS 2 message from its repeats for so long (``library.lua``); one whose
publisher has left without PUBREL is forgotten then."""
MOST_KNOWN: Final = 100_000
"""QoS 2 messages of which this node knows the buckets, some 30 MB: a client that leaves without
PUBREL, and comes by another name each time, leaves some for a week. Of others, all are asked."""
_HALF: Final = 0.5
_EXACTLY_ONCE: Final = 2

Settle = Callable[[int], None]
Patience = Callable[[], float | None]
_Part = tuple[bytes, int, bytes, int, bytes, Mapping[str, Sequence[str]]]
"""Head, how many packets, these, their QoS, what tells repeats, and who gets them, by bucket."""
Tell = Callable[[Posted], None]
"""Is given each mailbox whose owner is to be told."""


class _Letter:
    """Messages that go to some buckets.

    Attributes:
        settle: takes the outcome; None where nobody waits for it.
        n_messages: how many, 0 for a look at mailboxes.
        n_bytes: of those that are on their way.
        n_left: calls that were not answered.
        reason_code: the worst outcome.
        shared: the same messages, if another client can have them.
    """

    __slots__ = ("n_bytes", "n_left", "n_messages", "reason_code", "settle", "shared")

    def __init__(self, settle: Settle | None, n_messages: int = 0, n_bytes: int = 0) -> None:
        self.settle = settle
        self.shared: Shared | None = None
        self.n_messages = n_messages
        self.n_bytes = n_bytes
        self.n_left = 1  # until it is addressed
        self.reason_code = 0


class _Bucket:
    """What collects for some mailboxes."""

    __slots__ = ("letters", "n_bytes", "n_copies", "n_posts", "words")

    def __init__(self) -> None:
        self.n_posts = 0
        self.words: list[Any] = []
        self.letters: list[_Letter] = []
        self.n_bytes = self.n_copies = 0

    def begin(self) -> tuple[list[Any], list[_Letter]]:
        """Begin anew; return what has collected."""
        taken = self.words, self.letters
        self.words, self.letters = [], []
        self.n_bytes = self.n_copies = 0
        return taken


class MailSink(BoundedSink):
    """Puts messages into mailboxes.

    Args:
        engine: calls of the engine.
        tell: tells owners.
        give: takes messages of shared subscriptions whose member has gone.
        clock: returns monotonic seconds.
        patience: returns seconds for which publishers are held back for a mailbox at most; None
            without limit.

    Attributes:
        name: unique among the broker's sinks.
        counts: the counts for the ledger: each message once, however many mailboxes get it.
        routes: whose mailboxes get what; set once it is made.
        lost: messages that mailboxes had no room for, or that had no session any more, by reason.
        prefixes: of the deduplication identifiers of sessions that were at another node, which may
            have put their messages into mailboxes; and since when they are here.
        n_posts: calls that were answered.
    """

    name = "cluster.sessions"
    most_bytes = 16 * 1024 * 1024
    routes: MailRoutes

    def __init__(
        self,
        engine: MailEngine,
        tell: Tell,
        give: Give,
        clock: Callable[[], float],
        patience: Patience,
    ) -> None:
        super().__init__()
        self.lost: dict[str, int] = {}
        self.n_posts = 0
        self._engine = engine
        self._tell = tell
        self._give = give
        self._clock = clock
        self._patience = patience
        self._full: dict[str, float] = {}  # clients
        self._seen: dict[bytes, tuple[float, Sequence[str]]] = {}  # since when, and its buckets;
        # none where any may have it
        self._unknown_until = -math.inf  # some that the engine has are missing there
        self.prefixes: Mapping[bytes, float] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._waiting: dict[str, None] = {}
        self._is_scheduled = False
        self._is_closed = self._is_asking = False
        self._look: asyncio.TimerHandle | None = None

    # -- room --------------------------------------------------------------------------------------

    def reserve(self, message: Message) -> str:
        """Hold room for a message; see `MessageSink`."""
        if self._full and message.qos:
            self._look_soon()
            patience = self._patience()
            since = -math.inf if patience is None else self._clock() - patience
            for clients in self.routes.of(message.topic).values():
                if any(self._full.get(client_id, since) > since for client_id in clients):
                    self._has_refused = True
                    return "queue_full"
        return super().reserve(message)

    def reserve_run(self, n_messages: int, n_bytes: int) -> bool:
        """Hold room for a run, if no mailbox is full; see `MessageSink`."""
        if self._full:
            self._look_soon()  # maybe nobody publishes to it any more
            return False
        return super().reserve_run(n_messages, n_bytes)

    def _note(self, box: Mailbox, posted: Posted) -> None:
        """Take note of how full a mailbox is."""
        box.is_away = posted.is_away
        most_messages, most_bytes, mode = self._engine.limits()
        part = max(posted.n_messages / most_messages, posted.n_bytes / most_bytes)
        if part >= 1 and mode == "reject" and not box.is_away:
            self._full.setdefault(box.client_id, self._clock())
        elif part <= _HALF or box.is_away:
            self._full.pop(box.client_id, None)

    def _look_soon(self) -> None:
        if self._full and self._look is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        """Ask how full the full mailboxes are, unless that is asked: the engine may be away."""
        self._look = None
        if not self._is_asking:
            self._is_asking = True
            letter = _Letter(self._asked)
            for client_id in [*self._full]:
                box = self.routes.boxes.get(client_id)
                if box is not None:
                    letter.n_left += 1
                    self._add(box.bucket, letter, (b"", b"", 0, b""), [client_id], 0)
                else:
                    del self._full[client_id]
            self._done(letter, 0, "")
        self._look_soon()
        self._free(0)

    def _asked(self, _reason_code: int) -> None:
        self._is_asking = False

    # -- messages ----------------------------------------------------------------------------------

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message for which room is held; see `MessageSink`."""
        n_bytes = charge(message)
        settle = None if receipt is None else receipt.settle
        try:
            version, *parts = packet(message, self._clock())
        except OSError:
            letter = self._letter(settle, 1, n_bytes)
            self._done(letter, ReasonCode.UNSPECIFIED_ERROR, "payload_lost")
            return
        token, routes = b"", self.routes.of(message.topic)
        if receipt is not None and message.qos == _EXACTLY_ONCE and receipt.deduplication_id:
            token = (b"?" if receipt.is_repeat else b"+") + receipt.deduplication_id
            self._note_seen(token[1:], () if receipt.is_repeat else [*routes])
        letter = self._letter(settle, 1, n_bytes)
        head = head_of(message.publisher, "", version)
        self._put(letter, [(head, 1, b"".join(parts), message.qos, token, routes)])

    def accept_run(self, run: SinkRun, receipt: Receipt | None) -> None:
        """Take messages that came together; see `MessageSink`."""
        n_bytes = len(run.packets) + run.n_messages * MESSAGE_BYTES
        if not run.qos:
            reason = self.lacks()
            if reason:
                self.counts.matched += run.n_messages
                count(self.counts.dropped, reason, run.n_messages)
                return
            self.bytes_on_way += n_bytes
        letter = self._letter(None if receipt is None else receipt.settle, run.n_messages, n_bytes)
        head, of = head_of(run.publisher, "", run.version), self.routes.of
        parts = [
            (head, n_messages, packets, run.qos, b"", of(topic.decode()))
            for topic, n_messages, packets in by_topic(run.packets)
        ]
        self._put(letter, parts)

    def accept_shared(self, box: Mailbox, shared: Shared) -> None:
        """Take messages of a shared subscription for one mailbox.

        Those that come when its session has ended, or when its client has gone since this node
        heard of it last, are given back.
        """
        n_bytes = len(shared.packets) + shared.n_messages * MESSAGE_BYTES
        self.bytes_on_way += n_bytes
        head = head_of("", shared.lane.share, shared.lane.version)
        letter = self._letter(shared.done, shared.n_messages, n_bytes)
        letter.shared = shared
        token = IF_THERE if box.is_away else IF_CONNECTED
        routes = {box.bucket: [box.client_id]}
        self._put(letter, [(head, shared.n_messages, shared.packets, shared.qos, token, routes)])

    def _letter(self, settle: Settle | None, n_messages: int, n_bytes: int) -> _Letter:
        self.counts.matched += n_messages
        self.counts.queued += n_messages
        return _Letter(settle, n_messages, n_bytes)

    def _put(self, letter: _Letter, parts: Sequence[_Part]) -> None:
        """Send messages to the buckets of their mailboxes."""
        if self._is_closed:
            self._done(letter, ReasonCode.QUOTA_EXCEEDED, "not_stored")
            return
        for head, n_messages, packets, qos, token, routes in parts:
            for bucket, clients in routes.items():
                if token or n_messages * len(clients) <= MOST_POST_COPIES:
                    slices = [(n_messages, packets, clients)]
                else:
                    slices = _slices(packets, clients)
                letter.n_left += len(slices)
                for n_some, some, names in slices:
                    self._add(bucket, letter, (head, some, qos, token), names, n_some)
        self._done(letter, 0, "")  # without routes the sessions have just ended

    def _add(
        self,
        name: str,
        letter: _Letter,
        words: Sequence[Any],
        clients: Sequence[str],
        n_messages: int,
    ) -> None:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket()
        bucket.words += (*words, len(clients), *clients)
        bucket.letters.append(letter)
        bucket.n_bytes += len(words[1])
        bucket.n_copies += n_messages * len(clients)
        if bucket.n_bytes > MOST_POST_BYTES or bucket.n_copies > MOST_POST_COPIES:
            self._post(name, bucket)
        elif not bucket.n_posts:
            self._waiting[name] = None
            if not self._is_scheduled:
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, {}
        for name in waiting:
            bucket = self._buckets.get(name)
            if bucket is not None and not bucket.n_posts:
                self._post(name, bucket)

    def _post(self, name: str, bucket: _Bucket) -> None:
        words, letters = bucket.begin()
        if not letters:
            return
        bucket.n_posts += 1
        self._engine.post(name, words).add_done_callback(partial(self._posted, name, letters))

    def _posted(self, name: str, letters: Sequence[_Letter], call: asyncio.Future[Any]) -> None:
        bucket = self._buckets[name]
        bucket.n_posts -= 1
        error = None if call.cancelled() else call.exception()
        if call.cancelled() or error is not None:
            for letter in letters:
                self._done(letter, outcome(error), "not_stored")
        else:
            self.n_posts += 1
            refused, *rows = call.result()
            for one in rows:
                self._take(Posted.read(one))
            gone = {int(number) for number in refused.split(b",")} if refused else ()
            for number, letter in enumerate(letters, 1):
                if number in gone:
                    self._give_back(letter)
                else:
                    self._done(letter, 0, "")
        if not bucket.n_posts:
            if bucket.letters:
                self._post(name, bucket)
            else:
                del self._buckets[name]

    def _give_back(self, letter: _Letter) -> None:
        """Have messages of a shared subscription sent to another member."""
        assert letter.shared is not None  # noqa: S101 (others are not refused)
        self._give(letter.shared)
        letter.settle = None
        self._done(letter, ReasonCode.QUOTA_EXCEEDED, "member_left")

    def _take(self, posted: Posted) -> None:
        if posted.n_dropped:
            reason = "no_session" if posted.n_messages < 0 else "queue_full"
            count(self.lost, reason, posted.n_dropped)
        if posted.n_offline:
            count(self.lost, "offline", posted.n_offline)
        box = self.routes.boxes.get(posted.client_id)
        if box is not None:
            self._note(box, posted)
        if posted.owner is not None:
            self._tell(posted)

    def _done(self, letter: _Letter, reason_code: int, why: str) -> None:
        """Take the answer of one bucket; the worst one counts."""
        letter.n_left -= 1
        letter.reason_code = max(letter.reason_code, reason_code)
        if letter.n_left:
            return
        self.counts.queued -= letter.n_messages
        if letter.reason_code and letter.n_messages:
            count(self.counts.dropped, why or "not_stored", letter.n_messages)
        else:
            self.counts.stored += letter.n_messages
        if letter.settle is not None:
            letter.settle(letter.reason_code)
        self._free(letter.n_bytes)

    def _note_seen(self, deduplication_id: bytes, buckets: Sequence[str]) -> None:
        now, seen = self._clock(), self._seen
        seen.pop(deduplication_id, None)
        seen[deduplication_id] = now, buckets
        while True:
            oldest, (since, _) = next(iter(seen.items()))
            if now - since <= KNOWN_SECONDS:
                if len(seen) <= MOST_KNOWN:
                    return
                self._unknown_until = since + KNOWN_SECONDS
            del seen[oldest]

    def forget(self, deduplication_id: bytes, done: Callable[[bool], None]) -> None:
        """Forget a message that its publisher cannot send again; see `MessageSink`."""
        seen = self._seen.pop(deduplication_id, None)
        here_since = self.prefixes.get(deduplication_id[:-2])
        may_be_there = (
            seen is not None or here_since is not None or self._clock() < self._unknown_until
        )
        buckets: Sequence[str] = ()
        if seen is not None and seen[0] >= (here_since or 0.0):
            buckets = seen[1]  # else these are of an earlier message with the identifier
        if not buckets and may_be_there:
            buckets = list({box.bucket for box in self.routes.boxes.values()})
        if not buckets:
            done(True)
            return
        calls = [self._engine.unsee(bucket, deduplication_id) for bucket in buckets]
        waiting = asyncio.gather(*calls, return_exceptions=True)
        waiting.add_done_callback(partial(self._forgot, deduplication_id, buckets, done))

    def _forgot(
        self,
        deduplication_id: bytes,
        buckets: Sequence[str],
        done: Callable[[bool], None],
        found: asyncio.Future[list[Any]],
    ) -> None:
        has_failed = any(isinstance(one, BaseException) for one in found.result())
        if has_failed:
            self._note_seen(deduplication_id, buckets)
        done(not has_failed)

    # -- the end -----------------------------------------------------------------------------------

    def drop(self) -> None:
        """Drop what waits: this node's next epoch is not to send what came in an earlier one."""
        for bucket in list(self._buckets.values()):
            for letter in bucket.begin()[1]:
                self._done(letter, ReasonCode.SERVER_SHUTTING_DOWN, "not_stored")

    def close(self) -> None:
        """Look at mailboxes no more."""
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()


def _slices(packets: bytes, clients: Sequence[str]) -> list[tuple[int, bytes, Sequence[str]]]:
    """Return so many packets, these, and clients, for calls of `MOST_POST_COPIES` at most."""
    found: list[tuple[int, bytes, Sequence[str]]] = []
    for at in range(0, len(clients), MOST_POST_COPIES):
        names = clients[at : at + MOST_POST_COPIES]
        n_most, left = MOST_POST_COPIES // len(names), packets_of(packets)
        while some := [*islice(left, n_most)]:
            found.append((len(some), b"".join(some), names))
    return found
