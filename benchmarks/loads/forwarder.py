"""A forwarder of TCP connections that looks at nothing: what any process in the way costs.

It stands in the place of a proxy, with the same language, event loop and options of sockets. What
it takes, a proxy that also reads the packets cannot take back.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One end of a connection that is forwarded.

    Attributes:
        other: the other end, once it is connected.
        transport: of this one.
    """

    other: End | None = None
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Read no more from the other end."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again from the other end."""
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """End the other end too."""
        if self.other is not None:
            self.other.transport.close()


async def forward(sock: socket.socket, port: int) -> None:
    """Connect a client to the broker, and both to each other."""
    loop = asyncio.get_running_loop()
    _, broker = await loop.create_connection(End, "127.0.0.1", port)
    client = End()
    client.other, broker.other = broker, client
    await loop.connect_accepted_socket(lambda: client, sock)


async def serve(listen_port: int, port: int) -> None:
    """Forward every connection until the process is ended."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", listen_port)) as server:
        server.setblocking(False)
        while True:
            sock, _ = await loop.sock_accept(server)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await forward(sock, port)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
