"""The driver of the core on asyncio: who is served when, deadlines, tasks.

Theory of operation. Each call into the core ends with `settle`. It serves every connection that the
call has touched, in *rounds*: in each, a connection writes what it has to send, 640 KiB at most
(`broker.sending.WRITE_BYTES`), until nobody has any more. Then it sets one timer, for the earliest
of the core's deadlines.

Nobody may keep the loop for long. What a chunk or a wake-up can cause in a fraction of a
millisecond is done at once, as most of what clients do. Whoever has more to do stands in one
*line*, and has a *turn* (`MqttProtocol.take_turn`) when those before it have had theirs:
* the next *slice* of a long chunk that came in, some 0.2 ms of work;
* the rest of a slice that was more than `broker.core.MOST_STEPS` *steps*, which are packets that go
  their own way and deliveries that are no mere copies;
* the next part of an outbox that has more to send, `broker.sending.PUMP_MESSAGES` at a time;
* the write to a subscriber beyond the first `MOST_TURNS` that one call has touched.
For `TURNS_SECONDS` the line is served from its head; then the loop looks at the network again. If
what came from there took longer, the line's next time is as long: while very many publishers send,
those who stand in it would starve else, and what they are to be sent would grow.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from broker.connection import Connection
from broker.core import Core
from broker.errors import PeerError

if TYPE_CHECKING:
    from broker.limits import Limits
    from broker.transport import MqttProtocol

TURNS_SECONDS: Final = 0.0002
"""For so long at least those who wait in line are served, before the loop looks at the network
again: forty times what that look costs. With it, half of the messages of a pair are no later than
0.4 ms while another subscriber is flooded; alone, 0.15 ms."""

MOST_TURNS: Final = 32
"""Connections that are served in that time. What is little uvloop writes only afterwards, by a
system call of 5 to 10 us for each: again some 0.2 ms, which no clock has seen coming."""

COLLECT_CONNECTIONS: Final = 5_000
"""Connections that have ended before the memory of all is collected, as the objects of those
that ended while their CONNECT was judged refer to each other: 40 MB at most."""

_ROUNDING_SECONDS: Final = 0.0005
"""uvloop rounds a delay to milliseconds. A timer that came early would find nothing due, and would
be set again without any delay until it is."""


class Driver:
    """Runs one core on the event loop; all of it on the loop's thread.

    Attributes:
        core: what is driven; set right after both were made.
        clock: monotonic seconds, the `now` of every call into the core.
        loop: the event loop.
        protocols: the network connections there are.
    """

    def __init__(self, limits: Limits, logger: logging.Logger) -> None:
        self.core: Core
        self.clock: Callable[[], float] = time.monotonic
        self.limits = limits
        self.logger = logger
        self.protocols: set[MqttProtocol] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._line: deque[MqttProtocol] = deque()
        self._has_turns = False
        self._seconds_elsewhere = 0.0
        self._n_lost = 0
        self._is_woken = False
        self._none_left: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Look at touched connections soon: something outside of a turn touched one."""
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self.settle(self.clock())

    def later(self, protocol: MqttProtocol) -> None:
        """Let a connection take a turn when those before it in the line have had theirs."""
        if not protocol.is_in_line:
            protocol.is_in_line = True
            self._line.append(protocol)
            if not self._has_turns:
                self._has_turns = True
                self.loop.call_soon(self._turns)

    def _turns(self) -> None:
        """Serve from the head of the line, each at most once."""
        line = self._line
        now = self.clock()
        seconds = max(TURNS_SECONDS, self._seconds_elsewhere)
        end = now + seconds
        try:
            for _ in range(min(len(line), int(seconds / TURNS_SECONDS * MOST_TURNS))):
                protocol = line.popleft()
                protocol.is_in_line = False
                protocol.take_turn(now)
                now = self.clock()
                if now >= end:
                    break
        finally:
            self._seconds_elsewhere = 0.0
            self._has_turns = bool(line)
            if line:
                self.loop.call_soon(self._turns)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run as a task what the core has to wait for."""
        self._keep(self.loop.create_task(self._guard(coroutine), name="core"))

    async def _guard(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except Exception:  # a plugin's; the broker goes on
            self.logger.exception("a task of the core failed")
        self.settle(self.clock())

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settle(self, now: float) -> None:
        """Do what the connections touched so far want; then set the timer."""
        core = self.core
        while core.touched:
            touched = core.take_touched()
            if len(touched) > MOST_TURNS:
                for connection in touched[MOST_TURNS:]:
                    self.later(connection.driver)
                del touched[MOST_TURNS:]
            core.in_turn = True
            for connection in touched:
                try:
                    connection.driver.serve(now)
                except Exception:  # a fault must end one connection, not all
                    self.logger.exception("a connection was closed after a fault of the broker")
                    connection.driver.abort()
            core.in_turn = False
        if core.timers.next_at < self._timer_at:
            self._set_timer(now)
        if self._has_turns:
            self._seconds_elsewhere += self.clock() - now

    def _set_timer(self, now: float) -> None:
        at = self.core.timers.next_deadline()
        if at is None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(0.0, at - now) + _ROUNDING_SECONDS, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = self.clock()
        self.core.in_turn = True
        try:
            self.core.timers.run(now)
        except Exception:  # one deadline's fault; the next ones come again
            self.logger.exception("a timer failed")
        self.core.in_turn = False
        self.settle(now)

    def take_turn(self, call: Callable[[], None]) -> None:
        """Call into the core from outside of any connection, then do what that caused."""
        self.core.in_turn = True
        try:
            call()
        except Exception:  # a fault must not end who calls
            self.logger.exception("a call into the core failed")
        self.core.in_turn = False
        self.settle(self.clock())

    def run_suspended(self, connection: Connection, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run what a connection waits for, then let it go on."""
        task = self.loop.create_task(
            self._run_suspended(connection, coroutine), name=f"access {connection.peer()}"
        )
        self._keep(task)
        if not connection.is_open:
            connection.driver.judging = task

    async def _run_suspended(
        self, connection: Connection, coroutine: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await coroutine
        except PeerError as error:
            connection.peer_failed(error, self.clock())
        except asyncio.CancelledError:  # of a plugin's own wait, or all tasks are at the end
            connection.disconnected(self.clock())
            raise
        except Exception:  # the broker's own; this client's request cannot be answered
            self.logger.exception("%s: closed after a fault of the broker", connection.peer())
            connection.disconnected(self.clock())
        connection.driver.resume()

    async def all_lost(self) -> None:
        """Wait until every connection has ended; do not call it before a stop."""
        self._none_left = self.loop.create_future()
        for protocol in list(self.protocols):
            protocol.hurry()
        if self.protocols:
            await self._none_left

    def lost(self, protocol: MqttProtocol) -> None:
        """A connection has ended."""
        self.protocols.discard(protocol)
        self._n_lost += 1
        if self._n_lost == COLLECT_CONNECTIONS:
            self._n_lost = 0
            gc.collect()
        if not self.protocols and self._none_left is not None and not self._none_left.done():
            self._none_left.set_result(None)

    async def close(self) -> None:
        """Drop every connection and end every task."""
        for protocol in list(self.protocols):
            protocol.abort()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
