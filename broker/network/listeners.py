"""Listeners: their bound sockets, and the layers that their connections pass through."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.config.listener_config import Listener, Tls, show_address
from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.proxy_header import ProxyHeaderError, read_proxy_header
from penstock.broker.network.admission import Places
from penstock.broker.network.new_connection import AcceptedConnection, Layer, Reception
from penstock.broker.network.open_files import BACKLOG
from penstock.broker.network.port_holder import port_holder, shown_holder
from penstock.broker.network.revocation import RevocationList, is_revoked
from penstock.broker.network.tcp_options import (
    RTO_MAX_SINCE,
    CongestionControlError,
    Retransmissions,
    plan_retransmissions,
    set_congestion_control,
    set_retransmissions,
)
from penstock.broker.network.tls import (
    TlsFilesError,
    TlsLayer,
    key_algorithm,
    make_context,
    problem_of_certificate,
    renewed,
    revocation_lists,
)

if TYPE_CHECKING:
    from penstock.broker.network.websocket import WebSocketLayer

ALPN_MQTT: Final = ("mqtt",)
ALPN_WEBSOCKET: Final = ("http/1.1",)
"""Protocol names that a client may choose by ALPN, from IANA's list."""

_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""The number of the option; None on a system without it."""

_PORT_ATTEMPTS: Final = 20
"""Where the kernel chooses the port, so many are tried before one that another address has is an
error."""

_NO_SUCH_FAMILY: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class ListenError(PenstockError):
    """A listener's address or files cannot be used; the program ends with status 2."""


class ProxyHeaderLayer(Layer):
    """Reads the header of the PROXY protocol, then removes itself from the connection."""

    def __init__(self, above: asyncio.Protocol, arrival: AcceptedConnection) -> None:
        super().__init__(above, arrival)
        self._beginning = b""

    def data_received(self, data: bytes) -> None:
        """Remove the header from the first bytes; pass the rest on."""
        if self.below.is_closing():
            return
        self._beginning += data
        arrival = self.arrival
        try:
            header = read_proxy_header(self._beginning)
        except ProxyHeaderError as error:
            arrival.fail("proxy_header", f"no PROXY protocol: {error}")
            return
        if header is None:
            return
        if not arrival.came_from(header.address, header.port):
            return
        arrival.certificate_name = header.common_name
        rest, self._beginning = self._beginning[header.n_bytes :], b""
        self.below.set_protocol(self.above)
        self.is_open = True
        self.above.connection_made(self.below)
        if rest and not self.below.is_closing():
            self.above.data_received(rest)

    def eof_received(self) -> None:
        """Log a peer that leaves without a header, such as the health check of a load balancer."""
        if not self.below.is_closing():
            self.arrival.fail("proxy_header", "left without a header", is_loud=False)


class _TlsFiles(NamedTuple):
    """What was read of a listener's files of TLS."""

    context: ssl.SSLContext
    certificate: str
    revoked: list[RevocationList]


