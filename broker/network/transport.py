"""One client's network connection on asyncio: received chunks, and one write for answers.

The only module that writes to a client's transport. `MqttProtocol` hands what comes in to the
core's `Connection`, and does what that wants when `penstock.broker.network.loop_scheduler` serves
it: it writes what is to be sent, moves on what waits in the outbox while the transport has room,
and starts or stops reading.

A chunk of up to 32 KiB is handed over whole. Of a longer one (uvloop reads up to 256 KiB) the core
gets one *slice* at a time, each in a turn of its connection, and the client is not read from until
the last. How many bytes a slice has follows from the time that the one before took: a message that
is passed on in a run takes 0.1 us, one that has to wait 10. Bytes that only complete a large packet
are taken at once, however many, as they are just kept.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.fast_paths.door import connection_class
from penstock.broker.network.lane_pacer import LanePacer
from penstock.broker.network.lingering_close import half_close
from penstock.broker.network.loop_scheduler import TURNS_SECONDS
from penstock.broker.network.new_connection import CLOSE_TIMEOUT_SECONDS, AcceptedConnection
from penstock.broker.network.peer_hangups import has_ended, unheard_seconds

if TYPE_CHECKING:
    from penstock.broker.network.loop_scheduler import LoopScheduler
    from penstock.broker.receiving.connection import Connection

SLICE_SECONDS: Final = 0.0002
"""The handling of one slice of a chunk should take this time, ten times the cost of a turn. The
number of bytes follows from what the last slice took."""

LEAST_SLICE_BYTES: Final = 32_768
"""The size of the most expensive slices. A chunk as small as this is handed over whole: with slices
of 8 KiB, a window of 100 acknowledged messages came in two parts, and a quarter as many messages a
second."""

MOST_SLICE_BYTES: Final = 65_536
"""The size of the cheapest slices: the next one may be a hundred times as expensive."""

GATHERED_BYTES: Final = 1_024
"""A chunk as small as this may wait for those that come with it: `LoopScheduler.gather`. All that
wait at a time are no more than one chunk that is handed over whole."""

LEFTOVER_SECONDS: Final = 1.0
"""A client's input is handled in any case for so long after it has gone. Later input is dropped
while many such clients are in line (`LoopScheduler.is_crowded`). Otherwise it would grow while
clients
connect, publish and vanish faster than they are served."""


class MqttProtocol(asyncio.Protocol):
    """One network connection on its transport.

    Attributes:
        connection: the broker's side of it, once there is a place for it; or None.
        judging: the task that answers its CONNECT, where that takes a wait; or None. A stranger
            that has left is not judged any further: it could make the broker work and remember for
            it as often as it connects.
    """

    __slots__ = (
        "_close_timer",
        "_early",
        "_is_bare",
        "_is_end_due",
        "_is_gone",
        "_leftover_until",
        "_rest",
        "_rest_at",
        "_running",
        "_slice_bytes",
        "arrival",
        "connection",
        "driver",
        "is_in_line",
        "is_reading",
        "judging",
        "transport",
    )

    def __init__(self, driver: LoopScheduler, arrival: AcceptedConnection) -> None:
        """Wait for a connection."""
        self.driver = driver
        self.arrival = arrival
        self.connection: Connection | None = None
        self.transport: asyncio.Transport
        self.is_in_line = False
        self.judging: asyncio.Task[None] | None = None
        self._early = b""
        self._rest = b""
        self._rest_at = 0
        self._slice_bytes = LEAST_SLICE_BYTES
        self.is_reading = True
        self._is_bare = False
        self._is_end_due = False
        self._is_gone = False
        self._leftover_until = math.inf
        self._running: Coroutine[Any, Any, None] | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and make the core's side of the connection."""
        driver = self.driver
        arrival = self.arrival
        # uvloop's transports are asyncio's by contract and not by class.
        self.transport = transport  # type: ignore[assignment]
        driver.protocols.add(self)
        if arrival.place is None and not arrival.accept(self.transport):
            return
        self._is_bare = transport is arrival.transport
        if arrival in arrival.reception.in_layers:  # also where the last one has removed itself
            arrival.leave_layers()
        limits = driver.limits
        self.transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        place = arrival.place
        if place is not None and place.is_waiting:
            place.on_turn = self.begin
            driver.logger.info("%s waits for a place", arrival.peer())
        else:
            self._begin(arrival.accepted_at)

    @property
    def fileno(self) -> int:
        """The socket's file descriptor, or -1 where there is none, or it is no longer this one's.

        Looked up when it is wanted: uvloop makes a socket object for it, by system calls of its
        own, which most connections that come and go never need.
        """
        sock = None if self.is_closing else self.transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def new_pacer(self, on_yield: Callable[[], None]) -> LanePacer:
        """Return what paces this connection, as it is a large lane's."""
        return LanePacer(self.transport, self.driver.loop, self.driver.clock, on_yield)

    def begin(self) -> None:
        """Take part: there is a place for this connection."""
        self._begin(self.driver.clock())

    def _begin(self, since: float) -> None:
        """Take part; the time for its CONNECT counts from `since` on."""
        driver = self.driver
        arrival = self.arrival
        place = arrival.place
        self.connection = arrival.connection = connection_class(driver.core)(
            driver.core,
            since,
            listener=arrival.listener,
            remote_address=arrival.remote_address,
            remote_port=arrival.remote_port,
            served=self,
            ssl_object=arrival.ssl_object,
            certificate_name=arrival.certificate_name,
            refusal=None if place is None else place.refusal,
        )
        if driver.core.timers.next_at < driver.timer_at:
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
            # Not paused earlier: uvloop begins to read after `connection_made` in any case.
            self._early += data
            self.transport.pause_reading()
            return
        if len(data) <= GATHERED_BYTES and self._is_bare and self.is_reading:
            driver.gather(self, data)
            return
        driver.take_received()
        if self._rest or not self.is_reading:  # there was more than the transport was asked for
            self._rest = self._rest[self._rest_at :] + data
            self._rest_at = 0
            self._line_up(connection)
        elif (
            len(data) > self._slice_bytes
            and len(data) > connection.missing_bytes
            and not connection.client.is_closing
        ):
            self._rest = data
            self._pause_reading()
            self._take_slice(connection, driver.clock())
        else:
            self._receive(connection, data, driver.clock())

    def receive_gathered(self, data: bytes, now: float) -> None:
        """Hand a small chunk to the core; the caller settles, and ends `turn.is_running`."""
        connection = self.connection
        if connection is None:
            return
        if not self.is_reading:  # it has been put off meanwhile
            self._rest = self._rest[self._rest_at :] + data
            self._rest_at = 0
            self._line_up(connection)
            return
        self._hand_over(connection, data, now)
        if connection.client.backlog:
            self._see_to(connection, now)

    def _receive(self, connection: Connection, data: bytes, now: float) -> None:
        self._hand_over(connection, data, now)
        self._see_to(connection, now)

    def _hand_over(self, connection: Connection, data: bytes, now: float) -> None:
        self.driver.core.turn.is_running = True
        try:
            connection.receive_data(data, now)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (see `_failed`)
            self._failed(connection, error, now)

    def _see_to(self, connection: Connection, now: float) -> None:
        """Settle, or let it be settled soon, after a chunk was handed over."""
        driver = self.driver
        turn = driver.core.turn
        if not self.is_reading:
            turn.touch(connection.outgoing)  # to be read from again, or to take another turn
        turn.is_running = False
        if self._rest or connection.client.backlog:
            is_more_to_come = bool(self._rest) or connection.wants_turn
            driver.settle(now, is_more_to_come=is_more_to_come)
        elif turn.touched and not connection.outgoing.needs_look:
            if now >= driver.gathers_until:  # or what is gathered goes in a moment
                driver.settle_soon(now)
        else:
            driver.settle(now)

    def take_turn(self, now: float) -> None:
        """Handle a bit of what was put off, if it may be, then do what the connection wants."""
        connection = self.connection
        if connection is None:
            return
        is_over = connection.client.is_closing or self._is_too_late(now)
        if self._is_gone or (self._is_end_due and is_over):
            self._end(now)
        elif connection.wants_turn:
            self._go_on(connection, connection.go_on, now)
        elif self._rest and connection.client.wants_reading:
            self._take_slice(connection, now)
        elif self._is_end_due:
            if not connection.is_held_up:
                self._end(now)
        else:
            outgoing = connection.outgoing
            self._go_on(connection, lambda _now: self.driver.core.turn.touch(outgoing), now)

    def _is_too_late(self, now: float) -> bool:
        return now >= self._leftover_until and self.driver.is_crowded(now)

    def _take_slice(self, connection: Connection, now: float) -> None:
        """Hand over a slice of the rest, and choose the size of the next one."""
        n_bytes = max(self._slice_bytes, connection.missing_bytes)
        stop = self._rest_at + n_bytes
        data = self._rest[self._rest_at : stop]
        self._rest_at = stop
        if stop >= len(self._rest):
            self._rest = b""
            self._rest_at = 0
        self._receive(connection, data, now)
        taken = self.driver.clock() - now
        n_bytes = min(2 * n_bytes, int(len(data) * SLICE_SECONDS / max(taken, 1e-6)))
        self._slice_bytes = max(LEAST_SLICE_BYTES, min(MOST_SLICE_BYTES, n_bytes))

    def resume(self) -> None:
        """Go on with a connection after what it was suspended on has run to its end."""
        connection = self.connection
        if connection is not None:
            self._go_on(connection, connection.resume, self.driver.clock())

    def _go_on(self, connection: Connection, call: Callable[[float], None], now: float) -> None:
        turn = self.driver.core.turn
        turn.is_running = True
        try:
            call(now)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (see `_failed`)
            self._failed(connection, error, now)
        turn.is_running = False
        self.driver.settle(now, is_more_to_come=bool(self._rest) or connection.wants_turn)

    def _failed(self, connection: Connection, error: BaseException, now: float) -> None:
        """End a connection that the broker itself has failed: one, and not all."""
        self.driver.logger.error(
            "%s: closed after a fault of the broker", connection.client.peer(), exc_info=error
        )
        connection.client.end(now)

    def pause_writing(self) -> None:
        """The transport has more unsent bytes than `write_high_bytes`."""
        if self.connection is not None:
            self.connection.pause_sending(self.driver.clock())

    def resume_writing(self) -> None:
        """It has fewer than `write_low_bytes` again."""
        if self.connection is not None:
            self.connection.resume_sending(self.driver.clock())

    def eof_received(self) -> bool:
        """The client sends nothing more: the transport closes, behind what is to be written.

        Returns:
            True where it does so a little later, as very many clients leave at once.
        """
        driver = self.driver
        if driver.received:
            driver.take_received()
        if driver.core.turn.touched:
            driver.settle(driver.clock())
        if self.transport.get_write_buffer_size():  # otherwise it closes at once
            self.arrival.end_in_time()
            return False
        return self._is_bare and driver.closes_later(self)

    def close_after_eof(self) -> None:
        """Close the transport, behind what was written since `eof_received`, but not much later."""
        if self.transport.get_write_buffer_size():
            self.arrival.end_in_time()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """The network connection is gone; what has come by it still counts."""
        driver = self.driver
        if driver.received:
            driver.take_received()
        self.arrival.leave_to_kernel()
        connection = self.connection
        now = driver.clock()
        if connection is not None and (connection.has_backlog or not self.is_reading):
            connection.peer_left(now)
            self._is_end_due = bool(self._rest or connection.has_backlog)
            if self._is_end_due:
                self._leftover_until = now + LEFTOVER_SECONDS
                self.driver.leaves(now)
            self._line_up(connection)
        if self._is_end_due:
            return
        if connection is None or self.driver.may_end():
            self._end(now)
        else:
            self.arrival.end()  # its place is free for others
            self._is_gone = True
            self.driver.later(self)

    def _end(self, now: float) -> None:
        """Nothing more is to be done for this connection."""
        driver = self.driver
        if self._is_end_due:
            self._is_end_due = False
            driver.has_left()
        driver.lost(self)
        driver.hangups.discard(self)
        if self.judging is not None:
            self.judging.cancel()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.arrival.end()
        connection = self.connection
        if connection is not None:
            client = connection.client
            if self._rest or client.backlog:
                connection.drop_input(self._rest[self._rest_at :])
            connection.connection_lost(now)
        driver.settle(now)
        if connection is not None:
            if client.suspended is not None:
                self.run_suspended(connection)  # what was received before the end still counts
            # No circle of references is left, so that the memory is free at once.
            self.connection = self.arrival.connection = None
            client.throttle.end()

    def abort(self) -> None:
        """Drop the connection without sending what is left."""
        self.transport.abort()

    def hurry(self) -> None:
        """The broker stops: a client that was sent its end is not waited for."""
        connection = self.connection
        has_rest = connection is not None and connection.outgoing.has_unread
        is_waiting = has_rest or self.transport.get_write_buffer_size()
        if self._close_timer is not None and not is_waiting:
            self.transport.abort()

    def serve(self, now: float) -> None:
        """Do what the connection wants: write, pump, read or not, close."""
        connection = self.connection
        transport = self.transport
        if connection is None:
            return
        outgoing = connection.outgoing
        is_over = self._close_timer is not None and not outgoing.has_unread
        if is_over or transport.is_closing():
            outgoing.drop_out()
            self.run_suspended(connection)  # what was received before the end still counts
            self._line_up(connection)
            return
        if outgoing.needs_look:
            connection.look(self, now)
        elif outgoing.out and outgoing.write_to(transport):
            self.driver.core.turn.write_soon(outgoing)

    def is_late(self, now: float) -> bool:
        """Say whether a call that began at `now` has taken what one turn may."""
        return self.driver.clock() - now > TURNS_SECONDS

    def wait_for_turn(self) -> None:
        """Take a turn when those before it in the line have had theirs."""
        self.driver.later(self)

    def run_suspended(self, connection: Connection) -> None:
        """Run what the connection is suspended on, unless that is under way."""
        suspended = connection.client.suspended
        if suspended is not None and suspended is not self._running:
            self._running = suspended
            self.driver.run_suspended(connection, suspended)

    def heard_at(self, now: float) -> float:
        """Return when bytes last came that are not read; `now` where that cannot be told."""
        return now - (unheard_seconds(self.fileno) or 0.0)

    def has_hung_up(self) -> bool:
        """Say whether the peer has gone, though not all is read that it has sent."""
        return self.is_closing or has_ended(self.fileno)

    def see_to_reading(self, connection: Connection) -> None:
        """Read while the connection wants it and nothing of the last chunk is left."""
        self._line_up(connection)
        wants_reading = connection.client.wants_reading and not self._rest
        if wants_reading and not self.is_reading:
            self.is_reading = True
            self.driver.hangups.discard(self)
            self.transport.resume_reading()
        elif self.is_reading and not wants_reading:
            self._pause_reading()

    def _pause_reading(self) -> None:
        self.is_reading = False
        self.transport.pause_reading()
        self.driver.hangups.add(self)

    @property
    def is_closing(self) -> bool:
        """True if the transport closes; its descriptor may then be another connection's."""
        return self.transport.is_closing()

    def peer_hung_up(self) -> None:
        """The peer is gone, though what it has sent is not read: that is read to its end.

        A publisher that waited for room waits no more. `connection_lost` follows.
        """
        connection = self.connection
        if connection is not None:
            now = self.driver.clock()
            connection.peer_left(now)
            self.see_to_reading(connection)
            self.driver.settle(now)

    def _line_up(self, connection: Connection) -> None:
        """Wait for a turn if something that came by may be handled, or was the last."""
        if connection.client.is_closing and not self._is_end_due:
            self._rest = b""
            self._rest_at = 0
        if (
            self._is_end_due
            or connection.wants_turn
            or (self._rest and connection.client.wants_reading)
        ):
            self.driver.later(self)

    def close(self, connection: Connection) -> None:
        """Close once the transport has sent the rest, and not much later.

        A client that is to read why sees the end of what is sent to it, and what it still
        sends is read and thrown away until it closes too.
        """
        transport = self.transport
        has_rest = bool(connection.outgoing.out) or connection.client.is_heard_out
        if not has_rest and transport is self.arrival.transport:
            transport.close()
            if not transport.get_write_buffer_size():
                return  # nothing is waited for, so a timer would be for nothing
        if self._close_timer is None:
            self._close_timer = self.driver.loop.call_later(CLOSE_TIMEOUT_SECONDS, transport.abort)
        if connection.outgoing.out:
            return  # the rest of a payload goes as there is room for it, then this is called again
        if connection.client.is_heard_out and transport.can_write_eof():
            half_close(transport, is_reading=self.is_reading)
            self.is_reading = True
        else:
            transport.close()
