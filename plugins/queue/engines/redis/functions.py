"""Calls of the server's functions, and the updates of the cached state by their answers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from logging import Logger
from typing import Any, Final
from zlib import crc32

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import MovedError, ResponseError

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.contract import (
    EngineStartError,
    StorageError,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.redis.cached_state import (
    RedisGroup,
    RedisPart,
    RedisQueue,
    Told,
)
from penstock.plugins.queue.engines.redis.messages import arrived_at, part_key, root_of
from penstock.plugins.queue.engines.waiting import Arrivals
from penstock.plugins.redis import calls
from penstock.plugins.redis.library import Library
from penstock.plugins.redis.login import Address, ask_directly
from penstock.plugins.redis.server import RedisServer

_MANY: Final = 1 << 53
_STORED: Final = frozenset(
    {
        "add_groups",
        "append",
        "begin",
        "claim_ids",
        "claim_ids_full",
        "commit",
        "create",
        "delete_entry",
        "forget_ids",
        "probe",
        "put",
        "seek",
    }
)
"""Functions whose effects replicas must have. If a failover loses a lease or a settlement, the
message is received once more."""
LIBRARY: Final = Library("penstock_queue_", 1, __package__, _STORED)
"""The functions of the engine."""
_LOOK_SECONDS: Final = 0.1
"""The interval at which a waiting call checks whether its node is away."""
_KEPT_SECONDS: Final = 1800.0
"""How long the server certainly keeps the answer of a program's last call."""
_NUMBERED: Final = frozenset({"append", "lease", "settle"})
"""Functions that must not be carried out twice. The server keeps their answers for repeated
calls."""


