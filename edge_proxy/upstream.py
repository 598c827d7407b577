"""Connections to an upstream broker by TCP, TLS or Unix socket, with health checks and failover.

Theory of operation. The addresses are in the order of preference. A new connection goes to the
first address that is up. Where it cannot be established, the address is down and the next one is
tried. Where every address is down, all are tried in order. Each address has a task that checks it
when nothing was heard from it for some time. An address whose check succeeds is up again, and gets
new connections before those behind it. Existing connections stay where they are.

A check establishes a connection and closes it. That would pass for an address that accepts
connections and answers no CONNECT. Where a client has met one (`failed` with `is_silent`), a check
also sends a CONNECT and waits for any CONNACK, even a refusal. So does the next check after a
connection that has ended without a CONNACK (`doubt`): a broker may do that to one client, and a
forwarder of connections does it to all while no broker is behind it. The same goes for a frozen
broker, which accepts connections: a client gives up waiting for its CONNACK, or hears nothing after
a PINGREQ (`is_not_heard`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from penstock.broker.config.listener_config import Tls
from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.errors import PenstockError
from penstock.broker.extensions import Reload
from penstock.broker.mqtt.enums import PacketType, ProtocolVersion
from penstock.broker.mqtt.packets import Connect
from penstock.broker.mqtt.reason_codes import CONNACK_RETURN_CODES, ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.tcp_options import (
    RTO_MAX_SINCE,
    Retransmissions,
    plan_retransmissions,
    set_give_up,
    set_keepalive,
    set_retransmissions,
)
from penstock.broker.network.tls import TlsFilesError, make_client_context
from penstock.edge_proxy.upstream_config import UpstreamAddress, UpstreamKeys, UpstreamTlsKeys

P = TypeVar("P", bound=asyncio.Protocol)

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Times of TCP keepalive: a firewall forgets an idle connection after some minutes."""

_CONNACK_BYTES: Final = 4
_UNAVAILABLE: Final = CONNACK_RETURN_CODES[ReasonCode.SERVER_UNAVAILABLE]
"""Length of a CONNACK of MQTT 3.1.1, and its return code where the broker serves no clients."""

_NO_TLS: Final = ("wrong version number", "packet length too long", "record layer failure")
"""OpenSSL's reasons for an answer that is not TLS; which one depends on its first bytes."""


class UpstreamError(PenstockError):
    """No address can be connected to, or a file of the upstream's TLS cannot be used."""


class Upstream:
    """One address of the upstream broker, and whether it is up.

    Attributes:
        is_up: whether connections to it can be established, as far as is known.
        since: monotonic seconds at which `is_up` has last changed.
        why: why it is down; "" while it is up.
        heard_at: monotonic seconds at which a connection was last established.
        is_silent: whether it accepts connections and answers no CONNECT. Only a CONNACK brings it
            up.
        is_doubted: whether the next check also sends a CONNECT.
        n_connections: how many clients are connected to it, if the sidecar counts them.
        n_silent: on how many of these connections it says nothing and answers no PINGREQ.
    """

    def __init__(self, address: UpstreamAddress, now: float) -> None:
        self.address = address
        self.is_up = True
        self.since = now
        self.why = ""
        self.heard_at = -math.inf
        self.is_silent = False
        self.is_doubted = False
        self.n_connections = 0
        self.n_silent = 0

    def __str__(self) -> str:
        """Return the address for the log."""
        return str(self.address)


class Dialled(NamedTuple, Generic[P]):
    """A connection to the upstream broker.

    Attributes:
        protocol: the protocol that the caller's factory has made.
    """

    upstream: Upstream
    transport: asyncio.Transport
    protocol: P


def new_context(keys: UpstreamTlsKeys, path: str) -> ssl.SSLContext:
    """Return the TLS context of connections to a broker, for which all files are read.

    Raises:
        UpstreamError: a file cannot be used.
    """
    if keys.keyfile is not None:
        warn_of_readers(f"{path}.tls.keyfile", keys.keyfile)
    try:
        context = make_client_context(_as_tls(keys), is_verifying=keys.verify)
    except TlsFilesError as error:
        raise UpstreamError(f"{path}.tls: {error}") from error
    if keys.alpn:
        context.set_alpn_protocols(list(keys.alpn))
    return context


