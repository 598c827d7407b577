"""The engine on Redis servers, whose queues any number of programs share.

    engine = RedisEngine(RedisServer("127.0.0.1", 6379), logger=logging.getLogger("penstock.queue"))
    await engine.open()

Theory of operation. The server holds everything: messages, groups, leases with their ends. A call
of the engine is a call of one function of the server for each physical queue that it is about, and
the functions decide by the server's clock. What this program knows meanwhile is in `cached_state`.
Limits and counts are as of the last answer, so several programs on one queue may exceed a limit by
what they store at the same moment.

A lease belongs to its receiver, not to the program that gave it: it goes on when the program ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from logging import Logger
from typing import Any, Final

from penstock.broker.durable.storage_clock import Clocks
from penstock.plugins.queue.config import QueueRedisConfig
from penstock.plugins.queue.engines.contract import (
    EngineStartError,
    Position,
    Start,
    StorageError,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.logical import check_range
from penstock.plugins.queue.engines.planning import shares_of
from penstock.plugins.queue.engines.reading import RANGE_BYTES
from penstock.plugins.queue.engines.redis.cached_state import RedisQueue
from penstock.plugins.queue.engines.redis.catalogue import Catalogue
from penstock.plugins.queue.engines.redis.dead_letters import DeadLetters
from penstock.plugins.queue.engines.redis.functions import Functions, plain
from penstock.plugins.queue.engines.redis.listening import Listening
from penstock.plugins.queue.engines.redis.messages import Row, frames_of, rows_of
from penstock.plugins.queue.engines.redis.probing import Prober
from penstock.plugins.queue.engines.redis.receiving import Receiving
from penstock.plugins.queue.engines.redis.storing import Storing
from penstock.plugins.queue.engines.waiting import StoredQueues
from penstock.plugins.redis.server import RedisServer, address_of, redis_server

_UNKNOWN_SECONDS: Final = 60.0
"""The time after which a group that is in no entry of the catalogue is dropped. Before that,
another program may be about to create it."""
_STEP_SECONDS: Final = 1.0
"""How much the server's clock may drift from this program's between two looks."""


class RedisEngine(StoredQueues[RedisQueue]):
    """See `contract` for the contract of its methods."""

    def __init__(
        self,
        server: RedisServer,
        *,
        clocks: Clocks | None = None,
        server_clock: Callable[[], float] | None = None,
        logger: Logger,
    ) -> None:
        self._server = server
        self._clocks = clocks or Clocks(time.monotonic)
        self._logger = logger
        self._functions = Functions(server, logger, self._clocks.monotonic, server_clock)
        super().__init__(self._functions.queues, self._functions.now, self._functions.arrivals)
        self._routes = self._functions.routes
        self._listening = Listening(self._functions)
        self.awaited = self._listening.listening
        self._catalogue = Catalogue(self._functions)
        self._attended = 0.0, 0.0
        self._was_away = False
        self._storing = Storing(self._functions, self._catalogue, self._clocks)
        self._dead_letters = DeadLetters(self._functions, self._catalogue, self._storing)
        self._routes.on_return = self._returned
        self._receiving = Receiving(self._functions, self._catalogue, self._dead_letters)
        self._routes.on_away = self._receiving.give_up_away
        self._prober = Prober(self._functions)
        # These methods of the contract are done whole by a part of the engine.
        self.create_queue = self._catalogue.create_queue
        self.change_queue = self._catalogue.change_queue
        self.delete_queue = self._catalogue.delete_queue
        self.create_group = self._catalogue.create_group
        self.change_group = self._catalogue.change_group
        self.delete_group = self._catalogue.delete_group
        self.append = self._storing.append
        self.held_up = self._storing.held_up
        self.lease = self._receiving.lease
        self.give_back = self._receiving.give_back
        self.settle = self._receiving.settle
        self.redrive = self._dead_letters.redrive
        self.probe = self._prober.probe

    # -- queues ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, check the server and read the catalogue."""
        try:
            await self._routes.open()
            await self._catalogue.open()
            await self._come_back()
        except StorageError as error:
            await self.close()
            raise EngineStartError(f"Redis server {self._server}: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def _come_back(self) -> None:
        """Leave the time for which no program was there out of what waits for clients."""
        for queue in self._catalogue.queues.values():
            await self._functions.attend_ids(queue)
        self._leave_out(await self._functions.attend(is_back=True))
        self._attended = self._functions.now(), self._clocks.monotonic()

    def _leave_out(self, seconds: float) -> None:
        for queue in self._catalogue.queues.values():
            for group in queue.groups.values():
                group.used_at += seconds

    async def _find(self, name: str) -> RedisQueue:
        """Return a queue for readers of offsets; one of which messages were lost has a new life.

        Raises:
            UnknownQueueError: there is none of this name.
            StorageError: it cannot get one.
        """
        found = self._catalogue.find(name)
        if found.has_lost:
            self._logger.error(
                "queue %s: the Redis server has lost messages that it had stored; the queue has "
                "another incarnation, and refuses positions of before",
                name,
            )
            await self._catalogue.renew(name)
        return found

    async def renew(self) -> None:
        """Give all queues other incarnations: the server's data was restored from a copy.

        Raises:
            StorageError: some have none yet.
        """
        for name in list(self._catalogue.queues):
            await self._catalogue.renew(name)

    async def _attend(self) -> None:
        """Note that this program is there, for the time of which groups are used or not."""
        if self._was_away:
            await self._come_back()
            self._was_away = False
            return
        await self._functions.attend(is_back=False)
        now, monotonic = self._functions.now(), self._clocks.monotonic()
        # The server's clock may have been set forward.
        step = now - self._attended[0] - (monotonic - self._attended[1])
        self._attended = now, monotonic
        if step > _STEP_SECONDS:
            self._leave_out(step)

    async def close(self) -> None:
        """Wait for answers and disconnect."""
        self._functions.arrivals.close()
        await self._listening.close()
        await self._storing.close()
        if self._attended[1] and self._routes.failure is None:
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_STEP_SECONDS):
                    await self._functions.attend(is_back=False)
        await self._routes.close()

    # -- storing -----------------------------------------------------------------------------------

    def forget(self, queue: str, deduplication_ids: Sequence[bytes]) -> asyncio.Future[None]:
        """End the windows of deduplication identifiers."""
        found = self._catalogue.find(queue)
        places: dict[str, list[bytes]] = {}
        for one in deduplication_ids:
            places.setdefault(self._functions.ids_key(found, one), []).append(one)
        calls = [self._functions.call("forget_ids", [key], *some) for key, some in places.items()]
        return asyncio.ensure_future(_all(calls))

    # -- reading -----------------------------------------------------------------------------------

    async def read(
        self, queue: str, physical_queue: int, start: int, end: int, max_messages: int
    ) -> list[bytes]:
        """Return the frames of a range."""
        found = self._catalogue.find(queue)
        if found.has_lost:
            await self._find(queue)
            raise StorageError(f"queue {queue}: the Redis server has lost messages; look anew")
        part = found.part(physical_queue)
        if end > part.next:  # another program may have stored more
            await self._functions.ask(found, part, "look")
        check_range(part, start, end)
        at = start
        rows: list[Row] = []
        while at < end and max_messages > 0 and not rows:
            answer = await self._functions.ask(
                found, part, "range", at, end, max_messages, RANGE_BYTES, "1"
            )
            check_range(part, start, end)
            at = answer[1]
            rows += rows_of(answer[2])
        return frames_of(rows)

    async def plan(
        self,
        queue: str,
        start: Position,
        max_messages: int | None,
        max_bytes: int | None,
        until: Mapping[int, int] | None = None,
    ) -> Position:
        """Return the end of the next range; bytes are taken to be the same in each message."""
        found = await self._find(queue)
        await self._functions.look([found])
        offsets = found.checked(start)
        if until is not None:
            until = found.checked(Position(start.incarnation, until))
        begins, waiting, n_bytes = {}, [], 0.0
        for number, part in found.physical.items():
            begins[number] = begin = max(offsets.get(number, 0), part.earliest)
            stop = part.next if until is None else until.get(number, 0)
            waiting.append(max(0, stop - begin))
            n_bytes += waiting[-1] * part.stored_bytes / max(1, part.messages)
        total = sum(waiting)
        most = total if max_messages is None else min(total, max_messages)
        if max_bytes is not None and n_bytes > max_bytes:
            most = min(most, max(1, int(total * max_bytes / n_bytes)))
        shares = shares_of(most, waiting) if most > 0 else [0] * len(waiting)
        ends = {number: begins[number] + n for number, n in zip(begins, shares, strict=True)}
        return Position(found.incarnation, ends)

    async def locate(self, queue: str, start: Start) -> Position:
        """Return the position that a `Start` means."""
        found = await self._find(queue)
        return Position(found.incarnation, await self._located(found, start))

    async def _located(self, queue: RedisQueue, start: Start) -> dict[int, int]:
        await self._functions.look([queue])
        if start == "earliest":
            return {number: part.earliest for number, part in queue.physical.items()}
        if start == "latest":
            return {number: part.next for number, part in queue.physical.items()}
        return await self._functions.locate(queue, float(start))

    async def commit(
        self, queue: str, group: str, position: Position, reader: str = ""
    ) -> Position:
        """Move an offsets group up to a position."""
        found = await self._find(queue)
        readers = found.group(group, "offsets")
        readers.used_at = self._functions.now()
        if reader != readers.reader:
            found.checked(Position(position.incarnation, {}))
            await self._catalogue.claim_group(queue, group, reader)
        if any(
            number in found.physical and offset > found.physical[number].next
            for number, offset in position.offsets.items()
        ):
            await self._functions.look([found])
        for number, offset in found.checked(position).items():
            await self._functions.swept(found, found.physical[number], "commit", readers.id, offset)
        return found.position_of(readers)

    async def seek(self, queue: str, group: str, start: Start) -> Position:
        """Move a group to another place."""
        found = self._catalogue.find(queue)
        moved = found.group(group)
        moved.used_at = self._functions.now()
        found, moved = await self._catalogue.seek(
            queue, group, lambda found: self._located(found, start)
        )
        return found.position_of(moved)

    # -- waiting -----------------------------------------------------------------------------------

    def visible(self, queue: str, group: str) -> Mapping[int, int]:
        """Return how many messages a lease group could receive."""
        found = self._catalogue.find(queue)
        receivers = found.group(group, "lease")
        receivers.used_at = now = self._functions.now()
        receivers.expire(now)
        counts = {number: place.n_visible() for number, place in receivers.places.items()}
        away = self._functions.away(found)
        return {number: n for number, n in counts.items() if n and number not in away}

    def _returned(self) -> None:
        """Wake who waits: there may be messages on a server that can be reached again."""
        self._receiving.give_up_away()
        for queue in self._catalogue.queues.values():
            self._functions.arrivals.wake(queue, queue.groups.values())

    def away(self, queue: str) -> Collection[int]:
        """Return physical queues whose node is away."""
        found = self._catalogue.queues.get(queue)
        return () if found is None else self._functions.away(found)

    def locality(self, queue: str) -> Callable[[int], bool] | None:
        """Return what says whether a master is a local node; None where none is named."""
        local = frozenset(self._server.local_nodes)
        if not local:
            return None
        found = self._catalogue.find(queue)
        incarnation, routes = found.incarnation, self._routes

        def is_local(number: int) -> bool:
            return routes.address_of(self._functions.part_key(incarnation, number)) in local

        return is_local

    # -- maintenance -------------------------------------------------------------------------------

    async def purge(self, queue: str) -> int:
        """Remove all messages."""
        found = self._catalogue.find(queue)
        await self._functions.look([found])
        n_removed = 0
        for part in list(found.physical.values()):
            below, is_all = part.next, False
            while not is_all:
                n, is_all = await self._storing.cut(found, part, "purge", below)
                n_removed += n
        return n_removed

    async def maintain(self) -> None:
        """Do what time asks for, and learn what other programs have done."""
        try:
            await self._maintain()
        finally:
            await self._prober.probe()

    async def _maintain(self) -> None:
        await self._listening.maintain()
        self._functions.arrivals.note_uses(self._functions.now())
        failed: StorageError | None = None
        for step in (self._catalogue.refresh, self._attend, self._catalogue.delete_left):
            try:
                await step()
            except StorageError as error:
                self._was_away = True
                if not self._routes.is_cluster:  # everything else would wait as long for it
                    raise
                failed = error
        for queue in list(self._catalogue.queues.values()):
            try:
                await self._maintain_queue(queue)
            except (UnknownQueueError, UnknownGroupError):  # another program has deleted it
                continue
            except StorageError as error:  # other queues, and other nodes, need not wait for it
                failed = error
        await self._drop_unknown()
        if failed is not None:
            raise failed

    async def _maintain_queue(self, queue: RedisQueue) -> None:
        """Do so for a queue, but for what is on nodes that are away."""
        await self._find(queue.name)
        now = self._functions.now()
        parts = self._functions.reached(queue)
        for group in list(queue.groups.values()):
            group.expire(now)
            if group.n_leased:  # whoever works on the messages is there
                group.used_at = now
            expiry = group.spec.group_expiry_seconds
            if expiry is not None and now - group.used_at >= expiry:
                self._logger.warning(
                    "queue %s: group %s is deleted: no request for %.0f s",
                    queue.name,
                    group.name,
                    now - group.used_at,
                )
                await self._catalogue.delete_group(queue.name, group.name)
            elif group.used_at > group.touched_at and parts:
                used_ago = max(0.0, now - group.used_at)
                await self._functions.ask(queue, parts[0], "touch", group.id, repr(used_ago))
        retention = queue.spec.retention_seconds
        if retention is not None:
            for part in parts:
                is_all = False
                while not is_all:
                    _, is_all = await self._storing.cut(queue, part, "retention", "", retention)
        given = self._functions.given()
        window = repr(queue.spec.deduplication_seconds)
        for key in filter(self._functions.is_reached, self._functions.all_ids_keys(queue)):
            while await plain(self._functions.call("expire_ids", [key], given, window)):
                pass

    async def _drop_unknown(self) -> None:
        """Drop groups that a program which died has left in physical queues."""
        unknown, self._functions.unknown = self._functions.unknown, {}
        for place, first_seen in unknown.items():
            name, number, group_id = place
            queue = self._catalogue.queues.get(name)
            if queue is None or number not in queue.physical:
                continue
            if any(group.id == group_id for group in queue.groups.values()):
                continue
            if self._functions.now() - first_seen < _UNKNOWN_SECONDS:
                self._functions.unknown[place] = first_seen
            else:
                await self._catalogue.drop_unknown(queue, queue.physical[number], group_id)

    async def compact(self) -> int:
        """Return 0: the server gives space back by itself."""
        return 0

    async def backup(self, path: str) -> int:
        """Refuse.

        Raises:
            StorageError: always.
        """
        raise StorageError(
            f"backup to {path}: the redis engine has no file; allowed: Redis' own means, such as "
            "BGSAVE on the server"
        )

    def failure(self) -> str | None:
        """Return why the server cannot be reached, or would not store a message."""
        return self._routes.failure or self._functions.lost or self._prober.problem

    def figures(self) -> Mapping[str, Any]:
        """Return the engine's name, its server, and how often other programs have been heard."""
        heard = self._listening.n_heard
        return {"engine": "redis", "server": str(self._server), "heard": heard}


async def _all(calls: Sequence[asyncio.Future[Any]]) -> None:
    await asyncio.gather(*map(plain, calls))


def queue_server(config: QueueRedisConfig) -> RedisServer:
    """Return where the server is."""
    server = redis_server(config)
    detection = config.slowdown_detection_time
    return replace(
        server,
        local_nodes=tuple(map(address_of, config.local_nodes)),
        patience=server.patience._replace(slowdown_detection_time=detection),
    )
