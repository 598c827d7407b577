"""The engine of a cluster: what its nodes have in common stands on Redis or Valkey servers.

Theory of operation. Each method is one call of a function of ``library.lua``, or one command that
reads. A node has an *epoch* while it is a member. Calls that change something name it, and have a
number where they must not be carried out twice: they are repeated when a connection is lost. A node
whose epoch has ended is refused (`FencedError`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from logging import Logger
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from zlib import crc32

from redis.exceptions import ResponseError

from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.redis.calls import FunctionCalls, plain, refusal
from penstock.plugins.redis.checks import check_eviction, fields_of
from penstock.plugins.redis.errors import StorageError
from penstock.plugins.redis.library import Library
from penstock.plugins.redis.server import RedisServer
from penstock.plugins.redis.stream_reader import StreamReader
from penstock.plugins.web.nodes import Mailbox

if TYPE_CHECKING:
    from penstock.plugins.cluster.routes import Op

LIBRARY: Final = Library("penstock_cluster_", 1, __package__)
"""The functions of the plugin."""
ALIVE_SECONDS: Final = 3.0
"""A member whose beats have not come for so long may be evicted."""
SILENT_SECONDS: Final = 1.5
"""Another server may have taken the place of one that does not answer for so long: it is asked for,
long before the connection is given up."""
N_BUCKETS: Final = 64
"""Client Identifiers are spread over so many keys, and so over the servers of a Redis cluster."""
N_ALONE: Final = 8
"""The same where one server has all: mailboxes of a bucket share calls, and large messages."""
MOST_NOTES: Final = 10_000
"""Notes to a member that are kept; it reads them at once."""
_SCAN_COUNT: Final = 1000
_SWEPT_AT_ONCE: Final = 32


class FencedError(StorageError):
    """This node's epoch has ended: the others have gone on without it."""


class Row(NamedTuple):
    """Who owns a client.

    Attributes:
        node: its name.
        epoch: of the node.
        number: of the claim that has made it the owner.
    """

    node: str
    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.node} {self.epoch} {self.number}"

    @classmethod
    def read(cls, text: str) -> Row:
        """Return what a text stands for."""
        node, epoch, number = text.split(" ")
        return cls(node, int(epoch), int(number))


class Absence(NamedTuple):
    """Since when a kept session has no connection.

    Attributes:
        origin: of the session; None where there is none.
        since: the time in milliseconds by the engine's clock; None while it has a connection.
        expiry: its Session Expiry Interval in seconds, b"" for none.
    """

    origin: bytes | None
    since: bytes | None
    expiry: bytes | None

    def will_delay(self, seconds: float) -> float:
        """Return after how long a will is due that has a delay: not after the session's end."""
        return min(seconds, float(self.expiry or seconds))

    def is_over(self, now: Absence) -> bool:
        """Return whether the client has come back to this session; `now` is what came later."""
        is_same = self.origin is not None and self.origin == now.origin
        return is_same and (self.since is None or self.since != now.since)


class Joined(NamedTuple):
    """The answer to a node that wants to join.

    Attributes:
        state: ``joined``, or ``alive`` or ``dead`` where there is a member of its name.
        epoch: of the node, or of that member.
        info: what that member tells of itself, as JSON; "" where it joins just now. Of a node that
            has joined, what tells the engine's data from that of another time.
    """

    state: Literal["joined", "alive", "dead"]
    epoch: int
    info: str


class Beat(NamedTuple):
    """The answer to a beat.

    Attributes:
        last_change: identifier of the newest change.
        number: of the node's newest change of routes.
        silent: members whose beats have stopped, with their epochs.
        time: the engine's clock, in seconds.
    """

    last_change: bytes
    number: int
    silent: Sequence[tuple[str, int]]
    time: float


