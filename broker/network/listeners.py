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
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.config.listener_config import Listener, Tls, show_address
from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.proxy_header import ProxyHeaderError, read_proxy_header
from penstock.broker.network.admission import Places
from penstock.broker.network.new_connection import AcceptedConnection, Layer, Reception
from penstock.broker.network.open_files import BACKLOG
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


class Listening:
    """One listener with its sockets.

    Attributes:
        listener: the listener from the policy file.
        address: (host, port) it is bound to; (path, 0) for a Unix socket.
    """

    def __init__(
        self,
        listener: Listener,
        reception: Reception,
        new_protocol: Callable[[AcceptedConnection], asyncio.Protocol],
        *,
        maximum_packet_size: int,
    ) -> None:
        """Prepare a listener; `open` binds it.

        Args:
            listener: the listener from the policy file.
            reception: the reception of the broker or proxy.
            new_protocol: returns what speaks MQTT on a connection, above its layers. Without
                layers it calls `AcceptedConnection.accept` in `connection_made`.
            maximum_packet_size: bytes of the largest packet that a client may send.
        """
        self.listener = listener
        self.address = ("", 0)
        self._reception = reception
        self._new_mqtt_protocol = new_protocol
        self._maximum_packet_size = maximum_packet_size
        self._places = Places(listener.max_connections, waits=listener.when_full == "wait")
        self._revoked: list[RevocationList] = []
        self._context: ssl.SSLContext | None = None
        self._certificate = ""
        self._websocket_layer: type[WebSocketLayer] | None = None
        self._inode = 0
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        """Read the files of TLS, bind and listen.

        Raises:
            ListenError: an address or file cannot be used.
        """
        listener = self.listener
        if listener.tls is not None:
            try:
                self._context, self._certificate = self._read_files(listener.tls)
            except (TlsFilesError, OSError) as error:
                raise ListenError(f"listener {listener.name}: {error}") from error
        elif listener.unused_certfile is not None:
            unused = listener.unused_certfile
            self._log(f"certfile {unused} is not used: without ssl: true there is no TLS")
        if listener.is_websocket:
            # Its library costs time and memory, and most brokers have no such listener.
            from penstock.broker.network.websocket import WebSocketLayer  # noqa: PLC0415

            self._websocket_layer = WebSocketLayer
        if listener.socket_path is not None:
            await self._open_unix(listener.socket_path)
        else:
            await self._open_tcp()

    async def _open_tcp(self) -> None:
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
            for sock in _bound_sockets(dict.fromkeys(found), listener, plan):
                self._servers.append(
                    await loop.create_server(self._new_protocol, sock=sock, backlog=BACKLOG)
                )
                host, port = sock.getsockname()[:2]
                self._log(f"listening on {show_address(host, port)}", logging.INFO)
                if self.address == ("", 0):
                    self.address = (host, port)
        except CongestionControlError as error:
            raise ListenError(f"listener {listener.name}: {error}") from error
        except OSError as error:
            raise ListenError(f"listener {listener.name}: cannot bind {where}: {error}") from error
        if not self._servers:
            raise ListenError(f"listener {listener.name}: cannot bind {where}: no such address")

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

    async def _open_unix(self, path: str) -> None:
        listener = self.listener
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale_socket(path)
            sock.bind(path)
            os.chmod(path, listener.socket_mode)  # noqa: PTH101 (before a client can connect)
            self._inode = os.stat(path).st_ino  # noqa: PTH116 (text is what bind takes)
            server = await asyncio.get_running_loop().create_unix_server(
                self._new_protocol, sock=sock, backlog=BACKLOG
            )
        except OSError as error:
            sock.close()
            raise ListenError(
                f"listener {listener.name}: cannot bind unix:{path}: {error}"
            ) from error
        self._servers.append(server)
        self.address = (path, 0)
        self._log(f"listening on unix:{path}", logging.INFO)

    def _read_files(self, tls: Tls) -> tuple[ssl.SSLContext, str]:
        """Return a context and the text of the certificate that it has."""
        return self._new_context(tls), Path(tls.certfile).read_text("latin-1")

    def _new_context(self, tls: Tls) -> ssl.SSLContext:
        protocols = ALPN_WEBSOCKET if self.listener.is_websocket else ALPN_MQTT
        context = make_context(tls, protocols)
        warn_of_readers(f"listener {self.listener.name}: keyfile", tls.keyfile)
        problem = problem_of_certificate(context, tls)
        if problem is not None:
            self._log(f"certfile {tls.certfile}: {problem}: clients will refuse it")
        self._revoked = revocation_lists(tls)
        now = dt.datetime.now(dt.UTC)
        if any(one.next_update is not None and one.next_update < now for one in self._revoked):
            self._log(
                f"crlfile {tls.crlfile}: a list in it has expired: all certificates of its "
                "authority are refused"
            )
        return context

    def _log(self, text: str, level: int = logging.WARNING) -> None:
        self._reception.logger.log(level, "listener %s: %s", self.listener.name, text)

    def has_revoked(self, ssl_object: ssl.SSLObject | None) -> bool:
        """Say whether a client has shown a certificate that is revoked."""
        if not self._revoked or ssl_object is None:
            return False
        certificate = ssl_object.getpeercert(binary_form=True)
        return certificate is not None and is_revoked(self._revoked, certificate)

    def abort_handshakes(self) -> None:
        """Drop connections in their handshake, so that none passes by an old revocation list."""
        if not self._revoked:
            return
        for arrival in list(self._reception.in_layers):
            if arrival.listener == self.listener.name:
                arrival.transport.abort()

    async def reload(self) -> list[str] | None:
        """Reload the files of TLS for later connections; a long revocation list takes a while.

        Returns:
            The files, as ``key file`` texts; None where they cannot be used: that is logged, and
            the old ones stay in use.
        """
        tls = self.listener.tls
        if tls is None:
            return []
        try:
            newer, certificate = await asyncio.to_thread(self._read_files, tls)
            before, after = await asyncio.to_thread(
                lambda: [key_algorithm(text) for text in (self._certificate, certificate)]
            )
        except (TlsFilesError, OSError) as error:  # a file may be deleted while it is read
            self._log(f"{error}; its old files stay in use", logging.ERROR)
            return None
        if self._context is not None and before and before == after:
            newer = renewed(self._context, newer, tls)
        self._context, self._certificate = newer, certificate
        return tls.files()

    def close(self) -> None:
        """Stop listening; connections stay."""
        path = self.listener.socket_path
        if path is not None and self._servers:
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == self._inode:  # noqa: PTH116 (text is what bind takes)
                    os.unlink(path)  # noqa: PTH108 (the same)
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _new_protocol(self) -> asyncio.Protocol:
        """Return the protocol for a connection that was just accepted."""
        listener = self.listener
        arrival = AcceptedConnection(
            self._reception, listener.name, self._places, is_behind_proxy=listener.proxy_protocol
        )
        protocol = self._new_mqtt_protocol(arrival)
        if self._websocket_layer is not None:
            protocol = self._websocket_layer(protocol, arrival, listener, self._maximum_packet_size)
        if self._context is not None:
            protocol = TlsLayer(protocol, arrival, self._context)
        if listener.proxy_protocol:
            protocol = ProxyHeaderLayer(protocol, arrival)
        return protocol


async def reload_files(listening: Iterable[Listening]) -> tuple[list[str], list[str]]:
    """Reload the files of all listeners' TLS.

    Returns:
        (what was read, as ``listeners.NAME.key file`` texts; keys of listeners whose files cannot
        be used).
    """
    read: list[str] = []
    failed: list[str] = []
    for one in listening:
        path = f"listeners.{one.listener.name}"
        files = await one.reload()
        if files is None:
            failed.append(path)
        else:
            read += [f"{path}.{file}" for file in files]
    return read, failed


def _bound_socket(
    family: int,
    address: tuple[str | int, ...],
    listener: Listener,
    plan: Retransmissions | None,
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
    found: Collection[tuple[Any, ...]], listener: Listener, plan: Retransmissions | None
) -> list[socket.socket]:
    """Return a bound socket for each address, all of one port.

    Where the kernel chooses the port, it does so for the first address. If that port is taken for
    another address, it chooses again.

    Args:
        found: the addresses, as `socket.getaddrinfo` returns them.
        listener: the listener of the policy file.
        plan: options for retransmissions, or None.

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
                    sock = _bound_socket(family, (address[0], port, *address[2:]), listener, plan)
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