class Upstreams:
    """The addresses of one upstream broker."""

    def __init__(
        self,
        keys: UpstreamKeys,
        logger: logging.Logger,
        *,
        path: str = "upstream",
        check_header: bytes = b"",
        unsent_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files of TLS; `start` starts the checks.

        Args:
            keys: the keys under `upstream`.
            logger: gets a warning when an address goes down or comes up.
            path: path of the keys in the file, for the log and for errors.
            check_header: bytes before the first byte of a check.
            unsent_bytes: how many unsent bytes of a connection the kernel may hold
                (TCP_NOTSENT_LOWAT), where small messages must not wait behind large ones; None
                leaves it to the kernel.
            clock: returns monotonic seconds.

        Raises:
            UpstreamError: a file of TLS cannot be used.
        """
        self._keys = keys
        self._logger = logger
        self._path = path
        self._check_header = check_header
        self._tcp = _tcp_options(keys, unsent_bytes)
        if keys.rto_max_seconds is not None and self._tcp.retransmissions is None:
            logger.warning("%s.rto_max_seconds has no effect: it needs %s", path, RTO_MAX_SINCE)
        self._clock = clock
        now = clock()
        self.each = tuple(Upstream(address, now) for address in keys.read_addresses())
        self._checks: list[asyncio.Task[None]] = []
        self._context = None if keys.tls is None else new_context(keys.tls, path)
        if keys.tls is not None and not keys.tls.verify:
            logger.warning("%s.tls.verify: false: any certificate is accepted", path)

    def __str__(self) -> str:
        """Return the addresses for the log."""
        return ", ".join(map(str, self.each))

    # -- which address ------------------------------------------------------------------------

    def choose(self) -> list[Upstream]:
        """Return the addresses to try for a new connection, in order."""
        if not self._is_checking:
            return list(self.each)  # only an attempt finds out that one is up again
        return [one for one in self.each if one.is_up] or list(self.each)

    @property
    def _is_checking(self) -> bool:
        """Whether health checks find out that an address is up again."""
        return self._keys.health_check_seconds is not None and len(self.each) > 1

    def failed(self, upstream: Upstream, why: str, *, is_silent: bool = False) -> None:
        """Note that an address is down.

        Args:
            upstream: one of `each`.
            why: the reason, for the log.
            is_silent: whether it has accepted a connection and not answered its CONNECT, or has
                answered that it serves no clients.
        """
        upstream.is_silent = upstream.is_silent or is_silent
        upstream.heard_at = -math.inf
        if upstream.is_up:
            if self._is_checking:  # else the log says so for each client
                self._logger.warning("%s: %s is down: %s", self._path, upstream, why)
            upstream.is_up = False
            upstream.since = self._clock()
        upstream.why = why

    def doubt(self, upstream: Upstream) -> None:
        """Note that a connection to an address has ended without an answer to its CONNECT."""
        upstream.is_doubted = True

    def is_not_heard(self, upstream: Upstream) -> None:
        """Note that an address says nothing on one more connection, and answers no PINGREQ."""
        self.doubt(upstream)
        upstream.n_silent += 1
        if upstream.n_silent == 1:
            self._logger.warning(
                "%s: %s answers no PINGREQ, and says nothing else to a client", self._path, upstream
            )

    def is_heard(self, upstream: Upstream) -> None:
        """Note that a silent connection is heard again, or has ended."""
        upstream.n_silent -= 1
        if not upstream.n_silent:
            self._logger.warning("%s: %s has no silent connection any more", self._path, upstream)

    def succeeded(self, upstream: Upstream) -> None:
        """Note that an address is up: a connection was established, or a CONNECT answered."""
        upstream.heard_at = self._clock()
        upstream.is_silent = False
        if not upstream.is_up:
            if self._is_checking:
                self._logger.warning("%s: %s is up again", self._path, upstream)
            upstream.is_up = True
            upstream.since = self._clock()
            upstream.why = ""

    # -- connections --------------------------------------------------------------------------

    async def dial(self, factory: Callable[[], P], *, header: bytes = b"") -> Dialled[P]:
        """Open a connection to the first address that can be connected to.

        Cancelling it closes what was opened. It does not suspend between the protocol's
        `connection_made` and its return.

        Args:
            factory: makes the protocol of an established connection, after the TLS handshake.
            header: bytes that precede everything else, TLS included: a header of the PROXY
                protocol.

        Raises:
            UpstreamError: no address can be connected to; the text says why for each.
        """
        problems = []
        for upstream in self.choose():
            try:
                transport, protocol = await self._connect(upstream, factory, header)
            except Exception as error:  # noqa: BLE001 (whatever it is, the caller waits for an answer)
                why = self._explain(error)
                self.failed(upstream, why)
                problems.append(f"{upstream}: {why}")
            else:
                if not upstream.is_silent:
                    self.succeeded(upstream)
                return Dialled(upstream, transport, protocol)
        raise UpstreamError("; ".join(problems))

    async def _connect(
        self, upstream: Upstream, factory: Callable[[], P], header: bytes
    ) -> tuple[asyncio.Transport, P]:
        """Open a connection to one address.

        Raises:
            OSError: it cannot be established, or not in time.
        """
        address = upstream.address
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._keys.connect_timeout_seconds):
            sock = await _open_socket(address, self._tcp, self._keys.connect_timeout_seconds)
            try:
                if header:
                    await loop.sock_sendall(sock, header)
            except BaseException:
                sock.close()
                raise
            # From here on the loop closes the socket, also where the handshake fails.
            if address.socket_path is not None:
                transport, opened = await loop.create_unix_connection(_Opened, sock=sock)
            else:
                transport, opened = await loop.create_connection(
                    _Opened,
                    sock=sock,
                    ssl=self._context,
                    server_hostname=None if self._context is None else self._name_of(address),
                )
        if opened.is_lost:
            raise ConnectionError("it closed the connection")
        protocol = factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if opened.received:
            protocol.data_received(opened.received)
        return transport, protocol

    def _name_of(self, address: UpstreamAddress) -> str:
        """Return the name that the certificate of an address must have."""
        keys = self._keys.tls
        return (keys.server_name if keys is not None else None) or address.host

    def _explain(self, error: Exception) -> str:
        """Return why a connection could not be established, for the log."""
        if isinstance(error, ssl.SSLCertVerificationError):
            what = error.verify_message.rstrip(".")
            return (
                f"its certificate is refused: {what} "
                f"({self._path}.tls: cafile names whose certificates count, server_name the name "
                "in it)"
            )
        if isinstance(error, ssl.SSLError):
            reason = (error.reason or str(error)).replace("_", " ").lower()
            if reason in _NO_TLS:
                return "it does not speak TLS"
            return f"no TLS: {reason}"
        if isinstance(error, TimeoutError) and not error.args:
            return f"no answer in {self._keys.connect_timeout_seconds:g} s"
        if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
            return os.strerror(error.errno).lower()
        return str(error) or repr(error)

    # -- checks -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the checks, where there are several addresses."""
        period = self._keys.health_check_seconds
        if period is not None and self._is_checking:
            loop = asyncio.get_running_loop()
            self._checks = [
                loop.create_task(self._check_always(one, period), name=f"health checks of {one}")
                for one in self.each
            ]

    async def _check_always(self, upstream: Upstream, period: float) -> None:
        while True:
            await self.check(upstream, period)
            await asyncio.sleep(period)

    async def check(self, upstream: Upstream, period: float = 0.0) -> None:
        """Check an address that is down or doubted, or that was not heard for `period` seconds."""
        is_quiet = self._clock() - upstream.heard_at >= period
        if upstream.is_up and not upstream.is_doubted and not is_quiet:
            return
        is_asking = upstream.is_silent or upstream.is_doubted
        upstream.is_doubted = False
        try:
            _, asking = await self._connect(
                upstream, lambda: _Check(is_asking=is_asking), self._check_header
            )
            try:
                async with asyncio.timeout(self._keys.connack_timeout_seconds):
                    await asking.answered
            finally:
                asking.close()
        except Exception as error:  # noqa: BLE001 (whatever it is, the next check follows)
            is_late = is_asking and isinstance(error, TimeoutError)
            why = "no CONNACK" if is_late else self._explain(error)
            self.failed(upstream, why, is_silent=is_asking)
        else:
            self.succeeded(upstream)

    def reload(self) -> Reload:
        """Read the files of TLS again, for later connections.

        Raises:
            UpstreamError: a file cannot be used.
        """
        keys = self._keys.tls
        if keys is None:
            return Reload()
        context = new_context(keys, self._path)

        def apply() -> None:
            self._context = context

        return Reload(_as_tls(keys).files(), apply=apply)

    async def close(self) -> None:
        """End the checks; connections stay."""
        checks, self._checks = self._checks, []
        for task in checks:
            task.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


class _Opened(asyncio.Protocol):
    """Takes the place of a connection's protocol until `dial` returns.

    Event loops call `connection_made` some steps before `create_connection` returns. When
    `create_connection` is cancelled in between, the connection ends; asyncio then calls
    `connection_lost`, and uvloop does not.

    Attributes:
        received: bytes that have come.
    """

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        """Keep what the broker sends unasked."""
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """Note the end."""
        self.is_lost = True


class _Check(asyncio.Protocol):
    """One check of an address.

    Attributes:
        answered: a future that is done when the address has shown that it is up.
    """

    def __init__(self, *, is_asking: bool) -> None:
        self._is_asking = is_asking
        self._received = b""
        self._transport: asyncio.Transport
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a CONNECT where that is wanted."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_asking:
            connect = Connect(
                client_id=f"check{secrets.token_hex(8)}",
                protocol_version=ProtocolVersion.MQTT_3_1_1,
                keep_alive=30,
            )
            self._transport.write(write_packet(connect, ProtocolVersion.MQTT_3_1_1))
        else:
            self.answered.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Handle the answer: any CONNACK shows a broker, unless it says "server unavailable"."""
        if self.answered.done():
            return
        self._received += data
        if self._received[0] != PacketType.CONNACK << 4:
            problem = f"read 0x{self._received[0]:02X} in place of a CONNACK"
            self.answered.set_exception(ConnectionError(problem))
        elif len(self._received) >= _CONNACK_BYTES:
            if self._received[3] == _UNAVAILABLE:
                self.answered.set_exception(ConnectionError("CONNACK: server unavailable"))
            else:
                self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless the check is done."""
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionError("it closed the connection"))

    def close(self) -> None:
        """End the check."""
        if not self.answered.done():
            self.answered.cancel()
        if self._transport.is_closing():
            return
        if self._is_asking:
            self._transport.write(bytes((PacketType.DISCONNECT << 4, 0)))
        self._transport.close()


