"""Short connections that an uplink makes before or after those that stay.

Two of them go to the site's broker: they let a session keep messages from now on, or clear state
topics. The third goes to the cloud's broker and ends the session there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from typing import Final, cast

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.extensions import LocalClients
from penstock.broker.message import SizeClass
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.packets import Disconnect, Publish, Unsubscribe
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.local_client import LocalClient, LostError
from penstock.edge_proxy.uplink.connecting import (
    RelaySettings,
    UplinkRefusedError,
    check_accepted,
    cloud_state,
    connect_cloud,
    read_connack,
    record_of_state,
    subscribe_up,
)
from penstock.edge_proxy.uplink.packet_stream import Buffer, PacketStream

PREPARE_SECONDS: Final = 30.0
"""How long the site's own broker may take for a short connection; it waits for its disk."""


async def prepare_session(
    clients: LocalClients,
    client_id: str,
    filters: Mapping[str, int],
    known: Sequence[str],
    sizes: SizeClass | None = None,
    *,
    with_retained: Container[str] = (),
) -> None:
    """Give a session the subscriptions that it is to have, so that it keeps messages from now on.

    Args:
        clients: connects local clients.
        client_id: Client Identifier of the session.
        filters: topic filter to QoS.
        known: topic filters that the session has; those that are not in `filters` are removed.
        sizes: size class of the messages; None for both.
        with_retained: filters whose retained messages are sent to the session now. The client that
            connects later asks for those of the others itself.

    Raises:
        PenstockError: the broker does not let it.
    """
    without = [name for name in filters if name not in with_retained]
    gone = tuple(name for name in known if name not in filters)
    packets = [subscribe_up(filters, sizes, without_retained=without)]
    if gone:
        packets.append(write_packet(Unsubscribe(2, gone), MQTT_5))
    await _exchange(clients, client_id, packets, "subscribe")


async def forget_states(clients: LocalClients, client_id: str, topics: Sequence[str]) -> None:
    """Clear what a client has retained in topics that are not its state topics any more.

    Args:
        clients: connects local clients.
        client_id: Client Identifier; the client is not connected, and has a session after this.
        topics: what `recorded_states` has found in its session. The records are deleted.

    Raises:
        PenstockError: the broker does not let it.
    """
    there = [topic for topic in topics if clients.retained(topic, client_id)]
    packets = [write_packet(Publish(topic, b"", retain=True), MQTT_5) for topic in there]
    packets.append(write_packet(Unsubscribe(1, tuple(map(record_of_state, topics))), MQTT_5))
    await _exchange(clients, client_id, packets, f"clear {', '.join(topics)}")


async def _exchange(
    clients: LocalClients, client_id: str, packets: Sequence[bytes], what: str
) -> None:
    """Connect a local client, and wait until the broker has handled some packets."""
    client = LocalClient(client_id, receive_maximum=1)
    try:
        async with asyncio.timeout(PREPARE_SECONDS):
            await client.connect(clients)
            client.transport.writelines(packets)
            await client.ping()
    except (TimeoutError, LostError) as error:
        told = str(error) or f"no answer in {PREPARE_SECONDS:g} s"
        raise PenstockError(
            f"client {client_id}: the broker does not let it {what}: {told}"
        ) from error
    client.transport.close()


class SessionEraser(asyncio.Protocol):
    """A connection to the cloud's broker that ends the session there and does nothing else.

    Attributes:
        answered: a future that is done when the cloud's broker has accepted the connection.
    """

    def __init__(self, settings: RelaySettings, *, clears_state: bool) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
        """Handle CONNACK, and clear the state in the cloud where that is wanted."""
        if self.answered.done():
            return
        connack = read_connack(first_byte, frame, body_at, self._settings.version)
        check_accepted(connack, self._settings)
        may_retain = connack.properties.get("retain_available", 1)
        if self._clears_state and may_retain and self._settings.retains_cloud_state:
            self._transport.write(cloud_state(self._settings, b""))
        self.answered.set_result(None)

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Ignore a message: there is no subscription."""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Ignore its payload."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless the connection was accepted."""
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
    timeout_seconds: float,
    *,
    clears_state: bool = False,
) -> None:
    """End the session in the cloud: the sessions of this site are new, or end.

    Args:
        settings: the settings of the connection.
        transport: a new connection to the cloud's broker. It is closed.
        timeout_seconds: how long the broker may take for its CONNACK.
        clears_state: whether the client does not come again, so that the cloud is to retain no
            state of it.

    Raises:
        UplinkRefusedError: it cannot be ended.
    """
    if transport.is_closing():
        raise UplinkRefusedError("closed", "the connection was closed")
    client = SessionEraser(settings, clears_state=clears_state)
    transport.set_protocol(client)
    client.connection_made(transport)
    try:
        async with asyncio.timeout(timeout_seconds):
            await client.answered
    except TimeoutError:
        raise UplinkRefusedError("connack", f"no CONNACK in {timeout_seconds:g} s") from None
    except PeerError as error:
        raise UplinkRefusedError("protocol", f"not understood: {error}") from error
    finally:
        client.close()
