from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from benchmarks.loads.websocket import BINARY, WebSocket
from benchmarks.loads.wire import WireError, receive_exactly

ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


def opened(serve: Callable[[socket.socket], None]) -> tuple[WebSocket, threading.Thread]:
    """Return a connection that a server serves after the request."""
    client, server = socket.socketpair()

    def run() -> None:
        with server:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += server.recv(1 << 12)
            serve(server)

    thread = threading.Thread(target=run)
    thread.start()
    return WebSocket(client), thread


@pytest.mark.parametrize("size", [1, 125, 126, 70_000])
def test_frames_in_pieces_are_read_as_what_was_sent(size: int) -> None:
    """Frames of each form of length come out as their content, wherever a read ends."""
    content = bytes(number % 251 for number in range(size))
    received = []

    def echo(server: socket.socket) -> None:
        server.sendall(ACCEPTED)
        head = receive_exactly(server, 2)
        extended = {126: 2, 127: 8}.get(head[1] & 0x7F, 0)
        length = receive_exactly(server, extended)
        assert receive_exactly(server, 4) == bytes(4)
        received.append(receive_exactly(server, size))
        frame = bytes([BINARY, head[1] & 0x7F]) + length + received[0]
        for data in (frame * 2)[:20], (frame * 2)[20:]:
            for at in range(0, len(data), max(1, len(data) // 30)):
                server.sendall(data[at : at + max(1, len(data) // 30)])

    sock, thread = opened(echo)
    with sock:
        sock.sendall(content)
        assert receive_exactly(sock, 2 * size) == content * 2
        assert sock.recv(10) == b""
    thread.join()
    assert received == [content]


def test_a_server_that_refuses_is_told() -> None:
    """A broker without WebSocket is no measurement."""
    with pytest.raises(WireError, match=r"no WebSocket; read .*404"):
        opened(lambda server: server.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n"))
