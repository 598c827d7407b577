"""One connection to one server on which calls do not wait for each other.

Theory of operation. Calls of one step of the loop leave in one write, in their order; answers come
in the same order. Where the connection is lost, or the server answers that a call is not for it,
the calls without an answer wait here until there are routes again (see `routes`), and go out once
more in the order in which they were made. That is safe because the library does nothing twice: a
call with an effect that cannot be repeated carries a number, and the server keeps its answer.

Where replicas are asked for, a `WAIT` follows each write that stores something, and what it stored
is answered when the replicas have it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from logging import Logger
from typing import Any, Final, NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.engines.redis.login import Address, named

NOT_CARRIED_OUT: Final = (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    TryAgainError,
)
"""Answers of a server that has not the slot, or is no master: nothing was changed. A slot that is
on its way to another server (`ASK`) is waited for: half of its keys are of no use to a function."""
_FIRST_RETRY_SECONDS: Final = 0.02
_LAST_RETRY_SECONDS: Final = 1.0


class Patience(NamedTuple):
    """How long is waited for what.

    Attributes:
        timeout_seconds: for an answer, after which the connection is given up.
        retry_seconds: since it was made, after which a call fails that no server takes.
        min_replicas: replicas that must have what is stored; 0 to wait for none.
        replication_seconds: for which they are waited for.
    """

    timeout_seconds: float = 5.0
    retry_seconds: float = 15.0
    min_replicas: int = 0
    replication_seconds: float = 1.0


class Call:
    """A command on its way.

    Attributes:
        command: its words.
        slot: hash slot of its keys; 0 where there is but one server.
        is_stored: whether replicas are waited for.
        number: of calls, in the order in which they were made.
        made_at: the loop's time of that, in seconds.
        future: has its answer.
        is_sent: whether it may have been carried out.
    """

    __slots__ = ("command", "future", "is_sent", "is_stored", "made_at", "number", "slot")

    def __init__(
        self,
        command: tuple[Any, ...],
        slot: int,
        number: int,
        loop: asyncio.AbstractEventLoop,
        *,
        is_stored: bool,
    ) -> None:
        self.command = command
        self.slot = slot
        self.is_stored = is_stored
        self.number = number
        self.made_at = loop.time()
        self.future: asyncio.Future[Any] = loop.create_future()
        self.is_sent = False

    def fail(self, why: str) -> None:
        """Fail, where nobody has completed it."""
        if not self.future.done():
            if self.is_sent:
                why = f"{why}; whether the call was carried out is unknown"
            self.future.set_exception(StorageError(why))


class _Wait:
    """A `WAIT` on its way."""


class Pipeline:
    """Sends calls to one server and completes their futures.

    Args:
        address: of the server.
        connect: returns a new connection to it that is checked and ready.
        on_trouble: finds routes; it may take the waiting calls away, or close this pipeline.
        on_return: is called when there is a connection again.
        patience: with the server.
        logger: gets faults.

    Attributes:
        address: of the server.
        failure: why there is no connection; None where there is one.
    """

    def __init__(
        self,
        address: Address,
        connect: Callable[[Address], Awaitable[AbstractConnection]],
        on_trouble: Callable[[], Awaitable[None]],
        on_return: Callable[[], None],
        patience: Patience,
        logger: Logger,
    ) -> None:
        self.address = address
        self.failure: str | None = None
        self._connect = connect
        self._on_trouble = on_trouble
        self._on_return = on_return
        self._patience = patience
        self._logger = logger
        self._connection: AbstractConnection | None = None
        self._waiting: list[Call] = []
        self._sent: deque[Call | _Wait] = deque()
        self._unsafe: list[tuple[Call, Any]] = []
        self._is_paused = True
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return named(self.address)

    async def open(self) -> None:
        """Connect.

        Raises:
            EngineStartError: the server cannot be used.
        """
        self._connection = await self._connect(self.address)

    def start(self) -> None:
        """Begin to send calls; connect first where that is missing."""
        self._task = asyncio.create_task(self._run(), name=f"penstock-queue-redis {self}")

    def submit(self, call: Call) -> None:
        """Send a call, when there is a connection."""
        self._waiting.append(call)
        if self._is_paused:
            self._expect_expiry()
        else:
            self._wake.set()

    @property
    def is_busy(self) -> bool:
        """Whether answers of the server are still to come."""
        return bool(self._sent)

    @property
    def is_paused(self) -> bool:
        """Whether calls wait for routes or a connection."""
        return self._is_paused

    @property
    def n_calls(self) -> int:
        """Calls without an answer."""
        return len(self._waiting) + len(self._sent) + len(self._unsafe)

    def pause(self) -> None:
        """Send no more until there are routes again, which are asked for behind the last answer."""
        self._is_paused = True

    def take_waiting(self) -> list[Call]:
        """Return the calls that were not sent, which are no longer this pipeline's."""
        taken, self._waiting = self._waiting, []
        return taken

    async def finish(self) -> None:
        """Wait for the answers of what was called, where there is a connection."""
        if self.failure is None and self._task is not None:
            calls = [*self._waiting, *self._sent, *(call for call, _ in self._unsafe)]
            futures = [call.future for call in calls if isinstance(call, Call)]
            if futures:
                await asyncio.wait(futures, timeout=self._patience.timeout_seconds)

    async def close(self) -> None:
        """Disconnect; what has no answer fails. May be called again."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._take_back()
        for call in self.take_waiting():
            call.fail("the queue is closed")
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)

    # -- trouble -----------------------------------------------------------------------------------

    def _take_back(self, redirected: Iterable[Call] = ()) -> None:
        """Put what has no answer where it waits, in the order in which it was made."""
        calls = [*redirected, *(call for call, _ in self._unsafe), *self._waiting]
        calls += [call for call in self._sent if isinstance(call, Call)]
        self._unsafe.clear()
        self._sent.clear()
        self._waiting = sorted(
            (call for call in calls if not call.future.done()), key=lambda call: call.number
        )

    def _expect_expiry(self) -> None:
        """Have the first call that waits fail when its time is over."""
        if self._expiry is None and self._waiting:
            at = self._waiting[0].made_at + self._patience.retry_seconds
            self._expiry = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if not self._is_paused:
            return
        latest = asyncio.get_running_loop().time() - self._patience.retry_seconds
        waiting = self._waiting
        while waiting and waiting[0].made_at <= latest:
            waiting.pop(0).fail(self.failure or f"the Redis server {self} takes no calls")
        self._expect_expiry()

    async def _run(self) -> None:
        seconds = _FIRST_RETRY_SECONDS
        while True:
            if self._connection is None:
                try:
                    self._connection = await self._connect(self.address)
                except (RedisError, OSError, PenstockError) as error:
                    self._note(str(error))
            if self._connection is not None:
                was_lost, self.failure = self.failure is not None, None
                if was_lost:
                    self._logger.info("queue: connected to the Redis server %s again", self)
                    self._on_return()
                self._is_paused = False
                self._wake.set()
                if await self._serve(self._connection):
                    seconds = _FIRST_RETRY_SECONDS
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _LAST_RETRY_SECONDS)
            await self._on_trouble()

    def _note(self, why: str) -> None:
        """Note why there is no connection."""
        if self.failure is None:
            self._logger.error("queue: %s", why)
        self.failure = why

    async def _serve(self, connection: AbstractConnection) -> bool:
        """Send and receive until that is over; return whether any call was answered by then."""
        answered: list[int] = [0]
        redirected: list[Call] = []
        reading = asyncio.create_task(self._read(connection, answered, redirected))
        tasks = (
            reading,
            asyncio.create_task(self._write(connection)),
            asyncio.create_task(self._watch()),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._is_paused = True
        errors = [task.exception() for task in done if not task.cancelled()]
        for error in errors:
            if error is not None:
                self._note(f"the Redis server {self}: {error}")
                await self._disconnect()
                break
        self._take_back(redirected)
        self._expect_expiry()
        return answered[0] > 0

    # -- sending and receiving ---------------------------------------------------------------------

    async def _write(self, connection: AbstractConnection) -> None:
        patience = self._patience
        wait = ("WAIT", patience.min_replicas, int(1000 * patience.replication_seconds))
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_paused or not self._waiting:
                continue
            calls, self._waiting = self._waiting, []
            packed: list[bytes] = []
            is_stored = False
            for call in calls:
                packed += connection.pack_command(*call.command)
                call.is_sent = True
                is_stored = is_stored or call.is_stored
                self._sent.append(call)
            if is_stored and patience.min_replicas:
                packed += connection.pack_command(*wait)
                self._sent.append(_Wait())
            await connection.send_packed_command(packed, check_health=False)

    async def _read(
        self, connection: AbstractConnection, answered: list[int], redirected: list[Call]
    ) -> None:
        """Complete calls; return when the server has refused one and has answered all.

        Args:
            connection: to the server.
            answered: its first number grows with each call.
            redirected: gets those that the server has not carried out.
        """
        sent = self._sent
        is_safe = not self._patience.min_replicas
        while not self._is_paused or sent:
            answer: Any
            try:
                answer = await connection.read_response(
                    disable_decoding=True, timeout=math.inf, disconnect_on_error=False
                )
            except ResponseError as error:
                answer = error
            call = sent.popleft()
            if isinstance(call, _Wait):
                self._replicated(answer)
            elif isinstance(answer, ResponseError):
                if isinstance(answer, NOT_CARRIED_OUT):
                    call.is_sent = False
                    redirected.append(call)
                    self._is_paused = True
                elif not call.future.done():
                    call.future.set_exception(answer)
            elif call.future.done():  # its caller has left
                answered[0] += 1
            elif is_safe or not call.is_stored:
                answered[0] += 1
                call.future.set_result(answer)
            else:
                self._unsafe.append((call, answer))

    def _replicated(self, answer: Any) -> None:
        """Complete what was stored before a WAIT, as many replicas as it says have it."""
        calls, self._unsafe = self._unsafe, []
        n_replicas = answer if isinstance(answer, int) else 0
        least = self._patience.min_replicas
        for call, one in calls:
            if call.future.done():
                continue
            if n_replicas >= least:
                call.future.set_result(one)
            else:
                call.future.set_exception(
                    StorageError(
                        f"replicas of the Redis server {self}: read {n_replicas}; allowed: "
                        f"{least} or more, as min_replicas says. The call was carried out, and a "
                        "failover may lose it"
                    )
                )

    async def _watch(self) -> None:
        """Give up a server that does not answer.

        Raises:
            TimeoutError: the same call has waited for its answer for too long.
        """
        seconds = self._patience.timeout_seconds
        if self._patience.min_replicas:
            seconds += self._patience.replication_seconds
        first: Call | _Wait | None = None
        n_looks = 0
        while True:
            await asyncio.sleep(seconds / 4)
            if not self._sent or self._sent[0] is not first:
                first = self._sent[0] if self._sent else None
                n_looks = 0
                continue
            n_looks += 1
            if n_looks >= 4:
                raise TimeoutError(f"no answer for {seconds:g} s")
