"""A competing flow: one TCP connection that sends as fast as it can, on and off.

``python -m penstock.netem.clients.bulk_flow receive PORT`` accepts connections and discards what
comes. ``… send ADDRESS PORT FILE`` reads one line from standard input, a JSON list of pairs of
monotonic seconds, begin and end, and sends in these times. Each time has a connection of its own,
which ends with a reset, so that nothing of it follows. A line in the file for each:
``BEGIN END BYTES``, with the bytes that the receiver acknowledged.

It is no MQTT client: whatever broker runs, it competes in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import selectors
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

CHUNK: Final = bytes(1 << 16)
RETRY_SECONDS: Final = 0.1
"""Between two attempts to connect."""

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER by which a close drops what is unsent."""


class FlowTime(NamedTuple):
    """A time for which a flow was on.

    Attributes:
        begin: monotonic seconds.
        end: monotonic seconds.
        acknowledged_bytes: that its receiver had by then.
    """

    begin: float
    end: float
    acknowledged_bytes: int


def read_flow_file(file: Path) -> list[FlowTime]:
    """Return the times of a sender's file; none if the file does not exist."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        begin, end, n_bytes = line.split()
        found.append(FlowTime(float(begin), float(end), int(n_bytes)))
    return found


def receive(port: int) -> None:
    """Accept connections and discard what comes; never return."""
    with selectors.DefaultSelector() as selector, socket.create_server(("", port)) as listening:
        selector.register(listening, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                connection: socket.socket | None = key.data
                if connection is None:
                    connection, _ = listening.accept()
                    selector.register(connection, selectors.EVENT_READ, connection)
                elif not _discard(connection):
                    selector.unregister(connection)
                    connection.close()


def _discard(connection: socket.socket) -> bool:
    """Read what has come; return whether the connection goes on."""
    try:
        return bool(connection.recv(len(CHUNK)))
    except OSError:
        return False


def send(address: tuple[str, int], times: Iterable[tuple[float, float]], file: Path) -> None:
    """Send in some times, one after the other.

    Args:
        address: of the receiver, which may not listen yet.
        times: begin and end in monotonic seconds, ascending.
        file: gets a line for each time at its end.
    """
    for begin, end in times:
        time.sleep(max(0.0, begin - time.monotonic()))
        began = time.monotonic()
        n_bytes = 0
        while time.monotonic() < end:
            try:
                n_bytes += _send_until(address, end)
            except OSError:  # the receiver does not listen yet, or the link is dead
                time.sleep(min(RETRY_SECONDS, max(0.0, end - time.monotonic())))
        with file.open("a") as lines:
            lines.write(f"{began!r} {time.monotonic()!r} {n_bytes}\n")


def _send_until(address: tuple[str, int], end: float) -> int:
    """Send over one connection until a monotonic second; return what was acknowledged.

    Raises:
        OSError: the connection failed.
    """
    left = max(0.001, end - time.monotonic())
    with socket.create_connection(address, timeout=left) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        n_bytes = 0
        while (left := end - time.monotonic()) > 0:
            sock.settimeout(left)
            with contextlib.suppress(TimeoutError):
                n_bytes += sock.send(CHUNK)
        unacknowledged = fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4))
        return n_bytes - int.from_bytes(unacknowledged, sys.byteorder)


def main(argv: list[str]) -> int:
    """Receive, or send until standard input ends."""
    if argv[0] == "receive":
        receive(int(argv[1]))
    address, port, file = argv[1:]
    if line := sys.stdin.readline():
        send((address, int(port)), json.loads(line), Path(file))
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
