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

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.network.lingering_close import LingeringClose, half_close
from penstock.broker.network.new_connection import (
    CLOSE_TIMEOUT_SECONDS,
    AcceptedConnection,
    Reception,
)
from penstock.edge_proxy.sidecar.config import Identity
from penstock.edge_proxy.sidecar.direction import Direction
from penstock.edge_proxy.sidecar.identity import ClientIdentity
from penstock.edge_proxy.sidecar.proxied_client import Pair
from penstock.edge_proxy.sidecar.shared import Shared
from penstock.edge_proxy.upstream import Upstream, Upstreams

MAX_TURNS: Final = 16
"""Times that one pair may pump and write before other pairs are served."""

_OUT_OF_SERVICE: Final = frozenset({ReasonCode.SERVER_UNAVAILABLE, ReasonCode.SERVER_BUSY})
"""Reason codes of CONNACK that another client will get, too."""

_ELSEWHERE: Final = ReasonCode.USE_ANOTHER_SERVER


class Pairs:
    """All pairs of one proxy on the event loop: takes clients and dials the broker for each.

    Everything runs on the loop's thread.

    Attributes:
        shared: of the proxy.
        reception: of its listeners.
        upstreams: addresses of the broker.
        running: the transports of clients that are connected.
        clock: returns monotonic seconds.
        identity: how the broker is told who a client is.
        connack_timeout_seconds: time from a CONNECT to the broker's CONNACK.
        lingering: sockets of brokers whose clients have left.
        is_draining: a client is disconnected as soon as nothing waits for it.
        server_reference: what clients are told then; None for nothing.
    """

    def __init__(
        self,
        shared: Shared,
        reception: Reception,
        upstreams: Upstreams,
        *,
        connack_timeout_seconds: float,
        identity: Identity = "none",
        server_reference: str | None = None,
    ) -> None:
        """Make it, inside a running event loop.

        Args:
            shared: of the proxy.
            reception: of its listeners.
            upstreams: addresses of the broker.
            connack_timeout_seconds: time from a CONNECT to its CONNACK.
            identity: how the broker is told who a client is.
            server_reference: what clients are told at a stop; None for nothing.
        """
        self.shared = shared
        self.reception = reception
        self.upstreams = upstreams
        self.connack_timeout_seconds = connack_timeout_seconds
        self.identity = identity
        self.server_reference = server_reference
        self.running: set[PairTransport] = set()
        self.clock: Callable[[], float] = time.monotonic
        self.is_draining = False
        self.lingering = LingeringClose(asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()
        self._none_left: asyncio.Future[None] | None = None

    def accept(self, arrival: AcceptedConnection) -> asyncio.Protocol:
        """Return the protocol of a client that connects."""
        return _Side(PairTransport(self, arrival), Direction.UPSTREAM)

    def dial(self, pair_transport: PairTransport) -> asyncio.Task[None]:
        """Open a connection to the broker for a pair, and report the outcome to the pair."""
        task = asyncio.get_running_loop().create_task(self._dial(pair_transport), name="dial")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _dial(self, pair_transport: PairTransport) -> None:
        try:
            header = pair_transport.identity().header() if self.identity == "proxy_v2" else b""
            dialled = await self.upstreams.dial(
                lambda: _Side(pair_transport, Direction.DOWNSTREAM), header=header
            )
            pair_transport.reached(dialled.upstream)
        except PenstockError as error:
            pair_transport.broker_unreachable(f"no connection to {error}")
        except Exception as error:  # noqa: BLE001 (whatever it is, the client waits for an answer)
            pair_transport.broker_unreachable(f"no connection to {self.upstreams}: {error!r}")

    def ended(self, pair_transport: PairTransport) -> None:
        """Both connections of a pair have ended."""
        self.running.discard(pair_transport)
        if not self.running and self._none_left is not None and not self._none_left.done():
            self._none_left.set_result(None)

    async def all_ended(self) -> None:
        """Wait until no client is connected."""
        if self.running:
            self._none_left = asyncio.get_running_loop().create_future()
            await self._none_left

    def drain(self) -> int:
        """Disconnect each client as soon as nothing waits for it and it has acknowledged all.

        Returns:
            The number of clients for which something waits.
        """
        self.is_draining = True
        for pair_transport in list(self.running):
            pair_transport.serve()
        pairs = [pair_transport.pair for pair_transport in self.running]
        return sum(1 for pair in pairs if pair is not None and not pair.is_closing)

    def disconnect_all(self) -> None:
        """Tell every client that the proxy stops, and close its connections."""
        for pair_transport in list(self.running):
            pair_transport.shut_down()

    async def close(self) -> None:
        """Drop all remaining pairs at once."""
        for pair_transport in list(self.running):
            pair_transport.abort()
        self.lingering.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PairTransport:
    """The two transports of one pair, and its timer.

    Attributes:
        arrival: the client's connection.
        pair: the pair they serve; set once there is a place for the client.
        logger: of the proxy.
        upstream: the address that the connection to the broker goes to; set by `Pairs`.
    """

    def __init__(self, pairs: Pairs, arrival: AcceptedConnection) -> None:
        """Wait for a client.

        Args:
            pairs: of the proxy.
            arrival: the client's connection.
        """
        self._pairs = pairs
        self.arrival = arrival
        self._loop = asyncio.get_running_loop()
        self.logger: logging.Logger = pairs.shared.logger
        self.pair: Pair | None = None
        self.upstream: Upstream | None = None
        self._early = b""
        self._client: asyncio.Transport | None = None
        self._broker: asyncio.Transport | None = None
        self._is_client_read = True
        self._is_broker_read = True
        self._dialling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._close_timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        self._is_silent = False
        self._is_answered = False

    # -- told by the two sides ------------------------------------------------------------

    def connected(self, direction: Direction, transport: asyncio.Transport) -> None:
        """The transport of bytes in a direction is there."""
        if direction is Direction.UPSTREAM:
            self._client_connected(transport)
            return
        pair = self.pair
        if pair is None or pair.is_closing:
            transport.abort()
            return
        pair.broker_connected()
        self._broker = transport
        self.serve()

    def _client_connected(self, transport: asyncio.Transport) -> None:
        arrival = self.arrival
        if arrival.place is None and not arrival.accept(transport):
            return
        arrival.leave_layers()
        limits = self._pairs.shared.limits
        transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        self._client = transport
        self._pairs.running.add(self)
        place = arrival.place
        if place is not None and place.is_waiting:
            place.on_turn = self._begin
            self.logger.info("%s waits for a place", arrival.peer())
        else:
            self._begin(arrival.accepted_at)

    def _transport(self, direction: Direction) -> asyncio.Transport | None:
        """Return the transport of bytes in a direction, as long as there is one."""
        return self._client if direction is Direction.UPSTREAM else self._broker

    def _begin(self, since: float | None = None) -> None:
        """Take part: there is a place for this client.

        Args:
            since: monotonic seconds from which the time for its CONNECT counts; None for this
                moment.
        """
        arrival = self.arrival
        pairs = self._pairs
        address = f"{arrival.remote_address}:{arrival.remote_port}"
        self.pair = pair = Pair(
            pairs.shared,
            address if arrival.remote_address else f"a Unix socket of listener {arrival.listener}",
            pairs.clock() if since is None else since,
            listener=arrival.listener,
            refusal=None if arrival.place is None else arrival.place.refusal,
            identity=self.identity() if pairs.identity == "user_property" else None,
            connack_timeout_seconds=pairs.connack_timeout_seconds,
        )
        arrival.connection = self
        client = arrival.transport
        sock = client.get_extra_info("socket")
        pair.fileno = -1 if sock is None else sock.fileno()
        if self._early:
            early, self._early = self._early, b""
            client.resume_reading()
            self.received(Direction.UPSTREAM, early)
        else:
            self.serve()

    def identity(self) -> ClientIdentity:
        """Return what is known of the client's connection."""
        arrival = self.arrival
        ours = arrival.transport.get_extra_info("sockname")
        ssl_object = arrival.ssl_object
        return ClientIdentity(
            (arrival.remote_address, arrival.remote_port) if arrival.remote_address else None,
            (str(ours[0]), int(ours[1])) if isinstance(ours, tuple) else None,
            None if ssl_object is None else ssl_object.version(),
            arrival.certificate_name,
        )

    @property
    def is_known(self) -> bool:
        """Whether the broker has accepted the client."""
        return self.pair is not None and self.pair.is_accepted

    def reached(self, upstream: Upstream) -> None:
        """Note the address that the connection to the broker goes to."""
        self.upstream = upstream
        if self._broker is not None:
            upstream.n_connections += 1

    def _note_answer(self, pair: Pair) -> None:
        """Judge the address by the broker's CONNACK, which has come if it has one."""
        answer = pair.answer
        if answer is None or self.upstream is None:
            return
        self._is_answered = True
        if pair.is_accepted:
            self.logger.debug(
                "%s: connected, user %r, protocol level %d, on listener %s, to the broker at %s",
                pair,
                pair.link.username,
                pair.version,
                pair.link.listener,
                self.upstream,
            )
        if answer in _OUT_OF_SERVICE:
            told = f"CONNACK: {describe_reason_code(answer)}"
            self._pairs.upstreams.failed(self.upstream, told, is_silent=True)
        else:
            self._pairs.upstreams.succeeded(self.upstream)

    def held_in_layer(self, n_bytes: int) -> None:
        """Do nothing: a layer holds a packet at most, as the pair does."""

    def received(self, direction: Direction, chunk: bytes) -> None:
        """Bytes of a direction have come."""
        pair = self.pair
        if pair is None:
            # Not paused earlier: uvloop begins to read after `connection_made` in any case.
            self._early += chunk
            if self._client is not None:
                self._client.pause_reading()
            return
        now = self._pairs.clock()
        try:
            pair.receive_data(direction, chunk, now)
        except Exception as error:  # noqa: BLE001 (see `_failed`)
            self._failed(pair, error, now)
        self.serve(now)
        if self._is_silent:
            self._note_silence(pair)
        if not self._is_answered and direction is Direction.DOWNSTREAM:
            self._note_answer(pair)

    def half_closed(self, direction: Direction) -> None:
        """A peer has closed its direction: its transport closes, and must not take long.

        A transport closes when everything written was sent. A peer that has closed its own
        direction and reads nothing would keep it open without end.
        """
        if self._transport(direction) is not None and self._close_timer is None:
            self._close_timer = self._loop.call_later(
                CLOSE_TIMEOUT_SECONDS, self._drop_half_closed, direction
            )

    def _drop_half_closed(self, direction: Direction) -> None:
        if self.pair is not None:
            self.pair.connection_lost(
                direction, self._pairs.clock(), "was half-closed and took nothing more"
            )
        self.abort()

    def paused(self, direction: Direction) -> None:
        """The transport for bytes of a direction is full.

        That happens only while `serve` writes, which then handles the rest.
        """
        if self.pair is not None:
            self.pair.pause_sending(direction)

    def resumed(self, direction: Direction) -> None:
        """The transport for bytes of a direction has room again."""
        if self.pair is not None:
            self.pair.resume_sending(direction)
            self.serve()

    def lost(self, direction: Direction, error: Exception | None) -> None:
        """The transport of bytes in a direction has ended."""
        was_there = self._transport(direction) is not None
        pair = self.pair
        if direction is Direction.DOWNSTREAM:
            self._broker = None
            if was_there and self.upstream is not None:
                self.upstream.n_connections -= 1
                if self._is_silent:
                    self._is_silent = False
                    self._pairs.upstreams.is_heard(self.upstream)
        else:
            self._client = None
            self.arrival.leave_to_kernel()
            if pair is None:  # cut off, or left while it waited for a place
                self._end()
                return
            pair.fileno = -1
        if pair is None or not was_there:
            return
        pair.connection_lost(direction, self._pairs.clock(), f"broke: {error}" if error else "")
        self.serve()

    def broker_unreachable(self, reason: str) -> None:
        """There will be no connection to the broker."""
        if self.pair is not None:
            self.pair.broker_unreachable(reason)
            self.serve()

    def close(self, reason_code: ReasonCode, *, server_reference: str | None = None) -> None:
        """End the pair normally; a client that waits for a place is dropped."""
        if self.pair is None:
            self.abort()
            return
        self.pair.close(reason_code, self._pairs.clock(), server_reference=server_reference)
        self.serve()

    def shut_down(self) -> None:
        """End the pair because the proxy stops; tell the client of another server, if any."""
        reference = self._pairs.server_reference
        reason_code = ReasonCode.SERVER_SHUTTING_DOWN if reference is None else _ELSEWHERE
        self.close(reason_code, server_reference=reference)

    def abort(self) -> None:
        """Drop both connections without sending the rest."""
        if self.pair is not None:
            self.pair.close(ReasonCode.UNSPECIFIED_ERROR, self._pairs.clock())
        for transport in (self._client, self._broker):
            if transport is not None:
                transport.abort()

    # -- what the pair wants ----------------------------------------------------------------

    def serve(self, now: float | None = None) -> None:
        """Do what the pair wants.

        Args:
            now: monotonic seconds; None to look at the clock.
        """
        pair = self.pair
        if pair is None:
            return
        if now is None:
            now = self._pairs.clock()
        client = self._client
        for _turn in range(MAX_TURNS):
            pair.pump(0 if client is None else client.get_write_buffer_size(), now)
            # Upstream bytes stay in the pair until there is a connection to the broker.
            broker = self._broker
            wrote_up = broker is not None and _write(broker, pair, Direction.UPSTREAM)
            wrote_down = client is not None and _write(client, pair, Direction.DOWNSTREAM)
            if not pair.has_more or not (wrote_up or wrote_down):
                break
        else:
            self._loop.call_soon(self.serve)
        if self._pairs.is_draining and not pair.is_closing and pair.is_drained:
            self.shut_down()
            return
        if pair.is_closing:
            self._close()
            return
        if pair.wants_broker and self._dialling is None:
            self._dialling = self._pairs.dial(self)
        self._read_or_not(pair)
        self._set_timer(pair, now)

    def _read_or_not(self, pair: Pair) -> None:
        """Start or stop reading from either side, as the pair wants."""
        wanted = pair.wants_reading(Direction.UPSTREAM)
        if wanted != self._is_client_read and _read(self._client, is_wanted=wanted):
            self._is_client_read = wanted
        wanted = pair.wants_reading(Direction.DOWNSTREAM)
        if wanted != self._is_broker_read and _read(self._broker, is_wanted=wanted):
            self._is_broker_read = wanted

    def _set_timer(self, pair: Pair, now: float) -> None:
        at = pair.next_deadline()
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
        pair = self.pair
        if pair is None:
            return
        try:
            pair.handle_timeout(now)
        except Exception as error:  # noqa: BLE001 (see `_failed`)
            self._failed(pair, error, now)
        self.serve(now)
        self._note_silence(pair)
        if pair.is_unanswered and self.upstream is not None:
            seconds = self._pairs.connack_timeout_seconds
            self._pairs.upstreams.failed(
                self.upstream, f"no CONNACK in {seconds:g} s", is_silent=True
            )

    def _note_silence(self, pair: Pair) -> None:
        """Tell of a broker that says nothing, or that does so no more.

        Where a check has found out that none of its clients can be heard there, and another address
        is up, the client is disconnected: it comes to that one.
        """
        upstreams, upstream = self._pairs.upstreams, self.upstream
        if upstream is None or self._broker is None or pair.is_closing:
            return
        is_silent = pair.is_broker_silent
        if is_silent != self._is_silent:
            self._is_silent = is_silent
            (upstreams.is_not_heard if is_silent else upstreams.is_heard)(upstream)
        if is_silent and not upstream.is_up and any(one.is_up for one in upstreams.each):
            self.logger.info("%s: the broker is silent, and another one is up", pair)
            self.close(ReasonCode.SERVER_BUSY)

    def _failed(self, pair: Pair, error: Exception, now: float) -> None:
        """End a pair that the proxy itself has failed: one, and not all."""
        self.logger.error("%s: closed after a fault of the proxy", pair, exc_info=error)
        pair.close(ReasonCode.UNSPECIFIED_ERROR, now)

    def _close(self) -> None:
        """Close the transports once they have sent the rest, or when time is up."""
        pair, upstream = self.pair, self.upstream
        if pair is not None and upstream is not None and (pair.is_cut_off or pair.has_given_up):
            self._pairs.upstreams.doubt(upstream)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._dialling is not None:
            self._dialling.cancel()
        transports = [one for one in (self._client, self._broker) if one is not None]
        if not transports:
            self._end()
        elif not self._is_ending:
            self._is_ending = True
            if self._close_timer is not None:
                self._close_timer.cancel()
            self._close_timer = self._loop.call_later(CLOSE_TIMEOUT_SECONDS, self.abort)
        for transport in transports:
            if transport.is_closing() or (transport is self._client and self._has_rest):
                continue  # the rest goes as there is room for it, then this is called again
            self._end_transport(transport)

    @property
    def _has_rest(self) -> bool:
        return self.pair is not None and self.pair.has_rest

    def _end_transport(self, transport: asyncio.Transport) -> None:
        """Close a transport once what was written to it is sent.

        The kernel discards what it still has to send where it gets bytes for a closed socket. So
        the socket of a broker that may still be sending to a client that has left is shut down in
        its one direction, and what comes is read and discarded until the broker closes it, too.
        """
        pair = self.pair
        is_left = transport is self._broker and pair is not None and pair.has_left
        if not is_left or transport.get_extra_info("sslcontext") is not None:
            transport.close()
        elif not transport.get_write_buffer_size():
            self._pairs.lingering.linger(transport)
        else:
            half_close(transport, is_reading=self._is_broker_read)
            self._is_broker_read = True

    def _end(self) -> None:
        """Both connections are gone."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.arrival.end()
        self.arrival.connection = None
        self._pairs.ended(self)


def _write(transport: asyncio.Transport, pair: Pair, direction: Direction) -> bool:
    """Write the bytes of a direction; return whether there were any."""
    out = pair.data_to_send(direction)
    if not out or transport.is_closing():
        return False
    if len(out) == 1:
        transport.write(out[0])
    else:
        transport.writelines(out)
    return True


def _read(transport: asyncio.Transport | None, *, is_wanted: bool) -> bool:
    """Start or stop reading; return whether there is a connection to read from."""
    if transport is None or transport.is_closing():
        return False
    if is_wanted:
        transport.resume_reading()
    else:
        transport.pause_reading()
    return True


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
