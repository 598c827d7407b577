"""A client on a bare socket, which sends and reads only when the test says so."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.frames import frames_of
from tests.helpers.process import SECONDS

Kind = TypeVar("Kind")

ADDRESSES: Final[dict[int, str]] = {}
"""The addresses of ports that are not this machine's own, as in `tests.helpers.machines`."""


def ending(packets: Sequence[Packet]) -> int | None:
    """Return the reason code of the DISCONNECT that stands last, or None where none does."""
    last = packets[-1] if packets else None
    return last.reason_code if isinstance(last, Disconnect) else None


class WireClient:
    """One network connection to a broker.

    May be used on one event loop after another. Nothing is read but by `receive` and what
    calls it, so a client that does not call them has stalled.

    Attributes:
        sock: the socket.
        version: the version of the packets that are written and read.
    """

    def __init__(self, sock: socket.socket, version: int = 5) -> None:
        self.sock = sock
        self.version = version
        self._buffer = ReceiveBuffer(268_435_460)
        self._packets: deque[Packet] = deque()

    @classmethod
    async def dial(cls, port: int, version: int = 5, *, receive_bytes: int = 0) -> Self:
        """Connect to a port of this machine, without a CONNECT.

        Args:
            port: the TCP port.
            version: the protocol level, 4 or 5.
            receive_bytes: the SO_RCVBUF; 0 for the kernel's choice.
        """
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        address = ADDRESSES.get(port, "127.0.0.1"), port
        async with asyncio.timeout(SECONDS):
            await asyncio.get_running_loop().sock_connect(sock, address)
        return cls(sock, version)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection without a DISCONNECT; may be called again."""
        self.sock.close()

    async def send(self, *packets: Packet) -> None:
        """Send packets in one go."""
        await self.send_bytes(b"".join(write_packet(packet, self.version) for packet in packets))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        async with asyncio.timeout(SECONDS):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def read(self) -> bytes:
        """Return the next bytes; b"" where the broker has closed the connection."""
        try:
            return await asyncio.get_running_loop().sock_recv(self.sock, 65_536)
        except ConnectionResetError:
            return b""

    async def receive(self) -> Packet | None:
        """Return the next packet; None where the broker has closed the connection."""
        async with asyncio.timeout(SECONDS):
            while not self._packets:
                data = await self.read()
                if not data:
                    return None
                frames = frames_of(self._buffer, self._buffer.receive_data(data))
                self._packets += [read_packet(first, body, self.version) for first, body in frames]
        return self._packets.popleft()

    async def take(self, kind: type[Kind]) -> Kind:
        """Return the next packet, which must be of this kind."""
        packet = await self.receive()
        assert isinstance(packet, kind), f"{packet} instead of {kind.__name__}"
        return packet

    async def rest(self) -> list[Packet]:
        """Return every packet up to the end of the connection."""
        packets: list[Packet] = []
        while (packet := await self.receive()) is not None:
            packets.append(packet)
        return packets

    async def rest_bytes(self) -> bytes:
        """Return every byte up to the end of the connection, readable or not."""
        data = b""
        async with asyncio.timeout(SECONDS):
            while chunk := await self.read():
                data += chunk
        return data

    async def message(self) -> Publish:
        """Return the next message, which is acknowledged, as is what was released before it."""
        while isinstance(packet := await self.receive(), PubRel):
            await self.send(PubComp(packet.packet_id))
        assert isinstance(packet, Publish), packet
        if packet.qos:
            await self.send((PubAck if packet.qos == 1 else PubRec)(packet.packet_id))
        return packet

    async def messages(self, n_messages: int) -> list[tuple[bytes, int]]:
        """Return payload and QoS of the next messages, which are acknowledged."""
        found = [await self.message() for _ in range(n_messages)]
        return [(bytes(packet.payload), packet.qos) for packet in found]

    async def connect(self, client_id: str = "", **options: Any) -> ConnAck:
        """Send a CONNECT, without keep-alive unless asked for, and return the answer."""
        options.setdefault("keep_alive", 0)
        await self.send(Connect(client_id=client_id, protocol_version=self.version, **options))
        return await self.take(ConnAck)

    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """Subscribe and return the reason code."""
        await self.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),)))
        return (await self.take(SubAck)).reason_codes[0]

    async def publish(self, topic: str, payload: bytes, packet_id: int = 1) -> PubAck:
        """Publish at QoS 1 and return the answer."""
        await self.send(Publish(topic, payload, qos=1, packet_id=packet_id))
        return await self.take(PubAck)


async def connected(port: int, client_id: str = "", version: int = 5, **options: Any) -> WireClient:
    """Return a client that the broker has accepted."""
    client = await WireClient.dial(port, version)
    assert (await client.connect(client_id, **options)).reason_code == 0
    return client
