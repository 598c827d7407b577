"""Paces the connection of a large lane by the kernel's pacing rate.

The broker paces what goes to a client that says so in its CONNECT
(`penstock.broker.sessions.lanes`), and an uplink what goes up on its large lane, both by
`penstock.broker.network.pacing`. Nothing is done while nothing is on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.network.pacing import LOOK_SECONDS, Pacing
from penstock.broker.network.tcp_info import TcpInfo, read_tcp_info
from penstock.broker.network.tcp_options import set_pacing_rate

MOST_LOOK_SECONDS: Final = 0.8
"""While nothing is acknowledged, each look waits twice as long as the one before, up to this time,
so that a client that does not read costs little."""

IDLE_LOOKS: Final = 4
"""After so many looks that find nothing in flight, the connection rests. There may be a gap between
two messages, and Linux restarts after one retransmission timeout of at least 0.2 s."""


class LanePacer:
    """Looks at one connection while it sends, and sets its pace."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        on_yield: Callable[[], None],
    ) -> None:
        """Begin, with nothing on its way; a connection that the kernel cannot pace is left alone.

        `on_yield` is called when a message, or what follows it without a gap, has begun to yield.
        """
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._on_yield = on_yield
        self._pacing = Pacing()
        self._pace: float | None = None
        self._n_idle = 0
        self._segs_in = 0
        self._wait = LOOK_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._is_at_work = True
        info = self._read()
        if info is None:
            self._is_at_work = False
        else:
            self._set(self._pacing.rest(info, clock()))

    @property
    def _fileno(self) -> int:
        sock = None if self._transport.is_closing() else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def _read(self) -> TcpInfo | None:
        fileno = self._fileno
        return None if fileno < 0 else read_tcp_info(fileno)

    def _set(self, pace: float | None) -> None:
        if pace != self._pace:
            self._pace = pace
            fileno = self._fileno
            if fileno >= 0:
                set_pacing_rate(fileno, pace)

    def sent(self) -> None:
        """Look at the connection from now on: something is sent on it."""
        self._n_idle = 0
        if self._timer is None and self._is_at_work:
            info = self._read()
            if info is not None:
                self._set(self._pacing.rest(info, self._clock()))
                self._wait = LOOK_SECONDS
                self._timer = self._loop.call_later(self._wait, self._look)

    def _look(self) -> None:
        self._timer = None
        info = self._read()
        if info is None:
            return
        is_idle = not (info.unacked or self._transport.get_write_buffer_size())
        self._n_idle = self._n_idle + 1 if is_idle else 0
        now = self._clock()
        if self._n_idle == IDLE_LOOKS:
            self._set(self._pacing.rest(info, now))
            return
        had_yielded = self._pacing.has_yielded
        self._set(self._pacing.look(info, now))
        if self._pacing.has_yielded and not had_yielded:
            self._on_yield()
        is_silent = not is_idle and info.segs_in == self._segs_in
        self._wait = min(2 * self._wait, MOST_LOOK_SECONDS) if is_silent else LOOK_SECONDS
        self._segs_in = info.segs_in
        self._timer = self._loop.call_later(self._wait, self._look)

    def stop(self) -> None:
        """Look at it no more, and let it send at full rate."""
        self._is_at_work = False
        if self._timer is not None:
            self._timer.cancel()
        self._set(None)
