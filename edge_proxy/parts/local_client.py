"""A client of the broker in its own process, for messages in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from penstock.broker.errors import PenstockError, ProtocolError
from penstock.broker.extensions import LocalClients
from penstock.broker.mqtt.enums import MAX_PACKET_ID, MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect, PingReq
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import describe_reason_code
from penstock.broker.mqtt.writer import publish_header, write_packet
from penstock.edge_proxy.aggregator.packet_stream import Buffer, PacketStream

SESSION_NEVER_EXPIRES: Final = 0xFFFFFFFF

AGAIN_SECONDS: Final = 1.0
"""Between two attempts to connect, and to publish what the broker has no room for."""

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70


class LostError(PenstockError):
    """The broker has ended the connection, or refuses it."""


class LocalClient(asyncio.Protocol):
    """One connection of a client to its own broker, in MQTT 5.

    Attributes:
        client_id: of its session, which never expires.
        transport: of the connection.
        session_present: the broker has had the session before.
        is_lost: the connection has ended.
    """

    def __init__(self, client_id: str, receive_maximum: int = MAX_PACKET_ID) -> None:
        self.client_id = client_id
        self.transport: asyncio.Transport
        self.session_present = False
        self.is_lost = False
        self._receive_maximum = receive_maximum
        self._stream = PacketStream(self, MQTT_5, MAX_REMAINING_LENGTH + 5)
        self._answers: dict[tuple[int, int], asyncio.Future[int]] = {}
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._told = "the connection has ended"

    async def connect(self, clients: LocalClients, *, tells_publisher: bool = False) -> None:
        """Connect.

        Args:
            clients: of the broker.
            tells_publisher: messages carry the Client Identifier of their publisher.

        Raises:
            LostError: the broker does not accept the client.
        """
        answer = self.expect(PacketType.CONNACK << 4, 0)
        clients.connect(self, tells_publisher=tells_publisher)
        properties = {
            "session_expiry_interval": SESSION_NEVER_EXPIRES,
            "receive_maximum": self._receive_maximum,
        }
        connect = Connect(self.client_id, clean_start=False, keep_alive=0, properties=properties)
        self.transport.write(write_packet(connect, MQTT_5))
        await answer

    def expect(self, first_byte: int, packet_id: int) -> asyncio.Future[int]:
        """Return what is done with the reason code of an answer.

        It fails with `LostError` when the connection ends before.
        """
        answer = asyncio.get_running_loop().create_future()
        if self.is_lost:
            answer.set_exception(LostError(self._told))
        else:
            self._answers[first_byte, packet_id] = answer
        return answer

    def publish_part(self, topic: bytes, payload: bytes, properties: bytes, packet_id: int) -> None:
        """Publish a message at QoS 1, whose PUBACK is to be expected."""
        header = publish_header(
            topic, len(payload), 1, packet_id=packet_id, properties=properties, version=MQTT_5
        )
        self.transport.writelines((header, payload))

    def acknowledge(self, first_byte: int, packet_id: int, reason_code: int = 0) -> None:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP."""
        frame = bytes((first_byte, 3)) + packet_id.to_bytes(2) + bytes((reason_code,))
        self.transport.write(frame)

    async def ping(self) -> None:
        """Wait until the broker has handled everything that was sent.

        Raises:
            LostError: the connection ends before.
        """
        answer = self.expect(PacketType.PINGRESP << 4, 0)
        self.transport.write(write_packet(PingReq(), MQTT_5))
        await answer

    async def drain(self) -> None:
        """Wait until the broker takes more."""
        await self._can_write.wait()

    def disconnect(self) -> None:
        """End the connection; the session stays."""
        if not self.is_lost:
            self.transport.write(write_packet(Disconnect(), MQTT_5))
            self.transport.close()

    # -- asyncio's -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: Buffer) -> None:
        """Take bytes from the broker."""
        self._stream.receive_data(data)

    def pause_writing(self) -> None:
        """Let `drain` wait."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """Let it go on."""
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """Let everything fail that is expected."""
        self.is_lost = True
        self._can_write.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(LostError(self._told))
                answer.exception()  # who gave up waiting has no use for it
        self._answers.clear()

    # -- packets -------------------------------------------------------------------------------

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Take a packet other than PUBLISH."""
        if first_byte in (PUBACK, PUBREC, PUBCOMP):
            packet_id = int.from_bytes(frame[body_at : body_at + 2])
            code = frame[body_at + 2] if len(frame) > body_at + 2 else 0
            self._answered(first_byte, packet_id, code)
        elif first_byte == PUBREL:
            self.released(int.from_bytes(frame[body_at : body_at + 2]))
        else:
            packet = read_packet(first_byte, frame[body_at:], MQTT_5)
            if isinstance(packet, ConnAck | Disconnect) and packet.reason_code:
                self._told = describe_reason_code(packet.reason_code)
                self.transport.close()
            elif isinstance(packet, ConnAck):
                self.session_present = packet.session_present
                self._answered(first_byte, 0, 0)
            elif packet.packet_type == PacketType.PINGRESP:
                self._answered(first_byte, 0, 0)

    def _answered(self, first_byte: int, packet_id: int, code: int) -> None:
        answer = self._answers.pop((first_byte, packet_id), None)
        if answer is not None and not answer.done():
            answer.set_result(code)

    def released(self, packet_id: int) -> None:
        """Take a PUBREL.

        Raises:
            ProtocolError: the client receives no messages.
        """
        raise ProtocolError(f"PUBREL {packet_id}")

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Take what stands before the payload of a PUBLISH.

        Raises:
            ProtocolError: the client receives no messages.
        """
        del first_byte, packet_id, properties, payload_bytes
        raise ProtocolError(f"PUBLISH for {topic!r}")

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Take a piece of the payload."""


class Courier:
    """A client that publishes, on one connection after another.

    Args:
        clients: of the broker.
        client_id: of its session.
    """

    def __init__(self, clients: LocalClients, client_id: str) -> None:
        self._clients = clients
        self._client_id = client_id
        self._client: LocalClient | None = None
        self._packet_id = 0

    async def client(self) -> tuple[LocalClient, bool]:
        """Return (a connection that stands; whether it is a new one).

        Raises:
            LostError: the broker does not accept it.
        """
        if self._client is not None and not self._client.is_lost:
            return self._client, False
        client = LocalClient(self._client_id)
        await client.connect(self._clients)
        self._client = client
        return client, True

    def next_packet_id(self) -> int:
        """Return a packet identifier; MAX_PACKET_ID messages later it is used again."""
        self._packet_id = self._packet_id % MAX_PACKET_ID + 1
        return self._packet_id

    async def publish_all(
        self, topic: bytes, payloads: Sequence[bytes], properties: bytes
    ) -> list[int]:
        """Publish messages at QoS 1 and return the reason codes of their PUBACKs.

        Raises:
            LostError: the connection has ended before; any of them may have been published.
        """
        client, _ = await self.client()
        answers = []
        for payload in payloads:
            packet_id = self.next_packet_id()
            answers.append(client.expect(PUBACK, packet_id))
            client.publish_part(topic, payload, properties, packet_id)
        return [await answer for answer in answers]

    def close(self) -> None:
        """End the connection; the session stays."""
        if self._client is not None:
            self._client.disconnect()
