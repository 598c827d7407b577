"""Limits the number and the idle time of the connections of an HTTP API.

Theory of operation. A `Guard` stands between the socket's transport and aiohttp's protocol. While a
request is being handled it does nothing, and has no timer: the time for that is the handler's,
which may wait for messages. Before that, the header must arrive in time. Afterwards the client must
take its answer, and may stay for a limited time without another request.

A connection above the limit gets a refusal when it sends a request, and is closed. Only
`MAX_REFUSED` at a time may stay to send one; further ones are cut off. An API may instead close the
connection that has been there for longest without a complete request. While clients leave
`MOST_UNSENT_BYTES` of their answers untaken, no further large answer is made: `Guards.has_room` is
asked first. An answer that is written piece by piece counts as a whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import Logger
from typing import Final, cast

from aiohttp import StreamReader

from penstock.broker.plugin_guard import is_logged
from penstock.plugins.web.limits import HttpLimits

MAX_REFUSED: Final = 16
"""So many connections at a time may stay to be told why they are refused."""

MOST_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""Clients may leave so much of their answers untaken, over all connections: ten of the largest
answers. Bytes below the high mark of a connection, 64 KiB, do not count."""


def refusal(status: str, message: str, *headers: str) -> bytes:
    """Return a whole answer with an error, after which the connection is closed."""
    body = json.dumps({"error": message})
    lines = [
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        "Connection: close",
        *headers,
        f"Content-Length: {len(body)}",
        "",
        body,
    ]
    return "\r\n".join(lines).encode()


REFUSAL: Final = refusal(
    "503 Service Unavailable", "too many connections; try again later", "Retry-After: 1"
)


class Guards:
    """The connections of one HTTP API.

    Attributes:
        limits: the limits of each connection and of all together.
        refused: connections above the limit so far.
    """

    def __init__(
        self,
        limits: HttpLimits,
        connections: int,
        new_protocol: Callable[[], asyncio.Protocol],
        name: str,
        logger: Logger,
        *,
        evicts_idle: bool = False,
    ) -> None:
        """Begin without connections."""
        self.limits = limits
        self._evicts_idle = evicts_idle
        self.refused = 0
        self._connections = connections
        self._new_protocol = new_protocol
        self._name = name
        self._logger = logger
        self._served: dict[asyncio.BaseTransport, Guard] = {}
        self._hearing: dict[asyncio.BaseTransport, Guard] = {}
        self._full: set[asyncio.Transport] = set()
        self._waiting_bytes = 0
        self._shaking_hands = 0
        self._failed_handshakes: dict[str, int] = {}

    def enter_handshake(self) -> bool:
        """Count a connection that begins its TLS handshake; False where there are too many."""
        if self._shaking_hands >= self._connections + MAX_REFUSED:
            return False
        self._shaking_hands += 1
        return True

    def leave_handshake(self) -> None:
        """A handshake is complete, or has failed."""
        self._shaking_hands -= 1

    def note_failed_handshake(self, peer: str, why: str) -> None:
        """Log a failed TLS handshake: for each reason the first, then each doubling."""
        n_failed = self._failed_handshakes[why] = self._failed_handshakes.get(why, 0) + 1
        if is_logged(n_failed):
            self._logger.warning(
                "%s: %s refused, %s; %d such connections so far", self._name, peer, why, n_failed
            )

    def accept(self) -> Guard:
        """Return the protocol of a connection that was just accepted."""
        return Guard(self)

    def enter(self, transport: asyncio.Transport, guard: Guard) -> asyncio.Protocol | None:
        """Return aiohttp's protocol for a connection; None where it is refused or cut off."""
        if len(self._served) >= self._connections and self._evicts_idle:
            self._evict()
        if len(self._served) < self._connections:
            self._served[transport] = guard
            return self._new_protocol()
        self.refused += 1
        if is_logged(self.refused):
            self._logger.warning(
                "%s: %d connections above the limit of %d refused so far",
                self._name,
                self.refused,
                self._connections,
            )
        if len(self._hearing) < MAX_REFUSED:
            self._hearing[transport] = guard
        else:
            transport.abort()
        return None

    def _evict(self) -> None:
        """Close the first connection that has no complete request."""
        idle = next((one for one in self._served.values() if one.is_idle), None)
        if idle is not None:
            self.leave(idle.transport)
            idle.transport.abort()

    def leave(self, transport: asyncio.Transport) -> None:
        """A connection has ended."""
        self._served.pop(transport, None)
        self._hearing.pop(transport, None)
        self._full.discard(transport)

    def filled(self, transport: asyncio.Transport, *, is_full: bool) -> None:
        """Note that a client has stopped taking its answer, or takes it again."""
        if is_full:
            self._full.add(transport)
        else:
            self._full.discard(transport)

    def has_room(self) -> bool:
        """Say whether another large answer may be made."""
        written_bytes = sum(one.get_write_buffer_size() for one in self._full)
        return written_bytes + self._waiting_bytes < MOST_UNSENT_BYTES

    @contextmanager
    def sending(
        self, transport: asyncio.BaseTransport | None, n_bytes: int
    ) -> Iterator[Callable[[int], None]]:
        """Count an answer that is written piece by piece.

        Returns:
            What to call with the bytes of each piece once it is written.
        """
        guard = self.of(transport)
        waiting_bytes = n_bytes
        self._waiting_bytes += n_bytes
        if guard is not None:
            guard.sending()

        def written(n_bytes: int) -> None:
            nonlocal waiting_bytes
            waiting_bytes -= n_bytes
            self._waiting_bytes -= n_bytes
            if guard is not None:
                guard.progress()

        try:
            yield written
        finally:
            self._waiting_bytes -= waiting_bytes

    def of(self, transport: asyncio.BaseTransport | None) -> Guard | None:
        """Return a connection's guard; None after its end."""
        return None if transport is None else self._served.get(transport)

    def close(self) -> None:
        """Drop the connections that stay to be refused."""
        for guard in list(self._hearing.values()):
            guard.transport.abort()


