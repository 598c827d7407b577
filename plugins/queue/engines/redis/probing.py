"""Probing asks each server whether it would store a message."""

from __future__ import annotations

import asyncio
from typing import Final

from redis.exceptions import ResponseError

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.contract import Health, StorageError, UnknownQueueError
from penstock.plugins.queue.engines.redis.cached_state import RedisPart, RedisQueue
from penstock.plugins.queue.engines.redis.functions import Functions, plain
from penstock.plugins.redis.checks import check_eviction, fields_of
from penstock.plugins.redis.login import Address, named

PROBE_SECONDS: Final = 2.0
"""The timeout of an answer, in addition to the time for replicas."""


class Prober:
    """Asks each server for one of its physical queues.

    Attributes:
        problem: why a message would not be stored, as of the last answers; None where it would, or
            where a connection is lost.
    """

    def __init__(self, functions: Functions) -> None:
        self.problem: str | None = None
        self._seconds = PROBE_SECONDS
        patience = functions.server.patience
        if patience.min_replicas:
            self._seconds += patience.replication_seconds
        self._routes = functions.routes
        self._functions = functions
        self._logger = functions.logger
        self._probing: asyncio.Task[Health] | None = None

    async def probe(self) -> Health:
        """Ask the servers; those who ask meanwhile share the answer."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe(), name="queue probe")
        return await asyncio.shield(self._probing)

    async def _probe(self) -> Health:
        by_address: dict[Address, tuple[RedisQueue, RedisPart]] = {}
        places: list[set[Address]] = []
        for queue in self._functions.queues.values():
            parts = {self._routes.address_of(part.base): part for part in queue.physical.values()}
            places.append(set(parts))
            for address, part in parts.items():
                by_address.setdefault(address, (queue, part))
        found = await asyncio.gather(*(self._problem(*one) for one in by_address.values()))
        problems = {
            address: problem for address, problem in zip(by_address, found, strict=True) if problem
        }
        problem = self._functions.lost or next(iter(problems.values()), None)
        is_partial = not self._functions.lost and all(
            addresses - problems.keys() for addresses in places
        )
        self._note(problem)
        return Health(problem, is_partial=problem is not None and is_partial)

    def _note(self, problem: str | None) -> None:
        """Log what has changed; of a connection that is lost, others tell when it is back."""
        if self._routes.failure is not None and not self._functions.lost:
            problem = None
        elif problem is not None and problem != self.problem:
            self._logger.error("queue: a message would not be stored: %s", problem)
        elif problem is None and self.problem is not None:
            self._logger.warning("queue: the server stores messages again")
        self.problem = problem

    async def _problem(self, queue: RedisQueue, part: RedisPart) -> str | None:
        """Return why a server would not store a message; None where it would."""
        address = self._routes.address_of(part.base)
        if self._routes.is_away(part.base):
            return self._routes.failure or f"the Redis server {named(address)}: it does not answer"
        try:
            async with asyncio.timeout(self._seconds):
                await self._functions.probe(queue, part)
                info = await plain(self._routes.call(part.base, "INFO", "memory"))
                return check_eviction(named(address), fields_of(info))
        except TimeoutError:
            return f"the Redis server {named(address)}: no answer for {self._seconds:g} s"
        except UnknownQueueError as error:
            return await self._why_gone(queue, f"{error}")
        except (PenstockError, ResponseError) as error:
            return f"{error}"

    async def _why_gone(self, queue: RedisQueue, told: str) -> str | None:
        """Return why a physical queue is gone; None where its queue was deleted."""
        try:
            return told if queue.name in await self._functions.entries() else None
        except StorageError as error:
            return f"{error}"
