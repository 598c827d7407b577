"""The driver of one connection on asyncio: chunks in, one write out, deadlines.

The only module that writes to a client's transport. After each call into the core, `Driver`
looks at every connection the call has touched: it writes what they want sent, moves on what
waits in their outboxes while the transport has room, and starts or stops reading.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from broker.arrival import CLOSE_TIMEOUT_SECONDS, Arrival
from broker.connection import Connection
from broker.core import Core
from broker.errors import PeerError

if TYPE_CHECKING:
    from broker.limits import Limits

FULL_CHUNK_BYTES: Final = 128 * 1024
"""A chunk of so many bytes is not the last that waits. uvloop would hand over up to 32 of them, of
256 KiB each, before any other connection has its turn."""

MAX_TURNS: Final = 16
"""Times one connection may pump and write before the others have their turn."""

_ROUNDING_SECONDS: Final = 0.0005
"""uvloop rounds a delay to milliseconds. A timer that came early would find nothing due, and would
be set again without any delay until it is."""


class Driver:
    """Runs one core on the event loop; all of it on the loop's thread.

    Attributes:
        core: what is driven; set right after both were made.
        clock: monotonic seconds, the `now` of every call into the core.
    """

    def __init__(self, limits: Limits, logger: logging.Logger) -> None:
        self.core: Core
        self.clock: Callable[[], float] = time.monotonic
        self.limits = limits
        self.logger = logger
        self.protocols: set[MqttProtocol] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_woken = False
        self._none_left: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Look at touched connections soon: something outside of a turn touched one."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self.settle(self.clock())

    def soon(self, call: Callable[[], None]) -> None:
        """Call something after the others have had their turn."""
        self._loop.call_soon(call)

    def later(self, connection: Connection) -> None:
        """Serve a connection again after the others have had their turn."""
        self._loop.call_soon(self._go_on, connection)

    def _go_on(self, connection: Connection) -> None:
        self.core.touch(connection)
        self.settle(self.clock())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run as a task what the core has to wait for."""
        self._keep(self._loop.create_task(self._guard(coroutine), name="core"))

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
            core.in_turn = True
            for connection in core.take_touched():
                try:
                    connection.driver.serve(now)
                except Exception:  # a fault must end one connection, not all
                    self.logger.exception("a connection was closed after a fault of the broker")
                    connection.driver.abort()
            core.in_turn = False
        if core.timers.next_at < self._timer_at:
            self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        at = self.core.timers.next_deadline()
        if at is None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - now) + _ROUNDING_SECONDS, self._timer_due)

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
        task = self._loop.create_task(
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
        self._none_left = self._loop.create_future()
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
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class MqttProtocol(asyncio.Protocol):
    """One network connection on its transport.

    Attributes:
        driver: of the broker.
        arrival: of the connection.
        connection: the broker's side of it, once there is a place for it; or None.
        transport: as far as it has one.
        fileno: of the socket, or -1.
        judging: what answers its CONNECT, where that takes a wait; or None. A stranger that has
            left is not judged any further: it could make the broker work and remember for it
            as often as it connects.
    """

    __slots__ = (
        "_close_timer",
        "_early",
        "_is_reading",
        "_is_resting",
        "_running",
        "arrival",
        "connection",
        "driver",
        "fileno",
        "judging",
        "transport",
    )

    def __init__(self, driver: Driver, arrival: Arrival) -> None:
        """Wait for a connection.

        Args:
            driver: of the broker.
            arrival: of the connection.
        """
        self.driver = driver
        self.arrival = arrival
        self.connection: Connection | None = None
        self.transport: asyncio.Transport
        self.fileno = -1
        self.judging: asyncio.Task[None] | None = None
        self._early = b""
        self._is_reading = True
        self._is_resting = False
        self._running: Coroutine[Any, Any, None] | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and make the core's side of the connection."""
        driver = self.driver
        arrival = self.arrival
        # uvloop's transports are asyncio's by contract and not by class.
        self.transport = transport = cast("asyncio.Transport", transport)
        driver.protocols.add(self)
        if arrival.place is None and not arrival.accept(transport):
            return
        arrival.leave_layers()
        limits = driver.limits
        transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self.fileno = sock.fileno()
        place = arrival.place
        if place is not None and place.is_waiting:
            place.on_turn = self.begin
            driver.logger.info("%s waits for a place", arrival.peer())
        else:
            self._begin(arrival.accepted_at)

    def begin(self) -> None:
        """Take part: there is a place for this connection."""
        self._begin(self.driver.clock())

    def _begin(self, since: float) -> None:
        """Take part.

        Args:
            since: monotonic seconds from which the time for its CONNECT counts.
        """
        driver = self.driver
        arrival = self.arrival
        place = arrival.place
        self.connection = arrival.connection = Connection(
            driver.core,
            since,
            listener=arrival.listener,
            remote_address=arrival.remote_address,
            remote_port=arrival.remote_port,
            driver=self,
            ssl_object=arrival.ssl_object,
            certificate_name=arrival.certificate_name,
            refusal=None if place is None else place.refusal,
        )
        driver.settle(driver.clock())
        if self._early and not self.transport.is_closing():
            early, self._early = self._early, b""
            self.transport.resume_reading()
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        """Hand a chunk to the core, then write what it caused, everywhere."""
        driver = self.driver
        connection = self.connection
        if connection is None:
            # Not paused earlier: uvloop begins to read after `connection_made`, come what may.
            self._early += data
            self.transport.pause_reading()
            return
        now = driver.clock()
        core = driver.core
        core.in_turn = True
        try:
            connection.receive_data(data, now)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (see `_failed`)
            self._failed(connection, error, now)
        core.in_turn = False
        driver.settle(now)
        if len(data) >= FULL_CHUNK_BYTES and self._is_reading and not self.transport.is_closing():
            self._is_resting = True
            self.transport.pause_reading()
            self.driver.soon(self._rested)

    def _rested(self) -> None:
        """Read on: the others have had their turn."""
        self._is_resting = False
        if self._is_reading and not self.transport.is_closing():
            self.transport.resume_reading()

    def resume(self) -> None:
        """Go on with a connection after what it was suspended on has run to its end."""
        connection = self.connection
        if connection is not None:
            driver = self.driver
            now = driver.clock()
            driver.core.in_turn = True
            try:
                connection.resume(now)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (see `_failed`)
                self._failed(connection, error, now)
            driver.core.in_turn = False
            driver.settle(now)

    def _failed(self, connection: Connection, error: BaseException, now: float) -> None:
        """End a connection that the broker itself has failed: one, and not all."""
        self.driver.logger.error(
            "%s: closed after a fault of the broker", connection.peer(), exc_info=error
        )
        connection.disconnected(now)

    def pause_writing(self) -> None:
        """The transport has more unsent bytes than `write_high_bytes`."""
        if self.connection is not None:
            self.connection.pause_sending(self.driver.clock())

    def resume_writing(self) -> None:
        """It has fewer than `write_low_bytes` again."""
        if self.connection is not None:
            self.connection.resume_sending(self.driver.clock())

    def eof_received(self) -> None:
        """The client sends nothing more: the transport closes."""
        self.arrival.end_in_time()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """The network connection is gone."""
        driver = self.driver
        driver.lost(self)
        if self.judging is not None:
            self.judging.cancel()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.arrival.end()
        now = driver.clock()
        if self.connection is not None:
            self.connection.connection_lost(now)
        driver.settle(now)

    def abort(self) -> None:
        """Drop the connection without sending what is left."""
        self.transport.abort()

    def hurry(self) -> None:
        """The broker stops: a client that was sent its end is not waited for."""
        if self._close_timer is not None and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def serve(self, now: float) -> None:
        """Do what the connection wants: write, pump, read or not, close."""
        connection = self.connection
        transport = self.transport
        if connection is None:
            return
        if transport.is_closing() or self._close_timer is not None:
            connection.data_to_send()
            self._run_suspended(connection)  # what was received before the end still counts
            return
        if not connection.needs_look:
            self._write(connection)
            return
        connection.needs_look = False
        for _turn in range(MAX_TURNS):
            connection.pump(transport.get_write_buffer_size(), now)
            if not connection.out:
                break
            self._write(connection)
            if connection.is_paused or not connection.wants_more:
                break
        if connection.wants_more and not connection.is_paused:
            self.driver.later(connection)
        if connection.suspended is not None:
            self._run_suspended(connection)
        if connection.wants_reading != self._is_reading:
            self._read_or_not()
        if connection.is_closing:
            self._close(connection)

    def _write(self, connection: Connection) -> None:
        """Write what is in `out`."""
        out = connection.data_to_send()
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)

    def _run_suspended(self, connection: Connection) -> None:
        suspended = connection.suspended
        if suspended is not None and suspended is not self._running:
            self._running = suspended
            self.driver.run_suspended(connection, suspended)

    def _read_or_not(self) -> None:
        """Begin to read, or end it: the connection has changed its mind."""
        self._is_reading = not self._is_reading
        if self._is_resting:
            return
        if self._is_reading:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _close(self, connection: Connection) -> None:
        """Close once the transport has sent the rest, and not much later.

        A client that is to read why sees the end of what is sent to it, and what it still
        sends is read and thrown away until it closes too.
        """
        transport = self.transport
        if connection.is_heard_out and transport.can_write_eof():
            transport.write_eof()
            if not self._is_reading:
                self._is_reading = True
                transport.resume_reading()
        else:
            transport.close()
        self._close_timer = self.driver._loop.call_later(  # noqa: SLF001 (same module)
            CLOSE_TIMEOUT_SECONDS, transport.abort
        )
