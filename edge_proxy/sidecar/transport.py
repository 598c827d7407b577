"""The network side of a proxied client: two transports, one timer, and the dialling of the broker.

No other module of the sidecar writes to a transport. After each event, `ClientTransport.serve` does
what the `ProxiedClient` wants: it writes both ways, sends waiting messages while the client has
room, starts and stops reading, opens the connection to the broker, and closes.
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
from penstock.edge_proxy.sidecar.proxied_client import ProxiedClient
from penstock.edge_proxy.sidecar.proxy_state import ProxyState
from penstock.edge_proxy.upstream import Upstream, Upstreams

MAX_TURNS: Final = 16
"""How often one client may pump and write before other clients are served."""

_OUT_OF_SERVICE: Final = frozenset({ReasonCode.SERVER_UNAVAILABLE, ReasonCode.SERVER_BUSY})
"""Reason codes of CONNACK by which a broker serves no client."""

_ELSEWHERE: Final = ReasonCode.USE_ANOTHER_SERVER


class ProxiedClients:
    """All clients of one proxy on the event loop: it accepts them and dials the broker for each.

    Everything runs on the loop's thread.

    Attributes:
        shared: what all clients share.
        reception: what the proxy's listeners share.
        clock: returns monotonic seconds.
        identity: how the broker is told who a client is.
        connack_timeout_seconds: time from a CONNECT to the broker's CONNACK.
        lingering: sockets to the broker whose clients have left.
        is_draining: whether a client is disconnected as soon as nothing waits for it.
        server_reference: another server, of which clients are told at a stop; or None.
    """

    def __init__(
        self,
        shared: ProxyState,
        reception: Reception,
        upstreams: Upstreams,
        *,
        connack_timeout_seconds: float,
        identity: Identity = "none",
        server_reference: str | None = None,
    ) -> None:
        self.shared = shared
        self.reception = reception
        self.upstreams = upstreams
        self.connack_timeout_seconds = connack_timeout_seconds
        self.identity = identity
        self.server_reference = server_reference
        self.running: set[ClientTransport] = set()
        self.clock: Callable[[], float] = time.monotonic
        self.is_draining = False
        self.lingering = LingeringClose(asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()
        self._none_left: asyncio.Future[None] | None = None

    def accept(self, arrival: AcceptedConnection) -> asyncio.Protocol:
        """Return the protocol of a client that connects."""
        return _Side(ClientTransport(self, arrival), Direction.UPSTREAM)

    def dial(self, client_transport: ClientTransport) -> asyncio.Task[None]:
        """Open a connection to the broker for a client, which is told the outcome."""
        task = asyncio.get_running_loop().create_task(self._dial(client_transport), name="dial")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _dial(self, client_transport: ClientTransport) -> None:
        try:
            header = client_transport.identity().header() if self.identity == "proxy_v2" else b""
            dialled = await self.upstreams.dial(
                lambda: _Side(client_transport, Direction.DOWNSTREAM), header=header
            )
            client_transport.reached(dialled.upstream)
        except PenstockError as error:
            client_transport.broker_unreachable(f"no connection to {error}")
        except Exception as error:  # noqa: BLE001 (whatever it is, the client waits for an answer)
            client_transport.broker_unreachable(f"no connection to {self.upstreams}: {error!r}")

    def ended(self, client_transport: ClientTransport) -> None:
        """Note that both connections of a client have ended."""
        self.running.discard(client_transport)
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
        for client_transport in list(self.running):
            client_transport.serve()
        clients = [client_transport.proxied for client_transport in self.running]
        return sum(1 for proxied in clients if proxied is not None and not proxied.is_closing)

    def disconnect_all(self) -> None:
        """Tell every client that the proxy stops, and close its connections."""
        for client_transport in list(self.running):
            client_transport.shut_down()

    async def close(self) -> None:
        """Drop all remaining proxied clients at once."""
        for client_transport in list(self.running):
            client_transport.abort()
        self.lingering.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ClientTransport:
    """The two transports of one client, and its timer.

    Attributes:
        arrival: the client's connection.
        proxied: the client that they serve; set once there is a place for it.
        upstream: the address of the connection to the broker; set by `ProxiedClients`.
    """

    def __init__(self, clients: ProxiedClients, arrival: AcceptedConnection) -> None:
        self._clients = clients
        self.arrival = arrival
        self._loop = asyncio.get_running_loop()
        self.logger: logging.Logger = clients.shared.logger
        self.proxied: ProxiedClient | None = None
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
        """Note that the transport which receives bytes of a direction is connected."""
        if direction is Direction.UPSTREAM:
            self._client_connected(transport)
            return
        proxied = self.proxied
        if proxied is None or proxied.is_closing:
            transport.abort()
            return
        proxied.broker_connected()
        self._broker = transport
        self.serve()

    def _client_connected(self, transport: asyncio.Transport) -> None:
        arrival = self.arrival
        if arrival.place is None and not arrival.accept(transport):
            return
        arrival.leave_layers()
        limits = self._clients.shared.limits
        transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        self._client = transport
        self._clients.running.add(self)
        place = arrival.place
        if place is not None and place.is_waiting:
            place.on_turn = self._begin
            self.logger.info("%s waits for a place", arrival.peer())
        else:
            self._begin(arrival.accepted_at)

    def _transport(self, direction: Direction) -> asyncio.Transport | None:
        """Return the transport which receives bytes of a direction, while there is one."""
        return self._client if direction is Direction.UPSTREAM else self._broker

    def _begin(self, since: float | None = None) -> None:
        """Begin to serve the client, as there is a place for it.

        Args:
            since: monotonic seconds from which the time for its CONNECT counts; None for now.
        """
        arrival = self.arrival
        clients = self._clients
        address = f"{arrival.remote_address}:{arrival.remote_port}"
        self.proxied = proxied = ProxiedClient(
            clients.shared,
            address if arrival.remote_address else f"a Unix socket of listener {arrival.listener}",
            clients.clock() if since is None else since,
            listener=arrival.listener,
            refusal=None if arrival.place is None else arrival.place.refusal,
            identity=self.identity() if clients.identity == "user_property" else None,
            connack_timeout_seconds=clients.connack_timeout_seconds,
        )
        arrival.connection = self
        client = arrival.transport
        sock = client.get_extra_info("socket")
        proxied.fileno = -1 if sock is None else sock.fileno()
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
        return self.proxied is not None and self.proxied.is_accepted

    def reached(self, upstream: Upstream) -> None:
        """Note the address of the connection to the broker."""
        self.upstream = upstream
        if self._broker is not None:
            upstream.n_connections += 1

    def _note_answer(self, proxied: ProxiedClient) -> None:
        """Note by the broker's CONNACK, once it has come, whether the address is up."""
        answer = proxied.answer
        if answer is None or self.upstream is None:
            return
        self._is_answered = True
        if proxied.is_accepted:
            self.logger.debug(
                "%s: connected, user %r, protocol level %d, on listener %s, to the broker at %s",
                proxied,
                proxied.link.username,
                proxied.version,
                proxied.link.listener,
                self.upstream,
                extra=proxied.log_fields,
            )
        if answer in _OUT_OF_SERVICE:
            told = f"CONNACK: {describe_reason_code(answer)}"
            self._clients.upstreams.failed(self.upstream, told, is_silent=True)
        else:
            self._clients.upstreams.succeeded(self.upstream)

    def held_in_layer(self, n_bytes: int) -> None:
        """Do nothing: a layer holds one packet at most, as the client does anyway."""

    def received(self, direction: Direction, chunk: bytes) -> None:
        """Handle bytes of a direction."""
        proxied = self.proxied
        if proxied is None:
            # uvloop begins to read after `connection_made` even if reading was paused there.
            self._early += chunk
            if self._client is not None:
                self._client.pause_reading()
            return
        now = self._clients.clock()
        try:
            proxied.receive_data(direction, chunk, now)
        except Exception as error:  # noqa: BLE001 (see `_failed`)
            self._failed(proxied, error, now)
        self.serve(now)
        if self._is_silent:
            self._note_silence(proxied)
        if not self._is_answered and direction is Direction.DOWNSTREAM:
            self._note_answer(proxied)

    def half_closed(self, direction: Direction) -> None:
        """Limit the time in which a transport closes whose peer has half-closed its connection.

        A transport closes when everything written was sent. A half-closed peer that reads nothing
        would keep it open without end.
        """
        if self._transport(direction) is not None and self._close_timer is None:
            self._close_timer = self._loop.call_later(
                CLOSE_TIMEOUT_SECONDS, self._drop_half_closed, direction
            )

    def _drop_half_closed(self, direction: Direction) -> None:
        if self.proxied is not None:
            self.proxied.connection_lost(
                direction, self._clients.clock(), "was half-closed and took nothing more"
            )
        self.abort()

    def paused(self, direction: Direction) -> None:
        """Note that the transport which sends bytes of a direction is full.

        That only happens while `serve` writes, which then does what follows.
        """
        if self.proxied is not None:
            self.proxied.pause_sending(direction)

    def resumed(self, direction: Direction) -> None:
        """Serve again, as the transport which sends bytes of a direction has room."""
        if self.proxied is not None:
            self.proxied.resume_sending(direction)
            self.serve()

    def lost(self, direction: Direction, error: Exception | None) -> None:
        """Note that the transport which receives bytes of a direction has ended."""
        was_there = self._transport(direction) is not None
        proxied = self.proxied
        if direction is Direction.DOWNSTREAM:
            self._broker = None
            if was_there and self.upstream is not None:
                self.upstream.n_connections -= 1
                if self._is_silent:
                    self._is_silent = False
                    self._clients.upstreams.is_heard(self.upstream)
        else:
            self._client = None
            self.arrival.leave_to_kernel()
            if proxied is None:  # the client has left while it waited for a place
                self._end()
                return
            proxied.fileno = -1
        if proxied is None or not was_there:
            return
        proxied.connection_lost(
            direction, self._clients.clock(), f"broke: {error}" if error else ""
        )
        self.serve()

    def broker_unreachable(self, reason: str) -> None:
        """Note that there will be no connection to the broker."""
        if self.proxied is not None:
            self.proxied.broker_unreachable(reason)
            self.serve()

    def close(self, reason_code: ReasonCode, *, server_reference: str | None = None) -> None:
        """Disconnect the client; drop one that waits for a place."""
        if self.proxied is None:
            self.abort()
            return
        self.proxied.close(reason_code, self._clients.clock(), server_reference=server_reference)
        self.serve()

    def shut_down(self) -> None:
        """End because the proxy stops; tell the client of another server, if any."""
        reference = self._clients.server_reference
        reason_code = ReasonCode.SERVER_SHUTTING_DOWN if reference is None else _ELSEWHERE
        self.close(reason_code, server_reference=reference)

    def abort(self) -> None:
        """Drop both connections without sending the rest."""
        if self.proxied is not None:
            self.proxied.close(ReasonCode.UNSPECIFIED_ERROR, self._clients.clock())
        for transport in (self._client, self._broker):
            if transport is not None:
                transport.abort()

    # -- what the proxied client wants -----------------------------------------------------------

    def serve(self, now: float | None = None) -> None:
        """Do what the client wants; `now` is None where the clock is to be read."""
        proxied = self.proxied
        if proxied is None:
            return
        if now is None:
            now = self._clients.clock()
        client = self._client
        for _turn in range(MAX_TURNS):
            proxied.pump(0 if client is None else client.get_write_buffer_size(), now)
            # Upstream bytes wait until there is a connection to the broker.
            broker = self._broker
            wrote_up = broker is not None and _write(broker, proxied, Direction.UPSTREAM)
            wrote_down = client is not None and _write(client, proxied, Direction.DOWNSTREAM)
            if not proxied.has_more or not (wrote_up or wrote_down):
                break
        else:
            self._loop.call_soon(self.serve)
        if self._clients.is_draining and not proxied.is_closing and proxied.is_drained:
            self.shut_down()
            return
        if proxied.is_closing:
            self._close()
            return
        if proxied.wants_broker and self._dialling is None:
            self._dialling = self._clients.dial(self)
        self._read_or_not(proxied)
        self._set_timer(proxied, now)

    def _read_or_not(self, proxied: ProxiedClient) -> None:
        """Start or stop reading from either side, as the client wants."""
        wanted = proxied.wants_reading(Direction.UPSTREAM)
        if wanted != self._is_client_read and _read(self._client, is_wanted=wanted):
            self._is_client_read = wanted
        wanted = proxied.wants_reading(Direction.DOWNSTREAM)
        if wanted != self._is_broker_read and _read(self._broker, is_wanted=wanted):
            self._is_broker_read = wanted

    def _set_timer(self, proxied: ProxiedClient, now: float) -> None:
        at = proxied.next_deadline()
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
        now = self._clients.clock()
        proxied = self.proxied
        if proxied is None:
            return
        try:
            proxied.handle_timeout(now)
        except Exception as error:  # noqa: BLE001 (see `_failed`)
            self._failed(proxied, error, now)
        self.serve(now)
        self._note_silence(proxied)
        if proxied.is_unanswered and self.upstream is not None:
            seconds = self._clients.connack_timeout_seconds
            self._clients.upstreams.failed(
                self.upstream, f"no CONNACK in {seconds:g} s", is_silent=True
            )

    def _note_silence(self, proxied: ProxiedClient) -> None:
        """Note that the broker is silent on this connection, or is heard again.

        Where a check has found the address down and another one is up, the client is disconnected
        so that it connects to the other one.
        """
        upstreams, upstream = self._clients.upstreams, self.upstream
        if upstream is None or self._broker is None or proxied.is_closing:
            return
        is_silent = proxied.is_broker_silent
        if is_silent != self._is_silent:
            self._is_silent = is_silent
            (upstreams.is_not_heard if is_silent else upstreams.is_heard)(upstream)
        if is_silent and not upstream.is_up and any(one.is_up for one in upstreams.each):
            self.logger.info("%s: the broker is silent, and another one is up", proxied)
            self.close(ReasonCode.SERVER_BUSY)

    def _failed(self, proxied: ProxiedClient, error: Exception, now: float) -> None:
        """End this client after a fault of the proxy; the others go on."""
        self.logger.error("%s: closed after a fault of the proxy", proxied, exc_info=error)
        proxied.close(ReasonCode.UNSPECIFIED_ERROR, now)

    def _close(self) -> None:
        """Close the transports once they have sent the rest, or when the time is over."""
        proxied, upstream = self.proxied, self.upstream
        if (
            proxied is not None
            and upstream is not None
            and (proxied.is_cut_off or proxied.has_given_up)
        ):
            self._clients.upstreams.doubt(upstream)
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
                continue  # this is called again when the rest was sent
            self._end_transport(transport)

    @property
    def _has_rest(self) -> bool:
        return self.proxied is not None and self.proxied.has_rest

    def _end_transport(self, transport: asyncio.Transport) -> None:
        """Close a transport once what was written to it is sent.

        The kernel discards unsent bytes when bytes come for a closed socket. A broker may still be
        sending to a client that has left. So its socket is only shut down in the direction to the
        broker, and what comes is read and discarded until the broker closes it, too.
        """
        proxied = self.proxied
        is_left = transport is self._broker and proxied is not None and proxied.has_left
        if not is_left or transport.get_extra_info("sslcontext") is not None:
            transport.close()
        elif not transport.get_write_buffer_size():
            self._clients.lingering.linger(transport)
        else:
            half_close(transport, is_reading=self._is_broker_read)
            self._is_broker_read = True

    def _end(self) -> None:
        """Free everything, as both connections are gone."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.arrival.end()
        self.arrival.connection = None
        self._clients.ended(self)


def _write(transport: asyncio.Transport, proxied: ProxiedClient, direction: Direction) -> bool:
    """Write the bytes of a direction; return whether there were any."""
    out = proxied.data_to_send(direction)
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
    """The protocol of one of the two connections; it receives bytes of `direction`."""

    def __init__(self, client_transport: ClientTransport, direction: Direction) -> None:
        self._client_transport = client_transport
        self._direction = direction
        is_up = direction is Direction.UPSTREAM
        self._other = Direction.DOWNSTREAM if is_up else Direction.UPSTREAM

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection."""
        # uvloop's transports are no subclasses of asyncio's.
        self._client_transport.connected(self._direction, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        """Report received bytes."""
        self._client_transport.received(self._direction, data)

    def pause_writing(self) -> None:
        """Report too many unsent bytes."""
        self._client_transport.paused(self._other)

    def resume_writing(self) -> None:
        """Report room for more."""
        self._client_transport.resumed(self._other)

    def eof_received(self) -> None:
        """Report a half-closed peer; the transport closes once everything is sent."""
        self._client_transport.half_closed(self._direction)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._client_transport.lost(self._direction, exc)