class Functions(calls.FunctionCalls):
    """Calls the functions of the server.

    Attributes:
        queues: those of the catalogue, by name.
        arrivals: wakes those who wait for messages.
        is_cluster: whether each physical queue may be on another server.
        lost: why nothing is stored any more: the server has lost its data; "" while it has it.
        unknown: groups of physical queues that no entry of the catalogue names, with the time at
            which they were first seen.
    """

    def __init__(
        self,
        server: RedisServer,
        logger: Logger,
        monotonic: Callable[[], float] = time.monotonic,
        server_clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(server, LIBRARY, logger)
        self.queues: dict[str, RedisQueue] = {}
        self.arrivals = Arrivals(self.now)
        self.is_cluster = self.routes.is_cluster
        self.program = secrets.token_hex(8)
        self.lost = ""
        self.unknown: dict[tuple[str, int, str], float] = {}
        self._prefix = server.prefix
        self._monotonic = monotonic
        self._server_clock = server_clock
        self._shift: float | None = None
        self._numbers: dict[str, int] = {}
        self._appended: dict[str, tuple[int, float]] = {}
        self._secret = b""
        self._away: dict[RedisQueue, tuple[int, Collection[int]]] = {}
        self._away_change = 0

    def now(self) -> float:
        """Return the engine's time, which is the server's."""
        if self._server_clock is not None:
            return self._server_clock()
        return self._monotonic() + (self._shift or 0.0)

    def given(self) -> str:
        """Return the time that functions are to take; "" for the server's own."""
        return "" if self._server_clock is None else repr(self._server_clock())

    def part_key(self, incarnation: str, number: int) -> str:
        """Return the common beginning of a physical queue's keys, which has a hash tag."""
        return part_key(self._prefix, incarnation, number)

    def ids_key(self, queue: RedisQueue, identifier: bytes) -> str:
        """Return the common beginning of the keys where a deduplication identifier is kept."""
        if not queue.id_shards:
            return f"{self._prefix}:{{{root_of(queue.incarnation)}}}"
        return self._shard_key(queue.incarnation, crc32(identifier) % queue.id_shards)

    def _shard_key(self, incarnation: str, shard: int) -> str:
        return f"{self.part_key(incarnation, shard)}:claims"

    def stored_ids_key(self, queue: RedisQueue, part: RedisPart) -> str:
        """Return the beginning of the keys of identifiers that `append` looks at."""
        return f"{part.base}:ids" if self.is_cluster else self.ids_key(queue, b"")

    def all_ids_keys(self, queue: RedisQueue) -> list[str]:
        """Return the beginnings of all keys with identifiers of a queue."""
        parts = queue.physical.values() if self.is_cluster else ()
        kept = self._kept_ids_keys(queue.incarnation, queue.id_shards)
        return [*kept, *(f"{part.base}:ids" for part in parts)]

    def _kept_ids_keys(self, incarnation: str, id_shards: int) -> list[str]:
        if not id_shards:
            return [f"{self._prefix}:{{{root_of(incarnation)}}}"]
        return [self._shard_key(incarnation, shard) for shard in range(id_shards)]

    def part_of(self, queue: RedisQueue, number: int) -> RedisPart:
        """Return a physical queue that the server has, which may be new to this program."""
        found = queue.physical.get(number)
        if found is None:
            found = RedisPart(self.part_key(queue.incarnation, number), number)
            queue.physical = dict(sorted({**queue.physical, number: found}.items()))
            for group in queue.groups.values():
                group.place(number)
        return found

    def submit(
        self,
        queue: RedisQueue,
        part: RedisPart,
        function: str,
        *args: Any,
        keys: Iterable[str] = (),
    ) -> asyncio.Future[Any]:
        """Call a function of a physical queue; note what it tells when it answers."""
        if function in _NUMBERED:
            number = self._numbers[part.base] = self._numbers.get(part.base, 0) + 1
            args = (self.program, number, *args)
        future = self.call(function, [part.base, *keys], self.given(), *args)
        future.add_done_callback(partial(self._heard, queue, part))
        if function == "append":
            future.add_done_callback(partial(self._note_appended, part, number))
        return future

    def _note_appended(self, part: RedisPart, number: int, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._appended[part.base] = number, self._monotonic()

    def held_up(self, queue: RedisQueue, identifiers: Iterable[bytes]) -> Collection[int]:
        """Return places of deduplication identifiers whose node is away; b"" is none."""
        if not self.is_cluster or not self.routes.has_away:
            return ()
        return [
            at
            for at, one in enumerate(identifiers)
            if one and self.routes.is_away(self.ids_key(queue, one))
        ]

    def away(self, queue: RedisQueue) -> Collection[int]:
        """Return physical queues whose node is away; none where no other one is there.

        A receive would wait for the node or its replica. Where nothing else is left to wait for, it
        does so, and its caller is told when that takes too long. The object is the same until the
        answer may be another one: it is asked for with each message.
        """
        routes = self.routes
        if not self.is_cluster or not routes.has_away:
            return ()
        if routes.n_changes != self._away_change:
            self._away_change = routes.n_changes
            self._away.clear()
        n_parts = len(queue.physical)
        known = self._away.get(queue)
        if known is None or known[0] != n_parts:
            parts = queue.physical.items()
            away = frozenset(number for number, part in parts if routes.is_away(part.base))
            known = self._away[queue] = n_parts, (away if len(away) < n_parts else ())
        return known[1]

    def is_reached(self, key: str) -> bool:
        """Return whether the node of a key is there, or is the only server, which is waited for."""
        return not (self.is_cluster and self.routes.is_away(key))

    def reached(self, queue: RedisQueue) -> list[RedisPart]:
        """Return the physical queues whose maintenance need not wait for their node."""
        return [part for part in queue.physical.values() if self.is_reached(part.base)]

    async def ask(
        self,
        queue: RedisQueue,
        part: RedisPart,
        function: str,
        *args: Any,
        keys: Iterable[str] = (),
    ) -> Any:
        """Call a function of a physical queue as `submit` does; return the answer.

        Raises:
            UnknownQueueError: the queue is gone.
            UnknownGroupError: its group is gone.
            StorageError: the server could not be asked, or refused.
        """
        return await plain(self.submit(queue, part, function, *args, keys=keys), queue)

    async def swept(self, queue: RedisQueue, part: RedisPart, function: str, *args: Any) -> None:
        """Call a function that says where the removal of settled messages must go on."""
        answer = await self.ask(queue, part, function, *args)
        while (more := answer[1]) >= 0:
            answer = await self.ask(queue, part, "sweep", more, _MANY)

    def _heard(self, queue: RedisQueue, part: RedisPart, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        told = Told._make(future.result()[0])
        behind = 0.0
        if self._server_clock is None:
            now, monotonic = float(told.now), self._monotonic()
            if self._shift is None or not self.is_cluster:
                self._shift = now - monotonic
            # Servers' clocks may differ; what is kept here is of one clock.
            behind = monotonic + self._shift - now
        unknown = queue.update(part, told, behind)
        for group_id in unknown:
            place = (queue.name, part.number, group_id)
            self.unknown.setdefault(place, self.now())
        for group in queue.groups.values():
            self.arrivals.deadline_changed(group)

    def watch(self, group: RedisGroup) -> None:
        """Wake those who wait for a group."""
        group.on_arrival = self.arrivals.arrived

    # -- the catalogue -----------------------------------------------------------------------------

    @property
    def _catalogue(self) -> str:
        return f"{self._prefix}:{{catalogue}}"

    async def begin(self) -> bytes:
        """Return the secret of the storage.

        Raises:
            EngineStartError: the keys are another program's, or of another format.
        """
        try:
            secret, found = await self.call(
                "begin", [self._catalogue], secrets.token_hex(32), LIBRARY.version
            )
        except ResponseError as error:
            raise EngineStartError(f"keys {self._prefix}:*: {error}") from error
        if int(found) != LIBRARY.version:
            raise EngineStartError(
                f"format of keys {self._prefix}:*: read {found.decode()}; allowed: "
                f"{LIBRARY.version}"
            )
        try:
            read = bytes.fromhex(secret.decode())
        except ValueError as error:
            raise EngineStartError(f"secret of keys {self._prefix}:*: {error}") from error
        self._secret = secret
        return read

    async def _connect(self, address: Address) -> AbstractConnection:
        """Return a connection to a server, with the keys that were there before.

        Raises:
            EngineStartError: says why it cannot be used.
        """
        connection = await super()._connect(address)
        try:
            await self._check(connection)
            await self._return_on(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _check(self, connection: AbstractConnection) -> None:
        """See that a server to which the connection was lost has its keys still.

        Raises:
            EngineStartError: it has lost them.
        """
        if not self._secret:
            return
        try:
            found = await ask_directly(connection, "HGET", f"{self._catalogue}:m", "secret")
        except MovedError:  # another node has the catalogue
            return
        if found != self._secret:
            raise EngineStartError(self._note_lost())

    def _note_lost(self) -> str:
        self.lost = (
            f"keys {self._prefix}:*: they are not those of before: the server has lost its data, "
            "or it is another one. A restart of this program takes it as it is"
        )
        return self.lost

    async def probe(self, queue: RedisQueue, part: RedisPart) -> None:
        """See whether a message would be stored in a physical queue.

        Raises:
            StorageError: says why it would not.
            UnknownQueueError: the queue is gone, or its server has lost its data.
        """
        await plain(self.call("probe", [part.base]), queue)

    async def attend(self, *, is_back: bool) -> float:
        """Note that a program is there; return the seconds for which none was.

        Args:
            is_back: whether this one was not there before, or could not reach the server.
        """
        return await self._attend(self._catalogue, is_back=is_back)

    async def attend_ids(self, queue: RedisQueue) -> None:
        """Leave the time for which no program was there out of the windows of a queue."""
        keys = filter(self.is_reached, self.all_ids_keys(queue))
        await asyncio.gather(*(self._attend(key, is_back=True) for key in keys))

    async def _attend(self, key: str, *, is_back: bool) -> float:
        answer = await plain(self.call("attend", [key], self.given(), int(is_back)))
        return max(0.0, float(answer))

    async def _return_on(self, connection: AbstractConnection) -> None:
        """Look at a server on a new connection to it, before any call is repeated there.

        Windows leave out the time for which no program was there; see `attend_ids`. A queue of
        which the server has lost messages is noted.
        """
        for queue in self.queues.values():
            for key in self.all_ids_keys(queue):
                await _ask_there(connection, "attend", key, self.given(), "1")
            for part in queue.physical.values():
                number, at = self._appended.get(part.base, (0, 0.0))
                is_kept = number and self._monotonic() - at < _KEPT_SECONDS
                told = (part.next, self.program, number if is_kept else "")
                if await _ask_there(connection, "verify", part.base, *told) == 0:
                    queue.has_lost = True

    async def entries(self) -> dict[str, bytes]:
        """Return the catalogue.

        Raises:
            StorageError: the server could not be asked, or it has lost its data since `begin`.
        """
        secret, entries = await plain(self.call("list", [self._catalogue]))
        if self._secret and secret != self._secret:
            raise StorageError(self._note_lost())
        return _by_name(entries)

    async def put(self, name: str, expected: bytes, raw: bytes) -> tuple[bool, bytes]:
        """Replace an entry where it is as expected; return whether it was, and what is there."""
        call = self.call("put", [self._catalogue], name, expected, raw)
        taken, found = await plain(call)
        return bool(taken), found

    async def delete_entry(
        self, name: str, expected: bytes, incarnation: str, tombstone: bytes
    ) -> tuple[bool, bytes]:
        """Make an entry a tombstone where it is as expected; return as `put` does."""
        call = self.call("delete_entry", [self._catalogue], name, expected, incarnation, tombstone)
        taken, found = await plain(call)
        return bool(taken), found

    async def tombstones(self) -> dict[str, bytes]:
        """Return those of deleted queues by incarnation; none while the catalogue is away."""
        if not self.is_reached(self._catalogue):
            return {}
        return _by_name(await plain(self.call("tombstones", [self._catalogue])))

    async def drop_tombstone(self, incarnation: str) -> None:
        """Forget a deleted queue, of which there is no key any more."""
        await plain(self.call("drop_tombstone", [self._catalogue], incarnation))

    async def create_part(self, part: RedisPart) -> None:
        """Create the keys of a physical queue."""
        await plain(self.call("create", [part.base]))

    async def delete_parts(self, incarnation: str, numbers: Iterable[int], id_shards: int) -> bool:
        """Delete the keys of a queue on all nodes but those that are away; may be repeated.

        Returns:
            Whether none is left. A call to a node that goes away meanwhile is not waited for.

        Raises:
            StorageError: a node could not be asked, or refused; the others were asked.
        """
        wanted = [("delete", self.part_key(incarnation, number)) for number in numbers]
        # Behind the physical queue of the same slot: without it, no identifier is claimed.
        wanted += [("delete_ids", key) for key in self._kept_ids_keys(incarnation, id_shards)]
        keys: dict[asyncio.Future[Any], str] = {}
        for function, key in wanted:
            if self.is_reached(key):
                call = self.call(function, [key])
                call.add_done_callback(calls.heed)  # nobody may wait for it any more
                keys[call] = key
        waiting = set(keys)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=_LOOK_SECONDS)
            waiting = {call for call in waiting if self.is_reached(keys[call])}
        ended = [call for call in keys if call.done()]
        for call in ended:
            await plain(call)
        return len(ended) == len(wanted)

    async def look(self, queues: Iterable[RedisQueue]) -> None:
        """Learn what has become of queues; wake those for whom something has become visible."""
        await self._look(queues, lambda queue: queue.physical.values())

    async def look_at_reached(self, queues: Iterable[RedisQueue]) -> None:
        """Look at queues without the physical queues whose nodes are away.

        Raises:
            StorageError: a node could not be asked; the others were.
        """
        await self._look(queues, self.reached)

    async def _look(
        self, queues: Iterable[RedisQueue], parts_of: Callable[[RedisQueue], Iterable[RedisPart]]
    ) -> None:
        looks = [self.look_at(queue, part) for queue in queues for part in parts_of(queue)]
        gone: UnknownQueueError | None = None
        failed: BaseException | None = None
        for ended in await asyncio.gather(*looks, return_exceptions=True):
            if isinstance(ended, UnknownQueueError):  # it is being deleted
                gone = ended
            elif ended is not None:
                failed = ended
        if failed is not None:
            raise failed
        if gone is not None and len(looks) == 1:
            raise gone

    async def look_at(self, queue: RedisQueue, part: RedisPart) -> None:
        """Look at one physical queue."""
        end = part.next
        groups = list(queue.groups.values())
        before = [_receivable(group, part) for group in groups]
        await self.ask(queue, part, "look")
        if part.next > end:
            self.arrivals.wake(queue, groups)
            return
        for group, (n_visible, n_free) in zip(groups, before, strict=True):
            visible, free = _receivable(group, part)
            if visible > n_visible or free > n_free:
                group.arrived()

    # -- reading -----------------------------------------------------------------------------------

    async def locate(self, queue: RedisQueue, at: float) -> dict[int, int]:
        """Return the offset of the first message of each physical queue since a wall time."""
        return {
            number: await self._since(queue, part, at) for number, part in queue.physical.items()
        }

    async def _since(self, queue: RedisQueue, part: RedisPart, at: float) -> int:
        start = 0
        while True:
            answer = await self.ask(queue, part, "range", start, _MANY, _MANY, _MANY, "0")
            flat = answer[2]
            for place in range(0, len(flat), 3):
                if arrived_at(flat[place + 1]) >= at:
                    return int(flat[place])
            start = answer[1]
            if start >= part.next:
                return part.next


async def _ask_there(connection: AbstractConnection, function: str, *args: Any) -> Any:
    """Call a function of one key on a new connection; return None where another node has it."""
    try:
        return await ask_directly(connection, "FCALL", f"{LIBRARY.prefix}{function}", "1", *args)
    except MovedError:
        return None


def _by_name(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {name.decode(): raw for name, raw in zip(flat[::2], flat[1::2], strict=True)}


def _receivable(group: RedisGroup, part: RedisPart) -> tuple[int, int]:
    """Return how many messages are visible, and a number that grows when a key may be free."""
    place = group.place(part.number)
    return place.n_visible(), -place.leased if group.spec.order == "key" else 0


def told_now(told: Sequence[Any]) -> float:
    """Return the server's time of an answer."""
    return float(Told._make(told).now)


async def plain(call: asyncio.Future[Any], queue: RedisQueue | None = None) -> Any:
    """Return the answer of a call, perhaps one of a physical queue.

    Raises:
        UnknownQueueError: the queue is gone.
        UnknownGroupError: its group is gone.
        StorageError: the server could not be asked, or refused.
    """
    return await calls.plain(call, partial(refusal, queue=queue))


def refusal(error: ResponseError, queue: RedisQueue | None = None) -> PenstockError:
    """Return what an error of the server means."""
    text = str(error)
    if queue is not None and text.endswith("PENSTOCK gone"):
        return UnknownQueueError(
            f"queue {queue.name}: it was deleted, or its server has lost its data"
        )
    if queue is not None and text.endswith("PENSTOCK nogroup"):
        return UnknownGroupError(f"group of queue {queue.name}: it was deleted")
    if text.startswith("PENSTOCK unknown"):
        return StorageError("the Redis server: whether a repeated call was carried out is unknown")
    return calls.refusal(error)
