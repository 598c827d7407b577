"""Which peers are gone of connections that are not read from.

Theory of operation. While a publisher waits for room, its connection is not read from, and the loop
tells nothing of it: neither a FIN nor a reset. Its session would stay, and its will would wait,
until there is room or its keep-alive is over, where it has one. So the kernel is asked once in
`LOOK_SECONDS` about all such connections, by one system call. Connections that are paused for less
cost no call at all.

A FIN behind more bytes than the window has room for has not come: it shows when the connection is
read from again.
"""

from __future__ import annotations

import asyncio
import select
from typing import Final, Protocol

LOOK_SECONDS: Final = 1.0
"""Short beside a keep-alive. One look takes about 1 us for each connection."""

_ENDED: Final[int] = getattr(select, "POLLRDHUP", 0)
"""A FIN has come, also behind bytes that are unread; only Linux can tell. A reset needs no mask."""


class Paused(Protocol):
    """A connection that is not read from.

    Attributes:
        fileno: descriptor of its socket, or -1 for none.
    """

    @property
    def fileno(self) -> int:
        """The descriptor."""

    @property
    def is_closing(self) -> bool:
        """Whether the transport closes: the descriptor may be another connection's by now."""

    def peer_hung_up(self) -> None:
        """Read to the end what the peer has sent: it is gone."""


class Hangups:
    """Looks at the connections of one broker that are not read from."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._paused: dict[Paused, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Paused) -> None:
        """Look at a connection until `discard`, or until its peer is gone."""
        self._paused[connection] = None
        if self._timer is None and hasattr(select, "poll"):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def discard(self, connection: Paused) -> None:
        """Look at a connection no more: it is read from, or has ended."""
        self._paused.pop(connection, None)

    def close(self) -> None:
        """Look at nothing any more."""
        self._paused.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        poll = select.poll()
        by_fileno: dict[int, Paused] = {}
        for connection in self._paused:
            fileno = -1 if connection.is_closing else connection.fileno
            if fileno >= 0:
                by_fileno[fileno] = connection
                poll.register(fileno, _ENDED)
        for fileno, _ in poll.poll(0):
            connection = by_fileno[fileno]
            self.discard(connection)
            connection.peer_hung_up()
        if self._paused:
            self._timer = self._timer or self._loop.call_later(LOOK_SECONDS, self._look)
