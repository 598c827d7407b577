"""A pipeline sends calls over one connection without waiting for the answers of earlier ones.

Theory of operation. Calls of one step of the loop leave in one write, in their order; answers come
in the same order. A call for many messages leaves at once: the server works on it while this
program prepares the next one. Where the connection is lost, the calls without an answer wait here
until there are routes again (see `routes`), and go out once more in the order in which they were
made. That is safe because the library does nothing twice: a call with an effect that cannot be
repeated carries a number, and the server keeps its answer. Where the server answers that a call is
not for it, the calls of that slot wait in the same way, and those of its other slots go on. One
call of a slot that waits is tried from time to time, and the others once that is carried out: there
may be thousands.

A server that has not answered for a while is *silent*: who can do without it need not wait for it.
That is not trouble yet; it may be slow. It is trouble once another server has taken its place.

Where replicas are asked for, a `WAIT` follows each write that stores something, and what it stored
is answered when the replicas have it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from logging import Logger
from operator import length_hint
from typing import Any, Final, NamedTuple, TypeAlias

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from penstock.broker.errors import PenstockError
from penstock.broker.plugin_guard import is_logged
from penstock.plugins.redis.errors import StorageError
from penstock.plugins.redis.login import Address, named

NOT_CARRIED_OUT: Final = (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    TryAgainError,
)
"""Answers of a server that does not have the slot, or is no master: nothing was changed. A slot
that moves to another server (`ASK`) is waited for, because a function cannot use half of its
keys."""
_LONG_BYTES: Final = 16 * 1024
_MANY_WORDS: Final = 48
"""A command with so many words is written at once: encoding it takes longer than a write."""
_FIRST_RETRY_SECONDS: Final = 0.02
_LAST_RETRY_SECONDS: Final = 1.0
_FOLLOW_SECONDS: Final = 0.25
"""The interval at which a small request checks whether a silent server was replaced, or a refused
slot has a server."""


class Patience(NamedTuple):
    """How long is waited for what.

    Attributes:
        timeout_seconds: how long an answer is waited for; then the connection is given up.
        retry_seconds: the age at which a call fails that no server takes.
        min_replicas: how many replicas must have what is stored; 0 to wait for none.
        slowdown_detection_time: seconds without an answer after which a server is silent; None for
            never.
    """

    timeout_seconds: float = 5.0
    retry_seconds: float = 15.0
    min_replicas: int = 0
    replication_seconds: float = 1.0
    slowdown_detection_time: float | None = None


class Call:
    """A command on its way.

    Attributes:
        slot: hash slot of its keys; 0 where there is but one server.
        is_stored: whether replicas are waited for.
        number: its number among all calls, in the order in which they were made.
        made_at: the loop's time of that, in seconds.
        is_sent: whether it may have been carried out.
        is_kept: whether it waits for a server however long that takes.
    """

    __slots__ = (
        "command",
        "future",
        "is_kept",
        "is_sent",
        "is_stored",
        "made_at",
        "number",
        "slot",
    )

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
        self.is_kept = False

    def fail(self, why: str) -> None:
        """Fail, where nobody has completed it."""
        if not self.future.done():
            if self.is_sent:
                why = f"{why}; whether the call was carried out is unknown"
            self.future.set_exception(StorageError(why))


class _Wait:
    """A `WAIT` on its way."""


class _Moved:
    """In place of a call on its way that another server carries out: its answer is passed over."""


_Sent: TypeAlias = Call | _Wait | _Moved


class Silence:
    """Says when a server that does not answer is silent, and when it is given up.

    Each time that it was silent, it may take twice as long before it is again, until it answers a
    call in time: what is on a server that is always slow must be had, too.

    Attributes:
        step: seconds between two looks. Looks are counted, not time: while this program stands
            still, no server can answer it.
    """

    def __init__(self, patience: Patience) -> None:
        least = patience.slowdown_detection_time or math.inf
        self._timeout = patience.timeout_seconds
        if patience.min_replicas:
            self._timeout += patience.replication_seconds
        self.step = min(least, self._timeout) / 4
        self.is_silent = False
        self._replication = patience.replication_seconds
        self._least = self._limit = least
        self._first: _Sent | None = None
        self._n_looks = 0

    def look(self, first: _Sent | None) -> bool:
        """Take note of what the next answer is for; say whether the server has become silent.

        Raises:
            TimeoutError: this answer has not come for too long.
        """
        if first is None or first is not self._first:
            self._first, self._n_looks = first, 0
            return False
        self._n_looks += 1
        waited = self._n_looks * self.step
        if waited >= self._timeout:
            raise TimeoutError(f"no answer for {self._timeout:g} s")
        limit = self._limit + (self._replication if isinstance(first, _Wait) else 0.0)
        if self.is_silent or waited < limit:
            return False
        self.is_silent = True
        self._limit *= 2
        return True

    @property
    def is_over(self) -> bool:
        """Whether `answered` has nothing to take note of."""
        return self._limit == self._least and not self.is_silent

    def answered(self, call: _Sent, now: float) -> bool:
        """Take note of an answer, at the loop's time; say whether the server was silent."""
        was_silent, self.is_silent = self.is_silent, False
        if isinstance(call, Call) and now - call.made_at <= self._least:
            self._limit = self._least
        return was_silent

    def connected(self) -> None:
        """Take note of a new connection, on which the server has answered."""
        self.is_silent = False
        self._first = None


