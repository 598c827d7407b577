"""What the service manager that has started the program is told, by systemd's protocol.

sd_notify(3): a datagram of lines ``NAME=VALUE`` to the socket that NOTIFY_SOCKET names. systemd
sets it for units of ``Type=notify``, and WATCHDOG_USEC where the unit has ``WatchdogSec``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

MICROSECONDS: Final = 1_000_000
_MOST_CHARACTERS: Final = 1_000
"""Of a line about the program: a message that is too long for the socket would not be told."""


class ServiceManager:
    """The service manager of this process; without one, nothing is told.

    Args:
        environment: of the process. The names of the protocol are taken out of it, as programs that
            this one starts have nothing to tell.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        interval = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", str(os.getpid()))
        is_watched = interval.isdecimal() and process == str(os.getpid())
        self._beat_seconds = int(interval) / MICROSECONDS / 2 if is_watched else 0.0
        self._socket: socket.socket | None = None
        if address.startswith(("/", "@")):
            # It stays open: the watchdog must not fire for want of a file descriptor.
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            with contextlib.suppress(OSError):  # then each message fails, and none is missed
                self._socket.connect("\0" + address[1:] if address[0] == "@" else address)

    def tell(self, *states: str) -> None:
        """Send states, such as ``READY=1``; one that cannot be sent is left out."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send("\n".join(states).encode())

    def ready(self, status: str) -> None:
        """Tell that the program serves, with a line about it."""
        self.tell("READY=1", f"STATUS={' '.join(status.split())[:_MOST_CHARACTERS]}")

    def reloading(self) -> None:
        """Tell that a reload begins; `ready` tells its end."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        self.tell("RELOADING=1", f"MONOTONIC_USEC={now}")

    def beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell twice in each interval of the watchdog that the loop runs, from now on."""
        if self._beat_seconds:
            self.tell("WATCHDOG=1")
            loop.call_later(self._beat_seconds, self.beat, loop)
