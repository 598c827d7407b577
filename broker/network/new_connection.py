"""A network connection from its acceptance until it speaks MQTT.

A connection may pass through layers before MQTT: a PROXY protocol header, TLS, WebSocket. Each
layer is an asyncio protocol for the layer below and a transport for the layer above, so that
`penstock.broker.network.transport` works the same with any of them. One `AcceptedConnection` passes
through all layers; together they have as long as a CONNECT may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol, cast

from penstock.broker.counters import Counters, count
from penstock.broker.network.admission import Admission, Place, Places
from penstock.broker.network.tcp_options import set_give_up
from penstock.broker.plugin_guard import is_logged
from penstock.broker.sending.log_fields import peer_name
from penstock.broker.sessions.bans import Bans

CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""A closed connection may take so long to send what was written before the close."""


class Speaker(Protocol):
    """The MQTT side of a connection, as the layers of the connection see it."""

    @property
    def is_known(self) -> bool:
        """True if its CONNECT was accepted, which gives it higher limits."""

    def held_in_layer(self, n_bytes: int) -> None:
        """Take note of the received bytes that a layer below holds.

        WebSocket holds those of a frame that is not whole.
        """


class Turns:
    """Long steps of many connections, one in each round of the loop.

    Between two of them the loop serves everybody else.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_taken = False

    def take(self, step: Callable[[], None]) -> None:
        """Call a step now, if it is the first in this round; otherwise when its turn comes."""
        if self._is_taken:
            self._waiting.append(step)
            return
        self._is_taken = True
        asyncio.get_running_loop().call_soon(self._next)
        step()

    def _next(self) -> None:
        if not self._waiting:
            self._is_taken = False
            return
        asyncio.get_running_loop().call_soon(self._next)
        self._waiting.popleft()()


@dataclass(eq=False, slots=True)
class Reception:
    """The parts that the incoming connections of all listeners share.

    Attributes:
        clock: returns monotonic seconds.
        timeout: seconds that the layers of a connection may take.
        in_layers: connections that do not speak MQTT yet.
        bans: the bans of addresses.
        orphan_timeouts_ms: name of a listener to the argument of `tcp_options.set_give_up` for its
            connections as they are closed; other listeners have none.
    """

    admission: Admission
    counters: Counters
    logger: logging.Logger
    _: KW_ONLY
    clock: Callable[[], float]
    timeout: float
    in_layers: set[AcceptedConnection] = field(default_factory=set)
    handshakes: Turns = field(default_factory=Turns)
    bans: Bans = field(default_factory=Bans)
    orphan_timeouts_ms: dict[str, int] = field(default_factory=dict)

    def cut_off(self, transport: asyncio.Transport) -> None:
        """Drop a connection of a flood; the log reports each doubling of their number."""
        transport.abort()
        n_connections = self.counters.connections_refused["cut_off"]
        if is_logged(n_connections):
            self.logger.warning("%d connections above the limits cut off so far", n_connections)

    def close(self) -> None:
        """Drop every connection that does not speak MQTT yet."""
        for arrival in list(self.in_layers):
            arrival.transport.abort()


@dataclass(eq=False, slots=True)
class AcceptedConnection:
    """One connection.

    Attributes:
        listener: name of the listener that accepts it, in the policy file.
        is_behind_proxy: whether its peer is a proxy, which will send the client's address.
        transport: the lowest one, of the socket itself; set on acceptance.
        place: set on acceptance; None where there was none.
        accepted_at: monotonic seconds.
        remote_address: the remote address of the client, as the socket or a proxy gives it; ""
            where it has none.
        remote_port: the remote port of the client, or 0.
        ssl_object: the TLS connection, or None.
        certificate_name: common name of the client's verified certificate, or None.
        connection: the MQTT side of it, once its layers are ready; before that None.
    """

    reception: Reception
    listener: str
    places: Places
    _: KW_ONLY
    is_behind_proxy: bool = False
    transport: asyncio.Transport = field(init=False)
    place: Place | None = None
    accepted_at: float = 0.0
    remote_address: str = ""
    remote_port: int = 0
    ssl_object: Any = None
    certificate_name: str | None = None
    connection: Speaker | None = None
    _is_ending: bool = False
    _timer: asyncio.TimerHandle | None = None

    @property
    def handshakes(self) -> Turns:
        """The turns of TLS handshakes."""
        return self.reception.handshakes

    @property
    def is_known(self) -> bool:
        """True if its CONNECT was accepted, which gives it higher limits."""
        return self.connection is not None and self.connection.is_known

    def accept(self, transport: asyncio.Transport) -> bool:
        """Take a place; called by the lowest protocol.

        Returns:
            False where the connection was cut off.
        """
        self.transport = transport
        self.accepted_at = self.reception.clock()
        place = self.place = self.reception.admission.enter(self.places)
        if place is None:
            self.reception.cut_off(transport)
            return False
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # that of a Unix socket is text
            self.remote_address, self.remote_port = str(peer[0]), int(peer[1])
        reception = self.reception
        return (
            self.is_behind_proxy
            or not (reception.admission.counts_addresses or reception.bans.entries)
            or self._count_address()
        )

    def came_from(self, address: str, port: int) -> bool:
        """Take the client's address from a proxy; "" leaves it as it is.

        Returns:
            False where the connection was cut off.
        """
        if address:
            self.remote_address, self.remote_port = address, port
        return not address or self._count_address()

    def _count_address(self) -> bool:
        place = self.place
        if (
            self.reception.bans.entries
            and place is not None
            and self.reception.bans.bans("address", self.remote_address, self.accepted_at)
            and not place.refuse_banned()
        ):
            self.reception.cut_off(self.transport)
            return False
        if (
            place is None
            or not self.reception.admission.counts_addresses
            or place.came_from(self.remote_address)
        ):
            return True
        self.reception.cut_off(self.transport)
        return False

    def enter_layers(self) -> None:
        """Start the timeout of the layers; further calls do nothing."""
        reception = self.reception
        if self not in reception.in_layers:
            reception.in_layers.add(self)
            self._timer = asyncio.get_running_loop().call_later(reception.timeout, self._time_is_up)

    def leave_layers(self) -> None:
        """End the timeout: the connection speaks MQTT or has ended; further calls do nothing."""
        self.reception.in_layers.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def fail(self, reason: str, detail: str, *, is_loud: bool = True) -> None:
        """Count and log a connection that ends before it speaks MQTT, and close it.

        Data already written is still sent, as long as the peer takes it.

        Args:
            reason: one word to count it by.
            detail: the text for the log.
            is_loud: False for what happens all day, such as a health check.
        """
        self.note(reason, detail, is_loud=is_loud)
        self.transport.close()
        self.end_in_time()

    def end_in_time(self) -> None:
        """Drop the connection, which is being closed, if that takes long; once.

        A transport closes when everything written was sent. A peer that has closed its own
        direction and reads nothing would keep it open without end.
        """
        if self._is_ending:
            return
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            CLOSE_TIMEOUT_SECONDS, self.transport.abort
        )

    def _time_is_up(self) -> None:
        self.note("timeout", "no CONNECT in time")
        self.transport.abort()

    def note(self, reason: str, detail: str, *, is_loud: bool = True) -> None:
        """Count and log why a connection ends."""
        reception = self.reception
        count(reception.counters.connections_refused, reason)
        reception.logger.log(
            logging.INFO if is_loud else logging.DEBUG,
            "%s: %s",
            self.peer(),
            detail,
            extra={"event": f"refused_{reason}", "reason": detail},
        )

    def peer(self) -> str:
        """Return the peer's name for the log."""
        return peer_name(f"{self.remote_address}:{self.remote_port}", self.listener)

    def leave_to_kernel(self) -> None:
        """Set how long the kernel may try to send the rest; call it right before the close."""
        if not self.reception.orphan_timeouts_ms:
            return
        orphan_ms = self.reception.orphan_timeouts_ms.get(self.listener)
        if orphan_ms is not None:
            with contextlib.suppress(OSError):  # the peer has reset it
                set_give_up(self.transport.get_extra_info("socket"), orphan_ms)

    def end(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self.leave_layers()
        if self.place is not None:
            self.place.leave()


_NOBODY: Final = asyncio.Protocol()


class Layer(asyncio.Protocol, asyncio.Transport):
    """A layer of a connection: protocol for what is below, transport for what is above.

    This class passes everything on; subclasses change what they must.

    Attributes:
        below: the transport that sees it as its protocol; set on acceptance.
        is_open: `above.connection_made` was called.
        is_below_paused: the transport below has called `pause_writing`.
    """

    def __init__(self, above: asyncio.Protocol, arrival: AcceptedConnection) -> None:
        super().__init__()
        self.above = above
        self.below: asyncio.Transport
        self.arrival = arrival
        self.is_open = False
        self.is_below_paused = False

    # -- the protocol of what is below --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the lowest layer takes the connection's place."""
        # uvloop's transports are no subclasses of asyncio's.
        self.below = below = cast("asyncio.Transport", transport)
        if self.arrival.place is None and not self.arrival.accept(below):
            return
        self.arrival.enter_layers()
        self.begin()

    def begin(self) -> None:
        """Prepare for the first bytes."""

    def open(self) -> None:
        """Tell the protocol above of its connection."""
        self.is_open = True
        self.above.connection_made(self)

    def eof_received(self) -> None:
        """The peer has closed its direction; the transport closes."""
        if self.is_open:
            self.above.eof_received()
        else:
            self.arrival.end_in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end on to the protocol above, if it knows of the connection."""
        if self.is_open:
            self.above.connection_lost(exc)
        else:
            self.arrival.leave_to_kernel()
            self.arrival.end()
        self.above = _NOBODY  # breaks the reference cycle of the two

    def pause_writing(self) -> None:
        """Pass it on."""
        self.is_below_paused = True
        if self.is_open:
            self.above.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self.is_below_paused = False
        if self.is_open:
            self.above.resume_writing()

    # -- the transport of what is above -------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport has."""
        return self.below.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self.below.is_closing()

    def can_write_eof(self) -> bool:
        """Return whether the socket's transport can half-close."""
        return self.below.can_write_eof()

    def write_eof(self) -> None:
        """Pass it on."""
        self.below.write_eof()

    def pause_reading(self) -> None:
        """Pass it on."""
        self.below.pause_reading()

    def resume_reading(self) -> None:
        """Pass it on."""
        self.below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Pass it on."""
        self.below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that were written and not sent."""
        return self.below.get_write_buffer_size()

    def close(self) -> None:
        """Close once everything is sent."""
        self.below.close()

    def abort(self) -> None:
        """Drop the connection."""
        self.below.abort()
