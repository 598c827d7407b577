"""One connection on which calls do not wait for each other.

Theory of operation. Calls of one step of the loop leave in one write, in their order; answers come
in the same order. Where the connection is lost, the outcome of calls that were sent is unknown:
they fail. Calls that were not sent wait for the next connection, for a while.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.contract import StorageError

CONNECT_SECONDS: Final = 5.0
"""For which calls wait for a connection before they fail."""
_FIRST_RETRY_SECONDS: Final = 0.05
_LAST_RETRY_SECONDS: Final = 1.0


class Pipeline:
    """Sends calls and completes their futures.

    Args:
        connect: returns a new connection that is checked and ready.
        logger: gets faults.

    Attributes:
        failure: why there is no connection; None where there is one.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[AbstractConnection]], logger: Logger
    ) -> None:
        self.failure: str | None = None
        self._connect = connect
        self._logger = logger
        self._connection: AbstractConnection | None = None
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._sent: deque[asyncio.Future[Any]] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    async def open(self) -> None:
        """Connect.

        Raises:
            RedisError: there is no server, or it refuses.
            OSError: the same.
            EngineStartError: it cannot be used.
        """
        self._connection = await self._connect()
        self._tasks = [asyncio.create_task(self._run(), name="penstock-queue-redis")]

    def call(self, *command: Any) -> asyncio.Future[Any]:
        """Send a command; the future has its answer.

        The future fails with a `StorageError` where it is unknown whether the command was carried
        out, and with a `ResponseError` where the server refuses it.

        Raises:
            StorageError: the engine is closed.
        """
        if self._is_closed or not self._tasks:
            raise StorageError("the queue is closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, future))
        self._wake.set()
        if self.failure is not None:
            asyncio.get_running_loop().call_later(CONNECT_SECONDS, self._give_up, future)
        return future

    async def close(self) -> None:
        """Wait for the answers of what was called, and disconnect; may be called again."""
        self._is_closed = True
        if self.failure is None and self._tasks:
            pending = [*self._sent, *(future for _, future in self._waiting)]
            if pending:
                await asyncio.wait(pending, timeout=CONNECT_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._fail("the queue is closed")
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)
            self._connection = None

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        """Fail a call that still waits for a connection."""
        if self.failure is None:
            return
        kept = [one for one in self._waiting if one[1] is not future]
        if len(kept) < len(self._waiting):
            self._waiting = kept
            if not future.done():
                future.set_exception(StorageError(self.failure))

    def _fail(self, why: str) -> None:
        """Fail all calls that were sent."""
        for future in self._sent:
            if not future.done():
                future.set_exception(StorageError(why))
        self._sent.clear()

    async def _run(self) -> None:
        while True:
            connection = self._connection
            if connection is not None:
                reading = asyncio.create_task(self._read(connection))
                writing = asyncio.create_task(self._write(connection))
                try:
                    done, _ = await asyncio.wait(
                        (reading, writing), return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    reading.cancel()
                    writing.cancel()
                    await asyncio.gather(reading, writing, return_exceptions=True)
                (lost, *_) = done
                self.failure = f"the Redis server: {lost.exception()}"
                self._logger.error("queue: %s", self.failure)
                await connection.disconnect(nowait=True)
                self._connection = None
                self._fail(f"{self.failure}; whether the call was carried out is unknown")
                loop = asyncio.get_running_loop()
                for _, future in self._waiting:
                    loop.call_later(CONNECT_SECONDS, self._give_up, future)
            await self._connect_again()

    async def _connect_again(self) -> None:
        seconds = _FIRST_RETRY_SECONDS
        while self._connection is None:
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _LAST_RETRY_SECONDS)
            try:
                self._connection = await self._connect()
            except (RedisError, OSError, PenstockError) as error:
                self.failure = f"the Redis server: {error}"
        self._logger.info("queue: connected to the Redis server again")
        self.failure = None
        self._wake.set()

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            calls, self._waiting = self._waiting, []
            if not calls:
                continue
            packed: list[bytes] = []
            for command, future in calls:
                packed += connection.pack_command(*command)
                self._sent.append(future)
            await connection.send_packed_command(packed, check_health=False)

    async def _read(self, connection: AbstractConnection) -> None:
        sent = self._sent
        while True:
            answer: Any
            try:
                answer = await connection.read_response(
                    disable_decoding=True, timeout=math.inf, disconnect_on_error=False
                )
            except ResponseError as error:
                answer = error
            future = sent.popleft()
            if future.done():  # its caller has left
                continue
            if isinstance(answer, ResponseError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