class ClusterEngine:
    """Calls the functions for one node.

    Args:
        server: where the servers are.
        cluster: its name.
        node: name of this node.
        logger: gets faults.

    Attributes:
        cluster: its name.
        node: name of this node.
        epoch: of this node; 0 while it is no member.
        incarnation: tells the engine's data from that of another time.
        is_founder: this node was the first to join, since the engine has any data.
        calls: to the servers.
        buckets: the common beginnings of the keys of clients, some of which share one each.
    """

    def __init__(self, server: RedisServer, cluster: str, node: str, logger: Logger) -> None:
        self.cluster = cluster
        self.node = node
        self.epoch = 0
        self.incarnation = ""
        self.is_founder = False
        patience = server.patience._replace(slowdown_detection_time=SILENT_SECONDS)
        self.calls = FunctionCalls(replace(server, patience=patience), LIBRARY, logger)
        self._root = f"{server.prefix}:{{cluster:{cluster}"
        self.base = f"{self._root}}}"
        n_buckets = N_BUCKETS if server.cluster else N_ALONE
        self.buckets = [f"{self._root}:c:{bucket}}}" for bucket in range(n_buckets)]
        self._numbers: dict[str, int] = {}

    def node_key(self, node: str, epoch: int) -> str:
        """Return the common beginning of the keys of a node's epoch."""
        return f"{self._root}:{node}}}:{epoch}"

    @property
    def _own_key(self) -> str:
        return self.node_key(self.node, self.epoch)

    def next_number(self, name: str) -> int:
        """Return the number of this epoch's next call of a kind."""
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        return number

    async def open(self) -> None:
        """Connect to the servers.

        Raises:
            EngineStartError: they cannot be used.
        """
        await self.calls.open()

    async def look(self) -> None:
        """See that what is stored from now on is as safe as it is to be.

        Raises:
            StorageError: the engine cannot be asked, or has not as many replicas as it should.
        """
        await plain(self.call("done", self.base, self.node, 0, is_stored=True))

    async def close(self) -> None:
        """Wait for answers, and disconnect; may be called again."""
        await self.calls.close()

    @property
    def failure(self) -> str | None:
        """Why a server cannot be reached; None where all can."""
        return self.calls.routes.failure

    def reader(self, key: str) -> StreamReader:
        """Return a reader of a stream."""
        return StreamReader(self.calls, key)

    # -- members -----------------------------------------------------------------------------------

    async def join(self, token: str, least_epoch: int = 1) -> Joined:
        """Become a member, whom others do not see yet.

        Args:
            token: tells this attempt, and its repeats, from those of others.
            least_epoch: beyond all that are known, as the engine may have lost its data.

        Raises:
            StorageError: the engine cannot be asked, or refuses.
        """
        call = self.call(
            "join", self.base, self.node, token, _milliseconds(), least_epoch, is_stored=True
        )
        state, epoch, *info = await plain(call)
        joined = Joined(state.decode(), int(epoch), info[0].decode() if info else "")
        if joined.state == "joined":
            self.epoch = joined.epoch
            self.incarnation = joined.info
            self.is_founder = joined.info == token
            self._numbers.clear()
            await plain(self.call("open", self._own_key, is_stored=True))
        return joined

    async def announce(self, info: str) -> bytes:
        """Show this member to the others; return the identifier of the change."""
        call = self.call("announce", self.base, self.node, self.epoch, info, is_stored=True)
        identifier: bytes = await fenced(call)
        return identifier

    async def beat(self) -> Beat:
        """Say that this member is there.

        Raises:
            FencedError: it is no member any more.
            StorageError: the engine cannot be asked, or refuses, or is a master without the
                replicas that it should have: it may be one that others have left.
        """
        call = self.call("beat", self.base, self.node, self.epoch, _milliseconds(), is_stored=True)
        last_change, number, found, now_ms = await fenced(call)
        names = (one.decode() for one in found[::2])
        silent = list(zip(names, map(int, found[1::2]), strict=True))
        return Beat(last_change, int(number), silent, now_ms / 1000)

    async def leave(self, heir: str = "") -> None:
        """End the membership, and what is kept of the epoch, unless a node is to have it."""
        epoch, self.epoch = self.epoch, 0
        await plain(self.call("leave", self.base, self.node, epoch, heir))
        if not heir:
            await self.drop(self.node, epoch)

    async def evict(self, node: str, epoch: int) -> bool:
        """End the membership of a node whose beats have stopped; return whether this call did.

        This node has then to do what the other cannot: see `duties`.
        """
        call = self.call("evict", self.base, node, epoch, self.node, is_stored=True)
        return bool(await plain(call))

    async def duties(self) -> list[tuple[str, int]]:
        """Return ended members, with their epochs, for whom this node has something to do."""
        all_duties = await self.all_duties()
        return [(node, epoch) for node, epoch, by in all_duties if by == self.node]

    async def all_duties(self) -> list[tuple[str, int, str]]:
        """Return ended members, with their epochs, and for each who has something to do."""
        found = _pairs(await plain(self.command(self.base, "HGETALL", ":duties")))
        named = ((*one.split(" "), by) for one, by in found.items())
        return [(node, int(epoch), by) for node, epoch, by in named]

    async def done(self, node: str, epoch: int) -> None:
        """Note that what was to do for an ended member is done."""
        await plain(self.call("done", self.base, node, epoch))

    async def seal(self, node: str, epoch: int) -> None:
        """Let nothing more into the inbox of an ended member, so that it can be read."""
        await plain(self.call("seal", self.node_key(node, epoch)))

    async def drop(self, node: str, epoch: int) -> None:
        """Remove the inbox and the wills of an ended member."""
        await plain(self.call("drop", self.node_key(node, epoch)))

    async def fence(self, node: str, epoch: int) -> None:
        """Refuse what an ended member still puts into the own inbox."""
        await plain(self.call("fence", self._own_key, node, epoch))

    async def has_forgotten(self) -> bool:
        """Return whether the engine has lost its data, all of it or back to an earlier time."""
        call = self.command(self.base, "HMGET", ":m", "epoch", "incarnation")
        newest, incarnation = await plain(call)
        return incarnation != self.incarnation.encode() or int(newest) < self.epoch

    async def is_member(self, node: str, epoch: int) -> bool:
        """Return whether an epoch of a node has not ended."""
        found = await plain(self.command(self.base, "HGET", ":epochs", node))
        return found is not None and int(found) == epoch

    async def is_over(self, node: str, epoch: int) -> bool:
        """Return whether an epoch of a node has ended, and all is done that is to be done then."""
        if await self.is_member(node, epoch):
            return False
        return (node, epoch) not in [one[:2] for one in await self.all_duties()]

    async def has_inbox(self) -> bool:
        """Return whether this member has an inbox; one server of several may have lost its data."""
        return bool(await plain(self.command(self._own_key, "EXISTS", ":s")))

    async def is_alive(self, node: str) -> bool:
        """Return whether a node beats."""
        return bool(await plain(self.command(self.base, "EXISTS", f":alive:{node}")))

    async def sizes_of(self, node: str, epoch: int) -> tuple[int, int]:
        """Return how many routes a member has, and the bytes in its inbox."""
        n_routes = await plain(self.command(self.base, "HLEN", f":routes:{node}"))
        key = self.node_key(node, epoch)
        n_bytes = await plain(self.command(key, "HGET", ":s", "bytes"))
        return n_routes, int(n_bytes or 0)

    async def members(self) -> dict[str, tuple[int, str]]:
        """Return the epoch of each member, and what it tells of itself, as JSON."""
        epochs = _pairs(await plain(self.command(self.base, "HGETALL", ":epochs")))
        infos = _pairs(await plain(self.command(self.base, "HGETALL", ":nodes")))
        return {node: (int(epoch), infos.get(node, "")) for node, epoch in epochs.items()}

    async def tell_figures(self, figures: str) -> dict[str, str]:
        """Set what this member tells of itself from time to time; return that of all by node.

        Raises:
            StorageError: the engine cannot be asked, or refuses.
        """
        call = self.command(self.base, "HSET", ":figures", self.node, figures)
        _, found = await asyncio.gather(plain(call), self.figures())
        return found

    async def eviction(self) -> str | None:
        """Say why a server may delete what it has; None where it does not.

        Raises:
            StorageError: the engine cannot be asked, or refuses.
        """
        info = await plain(self.calls.routes.call(self.base, "INFO", "memory"))
        return check_eviction(str(self.calls.server), fields_of(info))

    async def figures(self) -> dict[str, str]:
        """Return what nodes have told of themselves last, also of some that have left."""
        return _pairs(await plain(self.command(self.base, "HGETALL", ":figures")))

    # -- changes -----------------------------------------------------------------------------------

    def change(self, ops: Sequence[Op], number: int) -> asyncio.Future[Any]:
        """Change this member's routes.

        Args:
            ops: topic filters, each with its number of members; 0 removes it. And sessions, see
                `penstock.plugins.cluster.mail_routes`.
            number: of the change; that of the next one is higher.
        """
        words = [word for op in ops for word in op]
        return self.call("change", self.base, self.node, self.epoch, number, *words, is_stored=True)

    def retain(self, topic: str, data: bytes) -> asyncio.Future[Any]:
        """Set what is retained in a topic; b"" clears it. The future is done once that is safe.

        It waits for a server however long that takes.
        """
        words = (self.node, self.epoch, self.next_number("retained"), topic, data)
        name = "retain" if data else "clear"
        return self.call(name, self.base, *words, is_stored=True, is_kept=True)

    async def last_change(self) -> tuple[bytes, dict[str, int]]:
        """Return the identifier of the newest change, and each member's number of its newest one.

        The state that is read after that has these changes, and maybe later ones.
        """
        found = _pairs(await plain(self.command(self.base, "HGETALL", ":m")))
        numbers = {name[2:]: int(n) for name, n in found.items() if name.startswith("c ")}
        return found.get("last", "0-0").encode(), numbers

    async def routes_of(self, node: str) -> AsyncIterator[dict[str, int]]:
        """Yield the topic filters of a member, some at a time."""
        async for found in self._scan(self.base, f":routes:{node}"):
            yield {name.decode(): int(n) for name, n in found}

    async def sessions(self) -> AsyncIterator[list[tuple[str, str]]]:
        """Yield the subscriptions of kept sessions, some at a time; see `mail_routes`."""
        async for found in self._scan(self.base, ":sessions"):
            yield [(name.decode(), origin.decode()) for name, origin in found]

    async def retained(self) -> AsyncIterator[list[tuple[str, bytes]]]:
        """Yield all retained messages by topic, some at a time; one may come twice."""
        async for found in self._scan(self.base, ":retained"):
            yield [(topic.decode(), data) for topic, data in found]

    async def retained_of(self, topic: str) -> bytes:
        """Return what is retained in a topic; b"" for nothing."""
        data: bytes | None = await plain(self.command(self.base, "HGET", ":retained", topic))
        return data or b""

    async def _scan(self, base: str, key: str) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        cursor = b"0"
        while True:
            call = self.command(base, "HSCAN", key, cursor, "COUNT", _SCAN_COUNT)
            cursor, found = await plain(call)
            yield list(zip(found[::2], found[1::2], strict=True))
            if cursor == b"0":
                return

    # -- inboxes -----------------------------------------------------------------------------------

    def put(self, node: str, epoch: int, data: bytes) -> asyncio.Future[int]:
        """Put data into a member's inbox, once; the answer is the bytes in it.

        Without data it asks for that alone. It waits for a server however long that takes.
        """
        key = self.node_key(node, epoch)
        number = self.next_number(key) if data else 0
        words = (self.node, self.epoch, number, data)
        return self.call("put", key, *words, is_stored=bool(data), is_kept=bool(data))

    def delete(self, entry_ids: Sequence[bytes], n_bytes: int) -> asyncio.Future[int]:
        """Delete entries of the own inbox, which had so many bytes; the answer is what is left."""
        return self.call("delete", self._own_key, n_bytes, *entry_ids, is_kept=True)

    def tell(self, node: str, epoch: int, note: bytes) -> asyncio.Future[Any]:
        """Tell a member something, maybe twice; a member that has ended is told nothing."""
        words = "NOMKSTREAM", "MAXLEN", "~", MOST_NOTES, "*", self.node, note
        return self.command(self.node_key(node, epoch), "XADD", ":notes", *words)

    def forget_notes(self, identifiers: Sequence[bytes]) -> asyncio.Future[Any]:
        """Remove notes that this member has heard."""
        return self.command(self._own_key, "XDEL", ":notes", *identifiers)

    def notes_reader(self) -> StreamReader:
        """Return a reader of what this member is told: the only field is called as the teller."""
        return self.reader(f"{self._own_key}:notes")

    def inbox_reader(self) -> StreamReader:
        """Return a reader of the own inbox, for this epoch; see `origin_of`."""
        return self.reader(f"{self._own_key}:inbox")

    async def inbox_of(self, node: str, epoch: int) -> AsyncIterator[tuple[Row, bytes]]:
        """Yield origin and data of each entry in the inbox of an ended member, after `seal`."""
        key, after = self.node_key(node, epoch), b"-"
        while True:
            call = self.command(key, "XRANGE", ":inbox", after, "+", "COUNT", 100)
            entries = await plain(call)
            if not entries:
                return
            for _, fields in entries:
                yield origin_of(fields), fields[1]
            after = b"(" + entries[-1][0]

    def keep_will(self, client_id: str, will: bytes) -> asyncio.Future[Any]:
        """Keep the will of a client of this node; b"" for none."""
        return self.call("will", self._own_key, client_id, will, is_stored=True)

    def forget_will(self, node: str, epoch: int, client_id: str) -> asyncio.Future[Any]:
        """Remove the will of a client of an ended member: it is published, or is not to be."""
        return self.call("will", self.node_key(node, epoch), client_id, b"")

    async def wills_of(self, node: str, epoch: int) -> dict[bytes, bytes]:
        """Return the wills of an ended member by client."""
        found = await plain(self.command(self.node_key(node, epoch), "HGETALL", ":wills"))
        return dict(zip(found[::2], found[1::2], strict=True))

    # -- owners ------------------------------------------------------------------------------------

    async def absence(self, client_id: str) -> Absence:
        """Return since when a kept session has no connection."""
        words = f":s:{client_id}", "origin", "away", "expiry"
        return Absence(*await plain(self.command(self.bucket(client_id), "HMGET", *words)))

    async def find(self, client_id: str) -> tuple[Row | None, Mailbox | None]:
        """Return who owns a client, and its mailbox; None for nobody, and for none.

        Raises:
            StorageError: the engine cannot be asked.
        """
        key = self.bucket(client_id)
        names = "messages", "bytes", "away", "expiry", "origin"
        row, found, (seconds, _) = await asyncio.gather(
            plain(self.command(key, "HGET", ":o", client_id)),
            plain(self.command(key, "HMGET", f":s:{client_id}", *names)),
            plain(self.calls.routes.call(key, "TIME")),
        )
        owner = None if row is None else Row.read(row.decode())
        messages, n_bytes, away, expiry, origin = found
        if origin is None:
            return owner, None
        away_seconds = None if away is None else max(0.0, int(seconds) - int(away) / 1000)
        left = None if away_seconds is None or not expiry else float(expiry) - away_seconds
        expires_seconds = None if left is None else max(0.0, left)
        return owner, Mailbox(int(messages or 0), int(n_bytes or 0), away_seconds, expires_seconds)

    async def claim(self, client_id: str, own: Row, displaced: Row | None) -> tuple[Row, str]:
        """Make this node the owner of a client, where nobody stands in the way.

        Returns:
            (who is the owner now; the origin of the session that the client comes back to, "" for
            none, or where the owner is another).

        Args:
            client_id: the Client Identifier.
            own: this claim.
            displaced: an owner that has let go, or has ended; None for none.

        Raises:
            FencedError: this node is no member any more.
            StorageError: the engine cannot be asked, or refuses.
        """
        was = "" if displaced is None else str(displaced)
        key = self.bucket(client_id)
        call = self.call("claim", key, client_id, *own, was, is_stored=True)
        owner, origin = await fenced(call)
        return Row.read(owner.decode()), origin.decode()

    def release(self, client_id: str, own: Row) -> asyncio.Future[Any]:
        """Let go of a client; it waits for a server however long that takes."""
        words = (client_id, *own)
        return self.call("release", self.bucket(client_id), *words, is_stored=True, is_kept=True)

    async def sweep_owners(self, node: str, epoch: int) -> None:
        """End that an ended member is the owner of clients; kept sessions wait for theirs.

        What it still puts into mailboxes, any of them, is refused before a client is free.
        """
        for function in ("bar", "abandon"):
            for at in range(0, len(self.buckets), _SWEPT_AT_ONCE):
                some = self.buckets[at : at + _SWEPT_AT_ONCE]
                await asyncio.gather(*(self._sweep(function, one, node, epoch) for one in some))

    async def _sweep(self, function: str, bucket: str, node: str, epoch: int) -> None:
        cursor = b"0"
        while True:
            cursor = await plain(self.call(function, bucket, node, epoch, cursor, is_stored=True))
            if cursor == b"0":
                return

    def bucket(self, client_id: str) -> str:
        """Return the common beginning of the keys of a client, and of some others."""
        return self.buckets[crc32(client_id.encode()) % len(self.buckets)]

    # -- calls -------------------------------------------------------------------------------------

    def call(
        self, function: str, key: str, *args: Any, is_stored: bool = False, is_kept: bool = False
    ) -> asyncio.Future[Any]:
        """Call a function about what the common beginning of keys stands for."""
        return self.calls.call(function, (key,), *args, is_stored=is_stored, is_kept=is_kept)

    def command(self, base: str, command: str, key: str, *args: Any) -> asyncio.Future[Any]:
        """Call a command about a key, given by its common beginning and the rest."""
        return self.calls.routes.call(base, command, base + key, *args)


