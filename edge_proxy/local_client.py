"""Clients of the broker in its own process, for the plugins `uplink` and `parts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import LocalClients
from penstock.broker.mqtt.enums import MAX_PACKET_ID, MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.packets import PingReq
from penstock.broker.mqtt.writer import publish_header, write_packet
from penstock.broker.network.local_protocol import LocalProtocol
from penstock.edge_proxy.uplink.connecting import connect_local
from penstock.edge_proxy.uplink.packet_stream import Buffer, PacketStream

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70


class LostError(PenstockError):
    """The broker has ended the connection, or refuses it."""


class LocalClient(LocalProtocol):
    """One connection of a local client, in MQTT 5.

    It ignores messages unless a subclass handles them. It does not acknowledge them either, so
    that the broker sends them again on the next connection.
    """

    lost_error = LostError

    def __init__(self, client_id: str, receive_maximum: int = MAX_PACKET_ID) -> None:
        super().__init__()
        self._connect = connect_local(client_id, receive_maximum)
        self._stream = PacketStream(self, MQTT_5, MAX_REMAINING_LENGTH + 5)

    async def connect(
        self, clients: LocalClients, *, tells_publisher: bool = False, is_patient: bool = False
    ) -> None:
        """Connect.

        Raises:
            LostError: the broker does not accept the client.
        """
        answer = self.expect(PacketType.CONNACK << 4, 0)
        clients.connect(self, tells_publisher=tells_publisher, is_patient=is_patient)
        self.transport.write(self._connect)
        await answer

    def publish_part(self, topic: bytes, payload: bytes, properties: bytes, packet_id: int) -> None:
        """Publish a message at QoS 1. The caller expects its PUBACK."""
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

    def data_received(self, data: Buffer) -> None:
        """Handle bytes from the broker."""
        self._stream.receive_data(data)

    # -- packets -------------------------------------------------------------------------------

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Handle a packet other than PUBLISH."""
        if first_byte == PUBREL:
            self.released(int.from_bytes(frame[body_at : body_at + 2]))
        else:
            self.take(first_byte, frame[body_at:])

    def released(self, packet_id: int) -> None:
        """Handle a PUBREL."""

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Handle what stands before the payload of a PUBLISH."""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Handle a piece of the payload."""


class PartPublisher:
    """A local client that publishes, on one connection after another."""

    def __init__(self, clients: LocalClients, client_id: str, *, is_patient: bool = False) -> None:
        self._clients = clients
        self._is_patient = is_patient
        self._client_id = client_id
        self._client: LocalClient | None = None
        self._packet_id = 0

    async def client(self) -> tuple[LocalClient, bool]:
        """Return (a connection that stands, whether it is a new one).

        Raises:
            LostError: the broker does not accept it.
        """
        if self._client is not None and not self._client.is_lost:
            return self._client, False
        client = LocalClient(self._client_id)
        await client.connect(self._clients, is_patient=self._is_patient)
        self._client = client
        return client, True

    def next_packet_id(self) -> int:
        """Return the next packet identifier; after MAX_PACKET_ID they start again at 1."""
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
