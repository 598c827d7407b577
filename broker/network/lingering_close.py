"""Sockets that were closed in the middle of a packet, until the peer has seen the end.

Theory of operation. To close a socket that has unread bytes makes the kernel throw away what it has
still to send and say so by a reset, once: where that is lost, the peer waits for ever. So a
connection that is broken off is closed in two steps. Its own transport is dropped, with the bytes
that the broker still has for it; the socket, of which a second descriptor is kept, sends what the
kernel has, then the end (FIN), which is repeated until it has arrived. Meanwhile what comes is read
and thrown away, until the peer closes too or `LINGER_SECONDS` are over. From then on the kernel is
left alone with it. As a socket that lingers has no place among the broker's connections any more,
no more than `MOST_SOCKETS` do so at a time: what lingers longest makes room for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

from penstock.broker.network.open_files import RESERVE

LINGER_SECONDS: Final = 30.0
"""Much longer than a packet that was lost takes; each such socket keeps a descriptor so long."""

MOST_SOCKETS: Final = RESERVE // 3
"""Of the descriptors that are no connection's."""

_READ_BYTES: Final = 65_536


class LingeringClose:
    """The sockets of one broker that linger."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def break_off(self, transport: asyncio.Transport) -> None:
        """Drop a transport, of a socket itself, and let the socket send what the kernel has."""
        sock = transport.get_extra_info("socket")
        own = None
        if len(self._timers) >= MOST_SOCKETS:
            self._end(next(iter(self._timers)))
        with contextlib.suppress(OSError):  # no descriptor is left, or the peer is gone
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
        """Close all at once: the broker stops."""
        for sock in list(self._timers):
            self._end(sock)
