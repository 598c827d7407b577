"""A link to a broker that carries a number of bytes and then nothing, until it is given more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from tests.broker.serving import until
from tests.helpers.frames import frames_of

PUBACK = 0x40
SUBACK = 0x90
BUFFER_BYTES = 8_192
"""The buffer size of each socket, small so that few bytes are under way."""


class MeteredLink:
    """A link that forwards connections to a port of this machine.

    Attributes:
        port: the TCP port that it listens on.
        left_bytes: the bytes that it still carries from the broker.
        passed_bytes: the bytes that it has carried from the broker.
        n_connections: the number of connections that it has accepted.
        n_acknowledged: the number of PUBACK packets that it has carried to the broker.
        n_subscribed: the number of SUBACK packets that it has carried from the broker.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.left_bytes = 0
        self.passed_bytes = 0
        self.n_connections = 0
        self.n_acknowledged = self.n_subscribed = 0
        self._target = target
        self._more = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        self.n_connections += 1
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._target))
            back, forth = await asyncio.open_connection(sock=sock, limit=BUFFER_BYTES)
            ends = {writer, forth}
            self._writers |= ends
            sides = (self._carry(reader, forth), self._carry_metered(back, writer))
            tasks = [asyncio.ensure_future(side) for side in sides]
            # The loop would log a task of a connection that ends by being cancelled.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            self._writers -= ends
            forth.transport.abort()
        writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = ReceiveBuffer(BUFFER_BYTES)
        with contextlib.suppress(OSError):
            while data := await reader.read(BUFFER_BYTES):
                writer.write(data)
                await writer.drain()
                frames = frames_of(buffer, buffer.receive_data(data))
                self.n_acknowledged += sum(first_byte == PUBACK for first_byte, _ in frames)

    async def _carry_metered(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.transport.set_write_buffer_limits(BUFFER_BYTES)
        buffer = ReceiveBuffer(BUFFER_BYTES)
        with contextlib.suppress(OSError):
            while True:
                while not self.left_bytes:
                    self._more.clear()
                    await self._more.wait()
                data = await reader.read(min(BUFFER_BYTES, self.left_bytes))
                if not data:
                    return
                self.left_bytes = max(0, self.left_bytes - len(data))
                self.passed_bytes += len(data)
                frames = frames_of(buffer, buffer.receive_data(data))
                self.n_subscribed += sum(first_byte == SUBACK for first_byte, _ in frames)
                writer.write(data)
                await writer.drain()

    def allow(self, n_bytes: int) -> None:
        """Carry so many bytes more from the broker."""
        self.left_bytes += n_bytes
        self._more.set()

    async def is_used_up(self, n_acknowledged: int = 0) -> None:
        """Wait until it has carried what it may, and so many PUBACK packets in all."""
        await until(lambda: not self.left_bytes and self.n_acknowledged >= n_acknowledged)

    def stop(self) -> None:
        """End all connections; new ones carry nothing from the broker until `allow`."""
        self.left_bytes = 0
        self.cut()

    def cut(self) -> None:
        """End all connections; new ones may come."""
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def metered_link(target: int) -> AsyncIterator[MeteredLink]:
    """Run a link to a port of this machine for a block."""
    link = MeteredLink(target)
    server = await asyncio.start_server(link.accept, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        link.cut()
        server.close()