def _packed(connection: AbstractConnection, command: tuple[Any, ...]) -> list[bytes]:
    """Return a command as the protocol has it. What is long is not copied; the rest is quicker."""
    if max(map(length_hint, command)) > _LONG_BYTES:
        packed: list[bytes] = connection.pack_command(*command)
        return packed
    return [pack_command(command)]


def _in_order(calls: Iterable[Call]) -> list[Call]:
    """Return calls that somebody waits for, in the order in which they were made."""
    return sorted((call for call in calls if not call.future.done()), key=lambda call: call.number)


class Pipeline:
    """Sends calls to one server and completes their futures.

    Args:
        address: of the server.
        connect: returns a new connection to it that is checked and ready.
        on_trouble: finds routes; it may take the waiting calls away, or close this pipeline.
        on_away: is called when the server is away: the connection is lost, or it is silent.
        on_return: is called when it is there again.
        patience: with the server.
        logger: gets faults.

    Attributes:
        failure: why there is no connection; None where there is one.
    """

    def __init__(
        self,
        address: Address,
        connect: Callable[[Address], Awaitable[AbstractConnection]],
        on_trouble: Callable[[], Awaitable[None]],
        on_away: Callable[[], None],
        on_return: Callable[[], None],
        patience: Patience,
        logger: Logger,
    ) -> None:
        self.address = address
        self.failure: str | None = None
        self._connect = connect
        self._on_trouble = on_trouble
        self._on_away = on_away
        self._on_return = on_return
        self._patience = patience
        self._logger = logger
        self._connection: AbstractConnection | None = None
        self._waiting: list[Call] = []
        self._sent: deque[_Sent] = deque()
        self._unsafe: list[tuple[Call, Any]] = []
        self._is_paused = True
        self._wake = asyncio.Event()
        self._silence = Silence(patience)
        self._held: dict[int, Call | None] = {}
        """Slots whose calls wait, and the one of each that is tried."""
        self._held_calls: list[Call] = []
        self._has_held = asyncio.Event()
        self._has_sent = asyncio.Event()
        self._is_writing = False
        self._is_lacking = self._lacks_replicas = False
        self._told: set[str] = set()
        self._why_held = "a slot has moved"
        self._n_refused = 0
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
        self._task = asyncio.create_task(self._run(), name=f"penstock-redis {self}")

    def submit(self, call: Call) -> None:
        """Send a call, when there is a connection."""
        is_held = call.slot in self._held
        if not is_held and not self._is_paused:
            if len(call.command) >= _MANY_WORDS and self._write_now(call):
                return
            self._waiting.append(call)
            self._wake.set()
        else:
            (self._held_calls if is_held else self._waiting).append(call)
            self._expect_expiry()

    def _write_now(self, call: Call) -> bool:
        """Write a call where nothing waits to be written before it; say whether that was so.

        redis-py has no way to write that never waits: this takes the connection's own writer, and
        only while the system takes all that is written.
        """
        connection = self._connection
        writer = None if connection is None else connection._writer  # noqa: SLF001
        if connection is None or writer is None or self._waiting or self._is_writing:
            return False
        if self._patience.min_replicas:  # one WAIT is for all that leaves together
            return False
        if writer.transport.get_write_buffer_size():
            return False
        writer.writelines(self._packed(connection, [call]))
        return True

    @property
    def is_away(self) -> bool:
        """Whether there is no connection, or the server is silent."""
        return self.failure is not None or self._silence.is_silent

    def under_way(self) -> set[int]:
        """Return the slots of which answers of the server are still to come."""
        return {call.slot for call in self._sent if isinstance(call, Call)}

    def hold(self, slots: Collection[int]) -> None:
        """Send no more calls of slots until there are routes again, which are then asked for."""
        if slots:
            self._held.update(dict.fromkeys(slots))
            self._has_held.set()
            self._expect_expiry()

    def take(self, slots: Collection[int]) -> list[Call]:
        """Return the calls of slots without an answer, which are no longer this pipeline's.

        Those under way are among them: who gives up their answers repeats them elsewhere.
        """
        waiting = [*self._waiting, *self._held_calls]
        taken = [call for call in waiting if call.slot in slots]
        taken += [call for call, _ in self._unsafe if call.slot in slots]
        self._waiting = [call for call in self._waiting if call.slot not in slots]
        self._held_calls = [call for call in self._held_calls if call.slot not in slots]
        self._unsafe = [one for one in self._unsafe if one[0].slot not in slots]
        for at, call in enumerate(self._sent):
            if isinstance(call, Call) and call.slot in slots:
                taken.append(call)
                self._sent[at] = _Moved()
        for slot in slots:
            self._held.pop(slot, None)
        return [call for call in taken if not call.future.done()]

    def keep(self, future: asyncio.Future[Any]) -> None:
        """Have a call, if it is one of this pipeline, wait for a server as long as that takes."""
        for call in self._calls():
            if call.future is future:
                call.is_kept = True

    def _calls(self) -> list[Call]:
        """Return all that have no answer."""
        calls = [*(call for call, _ in self._unsafe), *self._waiting, *self._held_calls]
        return calls + [call for call in self._sent if isinstance(call, Call)]

    async def finish(self) -> None:
        """Wait for the answers of what was called, where there is a connection."""
        if self.failure is None and self._task is not None:
            futures = [call.future for call in self._calls()]
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
        for call in self._waiting:
            call.fail("the connection to Redis is closed")
        self._waiting.clear()
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)

    # -- trouble -----------------------------------------------------------------------------------

    def _take_back(self) -> None:
        """Put what has no answer where it waits, in the order in which it was made."""
        self._waiting = _in_order(self._calls())
        self._unsafe.clear()
        self._sent.clear()
        self._held.clear()
        self._held_calls.clear()

    def _try_held(self) -> None:
        """Send the first call of each slot that waits, but of those that have answers to come."""
        self._waiting = self._not_held(self._waiting)
        self._held_calls = _in_order(self._held_calls)
        first: dict[int, Call] = {}
        for call in self._held_calls:
            first.setdefault(call.slot, call)
        under_way = self.under_way()
        tried: list[Call] = []
        for slot, one in list(self._held.items()):
            if slot in under_way or (one is not None and not one.future.done()):
                continue
            if slot in first:
                self._held[slot] = first[slot]
                tried.append(first[slot])
            else:
                del self._held[slot]
        if tried:
            self._held_calls = [call for call in self._held_calls if call not in tried]
            self._waiting += tried
            self._wake.set()

    def _not_held(self, calls: Iterable[Call]) -> list[Call]:
        """Return calls that may be sent; the others wait with their slots."""
        free: list[Call] = []
        for call in calls:
            is_held = self._held.get(call.slot, call) is not call
            (self._held_calls if is_held else free).append(call)
        return free

    def _let_go(self, slot: int) -> None:
        """Send all calls of a slot that has waited."""
        del self._held[slot]
        own = [call for call in self._held_calls if call.slot == slot]
        self._waiting = _in_order([*self._waiting, *own])
        self._held_calls = [call for call in self._held_calls if call.slot != slot]
        self._wake.set()

    def _expect_expiry(self) -> None:
        """Have the first call that waits fail when its time is over."""
        if self._expiry is None:
            held = [*self._waiting, *self._held_calls] if self._is_paused else self._held_calls
            first = next((call for call in held if not call.is_kept), None)
            if first is not None:
                at = first.made_at + self._patience.retry_seconds
                self._expiry = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        latest = asyncio.get_running_loop().time() - self._patience.retry_seconds
        if self._is_paused:
            self._waiting = self._unexpired(self._waiting, latest)
        self._held_calls = self._unexpired(self._held_calls, latest)
        self._expect_expiry()

    def _unexpired(self, calls: Iterable[Call], latest: float) -> list[Call]:
        """Return calls that were made later, or are kept; have the others fail."""
        left: list[Call] = []
        for call in calls:
            if call.is_kept or call.made_at > latest:
                left.append(call)
            else:
                call.fail(
                    self.failure or f"the Redis server {self} takes no calls: {self._why_held}"
                )
        return left

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
                self._told.clear()
                self._silence.connected()
                if was_lost:
                    self._logger.info("connected to the Redis server %s again", self)
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
        was_away, self.failure = self.is_away, why
        if why not in self._told:
            self._told.add(why)
            self._logger.error("%s", why)
        if not was_away:
            self._on_away()

    async def _serve(self, connection: AbstractConnection) -> bool:
        """Send and receive until that is over; return whether any call was answered by then."""
        answered: list[int] = [0]
        tasks = (
            asyncio.create_task(self._read(connection, answered)),
            asyncio.create_task(self._write(connection)),
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._follow()),
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
        self._take_back()
        self._expect_expiry()
        return answered[0] > 0

    # -- sending and receiving ---------------------------------------------------------------------

    async def _write(self, connection: AbstractConnection) -> None:
        self._is_writing = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_paused or not (self._waiting or self._is_lacking):
                continue
            calls, self._waiting = self._waiting, []
            if self._held:
                calls = self._not_held(calls)
                self._expect_expiry()
                if not (calls or self._is_lacking):
                    continue
            packed = self._packed(connection, calls)
            self._is_writing = True
            await connection.send_packed_command(packed, check_health=False)
            self._is_writing = False

    def _packed(self, connection: AbstractConnection, calls: Iterable[Call]) -> list[bytes]:
        """Return calls as the protocol has them; their answers are expected from then on."""
        patience = self._patience
        packed: list[bytes] = []
        is_stored, self._is_lacking = self._is_lacking, False
        for call in calls:
            packed += _packed(connection, call.command)
            call.is_sent = True
            is_stored = is_stored or call.is_stored
            self._sent.append(call)
        if is_stored and patience.min_replicas:
            milliseconds = int(1000 * patience.replication_seconds)
            packed += connection.pack_command("WAIT", patience.min_replicas, milliseconds)
            self._sent.append(_Wait())
        self._has_sent.set()
        return packed

    async def _read(self, connection: AbstractConnection, answered: list[int]) -> None:
        """Complete calls, and hold the slots of those that the server does not carry out."""
        sent = self._sent
        is_safe = not self._patience.min_replicas
        while True:
            answer: Any
            try:
                answer = await connection.read_response(
                    disable_decoding=True, timeout=math.inf, disconnect_on_error=False
                )
            except ResponseError as error:
                if str(error) == "Function not found":  # somebody has removed the library
                    raise  # a new connection loads it
                answer = error
            call = sent.popleft()
            if isinstance(call, _Wait):
                self._replicated(answer)
            elif isinstance(call, _Moved):
                pass
            elif isinstance(answer, ResponseError):
                lacks_replicas = str(answer).startswith("NOREPLICAS")
                if isinstance(answer, NOT_CARRIED_OUT) or (lacks_replicas and call.is_kept):
                    call.is_sent = False
                    self._why_held = str(answer)
                    self._held_calls.append(call)
                    self.hold((call.slot,))
                else:
                    self._note_refusal(call, answer)
                    if not call.future.done():
                        call.future.set_exception(answer)
                    if lacks_replicas and call.slot in self._held:
                        self.hold((call.slot,))  # another one is tried
            elif call.future.done():  # its caller has left
                answered[0] += 1
            elif is_safe or not call.is_stored:
                answered[0] += 1
                call.future.set_result(answer)
            else:
                self._unsafe.append((call, answer))
            if self._held and isinstance(call, Call) and call.slot in self._held:
                if not isinstance(answer, ResponseError):
                    self._fail_overtaken(call)
                if self._held.get(call.slot) is call:
                    self._let_go(call.slot)
            if not self._silence.is_over:  # behind the answer: who is woken knows of it
                self._note_answer(call)

    def _fail_overtaken(self, later: Call) -> None:
        """Have calls fail that were not carried out, where a later one of the same caller was.

        By their numbers they would be repeats. Key and caller stand first in a command.
        """
        caller = later.command[3:6]
        for call in self._held_calls if later.is_stored else ():
            if call.number < later.number and call.command[3:6] == caller:
                call.fail(f"the Redis server {self} has not taken it: {self._why_held}")

    def _note_refusal(self, call: Call, error: ResponseError) -> None:
        """Log what is no answer of the library's own: many a call has nobody who waits for it."""
        if "PENSTOCK" not in str(error) and not isinstance(error, OutOfMemoryError):
            self._n_refused += 1
            if is_logged(self._n_refused):
                what = " ".join(map(str, call.command[:2]))
                self._logger.warning("the Redis server %s refuses %s: %s", self, what, error)

    def _replicated(self, answer: Any) -> None:
        """Complete what was stored before a WAIT, as many replicas as it says have it.

        Calls that are kept wait for a later WAIT where these are too few.
        """
        calls, self._unsafe = self._unsafe, []
        n_replicas = answer if isinstance(answer, int) else 0
        least = self._patience.min_replicas
        self._lacks_replicas = n_replicas < least
        for call, one in calls:
            if call.future.done():
                continue
            if n_replicas >= least:
                call.future.set_result(one)
            elif call.is_kept:
                self._unsafe.append((call, one))
            else:
                call.future.set_exception(
                    StorageError(
                        f"replicas of the Redis server {self}: read {n_replicas}; allowed: "
                        f"{least} or more, as min_replicas says. The call was carried out, and a "
                        "failover may lose it"
                    )
                )
        if self._unsafe:
            asyncio.get_running_loop().call_later(_FOLLOW_SECONDS, self._wait_again)

    def _wait_again(self) -> None:
        """Ask again how many replicas have what was stored."""
        self._is_lacking = bool(self._unsafe)
        self._wake.set()

    def _note_answer(self, call: _Sent) -> None:
        if self._silence.answered(call, asyncio.get_running_loop().time()):
            self._logger.info("the Redis server %s answers again", self)
            self._on_return()

    async def _watch(self) -> None:
        """Look for answers; note that the server is silent.

        Raises:
            TimeoutError: the server does not answer.
        """
        while True:
            if not self._sent:
                self._silence.look(None)
                self._has_sent.clear()
                await self._has_sent.wait()
            elif self._silence.look(self._sent[0]):
                self._logger.warning(
                    "the Redis server %s does not answer: who can do without it does", self
                )
                self._on_away()
            await asyncio.sleep(self._silence.step)

    async def _follow(self) -> None:
        """Look for routes while slots wait for them.

        Also while the server is silent: it may be long until it is given up. And while it lacks
        replicas: they may be another one's, which has taken its place.
        """
        seconds = _FIRST_RETRY_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FOLLOW_SECONDS):
                    await self._has_held.wait()
            self._has_held.clear()
            if self._held:
                await asyncio.sleep(seconds)
                seconds = min(2 * seconds, _FOLLOW_SECONDS)
            else:
                seconds = _FIRST_RETRY_SECONDS
                if self._lacks_replicas and not self._silence.is_silent:
                    await asyncio.sleep(_LAST_RETRY_SECONDS)
                elif not self._silence.is_silent:
                    continue
            await self._on_trouble()
            self._try_held()