class Guard(asyncio.Protocol):
    """One connection.

    Attributes:
        transport: the transport of the socket; set when it is connected.
    """

    def __init__(self, guards: Guards) -> None:
        self.transport: asyncio.Transport
        self._guards = guards
        self._protocol: asyncio.Protocol | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_handling = False
        self._body: StreamReader | None = None
        self._is_sending = False
        self._awaits_header = False
        self._unsent_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether no complete request is being handled, and no answer is being sent."""
        has_all = self._is_handling and (self._body is None or self._body.is_eof())
        return not (has_all or self._is_sending or self.transport.get_write_buffer_size())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or wait for the request to refuse."""
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self._protocol = self._guards.enter(self.transport, self)
        self._await_header()
        if self._protocol is not None:
            self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass it on; it may be the beginning of a header."""
        if self._protocol is None:
            if not self.transport.is_closing():
                self.transport.write(REFUSAL)
                self.transport.close()
            return
        if not self._is_handling and not self._awaits_header:
            self._await_header()
        self._protocol.data_received(data)

    def eof_received(self) -> None:
        """The client has closed its direction: the transport closes once everything is sent."""
        if not self._is_handling:
            self.handled()
        if self._protocol is not None:
            self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._guards.filled(self.transport, is_full=True)
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._guards.filled(self.transport, is_full=False)
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._guards.leave(self.transport)
        self._set_timer(None)
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)

    def handling(self, body: StreamReader) -> None:
        """The header of a request is complete, and the request is being handled."""
        self._is_handling, self._body = True, body
        self._awaits_header = False
        self._set_timer(None)

    def sending(self) -> None:
        """The pieces of an answer are being sent: the client must take them."""
        self.handled()
        self._is_sending = True

    def handled(self) -> None:
        """The answer is made: the client must take it, and then send another request in time."""
        self._is_handling = self._is_sending = self._awaits_header = False
        self._body = None
        self._unsent_bytes = 0
        self._watch_answer()

    def progress(self) -> None:
        """Another piece of the answer was written, as the client takes it."""
        self._unsent_bytes = 0

    def _await_header(self) -> None:
        self._awaits_header = True
        self._set_timer(self._guards.limits.header_timeout_seconds)

    def _watch_answer(self) -> None:
        self._set_timer(self._guards.limits.idle_timeout_seconds)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Drop a client that sends no header, takes nothing of its answer, or is idle."""
        self._timer = None
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes and (not self._unsent_bytes or unsent_bytes < self._unsent_bytes):
            self._unsent_bytes = unsent_bytes
            self._watch_answer()
        elif self._is_sending and not unsent_bytes:
            self._watch_answer()  # it has taken all pieces so far
        else:
            self.transport.abort()
