"""Clients of one test that speak MQTT inside of TLS or WebSocket; see `WireClient`."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final, Self

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.helpers.process import SECONDS
from tests.helpers.wire import WireClient

MQTT: Final = (Subprotocol("mqtt"),)


class StreamClient(WireClient):
    """A client over an asyncio stream, such as one with TLS.

    Attributes:
        reader: the reader of the stream.
        writer: the writer of the stream.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int = 5
    ) -> None:
        super().__init__(writer.get_extra_info("socket"), version)
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial_tls(cls, port: int, context: ssl.SSLContext, version: int = 5) -> Self:
        """Connect to a port of this machine, without a CONNECT.

        Raises:
            OSError: the handshake failed, or the connection did.
        """
        async with asyncio.timeout(SECONDS):
            return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context), version)

    @classmethod
    async def dial_unix(cls, path: str, version: int = 5) -> Self:
        """Connect to a Unix socket, without a CONNECT."""
        return cls(*await asyncio.open_unix_connection(path), version)

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def read(self) -> bytes:
        """Return the next bytes; b"" at the end."""
        try:
            return await self.reader.read(65_536)
        except OSError:
            return b""

    def close(self) -> None:
        """End the connection without a DISCONNECT."""
        self.writer.close()


class WebSocketClient(WireClient):
    """A client over WebSocket.

    Attributes:
        stream: the WebSocket connection.
    """

    def __init__(self, stream: ClientConnection, version: int = 5) -> None:
        super().__init__(stream.transport.get_extra_info("socket"), version)
        self.stream = stream

    @classmethod
    async def dial_websocket(
        cls, port: int, path: str = "/mqtt", version: int = 5, **options: Any
    ) -> Self:
        """Connect to a port of this machine, without a CONNECT.

        Args:
            port: the TCP port.
            path: the path of the request.
            version: the protocol level, 4 or 5.
            options: options of `websockets`; `ssl` makes it a secure one.

        Raises:
            InvalidStatus: the broker refused.
        """
        scheme = "wss" if "ssl" in options else "ws"
        options.setdefault("subprotocols", MQTT)
        uri = f"{scheme}://127.0.0.1:{port}{path}"
        stream = await connect_websocket(
            uri, max_size=None, compression=None, proxy=None, ping_interval=None, **options
        )
        return cls(stream, version)

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as one message."""
        await self.stream.send(data)

    async def read(self) -> bytes:
        """Return the next message; b"" at the end."""
        try:
            data = await self.stream.recv()
        except ConnectionClosed:
            return b""
        assert isinstance(data, bytes)  # [MQTT-6.0.0-1]
        return data

    def close(self) -> None:
        """Drop the connection without a DISCONNECT."""
        self.stream.transport.abort()
