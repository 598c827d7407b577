"""A broker and a client of which the test writes every byte, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from penstock.broker.mqtt.packets import ConnAck, Connect, Packet
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.process import SECONDS


class Peer:
    """One end of a network connection that speaks MQTT as the test says."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int = 5
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.version = version

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        self.writer.write(b"".join(write_packet(packet, self.version) for packet in packets))

    async def receive(self) -> Packet:
        """Return the next packet."""
        async with asyncio.timeout(SECONDS):
            header = await self.reader.readexactly(2)
            length, shift = header[1] & 0x7F, 7
            while header[-1] & 0x80:
                header += await self.reader.readexactly(1)
                length |= (header[-1] & 0x7F) << shift
                shift += 7
            return read_packet(header[0], await self.reader.readexactly(length), self.version)

    async def receive_end(self) -> bytes:
        """Return what still comes until the other side closes."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return


class ScriptedBroker:
    """Listens, and hands each connection to the test."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self._peers:
            await peer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._peers.append(peer)
        await self._accepted.put(peer)

    async def connected(self) -> Peer:
        """Return the next connection."""
        async with asyncio.timeout(SECONDS):
            return await self._accepted.get()

    async def accepted(self) -> Peer:
        """Return the next connection, CONNECT read and answered."""
        peer = await self.connected()
        connect = await peer.receive()
        assert isinstance(connect, Connect)
        peer.version = connect.protocol_version
        peer.send(ConnAck())
        return peer


async def open_client(address: tuple[str, int], version: int = 5, **connect: Any) -> Peer:
    """Connect a client that has sent its CONNECT and not read the answer."""
    reader, writer = await asyncio.open_connection(*address)
    client = Peer(reader, writer, version)
    client.send(Connect(protocol_version=version, **connect))
    return client


async def accepted_client(port: int, version: int = 5, **connect: Any) -> Peer:
    """Return a client whose CONNECT a program on this machine has accepted."""
    client = await open_client(("127.0.0.1", port), version, **connect)
    connack = await client.receive()
    assert isinstance(connack, ConnAck)
    assert connack.reason_code == 0
    return client


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event to offer)
            await asyncio.sleep(0)
