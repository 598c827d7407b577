"""Finds out which connections have lost their peer while they are not read from.

Theory of operation. While a publisher waits for room, its connection is not read from, and the loop
tells nothing of it: neither a FIN nor a reset. Its session would stay, and its will would wait,
until there is room or its keep-alive is over, where it has one. So the kernel is asked once in
`LOOK_SECONDS` about all such connections, by one system call. Connections that are paused for less
cost no call at all.

A FIN behind more bytes than the window has room for has not come, and no state of the socket tells
of it: for the kernel the connection is established. A machine that has lost its power sends nothing
at all. So the kernel asks the peers of these connections whether they are there (TCP keepalive). A
machine that is gone does not answer, and one whose kernel has given the connection up, as Linux
does some 100 s after the end of a process, answers with a reset.

A client's Keep Alive counts meanwhile by what comes to the kernel, as long as the window has room
for a PINGREQ [MQTT-3.1.2-22], in MQTT 3.1.1 [MQTT-3.1.2-24].
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

from penstock.broker.network.tcp_options import borrowed, set_keepalive

if TYPE_CHECKING:
    from penstock.broker.network.transport import MqttProtocol

LOOK_SECONDS: Final = 1.0
"""Time between two looks, short beside a keep-alive. A look takes about 1 us for each connection.
"""

KEEPALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""Times of TCP keepalive in seconds, and the count: a peer that answers nothing is gone after half
a minute, and one that is there gets a packet without data every 10 s. On a listener with
`rto_max_seconds`, TCP_USER_TIMEOUT decides in place of the count (Linux, net/ipv4/tcp_timer.c:
`tcp_keepalive_timer`); a reset is noticed as soon."""

_LAST_DATA_RECV: Final = struct.Struct("=52xI")
"""Milliseconds since data came, in struct tcp_info of linux/tcp.h."""

_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=2I")
"""Bytes of memory that received data takes, and the maximum; asm-generic/socket.h, Linux 4.12."""

_ENDED: Final[int] = getattr(select, "POLLRDHUP", 0)
"""This event tells of a FIN, also behind unread bytes; only Linux has it. A reset needs no mask."""


class PeerHangups:
    """Looks at the connections of one broker that are not read from."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._paused: dict[MqttProtocol, bool] = {}  # whether the kernel asks for its peer
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: MqttProtocol) -> None:
        """Look at a connection until `discard`, or until its peer is gone."""
        self._paused[connection] = False
        if self._timer is None and hasattr(select, "poll"):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def discard(self, connection: MqttProtocol) -> None:
        """Look at a connection no more: it is read from, or has ended."""
        if self._paused.pop(connection, False) and not connection.is_closing:
            ask(connection.fileno, is_wanted=False)

    def close(self) -> None:
        """Look at nothing any more."""
        self._paused.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        poll = select.poll()
        by_fileno: dict[int, MqttProtocol] = {}
        for connection, is_asked in self._paused.items():
            fileno = -1 if connection.is_closing else connection.fileno
            if fileno >= 0:
                by_fileno[fileno] = connection
                poll.register(fileno, _ENDED)
                if not is_asked:
                    ask(fileno, is_wanted=True)
                    self._paused[connection] = True
        for fileno, _ in poll.poll(0):
            connection = by_fileno[fileno]
            self.discard(connection)
            connection.peer_hung_up()
        if self._paused:
            self._timer = self._timer or self._loop.call_later(LOOK_SECONDS, self._look)


def ask(fileno: int, *, is_wanted: bool) -> None:
    """Have the kernel ask for the peer of a connection, or not; of a Unix socket it knows."""
    if fileno < 0:
        return
    with contextlib.suppress(OSError), borrowed(fileno) as sock:
        if is_wanted:
            set_keepalive(sock, KEEPALIVE)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)


def has_ended(fileno: int) -> bool:
    """Say whether the peer of a connection has sent its end; False where that cannot be told."""
    if fileno < 0 or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(fileno, _ENDED)
    return bool(poll.poll(0))


def unheard_seconds(fileno: int) -> float | None:
    """Return how long nothing has come by a TCP connection that is not read from.

    Returns:
        None where that tells nothing of the peer: half of the receive buffer is in use, so that the
        window may be closed, or the kernel has no answer.
    """
    if sys.platform != "linux" or fileno < 0:
        return None
    try:
        with borrowed(fileno) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECV.size)
            memory = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    except OSError:
        return None
    if len(info) < _LAST_DATA_RECV.size or len(memory) < _MEMINFO.size:
        return None
    used_bytes, most_bytes = _MEMINFO.unpack(memory)
    (milliseconds,) = _LAST_DATA_RECV.unpack(info)
    return None if 2 * used_bytes >= most_bytes else milliseconds / 1000
