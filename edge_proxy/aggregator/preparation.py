"""Clients of one purpose, which an uplink has before it stands.

One lets the site's broker keep what goes up from now on, the other ends what the cloud's broker has
kept for an earlier life of the site.
"""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.broker.errors import PeerError
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.packets import Disconnect
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.aggregator.connecting import (
    JointSettings,
    UplinkRefusedError,
    check_accepted,
    connect_cloud,
    read_connack,
)
from penstock.edge_proxy.aggregator.packet_stream import Buffer, PacketStream


class Preparing(asyncio.Protocol):
    """The local client that subscribes, before there is a connection to the cloud.

    It acknowledges nothing: a message that comes is sent again to the next connection.

    Attributes:
        answered: done when a PINGRESP has come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answered: asyncio.Future[None] = loop.create_future()
        self._stream = PacketStream(self, MQTT_5, MAX_REMAINING_LENGTH + 5)

    def data_received(self, data: bytes) -> None:
        """Wait for PINGRESP, the last answer."""
        self._stream.receive_data(data)

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:  # noqa: ARG002 (as others)
        """Take a packet other than PUBLISH."""
        if first_byte >> 4 == PacketType.PINGRESP and not self.answered.done():
            self.answered.set_result(None)

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Let a message go."""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Let it go."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """Fail, unless all was answered."""
        if not self.answered.done():
            self.answered.set_exception(ConnectionError("it closes the connection"))


class Forgetting(asyncio.Protocol):
    """A connection to the cloud that ends the session there, and does no more.

    Attributes:
        answered: done when the cloud's broker has accepted it.
    """

    def __init__(self, settings: JointSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.answered: asyncio.Future[None] = loop.create_future()
        self._settings = settings
        self._transport: asyncio.Transport
        self._stream = PacketStream(self, settings.version, settings.maximum_packet_size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(connect_cloud(self._settings, forgets=True))

    def data_received(self, data: bytes) -> None:
        """Wait for CONNACK."""
        try:
            self._stream.receive_data(data)
        except (PeerError, UplinkRefusedError) as error:
            self._fail(error)

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Take it."""
        if not self.answered.done():
            check_accepted(read_connack(first_byte, frame, body_at, self._settings.version))
            self.answered.set_result(None)

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Let it go: there is no subscription."""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Let it go."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless it was accepted."""
        told = "" if exc is None else f": {exc}"
        self._fail(UplinkRefusedError("closed", f"the connection was closed{told}"))

    def _fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)

    def close(self) -> None:
        """Disconnect."""
        self._transport.write(write_packet(Disconnect(), self._settings.version))
        self._transport.close()
