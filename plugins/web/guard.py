"""The connections of an HTTP API: so many at a time, and none for longer than it has use for.

Theory of operation. A `Guard` stands between the socket's transport and aiohttp's protocol. While
a request is being handled it does nothing: how long that takes is the handler's own affair, such
as of one that waits for messages. Before, the header must come in time. Afterwards the client must
take its answer; how long it may stay without another request, aiohttp sees to itself.

A connection above the limit is told so when it asks, and closed. Only `MAX_REFUSED` at a time may
stay to ask; the rest is cut off. While clients leave `MOST_UNSENT_BYTES` of their answers untaken,
nobody is made another large one: `Guards.has_room` is asked first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from logging import Logger
from typing import Final, cast

from penstock.plugins.web.limits import HttpLimits

MAX_REFUSED: Final = 16
"""Connections at a time that may stay to hear why they are refused."""

MOST_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""Of answers that clients have not taken, on all connections: ten of the largest. What is below the
high mark of a connection, 64 KiB, does not count."""


def _refusal() -> bytes:
    body = json.dumps({"error": "too many connections; try again later"}).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


REFUSAL: Final = _refusal()


class Guards:
    """The connections of one HTTP API.

    Attributes:
        limits: of each and of all.
        refused: connections that were above the limit so far.
    """

    def __init__(
        self,
        limits: HttpLimits,
        connections: int,
        new_protocol: Callable[[], asyncio.Protocol],
        name: str,
        logger: Logger,
    ) -> None:
        """Begin without connections.

        Args:
            limits: of time.
            connections: at a time.
            new_protocol: makes aiohttp's protocol for one.
            name: of the key that says where the API is, for the log.
            logger: told of what is refused.
        """
        self.limits = limits
        self.refused = 0
        self._connections = connections
        self._new_protocol = new_protocol
        self._name = name
        self._logger = logger
        self._served: dict[asyncio.BaseTransport, Guard] = {}
        self._hearing: dict[asyncio.BaseTransport, Guard] = {}
        self._full: set[asyncio.Transport] = set()

    def accept(self) -> Guard:
        """Return the protocol of a connection that is accepted now."""
        return Guard(self)

    def enter(self, transport: asyncio.Transport, guard: Guard) -> asyncio.Protocol | None:
        """Return aiohttp's protocol for a connection, or None: it is refused, or cut off."""
        if len(self._served) < self._connections:
            self._served[transport] = guard
            return self._new_protocol()
        self.refused += 1
        if not self.refused & (self.refused - 1):
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

    def leave(self, transport: asyncio.Transport) -> None:
        """A connection is gone."""
        self._served.pop(transport, None)
        self._hearing.pop(transport, None)
        self._full.discard(transport)

    def filled(self, transport: asyncio.Transport, *, is_full: bool) -> None:
        """Take note of a connection whose client does not take its answer, or takes it again."""
        if is_full:
            self._full.add(transport)
        else:
            self._full.discard(transport)

    def has_room(self) -> bool:
        """Say whether another large answer may be made."""
        return sum(one.get_write_buffer_size() for one in self._full) < MOST_UNSENT_BYTES

    def of(self, transport: asyncio.BaseTransport | None) -> Guard | None:
        """Return what guards a connection; None once it is gone."""
        return None if transport is None else self._served.get(transport)

    def close(self) -> None:
        """Drop those that wait to hear why they are refused."""
        for guard in list(self._hearing.values()):
            guard.transport.abort()


class Guard(asyncio.Protocol):
    """One connection.

    Attributes:
        transport: of the socket; once connected.
    """

    def __init__(self, guards: Guards) -> None:
        self.transport: asyncio.Transport
        self._guards = guards
        self._protocol: asyncio.Protocol | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_handling = False
        self._awaits_header = False
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or wait for the request that is refused."""
        # uvloop's transports are asyncio's by contract and not by class.
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
        """Nothing more comes: the transport closes once everything is sent, or is dropped."""
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

    def handling(self) -> None:
        """The header of a request is there, and the request is being handled."""
        self._is_handling = True
        self._awaits_header = False
        self._set_timer(None)

    def handled(self) -> None:
        """The answer is on its way: the client must take it."""
        self._is_handling = self._awaits_header = False
        self._unsent_bytes = 0
        self._watch_answer()

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
        """Drop a client from which no header comes, or which takes nothing of its answer."""
        self._timer = None
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes and (not self._unsent_bytes or unsent_bytes < self._unsent_bytes):
            self._unsent_bytes = unsent_bytes
            self._watch_answer()
        elif unsent_bytes or self._awaits_header or self.transport.is_closing():
            self.transport.abort()