def origin_of(fields: Sequence[bytes]) -> Row:
    """Return who has put an entry into an inbox, by its fields; the data is the second one."""
    return Row.read(fields[0].decode())


async def fenced(call: asyncio.Future[Any]) -> Any:
    """Return the answer of a call that names an epoch.

    Raises:
        FencedError: it has ended.
        StorageError: the engine could not be asked, or refused.
    """
    return await plain(call, _meaning)


def _meaning(error: ResponseError) -> StorageError:
    if is_fenced(error):
        return FencedError("this node was taken for dead, and is no member any more")
    return refusal(error)


def is_fenced(error: BaseException) -> bool:
    """Say whether a call was refused as the epoch that it names has ended."""
    return isinstance(error, ResponseError) and str(error).endswith("PENSTOCK fenced")


def outcome(error: BaseException | None) -> int:
    """Return the reason code for who has published what the engine did not store.

    Its client goes on at another node where this one's epoch has ended.
    """
    if isinstance(error, FencedError) or (error is not None and is_fenced(error)):
        return ReasonCode.SERVER_SHUTTING_DOWN
    return ReasonCode.QUOTA_EXCEEDED


def _milliseconds() -> int:
    return int(1000 * ALIVE_SECONDS)


def _pairs(found: Sequence[bytes]) -> dict[str, str]:
    return {
        name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)
    }
