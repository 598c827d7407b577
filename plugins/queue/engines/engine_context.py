"""The state that the parts of the local engine share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import Logger
from typing import Any

from penstock.broker.durable.storage_clock import Clocks, StorageClock
from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.engines.group_commit import GroupCommit
from penstock.plugins.queue.engines.logical import find_queue
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.requests import Change, Request
from penstock.plugins.queue.engines.segments import SegmentCache
from penstock.plugins.queue.engines.store import Store
from penstock.plugins.queue.engines.transaction import Surroundings, Transaction
from penstock.plugins.queue.engines.waiting import Arrivals


class EngineContext:
    """The logical queues, and the ways to read the clock and to write.

    Attributes:
        clock: the clock of the engine; another one once the storage is open.
        cache: decoded segments.
        arrivals: wakes those who wait for messages.
        commits: the writing thread; None where the engine is not open.
    """

    def __init__(self, store: Store, clocks: Clocks, read_ahead_bytes: int, logger: Logger) -> None:
        self.store = store
        self.clocks = clocks
        self.logger = logger
        self.queues: dict[str, LocalQueue] = {}
        self.clock = StorageClock(clocks)
        self.cache = SegmentCache(read_ahead_bytes)
        self.arrivals = Arrivals(self.now)
        self.commits: GroupCommit | None = None

    def start_writing(self, max_messages: int) -> None:
        """Start the writing thread."""
        around = Surroundings(
            self.store, self.cache, self.clock, self.logger, self.arrivals.arrived
        )
        loop = asyncio.get_running_loop()
        self.commits = GroupCommit(around, loop, self.clocks.monotonic, max_messages, self.logger)

    def now(self) -> float:
        """Return the engine's time."""
        return self.clock()

    def find(self, name: str) -> LocalQueue:
        """Return a queue.

        Raises:
            UnknownQueueError: there is none of this name.
        """
        return find_queue(self.queues, name)

    def submit(self, request: Request) -> None:
        """Have a request written.

        Raises:
            StorageError: the engine is closed.
        """
        if self.commits is None:
            raise StorageError("the queue is closed")
        self.commits.submit(request)

    async def ask(self, make: Callable[[asyncio.Future[Any]], Request]) -> Any:
        """Have a request written; return its result.

        Raises:
            StorageError: nothing has changed.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(make(future))
        # The caller may be cancelled; the request is under way.
        return await asyncio.shield(future)

    async def change(
        self,
        build: Callable[[Transaction], None],
        then: Callable[[], None],
        *,
        is_for_readers: bool = True,
        is_alone: bool = False,
    ) -> None:
        """Have rows written.

        Args:
            build: adds them to a transaction.
            then: is called on the loop's thread when they are written.
            is_for_readers: whether they may be written where the disk is full.
            is_alone: whether all that was asked for before is so when `build` is called, and the
                next request is built when `then` has returned.

        Raises:
            StorageError: nothing has changed.
        """
        await self.ask(
            lambda future: Change(
                build, then, future, is_for_readers=is_for_readers, is_alone=is_alone
            )
        )
