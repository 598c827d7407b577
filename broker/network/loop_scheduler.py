"""The driver of the core on asyncio: it decides which connection is served when.

Theory of operation. Calls into the core are followed by `settle`. It serves every connection that
they have touched, in *rounds*: in each, a connection writes what it has to send, 640 KiB at most
(`penstock.broker.sending.sender.WRITE_BYTES`), until no connection has any more. Then it sets
one timer, for the earliest of the core's deadlines.

No connection may keep the loop for long. Work that takes a fraction of a millisecond is done at
once, which is most of what clients cause. A connection with more work waits in one *line*, and has
a *turn* (`MqttProtocol.take_turn`) after those before it:
* the next *slice* of a long chunk that came in, some 0.2 ms of work;
* the rest of a slice that was more than `penstock.broker.sending.sender.MOST_STEPS`
*steps*, which
  are packets that go their own way and deliveries that are no mere copies;
* the next part of an outbox that has more to send, `penstock.broker.sending.sender.PUMP_MESSAGES`
  at a time;
* the end of a connection, where very many are lost at once.
For `TURNS_SECONDS` the line is served from its head; then the loop looks at the network again. If
what came from there took longer, the line's next time is as long, up to `LONGEST_TURNS_SECONDS`:
while very many publishers send, those who stand in it would starve else, and what they are to be
sent would grow.

Of deadlines that are due at once, `MOST_TURNS` are served before the loop looks at the network.

*Small* chunks of plain connections are gathered (`LoopScheduler.gather`): they are handled when the
loop has looked at all that the network has, `MOST_TURNS` at a time, and what they have caused is
written after them. Many clients may have something for one reader, which is then one write. And the
processor has the code of the interpreter at hand while they are handled, and that of the kernel
while they are written: with 50 pairs that have one QoS 1 message under way, a message takes 5 us
less of 30. What other chunks have to be written waits in the same way, for `GATHER_SECONDS` at
most.

Some writes are *postponed*. Subscribers beyond the first `MOST_TURNS` that one call has touched are
written in the next rounds of the loop, at as many a time. Those who get little of a slice that is
not the last of its chunk wait for `POSTPONED_SECONDS` at most: the next slices may have more for
them, and a write costs as much as ten messages.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker.errors import PeerError
from penstock.broker.network.peer_hangups import PeerHangups
from penstock.broker.receiving.connection import Connection
from penstock.broker.sessions.broker_state import Core

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits
    from penstock.broker.network.transport import MqttProtocol
    from penstock.broker.sending.sender import WriteQueue

T = TypeVar("T")

TURNS_SECONDS: Final = 0.0002
"""The line is served for at least this time before the loop looks at the network again, which is
forty times what that look costs. Half of the messages of a pair are then no later than 0.4 ms while
another subscriber is flooded, and 0.15 ms without the flood."""

MOST_TURNS: Final = 32
"""At most so many connections are served in that time. uvloop writes small amounts only afterwards,
by a system call of 5 to 10 us each: again some 0.2 ms, which no clock here sees."""

GATHER_SECONDS: Final = 0.0002
"""What chunks have to be written waits for so long at most: for some 32 small ones, which have
something for as many connections as are served at a time."""

POSTPONED_SECONDS: Final = 0.004
"""The messages of one slice of a flood wait so long for those of the next slices. With 100
subscribers of 1,000 topics, half of the broker's time went into writes of four messages each. A
message of another publisher to the same subscriber is written at once, together with these."""

WORTH_BYTES: Final = 65_536
"""So much for one subscriber is written without waiting for more."""

LONGEST_TURNS_SECONDS: Final = 0.01
"""The line is served for no longer than this before the loop looks at the network again, however
long what came from there has taken."""

LONG_SECONDS: Final = 0.001
"""Gathered chunks that take longer do not keep what those before them have caused. 32 lone messages
take a fifth of it, on a busy machine two thirds."""

_CHUNKS_TO_LOOK: Final = 4
"""After so many gathered chunks it is looked how long they have taken."""

FEW_LEAVING: Final = 16
"""No more than this number of clients that are gone, with input left to handle, is a crowd."""

CROWDED_SECONDS: Final = 5.0
"""More of them for this long come faster than they are served. A shorter crowd is an accident, such
as many clients behind one link that is cut."""

_ROUNDING_SECONDS: Final = 0.0005
"""uvloop rounds a delay to milliseconds. A timer that came early would find nothing due, and would
be set again without any delay until it is."""


class LoopScheduler:
    """Runs one core on the event loop; all of it on the loop's thread.

    Attributes:
        core: the broker that it drives; set right after both were made.
        clock: monotonic seconds, the `now` of every call into the core.
        hangups: connections that are not read from.
        received: small chunks that are gathered, with their connections.
        timer_at: monotonic seconds at which the core's deadlines are looked at; infinite for never.
        gathers_until: monotonic seconds before which `settle_soon` has nothing to do.
    """

    def __init__(
        self,
        limits: Limits,
        logger: logging.Logger,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for connections."""
        self.core: Core
        self.clock = clock
        self.limits = limits
        self.logger = logger
        self.protocols: set[MqttProtocol] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = loop or asyncio.get_running_loop()
        self.hangups = PeerHangups(self.loop)
        self._timer: asyncio.Handle | None = None
        self._n_ended = 0
        self._n_closed = 0
        self._to_close: deque[MqttProtocol] = deque()
        self.timer_at = math.inf
        self._line: deque[MqttProtocol] = deque()
        self._postponed: dict[WriteQueue, None] = {}
        self._postponed_until = math.inf
        self._has_turns = False
        self._seconds_elsewhere = 0.0
        self._is_woken = False
        self.received: deque[tuple[MqttProtocol, bytes]] = deque()
        self._is_gathering = False
        self.gathers_until = -math.inf
        self._n_leaving = 0
        self._crowded_since = math.inf
        self._none_left: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Look at touched connections soon: something outside of a turn touched one."""
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self.settle(self.clock())

    def gather(self, protocol: MqttProtocol, data: bytes) -> None:
        """Handle a small chunk when the loop has looked at all that the network has.

        `MOST_TURNS` of them are handled at once. With 5 pairs that have one QoS 1 message under
        way, a message takes 2 us less of 34 for it.
        """
        received = self.received
        received.append((protocol, data))
        if len(received) == 1:
            self.loop.call_soon(self.take_received)
        elif len(received) >= MOST_TURNS:
            self.take_received()

    def take_received(self) -> None:
        """Handle the chunks that were gathered, in their order, and do what they have caused."""
        received = self.received
        if not received:
            return
        begin = now = self.clock()
        gathers_until, self.gathers_until = self.gathers_until, math.inf  # it is settled below
        seconds_elsewhere = self._seconds_elsewhere
        try:
            for number in range(len(received)):
                protocol, data = received.popleft()
                protocol.receive_gathered(data, now)
                if not received:  # a client in this process may have caused a call of its own
                    break
                if number % _CHUNKS_TO_LOOK == 0 and self.clock() - now > LONG_SECONDS:
                    now = self.clock()
                    self.settle(now)  # chunks that take long keep nothing that others have caused
        finally:
            self.core.turn.is_running = False
            self.gathers_until = gathers_until
            if received:
                self.loop.call_soon(self.take_received)
        if self._has_turns:  # the time counts once, whatever was settled between them
            self._seconds_elsewhere = seconds_elsewhere + now - begin
        self.settle(now)

    def settle_soon(self, now: float) -> None:
        """Settle when the loop has looked at all that the network has, but not late."""
        if self._is_gathering:
            self._settle_gathered(now)
        else:
            self._is_gathering = True
            self.loop.call_soon(self._end_gathering)
        self.gathers_until = now + GATHER_SECONDS

    def _end_gathering(self) -> None:
        self._is_gathering = False
        self._settle_gathered(self.clock())
        self.gathers_until = -math.inf

    def _settle_gathered(self, now: float) -> None:
        if self._has_turns:  # the chunks took this time
            self._seconds_elsewhere += now - (self.gathers_until - GATHER_SECONDS)
        self.settle(now)

    def later(self, protocol: MqttProtocol) -> None:
        """Let a connection take a turn when those before it in the line have had theirs."""
        if not protocol.is_in_line:
            protocol.is_in_line = True
            self._line.append(protocol)
            self._want_turns()

    def _want_turns(self) -> None:
        if not self._has_turns:
            self._has_turns = True
            self.loop.call_soon(self._turns)

    def postpone(self, connections: Iterable[WriteQueue], until: float) -> None:
        """Serve connections in a later round, soon after `until` at the latest."""
        self._postponed.update(dict.fromkeys(connections))
        if self._postponed:
            self._postponed_until = min(self._postponed_until, until)
            self._want_turns()

    def _serve_postponed(self, most: int, now: float) -> None:
        postponed = self._postponed
        batch = list(itertools.islice(postponed, most))
        for outgoing in batch:
            del postponed[outgoing]
        if not postponed:
            self._postponed_until = math.inf
        self._serve(batch, now)
        self.settle(now)

    def _turns(self) -> None:
        """Serve from the head of the line, each at most once, after what is gathered."""
        line = self._line
        self.take_received()
        now = self.clock()
        if self._is_gathering:
            self._settle_gathered(now)
        seconds = min(max(TURNS_SECONDS, self._seconds_elsewhere), LONGEST_TURNS_SECONDS)
        end = now + seconds
        try:
            most = int(seconds / TURNS_SECONDS * MOST_TURNS)
            if self._postponed and (not line or now >= self._postponed_until):
                self._serve_postponed(most, now)
            for _ in range(min(len(line), most)):
                protocol = line.popleft()
                protocol.is_in_line = False
                protocol.take_turn(now)
                now = self.clock()
                if now >= end:
                    break
        finally:
            self._seconds_elsewhere = 0.0
            self._has_turns = False
            if line or self._postponed:
                self._want_turns()

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

    def settle(self, now: float, *, is_more_to_come: bool = False) -> None:
        """Do what the connections touched so far want; then set the timer.

        Args:
            now: monotonic seconds.
            is_more_to_come: whether more input of the same kind follows soon, and may touch them
                again.
        """
        core = self.core
        turn = core.turn
        while turn.touched:
            touched = turn.take_touched()
            if is_more_to_come:
                little = [c for c in touched if not c.needs_look and c.out_bytes < WORTH_BYTES]
                if little:
                    self.postpone(little, now + POSTPONED_SECONDS)
                    touched = [c for c in touched if c.needs_look or c.out_bytes >= WORTH_BYTES]
            if len(touched) > MOST_TURNS:
                self.postpone(touched[MOST_TURNS:], now)
                del touched[MOST_TURNS:]
            self._serve(touched, now)
        if core.timers.next_at < self.timer_at:
            self._set_timer(now)
        if self._has_turns:
            self._seconds_elsewhere += self.clock() - now

    def _serve(self, touched: Iterable[WriteQueue], now: float) -> None:
        turn = self.core.turn
        turn.is_running = True
        for outgoing in touched:
            try:
                outgoing.served.serve(now)
            except Exception:  # a fault must end one connection, not all
                self.logger.exception("a connection was closed after a fault of the broker")
                outgoing.served.abort()
        turn.is_running = False

    def _set_timer(self, now: float) -> None:
        at = self.core.timers.next_deadline()
        if at is None or at >= self.timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at = at
        self._timer = self.loop.call_later(max(0.0, at - now) + _ROUNDING_SECONDS, self.timer_due)

    def timer_due(self) -> None:
        """Do what the core's deadlines ask for that have come."""
        self.take_received()  # the last packet that a deadline waits for may be among it
        self._timer = None
        self.timer_at = math.inf
        now = self.clock()
        self.core.turn.is_running = True
        try:
            self.core.timers.run(now, MOST_TURNS)
        except Exception:  # one deadline's fault; the next ones come again
            self.logger.exception("a timer failed")
        self.core.turn.is_running = False
        if self.core.timers.next_at <= now:  # such as of sessions that all lost their connection
            self.timer_at = -math.inf  # nothing is due before
            self._timer = self.loop.call_soon(self.timer_due)
        self.settle(now)

    def may_end(self) -> bool:
        """Say whether a connection that is lost may be ended now; if not, it has to take a turn.

        When a network is cut, all its connections end in one round of the loop, in which nobody
        else is served. So `MOST_TURNS` of them end at once, which takes some 1 ms.
        """
        if not self._n_ended:
            self.loop.call_soon(self._end_more)
        self._n_ended += 1
        return self._n_ended <= MOST_TURNS

    def _end_more(self) -> None:
        self._n_ended = 0

    def closes_later(self, protocol: MqttProtocol) -> bool:
        """Close the connection of a client that has left in a later round than `MOST_TURNS` others.

        To close a socket takes the kernel some 10 us, and the loop closes all at once that a round
        has for it.

        Returns:
            False where it may close now.
        """
        if not self._n_closed:
            self.loop.call_soon(self._close_more)
        self._n_closed += 1
        if self._n_closed <= MOST_TURNS:
            return False
        self._to_close.append(protocol)
        return True

    def _close_more(self) -> None:
        to_close = self._to_close
        self._n_closed = 0
        if to_close:
            self._n_closed = MOST_TURNS  # those who leave meanwhile stand behind these
            self.loop.call_soon(self._close_more)
        for _ in range(min(len(to_close), MOST_TURNS)):
            to_close.popleft().close_after_eof()

    def take_turn(self, call: Callable[[], T]) -> T | None:
        """Call into the core from outside of any connection, then do what that caused.

        Returns:
            What the call returns; None where it failed, which is logged.
        """
        answer = None
        self.core.turn.is_running = True
        try:
            answer = call()
        except Exception:  # a fault must not end who calls
            self.logger.exception("a call into the core failed")
        self.core.turn.is_running = False
        self.settle(self.clock())
        return answer

    def run_suspended(self, connection: Connection, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run what a connection waits for, then let it go on."""
        task = self.loop.create_task(
            self._run_suspended(connection, coroutine), name=f"access {connection.client.peer()}"
        )
        self._keep(task)
        if not connection.client.is_open:
            connection.outgoing.served.judging = task

    async def _run_suspended(
        self, connection: Connection, coroutine: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await coroutine
        except PeerError as error:
            connection.client.peer_failed(error, self.clock())
        except asyncio.CancelledError:  # of a plugin's own wait, or all tasks are at the end
            connection.client.end(self.clock())
            raise
        except Exception:  # the broker's own; this client's request cannot be answered
            self.logger.exception(
                "%s: closed after a fault of the broker", connection.client.peer()
            )
            connection.client.end(self.clock())
        connection.outgoing.served.resume()

    def leaves(self, now: float) -> None:
        """A client is gone, and what it has sent is still to be handled, until `has_left`."""
        self._n_leaving += 1
        if self._n_leaving == FEW_LEAVING + 1:
            self._crowded_since = now

    def has_left(self) -> None:
        """Note that the input of a client that has gone was handled or dropped."""
        self._n_leaving -= 1
        if self._n_leaving == FEW_LEAVING:
            self._crowded_since = math.inf

    def is_crowded(self, now: float) -> bool:
        """Say whether clients that are gone come faster than what they left is handled."""
        return now - self._crowded_since >= CROWDED_SECONDS

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
        if not self.protocols and self._none_left is not None and not self._none_left.done():
            self._none_left.set_result(None)

    async def close(self) -> None:
        """Drop every connection and end every task."""
        for protocol in list(self.protocols):
            protocol.abort()
        self.hangups.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
