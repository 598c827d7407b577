"""A client of the edge proxy on a virtual clock, between a client and a broker of the test's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from penstock.broker.extensions import DeliveryGate, LinkSampler, PayloadStore
from penstock.broker.mqtt.packets import ConnAck, Connect, Packet, Publish
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.sidecar.config import ProxyLimits
from penstock.edge_proxy.sidecar.direction import Direction
from penstock.edge_proxy.sidecar.proxied_client import ProxiedClient
from penstock.edge_proxy.sidecar.proxy_state import ProxyState
from tests.helpers.frames import frames_of
from tests.helpers.gates import SwitchGate

UP = Direction.UPSTREAM
DOWN = Direction.DOWNSTREAM

LARGE_BYTES = 100

CONNACK_SECONDS = 30.0
"""The time from a CONNECT to the broker's answer."""


def packets_in(data: bytes, version: int) -> list[Packet]:
    """Return the packets that some bytes hold, all whole."""
    buffer = ReceiveBuffer(268_435_460)
    packets = [read_packet(b, body, version) for b, body in frames_of(buffer, data)]
    assert not buffer.pending_bytes, "the last packet is not whole"
    return packets


class VirtualClient:
    """A proxied client, its driver and its clock, all controlled by the test.

    Attributes:
        now: the present time, virtual monotonic seconds; moved by `advance`.
        client_got: the bytes that were sent to the client.
        broker_got: the bytes that were sent to the broker.
    """

    def __init__(
        self,
        version: int = 5,
        *,
        peer: str = "test:1",
        gate: DeliveryGate | None = None,
        samplers: Sequence[LinkSampler] = (),
        shared: ProxyState | None = None,
        payload_store: PayloadStore | None = None,
        refusal: ReasonCode | None = None,
        **limits: Any,
    ) -> None:
        """Make a proxied client without a CONNECT; `connected` makes one that is ready."""
        self.version = version
        self.now = 1000.0
        self.shared = shared or ProxyState(
            ProxyLimits(**limits),
            logger=logging.getLogger("test.proxy"),
            gate=gate,
            samplers=samplers,
            payload_store=payload_store,
        )
        self.proxied = ProxiedClient(
            self.shared, peer, self.now, refusal=refusal, connack_timeout_seconds=CONNACK_SECONDS
        )
        self.client_got = b""
        self.broker_got = b""

    @classmethod
    def connected(
        cls,
        version: int = 5,
        *,
        connect: dict[str, Any] | None = None,
        connack: dict[str, Any] | None = None,
        **options: Any,
    ) -> VirtualClient:
        """Return a proxied client whose client the broker has accepted.

        Args:
            version: the version of the protocol.
            connect: the properties of the client's CONNECT.
            connack: the properties of the broker's CONNACK.
            options: options of the constructor.
        """
        virtual = cls(version, **options)
        properties = connect or {}
        virtual.client_sends(
            Connect(client_id="c", protocol_version=version, properties=properties)
        )
        virtual.proxied.broker_connected()
        virtual.broker_sends(ConnAck(properties=connack or {}))
        virtual.to_client()
        virtual.to_broker()
        return virtual

    def settle(self) -> None:
        """Pump and take all there is, as the driver does."""
        for _turn in range(1000):
            self.proxied.pump(0, self.now)
            down = b"".join(self.proxied.data_to_send(DOWN))
            up = b"".join(self.proxied.data_to_send(UP))
            self.client_got += down
            self.broker_got += up
            if not down and not up:
                return
        raise AssertionError("the proxied client does not come to rest")

    def client_sends(self, *packets: Packet) -> None:
        """Let the client send packets in one chunk."""
        self.client_sends_bytes(b"".join(write_packet(p, self.version) for p in packets))

    def client_sends_bytes(self, data: bytes) -> None:
        """Let the client send bytes, whatever they are."""
        self.proxied.receive_data(UP, data, self.now)
        self.settle()

    def broker_sends(self, *packets: Packet) -> None:
        """Let the broker send packets in one chunk."""
        self.broker_sends_bytes(b"".join(write_packet(p, self.version) for p in packets))

    def broker_sends_bytes(self, data: bytes) -> None:
        """Let the broker send bytes, whatever they are."""
        self.proxied.receive_data(DOWN, data, self.now)
        self.settle()

    def to_client(self) -> list[Packet]:
        """Take the packets that were sent to the client."""
        data, self.client_got = self.client_got, b""
        return packets_in(data, self.version)

    def to_broker(self) -> list[Packet]:
        """Take the packets that were sent to the broker."""
        data, self.broker_got = self.broker_got, b""
        return packets_in(data, self.version)

    def topics(self) -> list[str]:
        """Take the packets that were sent to the client, PUBLISH all; return their topics."""
        packets = self.to_client()
        assert all(isinstance(packet, Publish) for packet in packets), packets
        return [packet.topic for packet in packets if isinstance(packet, Publish)]

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each deadline on the way."""
        end = self.now + seconds
        while (deadline := self.proxied.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.proxied.handle_timeout(self.now)
            self.settle()
        self.now = end


def publish(topic: str, size: int = 1, packet_id: int = 0, qos: int = 1, **options: Any) -> Publish:
    """Return a PUBLISH; of QoS 0 where it has no packet id."""
    return Publish(topic, b"x" * size, qos=qos if packet_id else 0, packet_id=packet_id, **options)


def withholding(version: int = 5, **options: Any) -> tuple[VirtualClient, SwitchGate]:
    """Return a proxied client whose gate is closed, with one large message of `big` withheld."""
    gate = options.setdefault("gate", SwitchGate())
    proxied = VirtualClient.connected(version, **options)
    proxied.broker_sends(publish("big", 200, packet_id=1))
    assert proxied.topics() == []
    return proxied, gate
