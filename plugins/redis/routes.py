"""Routes send each call to the server that has its hash slot.

Theory of operation. Each server has a pipeline. Where it has lost its connection, or is told that a
slot is another server's, the routes are found again, and the calls that wait go where they belong.
A slot leaves a pipeline when all answers of it have come, so that its calls are never reordered; or
when the server is away, whose answers may never come: then its calls are repeated at the other
server, in their order. Calls of other slots go on meanwhile, at the same server as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Any, Final, Protocol, TypeAlias

from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import RedisError

from penstock.broker.errors import PenstockError
from penstock.plugins.redis.login import Address, named
from penstock.plugins.redis.pipeline import Call, Patience, Pipeline

Range: TypeAlias = tuple[int, int, Address]
"""The first and the last slot of a range, and the server that has them."""
N_SLOTS: Final = 16_384
_MOST_KEYS: Final = 100_000


class Finder(Protocol):
    """Finds servers.

    Attributes:
        is_cluster: whether there is one for each slot, not one for all.
    """

    is_cluster: bool

    async def find(self) -> list[Range]:
        """Return the first and the last slot of each range, and its server.

        Raises:
            EngineStartError: nobody can tell.
        """


class Routes:
    """Sends calls to the servers of their keys.

    Attributes:
        on_return: is called when keys may be reached that could not be.
        n_changes: grows when a server goes away or comes back, and when slots are moved: what was
            known of a key is then to be asked for again.
    """

    def __init__(
        self,
        finder: Finder,
        connect: Callable[[Address], Awaitable[AbstractConnection]],
        patience: Patience,
        logger: Logger,
    ) -> None:
        self.on_away: Callable[[], None] = lambda: None
        self.on_return: Callable[[], None] = lambda: None
        self.has_away = False
        self.n_changes = 0
        self._finder = finder
        self._connect = connect
        self._patience = patience
        self._logger = logger
        self._pipelines: dict[Address, Pipeline] = {}
        self._by_slot: list[Pipeline] = []
        self._slots: dict[str, int] = {}
        self._n_calls = 0
        self._is_open = False
        self._finding: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._problem: str | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether there may be several servers."""
        return self._finder.is_cluster

    @property
    def failure(self) -> str | None:
        """Why a server cannot be reached; None where all can."""
        failures = (one.failure for one in self._pipelines.values())
        return next((failure for failure in failures if failure is not None), None)

    @property
    def addresses(self) -> list[Address]:
        """Of the servers that have slots."""
        return list(self._pipelines)

    async def open(self) -> None:
        """Find the servers and connect to each.

        Raises:
            EngineStartError: one cannot be used.
        """
        ranges = await self._finder.find()
        for _, _, address in ranges:
            if address not in self._pipelines:
                pipeline = self._pipelines[address] = self._pipeline(address)
                await pipeline.open()
        by_slot: list[Pipeline | None] = [None] * (N_SLOTS if self._finder.is_cluster else 1)
        for first, last, address in ranges:
            by_slot[first : last + 1] = [self._pipelines[address]] * (last + 1 - first)
        self._by_slot = [one for one in by_slot if one is not None]
        self._is_open = True
        for pipeline in self._pipelines.values():
            pipeline.start()

    def _pipeline(self, address: Address) -> Pipeline:
        return Pipeline(
            address,
            self._connect,
            self.find_again,
            self._has_gone,
            self._has_returned,
            self._patience,
            self._logger,
        )

    def call(
        self, key: str, *command: Any, is_stored: bool = False, is_kept: bool = False
    ) -> asyncio.Future[Any]:
        """Send a command to the server of a key; the future has its answer.

        The future fails with a `StorageError` where no server has answered in time, or where these
        routes are closed, and with a `ResponseError` where the server refuses the command.
        """
        slot = self.slot(key) if self._finder.is_cluster else 0
        self._n_calls += 1
        loop = asyncio.get_running_loop()
        call = Call(command, slot, self._n_calls, loop, is_stored=is_stored)
        call.is_kept = is_kept
        if self._is_open:
            self._by_slot[slot].submit(call)
        else:
            call.fail("the connection to Redis is closed")
        return call.future

    def address_of(self, key: str) -> Address:
        """Return the server of a key, as far as this program knows."""
        return self._pipeline_of(key).address

    def is_away(self, key: str) -> bool:
        """Return whether the server of a key cannot be reached, or does not answer."""
        return self._pipeline_of(key).is_away

    def keep(self, future: asyncio.Future[Any]) -> None:
        """Have a call wait for a server as long as that takes: `retry_seconds` are not for it."""
        for pipeline in self._pipelines.values():
            pipeline.keep(future)

    def _pipeline_of(self, key: str) -> Pipeline:
        return self._by_slot[self.slot(key) if self._finder.is_cluster else 0]

    def slot(self, key: str) -> int:
        """Return the slot of a key."""
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= _MOST_KEYS:
                self._slots.clear()
            slot = self._slots[key] = key_slot(key.encode())
        return slot

    async def close(self) -> None:
        """Wait for the answers of what was called, and disconnect; may be called again."""
        self._is_open = False
        await asyncio.gather(*(one.finish() for one in self._pipelines.values()))
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self._pipelines.values()))
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._pipelines.clear()

    def _has_gone(self) -> None:
        self._note_change()
        self.on_away()

    def _has_returned(self) -> None:
        self._note_change()
        self.on_return()

    def _note_change(self) -> None:
        self.n_changes += 1
        self.has_away = any(one.is_away for one in self._pipelines.values())

    # -- when servers change -----------------------------------------------------------------------

    async def find_again(self) -> None:
        """Find the servers again, and send waiting calls where they belong."""
        if self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._find(), name="penstock-redis routes")
        await asyncio.shield(self._finding)

    async def _find(self) -> None:
        try:
            ranges = await self._finder.find()
        except (RedisError, OSError, PenstockError) as error:
            if self._problem != str(error):
                self._logger.warning("%s", error)
            self._problem = str(error)
            return
        self._problem = None
        self._take(ranges)

    def _take(self, ranges: list[Range]) -> None:
        by_slot = self._by_slot
        moves: dict[Pipeline, dict[int, Pipeline]] = {}
        has_changed = False
        for first, last, address in ranges:
            taker = self._pipelines.get(address)
            if taker is None:
                self._logger.info("%s is a master now", named(address))
                taker = self._pipelines[address] = self._pipeline(address)
                taker.start()
            for slot in range(first, min(last + 1, len(by_slot))):
                owner = by_slot[slot]
                if owner is not taker:
                    moves.setdefault(owner, {})[slot] = taker
        calls: list[Call] = []
        for owner, takers in moves.items():
            is_waited_for = set() if owner.is_away else owner.under_way() & takers.keys()
            owner.hold(is_waited_for)
            gone = takers.keys() - is_waited_for
            for slot in gone:
                by_slot[slot] = takers[slot]
            calls += owner.take(gone)
            has_changed = has_changed or bool(gone)
        for call in sorted(calls, key=lambda call: call.number):
            by_slot[call.slot].submit(call)
        in_use = {*by_slot, *(self._pipelines[address] for _, _, address in ranges)}
        for address, owner in list(self._pipelines.items()):
            if owner not in in_use:
                del self._pipelines[address]
                closing = asyncio.create_task(owner.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        if has_changed:
            self._has_returned()