class _TcpOptions(NamedTuple):
    """TCP options that differ between upstreams; None leaves an option to the kernel.

    Attributes:
        unsent_bytes: see `Upstreams`.
        retransmissions: bounds of the retransmission timeout.
        give_up_ms: time after which a connection is lost on which nothing is acknowledged or read.
    """

    unsent_bytes: int | None
    retransmissions: Retransmissions | None
    give_up_ms: int | None


def _tcp_options(keys: UpstreamKeys, unsent_bytes: int | None) -> _TcpOptions:
    rto_max, give_up = keys.rto_max_seconds, keys.tcp_user_timeout_seconds
    return _TcpOptions(
        unsent_bytes,
        None if rto_max is None else plan_retransmissions(rto_max),
        None if give_up is None else round(1000 * give_up),
    )


def _as_tls(keys: UpstreamTlsKeys) -> Tls:
    return Tls(
        certfile=keys.certfile or "",
        keyfile=keys.keyfile or "",
        cafile=keys.cafile,
        capath=keys.capath,
        minimum_version=keys.minimum_version,
    )


async def _open_socket(
    address: UpstreamAddress, options: _TcpOptions, seconds: float
) -> socket.socket:
    """Return a socket that was connected to an address within some seconds.

    A name may have several IP addresses. Each of them gets an equal share of the time that is left,
    so that one that drops packets does not hide the others.

    Raises:
        OSError: it cannot be connected, or not in time.
    """
    loop = asyncio.get_running_loop()
    if address.socket_path is not None:
        return await _connected(socket.AF_UNIX, address.socket_path, options)
    end = loop.time() + seconds
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    places = [(family, place) for family, *_, place in dict.fromkeys(found)]
    problem: OSError = OSError("no such address")
    for n_left, (family, place) in zip(range(len(places), 0, -1), places, strict=True):
        try:
            async with asyncio.timeout((end - loop.time()) / n_left):
                return await _connected(family, place, options)
        except OSError as error:  # TimeoutError is one
            problem = error
    raise problem


async def _connected(family: int, place: Any, options: _TcpOptions) -> socket.socket:
    is_tcp = family != socket.AF_UNIX
    # Event loops set TCP_NODELAY on a socket whose protocol is IPPROTO_TCP.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP if is_tcp else 0)
    try:
        sock.setblocking(False)
        if is_tcp:
            _set_options(sock, options)
        await asyncio.get_running_loop().sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock


def _set_options(sock: socket.socket, options: _TcpOptions) -> None:
    """Set the options of a TCP connection to a broker.

    With TCP_NODELAY, no packet waits for the acknowledgement of the one before. SO_KEEPALIVE keeps
    an idle connection known to firewalls and detects its end, TCP_USER_TIMEOUT that of a busy one.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    set_keepalive(sock, _KEEPALIVE)
    number = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # not every system has it
    if number is not None and options.unsent_bytes is not None:
        sock.setsockopt(socket.IPPROTO_TCP, number, options.unsent_bytes)
    if options.retransmissions is not None:
        set_retransmissions(sock, options.retransmissions)
    if options.give_up_ms is not None:
        set_give_up(sock, options.give_up_ms)
