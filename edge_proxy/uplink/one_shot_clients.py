"""Clients of one purpose, which connect before those that stay.

One lets the site's broker keep messages for a client that is to come, or clears what an earlier
one has left retained. The other ends what the cloud's broker has kept for an earlier life of the
site.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from typing import Final, cast

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.extensions import LocalClients
from penstock.broker.message import SizeClass
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.packets import Disconnect, PingReq, Publish, Unsubscribe
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.uplink.connecting import (
    RelaySettings,
    UplinkRefusedError,
    check_accepted,
    cloud_state,
    connect_cloud,
    connect_up,
    read_connack,
    record_of_state,
    subscribe_up,
)
from penstock.edge_proxy.uplink.packet_stream import Buffer, PacketStream
from penstock.edge_proxy.upstream_config import UpstreamKeys

PREPARE_SECONDS: Final = 30.0
"""How long the site's own broker may take to subscribe; it waits for its disk."""


async def prepare_session(
    clients: LocalClients,
    client_id: str,
    filters: Mapping[str, int],
    known: Sequence[str],
    sizes: SizeClass | None = None,
    *,
    with_retained: Container[str] = (),
) -> None:
    """Let a session have some subscriptions and no others, so that it keeps messages from now on.

    Args:
        clients: of the broker.
        client_id: of the session.
        filters: topic filter to QoS.
        known: topic filters that the session has.
        sizes: size class of the messages; None for both.
        with_retained: those of the filters whose retained messages are sent to the client that is
            to come; it asks for others itself.

    Raises:
        PenstockError: the broker does not let it.
    """
    without = [name for name in filters if name not in with_retained]
    gone = tuple(name for name in known if name not in filters)
    packets = [connect_up(client_id, 1), subscribe_up(filters, sizes, without_retained=without)]
    if gone:
        packets.append(write_packet(Unsubscribe(2, gone), MQTT_5))
    await _exchange(clients, packets, f"client {client_id}: the broker does not let it subscribe")


async def forget_states(clients: LocalClients, client_id: str, topics: Sequence[str]) -> None:
    """Clear what a client has retained in topics that are its state topics no more.

    Args:
        clients: of the broker.
        client_id: of the client; it is not connected, and has a session after this.
        topics: by `recorded_states`, each of which it forgets.

    Raises:
        PenstockError: the broker does not let it.
    """
    there = [topic for topic in topics if clients.retained(topic, client_id)]
    records = tuple(map(record_of_state, topics))
    packets = [
        connect_up(client_id, 1),
        *(write_packet(Publish(topic, b"", retain=True), MQTT_5) for topic in there),
        write_packet(Unsubscribe(1, records), MQTT_5),
    ]
    what = f"client {client_id}: the broker does not let it clear {', '.join(topics)}"
    await _exchange(clients, packets, what)


async def _exchange(clients: LocalClients, packets: Sequence[bytes], what: str) -> None:
    """Connect a local client, and wait until the broker has handled some packets.

    Args:
        clients: of the broker.
        packets: CONNECT first.
        what: begins the error.

    Raises:
        PenstockError: the broker does not handle them.
    """
    client = Preparing(asyncio.get_running_loop())
    transport = clients.connect(client)
    transport.writelines(packets)
    transport.write(write_packet(PingReq(), MQTT_5))  # its answer says that all of it is done
    try:
        async with asyncio.timeout(PREPARE_SECONDS):
            await client.answered
    except (TimeoutError, ConnectionError) as error:
        told = str(error) or f"no answer in {PREPARE_SECONDS:g} s"
        raise PenstockError(f"{what}: {told}") from error
    transport.close()


class Preparing(asyncio.Protocol):
    """The local client that does something for another one before that connects.

    It reads on whatever comes, as the last answer stands behind that. It acknowledges nothing: a
    message that comes is sent again to the next connection.

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


class SessionEraser(asyncio.Protocol):
    """A connection to the cloud that ends the session there, and does no more.

    Args:
        settings: of the uplink.
        loop: running.
        clears_state: the client does not come again: the cloud is to retain no state of it.

    Attributes:
        answered: done when the cloud's broker has accepted it.
    """

    def __init__(
        self,
        settings: RelaySettings,
        loop: asyncio.AbstractEventLoop,
        *,
        clears_state: bool = False,
    ) -> None:
        self.answered: asyncio.Future[None] = loop.create_future()
        self._settings = settings
        self._clears_state = clears_state
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
            connack = read_connack(first_byte, frame, body_at, self._settings.version)
            check_accepted(connack, self._settings)
            may_retain = connack.properties.get("retain_available", 1)
            if self._clears_state and may_retain and self._settings.retains_cloud_state:
                self._transport.write(cloud_state(self._settings, b""))
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
        if not self._transport.is_closing():  # uvloop lets nothing be written then
            self._transport.write(write_packet(Disconnect(), self._settings.version))
            self._transport.close()


async def forget_session(
    settings: RelaySettings,
    transport: asyncio.Transport,
    keys: UpstreamKeys,
    *,
    clears_state: bool = False,
) -> None:
    """End the session in the cloud: the sessions of this site are new, or end.

    Args:
        settings: of the connection.
        transport: of the connection, which ends with it.
        keys: of the cloud's broker.
        clears_state: the cloud is to retain no state of the client.

    Raises:
        UplinkRefusedError: it cannot be ended.
    """
    client = SessionEraser(settings, asyncio.get_running_loop(), clears_state=clears_state)
    if transport.is_closing():
        raise UplinkRefusedError("closed", "the connection was closed")
    transport.set_protocol(client)
    client.connection_made(transport)
    timeout = keys.connack_timeout_seconds
    try:
        async with asyncio.timeout(timeout):
            await client.answered
    except TimeoutError:
        raise UplinkRefusedError("connack", f"no CONNACK in {timeout:g} s") from None
    except PeerError as error:
        raise UplinkRefusedError("protocol", f"not understood: {error}") from error
    finally:
        client.close()