class Listening:
    """One listener with its sockets.

    Attributes:
        address: (host, port) it is bound to; (path, 0) for a Unix socket.
        maximum_packet_size: bytes of the largest packet that a client may send.
    """

    def __init__(
        self,
        listener: Listener,
        reception: Reception,
        new_protocol: Callable[[AcceptedConnection], asyncio.Protocol],
        *,
        maximum_packet_size: int,
        shares_ports: bool = False,
    ) -> None:
        """Prepare a listener; `bind` and `serve` open it.

        Args:
            listener: the listener from the policy file.
            reception: the reception of the broker or proxy.
            new_protocol: returns what speaks MQTT on a connection, above its layers. Without
                layers it calls `AcceptedConnection.accept` in `connection_made`.
            maximum_packet_size: bytes of the largest packet that a client may send.
            shares_ports: other processes of this user listen on the same port (SO_REUSEPORT); the
                kernel gives each connection to one of them.
        """
        self._shares_ports = shares_ports
        self.listener = listener
        self.address = ("", 0)
        self._reception = reception
        self._new_mqtt_protocol = new_protocol
        self.maximum_packet_size = maximum_packet_size
        self._places = Places(listener.max_connections, waits=listener.when_full == "wait")
        self._files: _TlsFiles | None = None
        self._websocket_layer: type[WebSocketLayer] | None = None
        self._inode = 0
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    async def bind(self) -> None:
        """Read the files of TLS, bind and listen; clients wait until `serve`.

        Raises:
            ListenError: an address or file cannot be used.
        """
        listener = self.listener
        if listener.tls is not None:
            try:
                self._files = self._read_files(listener, listener.tls)
            except (TlsFilesError, OSError) as error:
                raise ListenError(f"listener {listener.name}: {error}") from error
        elif listener.unused_certfile is not None:
            unused = listener.unused_certfile
            self._log(f"certfile {unused} is not used: without ssl: true there is no TLS")
        self._websocket_layer = _layer_of(listener)
        if listener.socket_path is not None:
            self._bind_unix(listener.socket_path)
        else:
            await self._bind_tcp()

    async def serve(self) -> None:
        """Accept clients.

        Raises:
            ListenError: the system does not let it.
        """
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        is_unix = self.listener.socket_path is not None
        create = loop.create_unix_server if is_unix else loop.create_server
        for sock in sockets:
            try:
                server = await create(self._new_protocol, sock=sock, backlog=BACKLOG)
            except OSError as error:
                sock.close()
                raise ListenError(f"listener {self.listener.name}: {error}") from error
            self._servers.append(server)
            name = sock.getsockname()
            shown = f"unix:{self.listener.socket_path}" if is_unix else show_address(*name[:2])
            self._log(f"listening on {shown}", logging.INFO)

    async def _bind_tcp(self) -> None:
        listener = self.listener
        where = f"{listener.host or '*'}:{listener.port}"
        plan = self._plan_retransmissions()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                listener.host,
                listener.port,
                type=socket.SOCK_STREAM,
                flags=0 if listener.is_loopback else socket.AI_PASSIVE,
            )
            self._sockets = _bound_sockets(
                dict.fromkeys(found), listener, plan, shares_ports=self._shares_ports
            )
            for sock in self._sockets:
                sock.listen(BACKLOG)
        except CongestionControlError as error:
            raise ListenError(f"listener {listener.name}: {error}") from error
        except OSError as error:
            why = str(error)
            if error.errno == errno.EADDRINUSE:
                why = f"the port is in use{shown_holder(port_holder(listener.port))}"
            raise ListenError(f"listener {listener.name}: cannot bind {where}: {why}") from error
        if not self._sockets:
            raise ListenError(f"listener {listener.name}: cannot bind {where}: no such address")
        host, port = self._sockets[0].getsockname()[:2]
        self.address = (host, port)

    def _plan_retransmissions(self) -> Retransmissions | None:
        """Return options for retransmissions; None for those of the kernel."""
        listener = self.listener
        if listener.rto_max_seconds is None:
            return None
        plan = plan_retransmissions(listener.rto_max_seconds)
        if plan is None:
            self._log(f"rto_max_seconds has no effect: it needs {RTO_MAX_SINCE}")
        else:
            self._reception.orphan_timeouts_ms[listener.name] = plan.orphan_ms
        return plan

    def _bind_unix(self, path: str) -> None:
        listener = self.listener
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale_socket(path)
            sock.bind(path)
            os.chmod(path, listener.socket_mode)  # noqa: PTH101 (before a client can connect)
            self._inode = os.stat(path).st_ino  # noqa: PTH116 (text is what bind takes)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise ListenError(
                f"listener {listener.name}: cannot bind unix:{path}: {error}"
            ) from error
        self._sockets.append(sock)
        self.address = (path, 0)

    def _read_files(self, listener: Listener, tls: Tls) -> _TlsFiles:
        """Read the files of TLS; a long revocation list takes a while."""
        protocols = ALPN_WEBSOCKET if listener.is_websocket else ALPN_MQTT
        context = make_context(tls, protocols)
        warn_of_readers(f"listener {self.listener.name}: keyfile", tls.keyfile)
        problem = problem_of_certificate(context, tls)
        if problem is not None:
            self._log(f"certfile {tls.certfile}: {problem}: clients will refuse it")
        revoked = revocation_lists(tls)
        now = dt.datetime.now(dt.UTC)
        if any(one.next_update is not None and one.next_update < now for one in revoked):
            self._log(
                f"crlfile {tls.crlfile}: a list in it has expired: all certificates of its "
                "authority are refused"
            )
        return _TlsFiles(context, Path(tls.certfile).read_text("latin-1"), revoked)

    def _log(self, text: str, level: int = logging.WARNING) -> None:
        self._reception.logger.log(level, "listener %s: %s", self.listener.name, text)

    def has_revoked(self, ssl_object: ssl.SSLObject | None) -> bool:
        """Say whether a client has shown a certificate that is revoked."""
        revoked = [] if self._files is None else self._files.revoked
        if not revoked or ssl_object is None:
            return False
        certificate = ssl_object.getpeercert(binary_form=True)
        return certificate is not None and is_revoked(revoked, certificate)

    def abort_handshakes(self) -> None:
        """Drop connections in their handshake, so that none passes by an old revocation list."""
        if self._files is None or not self._files.revoked:
            return
        for arrival in list(self._reception.in_layers):
            if arrival.listener == self.listener.name:
                arrival.transport.abort()

    async def reload(self, listener: Listener) -> Callable[[], None]:
        """Read the files of TLS and take other keys; the address stays.

        Returns:
            What makes it count.

        Raises:
            PenstockError: a file cannot be used.
            OSError: the same.
        """
        tls, before = listener.tls, self._files
        layer = _layer_of(listener)
        files: _TlsFiles | None = None
        is_same_kind = False
        if tls is not None:
            files = await asyncio.to_thread(self._read_files, listener, tls)
            if before is not None and tls == self.listener.tls:
                kinds = await asyncio.to_thread(
                    lambda: [key_algorithm(each.certificate) for each in (before, files)]
                )
                is_same_kind = bool(kinds[0]) and kinds[0] == kinds[1]

        def apply() -> None:
            newer = files
            if is_same_kind and before is not None and newer is not None and tls is not None:
                newer = newer._replace(context=renewed(before.context, newer.context, tls))
            self.listener, self._files, self._websocket_layer = listener, newer, layer
            self._places.change(listener.max_connections, waits=listener.when_full == "wait")

        return apply

    def close(self) -> None:
        """Stop listening; connections stay."""
        path = self.listener.socket_path
        if path is not None and (self._servers or self._sockets):
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == self._inode:  # noqa: PTH116 (text is what bind takes)
                    os.unlink(path)  # noqa: PTH108 (the same)
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._servers.clear()
        self._sockets.clear()

    def _new_protocol(self) -> asyncio.Protocol:
        """Return the protocol for a connection that was just accepted."""
        listener = self.listener
        arrival = AcceptedConnection(
            self._reception, listener.name, self._places, is_behind_proxy=listener.proxy_protocol
        )
        protocol = self._new_mqtt_protocol(arrival)
        if self._websocket_layer is not None:
            protocol = self._websocket_layer(protocol, arrival, listener, self.maximum_packet_size)
        if self._files is not None:
            protocol = TlsLayer(protocol, arrival, self._files.context)
        if listener.proxy_protocol:
            protocol = ProxyHeaderLayer(protocol, arrival)
        return protocol


