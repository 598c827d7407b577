"""MQTT over WebSocket for a load: a connection that reads and writes like a socket [RFC 6455].

What is sent at once becomes one frame. The masking key is zero, so that masking costs the load
nothing; a server unmasks it all the same. Frames that arrive are taken apart.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from benchmarks.loads.wire import WireError

REQUEST: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
BINARY: Final = 0x82
"""The first byte of a frame that is a whole binary message."""

MASKED: Final = 0x80
NO_MASK: Final = bytes(4)
CONTROL: Final = 0x08


class WebSocket(socket.socket):
    """A connection over which the bytes of MQTT go in frames."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a connected, blocking socket over and ask for the protocol.

        Raises:
            WireError: the server does not speak it.
        """
        timeout = sock.gettimeout()
        super().__init__(sock.family, sock.type, fileno=sock.detach())
        self.settimeout(timeout)
        self._frames = b""
        self._in_frame = 0
        super().sendall(REQUEST)
        while b"\r\n\r\n" not in self._frames:
            chunk = super().recv(1 << 12)
            if not chunk:
                raise WireError(f"no WebSocket; read {self._frames!r}")
            self._frames += chunk
        head, _, self._frames = self._frames.partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise WireError(f"no WebSocket; read {head!r}")

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
        """Send bytes in a frame."""
        size = len(data)
        if size < 126:
            head = bytes([BINARY, MASKED | size])
        elif size < 1 << 16:
            head = bytes([BINARY, MASKED | 126]) + struct.pack("!H", size)
        else:
            head = bytes([BINARY, MASKED | 127]) + struct.pack("!Q", size)
        super().sendall(head + NO_MASK + data, flags)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Return what has come in frames; b"" at the end of the connection."""
        while True:
            chunk = super().recv(bufsize, flags)
            if not chunk:
                return b""
            self._frames += chunk
            if content := self._content():
                return content

    def _content(self) -> bytes:
        """Return the content of what is there; a part of a frame's head stays."""
        data, at, parts = self._frames, 0, []
        while at < len(data):
            if not self._in_frame:
                size, begin = data[at + 1] if at + 1 < len(data) else 0, at + 2
                extended = {126: 2, 127: 8}.get(size, 0)
                if begin + extended > len(data):
                    break
                if data[at] & CONTROL:
                    raise WireError(f"read a frame {data[at : at + 16].hex(' ')}; expected data")
                if extended:
                    size = int.from_bytes(data[begin : begin + extended], "big")
                at = begin + extended
                self._in_frame = size
            taken = min(self._in_frame, len(data) - at)
            parts.append(data[at : at + taken])
            self._in_frame -= taken
            at += taken
        self._frames = data[at:]
        return b"".join(parts)
