"""The row publisher is an MQTT 5 client in the broker's process, one for each owner of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import RELAY_CLIENT_PREFIX, LocalClients
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.packets import Connect
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.local_protocol import LocalProtocol

_SESSION_NEVER_EXPIRES: Final = 0xFFFFFFFF
_CONNACK: Final = PacketType.CONNACK << 4
_PUBREC: Final = PacketType.PUBREC << 4
_PUBREL: Final = PacketType.PUBREL << 4 | 2
_PUBCOMP: Final = PacketType.PUBCOMP << 4


class RelayLostError(PenstockError):
    """The broker has ended the connection of a relay, or refuses it."""


def relay_id(owner: str) -> str:
    """Return the Client Identifier of an owner's relay; the owner is "" without tokens."""
    return f"{RELAY_CLIENT_PREFIX}{f'token/{owner}' if owner else 'anybody'}"


class RowPublisher(LocalProtocol):
    """One connection of a relay."""

    lost_error = RelayLostError

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner

    async def connect(self, clients: LocalClients, *, clean_start: bool) -> None:
        """Connect.

        Raises:
            RelayLostError: the broker does not accept the relay.
        """
        answer = self.expect(_CONNACK, 0)
        clients.connect(self)
        connect = Connect(
            relay_id(self._owner),
            clean_start=clean_start,
            keep_alive=0,
            username=self._owner or None,
            properties={"session_expiry_interval": _SESSION_NEVER_EXPIRES},
        )
        self.transport.write(write_packet(connect, MQTT_5))
        await answer

    async def publish(self, header: bytes, payload: bytes, packet_id: int) -> asyncio.Future[int]:
        """Send a PUBLISH of QoS 2, when the broker takes more.

        Returns:
            What is done with the reason code of its PUBREC, or fails with `RelayLostError`.
        """
        await self.drain()
        answer = self.expect(_PUBREC, packet_id)
        if not self.is_lost:
            self.transport.writelines((header, payload))
        return answer

    async def release(self, packet_ids: Iterable[int]) -> None:
        """Send the PUBREL of packet identifiers, also of unknown ones, and wait for each PUBCOMP.

        Raises:
            RelayLostError: the connection has ended.
        """
        answers: list[asyncio.Future[int]] = []
        for packet_id in packet_ids:
            answers.append(self.expect(_PUBCOMP, packet_id))
            if not self.is_lost:
                self.transport.write(bytes((_PUBREL, 2)) + packet_id.to_bytes(2))
        for answer in answers:
            await answer
