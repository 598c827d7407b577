"""aMQTT's view of packets and messages, which is decoded on first use."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from amqtt.adapters import BufferReader
from amqtt.broker import RetainedApplicationMessage
from amqtt.mqtt import packet_dict
from amqtt.mqtt.packet import MQTTFixedHeader, MQTTPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import INCOMING, IncomingApplicationMessage
from amqtt.session import Session as AmqttSession

from penstock.broker.amqtt_host.handlers import run_now
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import PacketType, ProtocolVersion
from penstock.broker.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.writer import write_packet


class HostedMessage(IncomingApplicationMessage):
    """A message as a plugin gets it, in place of aMQTT's incoming message."""

    __slots__ = ("_data", "_message", "_packet")

    def __init__(self, message: Message) -> None:  # pylint: disable=super-init-not-called
        self._message = message
        self._data: bytes | None = None
        self._packet: PublishPacket | None = None
        self.packet_id = None
        self.topic = message.topic
        self.qos = message.qos
        self.retain = message.retain
        self.direction = INCOMING
        self.puback_packet = self.pubrec_packet = None
        self.pubrel_packet = self.pubcomp_packet = None

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The payload, read from its store once."""
        if self._data is None:
            self._data = self._message.read_payload()
        return self._data

    @property
    def publish_packet(self) -> PublishPacket:  # type: ignore[override]
        """The message as aMQTT's PUBLISH, without a packet identifier."""
        if self._packet is None:
            self._packet = self.build_publish_packet()
        return self._packet


def retained_view(message: Message, source: AmqttSession | None) -> RetainedApplicationMessage:
    """Return a retained message, or one that clears it, as aMQTT's plugins know it."""
    return RetainedApplicationMessage(source, message.topic, message.read_payload(), message.qos)


_LARGEST: Final = tuple(n_bytes + 128**n_bytes for n_bytes in (1, 2, 3))
"""The sizes in bytes of the largest packets whose remaining length takes 1, 2 and 3 bytes."""


class LazyPacket:
    """A base that precedes one of aMQTT's packet classes and defers its encoding and decoding.

    The size is known from the frame; aMQTT's classes decode the rest on first use. aMQTT knows MQTT
    3.1.1 only: a packet of MQTT 5 shows what 3.1.1 has of it, or only its fixed header where it has
    no counterpart.
    """

    _amqtt_class: type[Any]

    def __init__(self, first_byte: int, size_bytes: int, frame: bytes, version: int) -> None:
        n_bytes = 1 + bisect_left(_LARGEST, size_bytes)
        self.fixed_header = MQTTFixedHeader(
            first_byte >> 4, first_byte & 0x0F, size_bytes - 1 - n_bytes
        )
        self.protocol_ts = datetime.now(UTC)
        self._size_bytes = size_bytes
        self._frame = frame
        self._body_from = 1 + n_bytes
        self._version = version
        self._decoded: MQTTPacket[Any, Any, Any] | None = None

    @property
    def bytes_length(self) -> int:
        """Length of the whole packet as it was on the wire."""
        return self._size_bytes

    @property
    def variable_header(self) -> Any:
        """The variable header as aMQTT has it, decoded on first use."""
        return self._parts().variable_header

    @property
    def payload(self) -> Any:
        """The payload as aMQTT has it, decoded on first use."""
        return self._parts().payload

    def _parts(self) -> MQTTPacket[Any, Any, Any]:
        if self._decoded is None:
            try:
                self._decoded = self._decode()
            except Exception:  # noqa: BLE001 (a peer's packet, or one that 3.1.1 does not have)
                self._decoded = MQTTPacket(self.fixed_header)
        return self._decoded

    def _decode(self) -> MQTTPacket[Any, Any, Any]:
        frame = self._frame
        first_byte = frame[0]
        if self._version == ProtocolVersion.MQTT_5 or first_byte >> 4 == PacketType.CONNECT:
            packet = read_packet(first_byte, frame[self._body_from :], self._version)
            frame = write_packet(_as_mqtt_3_1_1(packet), ProtocolVersion.MQTT_3_1_1)
        coroutine = self._amqtt_class.from_stream(BufferReader(frame))
        decoded: MQTTPacket[Any, Any, Any] = run_now(coroutine)
        return decoded


def _as_mqtt_3_1_1(packet: Packet) -> Packet:
    """Return the packet without what `write_packet` would refuse to write for MQTT 3.1.1."""
    if isinstance(packet, Connect):
        password = None if packet.username is None else packet.password
        version = int(ProtocolVersion.MQTT_3_1_1)
        return replace(packet, protocol_version=version, password=password)
    if isinstance(packet, Subscribe):
        asked = packet.subscriptions
        plain = tuple(SubscriptionRequest(each.topic_filter, each.qos) for each in asked)
        return replace(packet, subscriptions=plain)
    if isinstance(packet, PubAck | PubRec | PubRel | PubComp | Disconnect):
        return replace(packet, reason_code=0)
    return packet


def _lazy_class(amqtt_class: type[Any]) -> type[LazyPacket]:
    """Return a class that is a `LazyPacket` and an instance of aMQTT's class."""
    bases = (LazyPacket, amqtt_class)
    return type(amqtt_class.__name__, bases, {"_amqtt_class": amqtt_class})


_LAZY_CLASSES: Final = {
    packet_type: _lazy_class(amqtt_class) for packet_type, amqtt_class in packet_dict.items()
}
# aMQTT has no class for AUTH.
_LAZY_AUTH: Final = _lazy_class(MQTTPacket)


def packet_view(
    first_byte: int, size_bytes: int, chunks: tuple[bytes | memoryview, ...], version: int | None
) -> LazyPacket:
    """Return a packet as aMQTT's plugins know it.

    Args:
        first_byte: packet type and flags.
        size_bytes: the length of the whole packet in bytes.
        chunks: the packet; copied where they may change later.
        version: the client's protocol version; None where there is no session yet.
    """
    frame = chunks[0] if len(chunks) == 1 and isinstance(chunks[0], bytes) else b"".join(chunks)
    if version is None:
        # Only CONNACK is sent that early; in MQTT 5 it has properties.
        version = 5 if size_bytes > 4 else 4
    lazy_class = _LAZY_CLASSES.get(first_byte >> 4, _LAZY_AUTH)
    return lazy_class(first_byte, size_bytes, frame, version)
