"""Calls of the engine about kept sessions: their state, and what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from penstock.plugins.cluster.engine import ClusterEngine, FencedError, Row, fenced
from penstock.plugins.cluster.mail_entries import Entry
from penstock.plugins.redis.calls import plain, refusal
from penstock.plugins.redis.stream_reader import FROM_START

IF_THERE: Final = b"."
"""Of messages that another client can have: they are refused where this one has no session."""
IF_CONNECTED: Final = b"!"
"""The same, also where this one has no connection."""

MOST_GONE: Final = 1000
"""Entries that one change removes."""
_READ_AT_ONCE: Final = 100
_MOST_EXPIRED: Final = 100
"""Sessions that one call ends."""
_MOST_WORDS: Final = 3000
"""Words of a call that changes sessions, and those of one session."""
_MOST_FETCHES: Final = 100
"""Mailboxes of one call."""
_FENCED: Final = b"PENSTOCK fenced"
_Fetch = tuple[str, str, bytes, "asyncio.Future[Fetched]"]


class Posted(NamedTuple):
    """The answer of the engine about one mailbox.

    Attributes:
        client_id: Client Identifier.
        n_messages: in the mailbox; -1 where the client has no session that it may come back to.
        n_bytes: of them.
        n_dropped: messages that this call has dropped for the limits, or for want of a session.
        n_offline: messages of QoS 0 that it has dropped as the session has no connection.
        is_away: whether the session has no connection.
        owner: the node to be told that there is something, with its epoch; None for nobody.
    """

    client_id: str
    n_messages: int
    n_bytes: int
    n_dropped: int
    n_offline: int
    is_away: bool
    owner: Row | None

    @classmethod
    def read(cls, found: Sequence[Any]) -> Posted:
        """Return an answer of ``post``."""
        client_id, n_messages, n_bytes, n_dropped, n_offline, is_away, owner = found
        row = Row.read(owner.decode()) if owner else None
        is_away = bool(is_away)
        return cls(client_id.decode(), n_messages, n_bytes, n_dropped, n_offline, is_away, row)


class State(NamedTuple):
    """All of a session but its messages.

    Attributes:
        values: those of its hash.
        filters: its subscriptions.
        sent: entries with Packet Identifiers.
        incoming: Packet Identifiers of QoS 2 messages from the client.
        entries: those that are there of `sent`, in any order.
    """

    values: dict[bytes, bytes]
    filters: dict[bytes, bytes]
    sent: dict[bytes, bytes]
    incoming: list[int]
    entries: list[Entry]


class Fetched(NamedTuple):
    """Some entries of a mailbox.

    Attributes:
        now_ms: the engine's time, in milliseconds.
        has_more: whether there are more behind them.
        entries: in their order.
    """

    now_ms: int
    has_more: bool
    entries: list[Entry]


class Commit(NamedTuple):
    """Changes of a session that this node has.

    Attributes:
        client_id: Client Identifier.
        owner: the claim by which this node has it.
        number: of the commit, by which it is told from others of the owner.
        origin: of the session; one of another origin ends.
        changes: letters with two words each; see ``library.lua``.
    """

    client_id: str
    owner: Row
    number: int
    origin: str
    changes: list[Any]


class MailEngine:
    """Makes these calls for one node.

    Args:
        engine: of the node.
        limits: returns what each mailbox may have: messages, bytes, and what happens beyond, as
            `limits.queue_full` has it.
    """

    def __init__(self, engine: ClusterEngine, limits: Callable[[], tuple[int, int, str]]) -> None:
        self.engine = engine
        self.limits = limits
        self._fetches: dict[tuple[str, int, int], list[_Fetch]] = {}

    def post(self, bucket: str, words: Sequence[Any]) -> asyncio.Future[Any]:
        """Put messages into mailboxes, once; it waits for a server however long that takes.

        Args:
            bucket: the common beginning of the keys of all of them.
            words: for each run of messages its head, its packets, their QoS, what tells its
                repeats, the number of clients, and these. Without packets it is asked how the
                mailboxes are. In place of what tells its repeats may stand `IF_THERE` or
                `IF_CONNECTED`.

        Returns:
            A future of numbers of runs that were refused, with commas, the first being 1; and of
            what `Posted.read` takes, for each mailbox.
        """
        engine = self.engine
        number = engine.next_number(f"post {bucket}")
        words = (engine.node, engine.epoch, number, *self.limits(), *words)
        return engine.call("post", bucket, *words, is_stored=True, is_kept=True)

    def unsee(self, bucket: str, deduplication_id: bytes) -> asyncio.Future[Any]:
        """Forget a message that its publisher cannot send again."""
        # Were it the node's name that follows the key, this would be a later post: see `Pipeline`.
        words = deduplication_id, self.engine.node, self.engine.epoch
        return self.engine.call("unsee", bucket, *words, is_stored=True)

    async def load(self, client_id: str, owner: Row) -> State:
        """Return a session that this node has.

        Raises:
            FencedError: it has it no more.
            StorageError: the engine cannot be asked, or refuses.
        """
        bucket = self.engine.bucket(client_id)
        found = await fenced(self.engine.call("load", bucket, client_id, str(owner)))
        values, filters, sent = (dict(zip(one[::2], one[1::2], strict=True)) for one in found[:3])
        return State(values, filters, sent, [int(one) for one in found[3]], _entries(found[4]))

    async def fetch(
        self, client_id: str, owner: Row, after: bytes, most: int, most_bytes: int
    ) -> Fetched:
        """Return entries behind one: some, and after the first not more than so many bytes.

        What is asked of a bucket in one turn of the loop is one call, with so many bytes of all.

        Raises:
            FencedError: this node has the session no more.
            StorageError: the engine cannot be asked, or refuses.
        """
        loop = asyncio.get_running_loop()
        asked = self.engine.bucket(client_id), most, most_bytes
        if asked not in self._fetches:
            self._fetches[asked] = []
            loop.call_soon(self._fetch_all, *asked)
        future: asyncio.Future[Fetched] = loop.create_future()
        self._fetches[asked].append((client_id, str(owner), after, future))
        return await future

    def _fetch_all(self, bucket: str, most: int, most_bytes: int) -> None:
        asked = self._fetches.pop((bucket, most, most_bytes))
        for at in range(0, len(asked), _MOST_FETCHES):
            some = asked[at : at + _MOST_FETCHES]
            words = [word for *words, _ in some for word in words]
            futures = [one[3] for one in some]
            call = self.engine.call("fetch", bucket, most, most_bytes, *words)
            call.add_done_callback(partial(_fetched, futures))

    async def commit(self, commits: Sequence[Commit]) -> list[list[bytes] | None]:
        """Change sessions, once; return the entries that each has got; None if another has it.

        Raises:
            StorageError: the engine cannot be asked, or refuses.
        """
        calls: dict[str, list[list[Any]]] = {}  # the words of each call, by bucket
        places = []
        for client_id, owner, number, origin, changes in commits:
            bucket = self.engine.bucket(client_id)
            of_bucket = calls.setdefault(bucket, [[]])
            if len(of_bucket[-1]) + len(changes) > _MOST_WORDS and of_bucket[-1]:
                of_bucket.append([])
            of_bucket[-1] += (client_id, str(owner), number, origin, len(changes), *changes)
            places.append((bucket, len(of_bucket) - 1))
        waiting = {
            (bucket, at): self.engine.call("commit", bucket, *words, is_stored=True)
            for bucket, of_bucket in calls.items()
            for at, words in enumerate(of_bucket)
        }
        found = await asyncio.gather(*map(plain, waiting.values()))
        answers = dict(zip(waiting, map(iter, found), strict=True))
        each = (next(answers[place]) for place in places)
        return [None if one == _FENCED else one.split() for one in each]

    def erase(
        self, client_id: str, owner: Row, identifiers: Sequence[bytes], n_bytes: int
    ) -> asyncio.Future[Any]:
        """Remove messages of a session that this node has, which have so many bytes.

        It waits for a server however long that takes, as `ClusterEngine.delete` does.
        """
        words = client_id, str(owner), b" ".join(identifiers), n_bytes
        bucket = self.engine.bucket(client_id)
        return self.engine.call("erase", bucket, *words, is_stored=True, is_kept=True)

    def finish(
        self, client_id: str, owner: Row, origin: str, read: bytes = FROM_START
    ) -> asyncio.Future[Any]:
        """End a session that this node has; it waits for a server however long that takes.

        Args:
            client_id: Client Identifier.
            owner: the claim by which this node has it.
            origin: of the session.
            read: the newest message that the broker has, which counts it and those before it.
        """
        words = (client_id, str(owner), origin, read)
        bucket = self.engine.bucket(client_id)
        return self.engine.call("finish", bucket, *words, is_stored=True, is_kept=True)

    async def expire(self, bucket: str) -> list[tuple[str, str]]:
        """End sessions whose time has come; return origin and client of those that have ended."""
        found = await plain(self.engine.call("expire", bucket, _MOST_EXPIRED, is_stored=True))
        pairs = (one.decode().partition(" ") for one in found)
        return [(origin, client_id) for origin, _, client_id in pairs]

    async def left_by(self, bucket: str, origin: str, client_id: str) -> list[Entry]:
        """Return what waited for a session that has ended, if any is of shared subscriptions."""
        found: list[Entry] = []
        key, after = f":e:{origin}:{client_id}", b"-"
        while some := await plain(
            self.engine.command(bucket, "XRANGE", key, after, "+", "COUNT", _READ_AT_ONCE)
        ):
            found += _entries(some)
            after = b"(" + some[-1][0]
        return found

    async def forget(self, bucket: str, ended: Sequence[tuple[str, str]]) -> int:
        """Forget sessions that have ended, once all nodes know it.

        Returns:
            How many messages had waited for them.
        """
        words = (f"{origin} {client_id}" for origin, client_id in ended)
        return int(await plain(self.engine.call("forget", bucket, *words)))


def _fetched(futures: Sequence[asyncio.Future[Fetched]], call: asyncio.Future[Any]) -> None:
    """Tell who has asked what a call has fetched."""
    error = asyncio.CancelledError() if call.cancelled() else call.exception()
    if error is not None:
        _fail(futures, refusal(error) if isinstance(error, ResponseError) else error)
        return
    now_ms, *answers = call.result()
    for future, answer in zip(futures, answers, strict=True):
        if answer == _FENCED:
            _fail([future], FencedError("another node has the session"))
        elif not future.done():
            has_more, entries = answer
            future.set_result(Fetched(int(now_ms), bool(has_more), _entries(entries)))


def _fail(futures: Sequence[asyncio.Future[Fetched]], error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def _entries(found: Sequence[Any]) -> list[Entry]:
    return [(identifier, head, packet) for identifier, (head, packet) in found]
