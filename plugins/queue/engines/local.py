"""The local engine keeps queues in one process: a store, a writing thread, leases in memory.

    engine = LocalEngine(
        SqliteStore("queue.db", "full"),    # or MemoryStore()
        clock=time.monotonic,               # as in Message.arrived_at
        commit_max_messages=2_000,
        read_ahead_bytes=64 * 1024 * 1024,
        logger=logging.getLogger("penstock.queue"),
    )
    await engine.open()

Theory of operation. The state (queues, groups, what is settled) is in memory and changes on the
loop's thread alone, when the transaction that changes it is in the store. The thread of
`GroupCommit` builds each transaction from the state that the last one has left. Messages are in the
store; reads run on threads of their own and fill a cache of decoded segments, which all groups
share. What was just stored is put there as well, for groups that keep up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import Logger
from typing import Any, Final

from penstock.broker.durable.storage_clock import Clocks, StorageClock
from penstock.plugins.queue.engines.catalogue import Catalogue
from penstock.plugins.queue.engines.contract import (
    AppendResult,
    Health,
    NewMessage,
    Position,
    Sent,
    Start,
    StorageError,
)
from penstock.plugins.queue.engines.engine_context import EngineContext
from penstock.plugins.queue.engines.maintenance import Maintenance
from penstock.plugins.queue.engines.planning import plan_end
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.reading import SegmentReader
from penstock.plugins.queue.engines.receiving import Receiving
from penstock.plugins.queue.engines.requests import Append, Change, Forget, Move, Seek, Trim
from penstock.plugins.queue.engines.store import Store
from penstock.plugins.queue.engines.waiting import StoredQueues

PROBE_SECONDS: Final = 5.0
"""How long a probe waits for the storage, which may first finish a long commit."""


class LocalEngine(StoredQueues[LocalQueue]):
    """See `contract` for the contract of its methods.

    Args:
        store: keeps the messages; opened and closed by the engine.
        clock: returns monotonic seconds.
        clocks: all clocks of the machine, in place of `clock`.
        commit_max_messages: messages of one commit at most.
        read_ahead_bytes: the most bytes of decoded segments in memory, over all queues and groups.
        logger: gets faults.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.monotonic,
        clocks: Clocks | None = None,
        commit_max_messages: int,
        logger: Logger,
        read_ahead_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        state = EngineContext(store, clocks or Clocks(clock), read_ahead_bytes, logger)
        super().__init__(state.queues, state.now, state.arrivals)
        self._state = state
        self._reader = SegmentReader(self._state)
        self._catalogue = Catalogue(self._state, self._reader)
        self._receiving = Receiving(self._state, self._reader)
        self._maintenance = Maintenance(self._state, self._reader, self._catalogue)
        self._commit_max_messages = commit_max_messages
        # These methods of the contract are done whole by a part of the engine.
        self.create_queue = self._catalogue.create_queue
        self.change_queue = self._catalogue.change_queue
        self.delete_queue = self._catalogue.delete_queue
        self.create_group = self._catalogue.create_group
        self.change_group = self._catalogue.change_group
        self.lease = self._receiving.lease
        self.give_back = self._receiving.give_back
        self.settle = self._receiving.settle
        self.purge = self._maintenance.purge
        self.redrive = self._maintenance.redrive
        self.maintain = self._maintenance.maintain
        self.compact = self._maintenance.compact

    async def open(self) -> None:
        """Open the store and restore the state."""
        state = self._state
        rows = await asyncio.to_thread(state.store.open)
        if state.store.tightened:
            state.logger.warning(
                "queue: other users could read %s; only its owner can from now on",
                ", ".join(state.store.tightened),
            )
        newest = [one[-1].newest_clock for one in rows.segments.values() if one]
        stored = rows.meta.get("clock", "")
        state.clock = StorageClock(state.clocks, stored, max(newest, default=0.0))
        self._catalogue.restore(rows)
        state.start_writing(self._commit_max_messages)
        try:
            await state.change(self._catalogue.start_rows, self._catalogue.started)
            await self._maintenance.restored()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Write what was submitted and close the store."""
        state = self._state
        state.arrivals.close()
        if state.commits is not None:
            self._receiving.close()
            state.submit(Change(self._catalogue.start_rows, lambda: None, None))
            commits, state.commits = state.commits, None
            await commits.close()
        await asyncio.to_thread(self._reader.close)
        await asyncio.to_thread(state.store.close)

    def append(
        self,
        queue: str,
        physical_queue: int,
        messages: Sequence[NewMessage],
        sent: Sent | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Store messages at the end of a physical queue."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._state.submit(Append(self._state.find(queue), physical_queue, messages, future))
        if sent is not None:
            sent(physical_queue, future)
        return future

    def forget(self, queue: str, deduplication_ids: Sequence[bytes]) -> asyncio.Future[None]:
        """End the windows of deduplication identifiers."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._state.submit(Forget(self._state.find(queue), deduplication_ids, future))
        return future

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group."""
        found = self._state.find(queue)
        await self._catalogue.delete_group(found, found.group(group))

    async def read(
        self, queue: str, physical_queue: int, start: int, end: int, max_messages: int
    ) -> list[bytes]:
        """Return the frames of a range."""
        physical = self._state.find(queue).part(physical_queue)
        return await self._reader.frames(physical, start, end, max_messages)

    async def plan(
        self,
        queue: str,
        start: Position,
        max_messages: int | None,
        max_bytes: int | None,
        until: Mapping[int, int] | None = None,
    ) -> Position:
        """Return the end of the next range."""
        found = self._state.find(queue)
        offsets = found.checked(start)
        if until is not None:
            until = found.checked(Position(start.incarnation, until))
        ends = plan_end(found.physical, offsets, max_messages, max_bytes, until)
        return Position(found.incarnation, ends)

    async def locate(self, queue: str, start: Start) -> Position:
        """Return the position that a `Start` means."""
        found = self._state.find(queue)
        return Position(found.incarnation, await self._reader.locate(found, start))

    async def commit(
        self, queue: str, group: str, position: Position, reader: str = ""
    ) -> Position:
        """Move an offsets group up to a position."""
        found = self._state.find(queue)
        readers = found.group(group, "offsets")
        readers.used_at = self._state.now()
        offsets = found.checked(position)
        found.check_reader(readers, reader)
        if reader != readers.reader:
            await self._catalogue.claim_group(found, readers, reader)
        await self._state.ask(lambda future: Move(found, readers, offsets, future))
        return found.position_of(readers)

    async def seek(self, queue: str, group: str, start: Start) -> Position:
        """Move a group to another place."""
        found = self._state.find(queue)
        moved = found.group(group)
        moved.used_at = self._state.now()
        offsets = await self._reader.locate(found, start)
        await self._state.ask(
            lambda future: Seek(
                found,
                moved,
                offsets,
                lambda one, epoch: self._catalogue.group_row(one, epoch, one.spec, ""),
                future,
            )
        )
        for part in found.physical.values():
            self._state.submit(Trim(found, part))
        return found.position_of(moved)

    def visible(self, queue: str, group: str) -> Mapping[int, int]:
        """Return how many messages a lease group could receive."""
        receivers = self._state.find(queue).group(group, "lease")
        now = self._state.now()
        receivers.used_at = now
        receivers.expire(now)
        places = receivers.places
        numbers = sorted(receivers.waiting_in)
        return {number: n for number in numbers if (n := places[number].n_visible(now)) > 0}

    def held_up(
        self,
        queue: str,  # noqa: ARG002 (the contract's form)
        messages: Sequence[NewMessage],  # noqa: ARG002
    ) -> Collection[int]:
        """Return none: there is nothing but the storage to wait for."""
        return ()

    def away(self, queue: str) -> Collection[int]:  # noqa: ARG002 (the contract's form)
        """Return none: all physical queues are in this process."""
        return ()

    def locality(self, queue: str) -> None:
        """Return None: all physical queues are in this process."""

    async def backup(self, path: str) -> int:
        """Write a copy of the storage."""
        return await self._reader.run(lambda: self._state.store.backup(path))

    async def probe(self) -> Health:
        """See whether a message would be stored at this moment."""
        problem: str | None = None
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._maintenance.probe()
        except StorageError as error:
            problem = f"{error}"
        except TimeoutError:
            problem = f"{self._state.store.name}: no answer for {PROBE_SECONDS:g} s"
        return Health(self.failure() or problem)

    def failure(self) -> str | None:
        """Return why the last write failed, or the last read of any physical queue."""
        lost = self._state.store.why_lost()
        if lost or self._state.commits is None:
            return lost or None
        return self._state.commits.failure or next(iter(self._reader.failures.values()), None)

    def figures(self) -> Mapping[str, Any]:
        """Return the store's figures and the engine's memory."""
        return {**self._state.store.figures(), "read_ahead_bytes": self._state.cache.n_bytes}
