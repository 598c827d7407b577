"""The asyncio side of a pair: two transports, one timer, and the connection to the broker.

The only module that writes to a transport. After each event `PairTransport.serve` does what the
pair wants: it writes both ways, sends waiting messages while the client has room, starts and stops
reading, opens the connection to the broker, and closes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, cast

from penstock.broker.faults import is_logged
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.quotas.admission import Admission, Place, Places
from penstock.edge_proxy.sidecar.direction import Direction
from penstock.edge_proxy.sidecar.pair import Pair
from penstock.edge_proxy.sidecar.shared import Shared

MAX_TURNS: Final = 16
"""Times that one pair may pump and write before other pairs are served."""

CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""How long a closed connection may take to send what was written before the close."""


class Pairs:
    """All pairs of one proxy on the event loop: takes clients and dials the broker for each.

    Everything runs on the loop's thread.

    Attributes:
        shared: of the proxy.
        running: the transports of running pairs.
        clock: returns monotonic seconds.
        admission: the places of its clients.
        places: without a limit of its own.
        connack_timeout_seconds: time from a CONNECT to the broker's CONNACK.
    """

    def __init__(
        self,
        shared: Shared,
        broker_host: str,
        broker_port: int,
        *,
        timeout_seconds: float,
        connack_timeout_seconds: float,
        connections: int,
    ) -> None:
        """Make it, inside a running event loop.

        Args:
            shared: of the proxy.
            broker_host: where the broker is.
            broker_port: its TCP port.
            timeout_seconds: time to establish a connection to it.
            connack_timeout_seconds: time from a CONNECT to its CONNACK.
            connections: clients at a time; a further one is refused.
        """
        self.shared = shared
        self.connack_timeout_seconds = connack_timeout_seconds
        self.admission = Admission(
            shared.counters, connections=connections, connections_per_address=None
        )
        self.places = Places()
        self.running: set[PairTransport] = set()
        self.clock: Callable[[], float] = time.monotonic
        self._broker = (broker_host, broker_port)
        self._timeout_seconds = timeout_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._none_left: asyncio.Future[None] | None = None

    @property
    def broker_name(self) -> str:
        """Address of the broker, for the log."""
        return f"{self._broker[0]}:{self._broker[1]}"

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a client that connects."""
        return _Side(PairTransport(self), Direction.UPSTREAM)

    def dial(self, pair_transport: PairTransport) -> asyncio.Task[None]:
        """Open a connection to the broker for a pair, and report the outcome to the pair."""
        task = asyncio.get_running_loop().create_task(self._dial(pair_transport), name="dial")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _dial(self, pair_transport: PairTransport) -> None:
        host, port = self._broker
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.get_running_loop().create_connection(
                    lambda: _Side(pair_transport, Direction.DOWNSTREAM), host, port
                )
        except Exception as error:  # noqa: BLE001 (whatever it is, the client waits for an answer)
            is_late = isinstance(error, TimeoutError) and not error.args
            why = f"no answer in {self._timeout_seconds:g} s" if is_late else str(error)
            pair_transport.broker_unreachable(
                f"no connection to {self.broker_name}: {why or repr(error)}"
            )

    def cut_off(self, transport: asyncio.Transport) -> None:
        """Drop a connection of a flood; the log reports each doubling of their number."""
        transport.abort()
        n_connections = self.shared.counters.connections_refused["cut_off"]
        if is_logged(n_connections):
            self.shared.logger.warning(
                "%d connections above the limit cut off so far", n_connections
            )

    def ended(self, pair_transport: PairTransport) -> None:
        """Both connections of a pair have ended."""
        self.running.discard(pair_transport)
        if not self.running and self._none_left is not None and not self._none_left.done():
            self._none_left.set_result(None)

    async def all_ended(self) -> None:
        """Wait until no pair runs."""
        if self.running:
            self._none_left = asyncio.get_running_loop().create_future()
            await self._none_left

    async def close(self) -> None:
        """Drop all remaining pairs at once."""
        for pair_transport in list(self.running):
            pair_transport.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PairTransport:
    """The two transports of one pair, and its timer.

    Attributes:
        pair: the pair they serve; set once the client's transport is there.
        logger: of the proxy.
    """

    def __init__(self, pairs: Pairs) -> None:
        """Wait for a client.

        Args:
            pairs: of the proxy.
        """
        self._pairs = pairs
        self._loop = asyncio.get_running_loop()
        self.logger: logging.Logger = pairs.shared.logger
        self.pair: Pair
        self._transports: dict[Direction, asyncio.Transport] = {}
        self._is_reading = {Direction.UPSTREAM: True, Direction.DOWNSTREAM: True}
        self._dialling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._close_timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        self._place: Place | None = None

    # -- told by the two sides ------------------------------------------------------------

    def connected(self, direction: Direction, transport: asyncio.Transport) -> None:
        """The transport of bytes in a direction is there."""
        now = self._pairs.clock()
        if direction is Direction.UPSTREAM:
            place = self._place = self._pairs.admission.enter(self._pairs.places)
            if place is None:
                self._pairs.cut_off(transport)
                return
            limits = self._pairs.shared.limits
            transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
            peer = transport.get_extra_info("peername") or ("", 0)
            self.pair = Pair(
                self._pairs.shared,
                f"{peer[0]}:{peer[1]}",
                now,
                refusal=place.refusal,
                connack_timeout_seconds=self._pairs.connack_timeout_seconds,
            )
            sock = transport.get_extra_info("socket")
            self.pair.fileno = -1 if sock is None else sock.fileno()
            self._pairs.running.add(self)
        elif self.pair.is_closing:
            transport.abort()
            return
        else:
            self.pair.broker_connected()
        self._transports[direction] = transport
        self.serve()

    def received(self, direction: Direction, chunk: bytes) -> None:
        """Bytes of a direction have come."""
        now = self._pairs.clock()
        self._call(lambda: self.pair.receive_data(direction, chunk, now))

    def half_closed(self, direction: Direction) -> None:
        """A peer has closed its direction: its transport closes, and must not take long.

        A transport closes when everything written was sent. A peer that has closed its own
        direction and reads nothing would keep it open without end.
        """
        if direction in self._transports and self._close_timer is None:
            self._close_timer = self._loop.call_later(
                CLOSE_TIMEOUT_SECONDS, self._drop_half_closed, direction
            )

    def _drop_half_closed(self, direction: Direction) -> None:
        self.pair.connection_lost(
            direction, self._pairs.clock(), "was half-closed and took nothing more"
        )
        self.abort()

    def paused(self, direction: Direction) -> None:
        """The transport for bytes of a direction is full.

        That happens only while `serve` writes, which then handles the rest.
        """
        self.pair.pause_sending(direction)

    def resumed(self, direction: Direction) -> None:
        """The transport for bytes of a direction has room again."""
        self.pair.resume_sending(direction)
        self.serve()

    def lost(self, direction: Direction, error: Exception | None) -> None:
        """The transport of bytes in a direction has ended."""
        if self._transports.pop(direction, None) is None:
            return
        if direction is Direction.UPSTREAM:
            self.pair.fileno = -1
        self.pair.connection_lost(
            direction, self._pairs.clock(), f"broke: {error}" if error else ""
        )
        self.serve()

    def broker_unreachable(self, reason: str) -> None:
        """There will be no connection to the broker."""
        self.pair.broker_unreachable(reason)
        self.serve()

    def close(self, reason_code: ReasonCode) -> None:
        """End the pair normally."""
        self.pair.close(reason_code, self._pairs.clock())
        self.serve()

    def abort(self) -> None:
        """Drop both connections without sending the rest."""
        self.pair.close(ReasonCode.UNSPECIFIED_ERROR, self._pairs.clock())
        for transport in list(self._transports.values()):
            transport.abort()

    # -- what the pair wants ----------------------------------------------------------------

    def serve(self) -> None:
        """Do what the pair wants."""
        pair = self.pair
        now = self._pairs.clock()
        client = self._transports.get(Direction.UPSTREAM)
        for _turn in range(MAX_TURNS):
            pair.pump(0 if client is None else client.get_write_buffer_size(), now)
            # Upstream bytes stay in the pair until there is a connection to the broker.
            wrote_up = self._write(Direction.DOWNSTREAM, Direction.UPSTREAM)
            wrote_down = self._write(Direction.UPSTREAM, Direction.DOWNSTREAM)
            if not wrote_up and not wrote_down:
                break
        else:
            self._loop.call_soon(self.serve)
        if pair.is_closing:
            self._close()
            return
        if pair.wants_broker and self._dialling is None:
            self._dialling = self._pairs.dial(self)
        for direction, transport in self._transports.items():
            self._read_or_not(direction, transport)
        self._set_timer(now)

    def _write(self, side: Direction, direction: Direction) -> bool:
        """Write the bytes of a direction to a side's transport; return whether there were any."""
        transport = self._transports.get(side)
        if transport is None:
            return False
        out = self.pair.data_to_send(direction)
        if not out or transport.is_closing():
            return False
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        return True

    def _read_or_not(self, direction: Direction, transport: asyncio.Transport) -> None:
        wants_reading = self.pair.wants_reading(direction)
        if wants_reading == self._is_reading[direction] or transport.is_closing():
            return
        self._is_reading[direction] = wants_reading
        if wants_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _set_timer(self, now: float) -> None:
        at = self.pair.next_deadline()
        if at is None:
            return
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - now), self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        now = self._pairs.clock()
        self._call(lambda: self.pair.handle_timeout(now))

    def _call(self, call: Callable[[], None]) -> None:
        """Call the pair, then do what it wants; a fault of the proxy ends one pair, not all."""
        try:
            call()
        except Exception:
            self.logger.exception("%s: closed after a fault of the proxy", self.pair)
            self.pair.close(ReasonCode.UNSPECIFIED_ERROR, self._pairs.clock())
        self.serve()

    def _close(self) -> None:
        """Close open transports after they have sent the rest, within a time limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._dialling is not None:
            self._dialling.cancel()
        if not self._transports:
            if self._close_timer is not None:
                self._close_timer.cancel()
            if self._place is not None:
                self._place.leave()
            self._pairs.ended(self)
        elif not self._is_ending:
            self._is_ending = True
            for transport in self._transports.values():
                transport.close()
            if self._close_timer is not None:
                self._close_timer.cancel()
            self._close_timer = self._loop.call_later(CLOSE_TIMEOUT_SECONDS, self.abort)


class _Side(asyncio.Protocol):
    """One of the two network connections of a pair."""

    def __init__(self, pair_transport: PairTransport, direction: Direction) -> None:
        """Prepare for the connection.

        Args:
            pair_transport: of the pair.
            direction: of the bytes that it receives: UPSTREAM for the client's.
        """
        self._pair_transport = pair_transport
        self._direction = direction
        self._other = (
            Direction.DOWNSTREAM if direction is Direction.UPSTREAM else Direction.UPSTREAM
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        # uvloop's transports are no subclasses of asyncio's.
        self._pair_transport.connected(self._direction, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._pair_transport.received(self._direction, data)

    def pause_writing(self) -> None:
        """The transport has too many unsent bytes."""
        self._pair_transport.paused(self._other)

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._pair_transport.resumed(self._other)

    def eof_received(self) -> None:
        """The peer has closed its direction: the transport closes once everything is sent."""
        self._pair_transport.half_closed(self._direction)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._pair_transport.lost(self._direction, exc)