def _layer_of(listener: Listener) -> type[WebSocketLayer] | None:
    """Return the layer of WebSocket, where a listener has it."""
    if not listener.is_websocket:
        return None
    # Its library costs time and memory, and most brokers have no such listener.
    from penstock.broker.network.websocket import WebSocketLayer  # noqa: PLC0415

    return WebSocketLayer


def _bound_socket(
    family: int,
    address: tuple[str | int, ...],
    listener: Listener,
    plan: Retransmissions | None,
    *,
    shares_ports: bool,
) -> socket.socket:
    """Return a socket bound to an address.

    It gets the options that its connections need: on Linux they inherit them when they are
    accepted, so that none costs a system call.

    Raises:
        CongestionControlError: the listener's congestion control is not available.
        OSError: the socket cannot be bound.
    """
    # Event loops set TCP_NODELAY on a socket whose protocol is given as TCP.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_ports:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # IPv4 has a socket of its own
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if listener.unsent_bytes is not None and _NOTSENT_LOWAT is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, listener.unsent_bytes)
        if listener.send_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, listener.send_buffer_bytes)
        if listener.congestion_control is not None:
            set_congestion_control(sock, listener.congestion_control)
        if plan is not None:
            set_retransmissions(sock, plan)
        sock.bind(address)
    except (CongestionControlError, OSError):
        sock.close()
        raise
    return sock


def _bound_sockets(
    found: Collection[tuple[Any, ...]],
    listener: Listener,
    plan: Retransmissions | None,
    *,
    shares_ports: bool,
) -> list[socket.socket]:
    """Return a bound socket for each address, all of one port.

    Where the kernel chooses the port, it does so for the first address. If that port is taken for
    another address, it chooses again.

    Raises:
        CongestionControlError: the listener's congestion control is not available.
        OSError: an address cannot be bound.
    """
    attempts_left = 0 if listener.port else _PORT_ATTEMPTS
    while True:
        bound: list[socket.socket] = []
        port = listener.port
        try:
            for family, *_, address in found:
                try:
                    sock = _bound_socket(
                        family,
                        (address[0], port, *address[2:]),
                        listener,
                        plan,
                        shares_ports=shares_ports,
                    )
                except OSError as error:
                    if listener.host is None and error.errno in _NO_SUCH_FAMILY:
                        continue  # all addresses are asked for, and the machine has no IPv6
                    raise
                bound.append(sock)
                port = sock.getsockname()[1]
        except (CongestionControlError, OSError) as error:
            for sock in bound:
                sock.close()
            attempts_left -= 1
            if attempts_left < 0 or getattr(error, "errno", None) != errno.EADDRINUSE:
                raise
        else:
            return bound


def _remove_stale_socket(path: str) -> None:
    """Remove the file of a Unix socket on which no process listens.

    Raises:
        OSError: a process listens on it, or it is no socket.
    """
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):  # noqa: PTH116 (text is what bind takes)
            raise OSError("there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # noqa: PTH108
            return
    raise OSError("address already in use")
