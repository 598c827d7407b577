"""Cuts what one connection receives into packets, and orders the packets that it sends.

The payload of a PUBLISH passes piece by piece. It is never collected, and is not copied where a
whole chunk of received bytes belongs to it. What stands before the payload, and any other packet,
is collected until it is whole. So a message may have any length, and what is collected is limited.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.receive_buffer import packet_too_large, read_remaining_length

_PUBLISH: Final = 3

Buffer = bytes | bytearray | memoryview


class PacketReceiver(Protocol):
    """Handles the packets of a stream."""

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Handle a packet other than PUBLISH: all its bytes, and where its body begins."""

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Handle what stands before a payload; `properties` are encoded, with their length."""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Handle a piece of it; with the last one, which may be empty, `bytes_left` is 0."""


class PacketStream:
    """Cuts the bytes that one connection receives into packets.

    Attributes:
        maximum_packet_size: bytes of the largest packet that may come; for a PUBLISH, of what
            stands before its payload.
        is_paused: whether no packet is handled. What was received waits for `go_on`.
    """

    def __init__(self, receiver: PacketReceiver, version: int, maximum_packet_size: int) -> None:
        self.version = version
        self.maximum_packet_size = maximum_packet_size
        self._receiver = receiver
        self._tail = b""
        self._needed_bytes = 0
        self._payload_bytes = 0
        self.is_paused = False

    @property
    def is_in_payload(self) -> bool:
        """Whether the payload of a PUBLISH has begun and is not whole."""
        return self._payload_bytes > 0

    def receive_data(self, data: Buffer) -> None:
        """Handle received bytes.

        Raises:
            PeerError: they are not MQTT, or a packet is too large.
        """
        if self._payload_bytes:
            piece = data if len(data) <= self._payload_bytes else data[: self._payload_bytes]
            self._payload_bytes -= len(piece)
            self._receiver.payload(piece, self._payload_bytes)
            data = data[len(piece) :]
        if not data:
            return
        whole = self._tail + data if self._tail else bytes(data)
        if len(whole) < self._needed_bytes or self.is_paused:
            self._tail = whole
            return
        self._tail = b""
        self._needed_bytes = 0
        self._cut(whole)

    def go_on(self) -> None:
        """Handle packets again, beginning with those that have waited."""
        self.is_paused = False
        tail, self._tail = self._tail, b""
        if len(tail) >= max(1, self._needed_bytes):
            self._needed_bytes = 0
            self._cut(tail)
        else:
            self._tail = tail

    def _cut(self, data: bytes) -> None:
        position, end = 0, len(data)
        while position < end and not self.is_paused:
            body_at, body_bytes = read_remaining_length(data, position)
            if not body_at:
                break
            stop = body_at + body_bytes
            first_byte = data[position]
            if first_byte >> 4 != _PUBLISH:
                self._check_size(stop - position)
                if stop > end:
                    self._needed_bytes = stop - position
                    break
                self._receiver.packet(first_byte, data[position:stop], body_at - position)
                position = stop
                continue
            payload_at = self._find_payload(data, first_byte, body_at, stop)
            if payload_at > end:
                self._check_size(payload_at - position)
                self._needed_bytes = payload_at - position
                break
            self._begin_publish(data, first_byte, body_at, stop)
            position = min(stop, end)
        self._tail = data[position:]

    def _check_size(self, n_bytes: int) -> None:
        """Check how many bytes would be collected."""
        if n_bytes > self.maximum_packet_size:
            raise packet_too_large(n_bytes, self.maximum_packet_size)

    def _find_payload(self, data: bytes, first_byte: int, start: int, stop: int) -> int:
        """Return where the payload begins, or how far the bytes must reach to find out."""
        end = len(data)
        if stop <= end:
            return stop  # the packet is whole: this is far enough
        if start + 2 > end:
            return start + 2
        position = start + 2 + (data[start] << 8 | data[start + 1]) + (2 if first_byte & 6 else 0)
        if self.version != MQTT_5:
            return min(position, stop)
        if position >= end:
            return min(position + 1, stop)
        n_length = next(
            (n for n in range(4) if position + n < end and data[position + n] < 0x80), 4
        )
        if n_length == 4:
            if position + 4 <= end:
                raise MalformedPacketError("PUBLISH: property length goes on after byte 4")
            return min(end + 1, stop)
        n_bytes, payload_at = read_variable_byte_integer(data, position)
        return min(payload_at + n_bytes, stop)

    def _begin_publish(self, data: bytes, first_byte: int, start: int, stop: int) -> None:
        topic_end, packet_id, properties_at, payload_at = read_publish_head(
            data, first_byte, start, stop, self.version
        )
        receiver = self._receiver
        receiver.publish(
            first_byte,
            data[start + 2 : topic_end],
            packet_id,
            data[properties_at:payload_at],
            stop - payload_at,
        )
        piece = data[payload_at:stop]
        self._payload_bytes = stop - payload_at - len(piece)
        receiver.payload(piece, self._payload_bytes)


class PacketWriter:
    """Orders what is to be sent on one connection: no packet comes between the pieces of another.

    Attributes:
        out: the bytes to send, in their order.
    """

    __slots__ = ("_behind", "_bytes_left", "out")

    def __init__(self) -> None:
        self.out: list[Buffer] = []
        self._behind: list[bytes] = []
        self._bytes_left = 0

    @property
    def is_in_payload(self) -> bool:
        """Whether a PUBLISH has begun, and the rest of its payload has still to come."""
        return self._bytes_left > 0

    def send(self, frame: bytes) -> None:
        """Send a whole packet, behind a PUBLISH that has begun."""
        if frame:
            (self._behind if self._bytes_left else self.out).append(frame)

    def begin(self, header: bytes, payload_bytes: int) -> None:
        """Begin a PUBLISH; `piece` follows."""
        self.out.append(header)
        self._bytes_left = payload_bytes

    def piece(self, data: Buffer, bytes_left: int) -> None:
        """Send a piece of its payload."""
        if data:
            self.out.append(data)
        self._bytes_left = bytes_left
        if not bytes_left and self._behind:
            self.out += self._behind
            self._behind.clear()

    def take(self) -> list[Buffer]:
        """Return and clear what is to be sent now."""
        out, self.out = self.out, []
        return out
