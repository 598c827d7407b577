"""The load's own ceiling: a stand-in for a broker that looks at nothing.

It answers CONNECT and SUBSCRIBE, then copies every chunk of bytes from the publisher to all
subscribers unread. No broker can be measured faster than this one on the same machine.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

from benchmarks import wire

BUFFER_BYTES: Final = 1 << 18
CONNECT: Final = 0x10
SUBSCRIBE: Final = 0x82


def _read_short_packet(sock: socket.socket) -> bytes:
    """Return one whole packet of fewer than 128 bytes behind its fixed header, or b""."""
    header = sock.recv(2, socket.MSG_WAITALL)
    return header + wire.receive_exactly(sock, header[1]) if len(header) == len(b"hl") else b""


def accept_subscribers(server: socket.socket) -> tuple[list[socket.socket], socket.socket]:
    """Accept connections until one sends a PUBLISH.

    Returns:
        The subscribers, and the publisher with its first PUBLISH unread.
    """
    subscribers: list[socket.socket] = []
    while True:
        sock, _ = server.accept()
        if _read_short_packet(sock)[:1] != bytes([CONNECT]):
            sock.close()  # whoever only looked whether the port is open
            continue
        sock.sendall(wire.CONNACK_ACCEPTED)
        if sock.recv(1, socket.MSG_PEEK) != bytes([SUBSCRIBE]):
            return subscribers, sock
        packet = _read_short_packet(sock)
        sock.sendall(bytes([0x90, 3]) + packet[2:4] + packet[-1:])
        subscribers.append(sock)


def main() -> None:
    """Serve one publisher and its subscribers, until the publisher leaves."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
        subscribers, publisher = accept_subscribers(server)
        while size := publisher.recv_into(buffer):
            for subscriber in subscribers:
                subscriber.sendall(buffer[:size])


if __name__ == "__main__":
    main()
