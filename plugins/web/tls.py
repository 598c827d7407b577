"""TLS of an HTTP API, by the layer that MQTT listeners use.

That layer keeps an answer by reference until the client takes it, and tells how much waits.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final

from penstock.broker.config.listener_config import Tls
from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.errors import PenstockError
from penstock.broker.network.new_connection import AcceptedConnection, Turns
from penstock.broker.network.tls import TlsFilesError, TlsLayer, make_context
from penstock.plugins.web.connection_limits import Guards, refusal

_PROTOCOLS: Final = ("http/1.1",)

_PLAIN: Final = refusal(
    "400 Bad Request", "read HTTP without TLS; allowed: HTTPS, as the URL of this API is https://"
)


class TlsError(PenstockError):
    """A certificate or its key cannot be used; the program ends with status 2."""


class ServerTls:
    """The certificate of an HTTP API.

    Attributes:
        context: the context for new connections.
        handshakes: the turns of their handshakes.
    """

    def __init__(self, certificate: str, key: str, policy_key: str) -> None:
        self._files = Tls(certfile=certificate, keyfile=key)
        self._policy_key = policy_key
        self.context: ssl.SSLContext
        self.handshakes = Turns()
        self.read()()

    def read(self) -> Callable[[], None]:
        """Read both files again; connections that exist go on. It blocks while it reads.

        Returns:
            What makes them count.

        Raises:
            TlsError: a file cannot be used; the certificate of before stays.
        """
        warn_of_readers(f"{self._policy_key}.key", self._files.keyfile)
        try:
            context = make_context(self._files, _PROTOCOLS)
        except TlsFilesError as error:
            told = str(error).replace("certfile ", "certificate ").replace("keyfile ", "key ")
            raise TlsError(f"{self._policy_key}: {told}") from error

        def apply() -> None:
            self.context = context

        return apply


class HttpArrival(AcceptedConnection):
    """A connection of an HTTP API until its handshake is complete."""

    # The base class is one of MQTT listeners, whose counters and places are not used here.
    def __init__(
        self, guards: Guards, handshakes: Turns, timeout_seconds: float, logger: logging.Logger
    ) -> None:
        """Prepare."""
        self._guards = guards
        self._handshakes = handshakes
        self._timeout_seconds = timeout_seconds
        self._logger = logger
        self._is_counted = False
        self._timer = None
        self._is_ending = False
        self.place = None
        self.ssl_object = None
        self.certificate_name = None

    @property
    def handshakes(self) -> Turns:
        """The turns of the API's TLS handshakes."""
        return self._handshakes

    def accept(self, transport: asyncio.Transport) -> bool:
        """Take a place, or cut the connection off."""
        self.transport = transport
        self._is_counted = self._guards.enter_handshake()
        if not self._is_counted:
            transport.abort()
        return self._is_counted

    def enter_layers(self) -> None:
        """Start the timeout of the handshake."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_seconds, self.transport.abort)

    def leave_layers(self) -> None:
        """End it: the handshake is complete, or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_counted:
            self._is_counted = False
            self._guards.leave_handshake()

    def note(self, reason: str, detail: str, *, is_loud: bool = True) -> None:  # noqa: ARG002
        """Log why a connection ends; a handshake that fails is told to the operator."""
        self._logger.debug("%s", detail)
        if self._is_counted:
            peer = self.transport.get_extra_info("peername")
            host = str(peer[0]) if isinstance(peer, tuple) else "a client"
            self._guards.note_failed_handshake(host, detail)

    def leave_to_kernel(self) -> None:
        """Leave the kernel's own timeouts."""

    def end(self) -> None:
        """The connection is gone."""
        self.leave_layers()


class HttpsLayer(TlsLayer):
    """The server's side of one TLS connection."""

    _has_begun = False

    def data_received(self, data: bytes) -> None:
        """Answer a client that speaks HTTP without TLS in its own protocol."""
        # A TLS connection begins with the byte 22, an HTTP request with a letter.
        if not (self._has_begun or self._is_closing) and data[:1].isalpha():
            self._is_closing = True
            self.below.write(_PLAIN)
            # The rest of the request is read: to close now could take the answer from the client.
            self.below.write_eof()
            self.arrival.note("tls", "no TLS: HTTP without TLS; allowed: https://")
            self.arrival.end_in_time()
        self._has_begun = True
        super().data_received(data)

    def open(self) -> None:
        """Tell the protocol above; its own timeouts begin."""
        self.arrival.leave_layers()
        super().open()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end on."""
        super().connection_lost(exc)
        self.arrival.leave_layers()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport has, and the context, by which aiohttp knows https."""
        return self._context if name == "sslcontext" else super().get_extra_info(name, default)
