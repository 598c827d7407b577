"""Closes a connection in a way that its peer still gets the rest.

Theory of operation. If a socket with unread bytes is closed, the kernel discards what it still has
to send and sends one reset. If that reset is lost, the peer waits without end. So the connection is
closed in two steps. Its transport is dropped, with the bytes that this program still has for it. A
second descriptor of the socket is kept: the socket sends what the kernel has, then a FIN, which is
retransmitted until it arrives. Meanwhile incoming bytes are read and discarded, until the peer
closes too or `LINGER_SECONDS` have passed. From then on the socket is left to the kernel. A
lingering socket has no place among the program's connections, so at most `MOST_SOCKETS` linger at a
time; the oldest is closed to make room.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

from penstock.broker.network.open_files import RESERVE

LINGER_SECONDS: Final = 30.0
"""A lost packet needs much less time to arrive. Each lingering socket keeps a descriptor for so
long."""

MOST_SOCKETS: Final = RESERVE // 3
"""A third of the descriptors that are reserved for other things than connections."""

_READ_BYTES: Final = 65_536


def half_close(transport: asyncio.Transport, *, is_reading: bool) -> None:
    """End what is sent to a peer, and go on reading what it sends."""
    try:
        transport.write_eof()
    except OSError:  # a reset, as asyncio's own loop tells
        transport.abort()
        return
    if not is_reading:
        transport.resume_reading()


class LingeringClose:
    """The lingering sockets of one program."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def linger(self, transport: asyncio.Transport) -> None:
        """Drop the transport of a socket, and let the kernel send what it has."""
        sock = transport.get_extra_info("socket")
        own = None
        if len(self._timers) >= MOST_SOCKETS:
            self._end(next(iter(self._timers)))
        with contextlib.suppress(OSError):  # no descriptor is free, or the peer is gone
            own = sock.dup()
            own.setblocking(False)
            own.shutdown(socket.SHUT_WR)
            self._loop.add_reader(own, self._read, own)
            self._timers[own] = self._loop.call_later(LINGER_SECONDS, self._end, own)
        transport.abort()
        if own is not None and own not in self._timers:
            own.close()

    def _read(self, sock: socket.socket) -> None:
        try:
            if sock.recv(_READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # reset: the peer is gone
            pass
        self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        self._timers.pop(sock).cancel()
        self._loop.remove_reader(sock)
        sock.close()

    def close(self) -> None:
        """Close all sockets: the program stops."""
        for sock in list(self._timers):
            self._end(sock)
