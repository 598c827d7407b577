"""Listening to the server's channels tells what other programs have stored or given back.

Theory of operation. A function of the server that makes messages visible publishes the name of the
program that has called it, on a channel that is called as the physical queue. A program subscribes
to the channels of the queues that somebody waits for, on a connection of its own, and looks at a
physical queue when another program has changed it. Nothing depends on it: what is missed is seen by
`Engine.maintain`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.redis.cached_state import RedisPart, RedisQueue
from penstock.plugins.queue.engines.redis.functions import Functions
from penstock.plugins.redis.login import CONNECT_SECONDS, named

_SPARE_SECONDS: Final = 60.0
"""How long a program listens after the last request has stopped waiting, as others may follow
soon."""
_RETRY_SECONDS: Final = 1.0


class _Waiters:
    """Who waits for a queue.

    Attributes:
        left_at: the loop's time, in seconds, at which one has left.
    """

    def __init__(self) -> None:
        self.n_waiters = 0
        self.left_at = 0.0


class Listening:
    """Subscribes to channels and looks at what they tell of.

    Attributes:
        n_heard: how often another program has told of something.
    """

    def __init__(self, functions: Functions) -> None:
        self.n_heard = 0
        self._functions = functions
        self._wanted: dict[RedisQueue, _Waiters] = {}
        self._places: dict[bytes, tuple[RedisQueue, RedisPart]] = {}
        self._looks: dict[bytes, asyncio.Task[None]] = {}
        self._again: set[bytes] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: AbstractConnection | None = None
        self._unanswered = 0
        self._is_refused = False

    @contextmanager
    def listening(self, queue: RedisQueue) -> Iterator[None]:
        """Listen to a queue during the block, and a while more."""
        waited = self._wanted.get(queue)
        if waited is None:
            waited = self._wanted[queue] = _Waiters()
            self._changed.set()
        if self._task is None and not self._is_refused:
            self._task = asyncio.create_task(self._run(), name="penstock-queue-redis listening")
        waited.n_waiters += 1
        try:
            yield
        finally:
            waited.n_waiters -= 1
            waited.left_at = asyncio.get_running_loop().time()

    async def maintain(self) -> None:
        """Drop what nobody waits for; give up a connection on which nothing is answered."""
        since = asyncio.get_running_loop().time() - _SPARE_SECONDS
        self._wanted = {
            queue: waited
            for queue, waited in self._wanted.items()
            if waited.n_waiters or waited.left_at > since
        }
        self._changed.set()
        connection = self._connection
        if connection is None:
            return
        if self._unanswered >= 3:
            await connection.disconnect(nowait=True)
            return
        self._unanswered += 1
        with suppress(RedisError, OSError):
            await connection.send_packed_command(
                connection.pack_command("PING"), check_health=False
            )

    async def close(self) -> None:
        """Listen no more; may be called again."""
        tasks = [*self._looks.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        functions = self._functions
        while not self._is_refused:
            for address in functions.routes.addresses:
                try:
                    connection = functions.server.connection(address)
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await connection.connect()
                except (RedisError, OSError, PenstockError):
                    continue
                try:
                    await self._listen(connection)
                except NoPermissionError as error:
                    self._is_refused = True
                    functions.logger.warning(
                        "queue: server %s: %s; allowed: a user with the channels &%s:*. What other "
                        "programs store is received up to some seconds later",
                        named(address),
                        error,
                        functions.server.prefix,
                    )
                    return
                except (RedisError, OSError, ResponseError):
                    continue  # the pipeline to this server tells of faults
                finally:
                    self._connection = None
                    self._places.clear()
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self, connection: AbstractConnection) -> None:
        """Subscribe and hear until the connection ends."""
        self._unanswered = 0
        self._connection = connection
        self._changed.set()
        tasks = [
            asyncio.create_task(self._subscribe(connection)),
            asyncio.create_task(self._hear(connection)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _subscribe(self, connection: AbstractConnection) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            places = {
                part.base.encode(): (queue, part)
                for queue in self._wanted
                for part in queue.physical.values()
            }
            old = self._places
            self._places = places
            packed: list[bytes] = []
            for command, channels in (
                ("SUBSCRIBE", [one for one in places if one not in old]),
                ("UNSUBSCRIBE", [one for one in old if one not in places]),
            ):
                if channels:
                    packed += connection.pack_command(command, *channels)
            if packed:
                await connection.send_packed_command(packed, check_health=False)

    async def _hear(self, connection: AbstractConnection) -> None:
        own = self._functions.program.encode()
        while True:
            told: Any = await connection.read_response(
                disable_decoding=True, timeout=math.inf, disconnect_on_error=False
            )
            self._unanswered = 0
            if told[0] == b"message":
                if told[2] != own:
                    self.n_heard += 1
                    self._look(told[1])
            elif told[0] == b"subscribe":  # what came before is to be seen, too
                self._look(told[1])

    def _look(self, channel: bytes) -> None:
        """Look at a physical queue; once more where a look is under way."""
        if channel in self._looks:
            self._again.add(channel)
            return
        place = self._places.get(channel)
        if place is not None:
            look = asyncio.create_task(self._look_now(channel, *place))
            self._looks[channel] = look

    async def _look_now(self, channel: bytes, queue: RedisQueue, part: RedisPart) -> None:
        try:
            with suppress(PenstockError):  # it is deleted, or the server is gone
                await self._functions.look_at(queue, part)
        finally:
            del self._looks[channel]
        if channel in self._again:
            self._again.discard(channel)
            self._look(channel)
