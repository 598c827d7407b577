"""A stream of packets gives the same packets, however it is cut into chunks."""

from __future__ import annotations

import pytest

from penstock.broker.errors import PeerError
from penstock.broker.mqtt.packets import Packet, PingResp, PubAck, Publish
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.uplink.packet_stream import Buffer, PacketStream


class _Received:
    """What a stream was cut into.

    Attributes:
        packets: frames, and (first byte, topic, packet id, properties, payload) of messages.
        pieces: of payloads, as they came.
    """

    def __init__(self) -> None:
        self.packets: list[object] = []
        self.pieces: list[Buffer] = []
        self._head: tuple[object, ...] = ()
        self._payload = b""

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        assert frame[0] == first_byte
        assert body_at == 2
        self.packets.append(frame)

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        self._head = (first_byte, topic, packet_id, properties)
        self._left = payload_bytes
        self._payload = b""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        self.pieces.append(piece)
        self._payload += piece
        self._left -= len(piece)
        assert self._left == bytes_left
        if not bytes_left:
            self.packets.append((*self._head, self._payload))


def stream(version: int) -> bytes:
    """Return packets of several kinds, one behind the other."""
    properties = {"user_property": [("k" * 100, "v" * 100)]} if version == 5 else {}
    packets: list[Packet] = [
        PubAck(7),
        Publish("a/b", b"x" * 300, qos=1, packet_id=9, properties=properties),
        Publish("a", b"", properties={}),
        PingResp(),
        Publish("longer/topic", b"y", qos=2, packet_id=65_535),
    ]
    return b"".join(write_packet(packet, version) for packet in packets)


def cut(data: bytes, version: int, n_bytes: int) -> list[object]:
    """Return the packets of a stream that comes in chunks of some bytes."""
    received = _Received()
    packets = PacketStream(received, version, 10_000)
    for start in range(0, len(data), n_bytes):
        packets.receive_data(data[start : start + n_bytes])
    assert not packets.is_in_payload
    return received.packets


@pytest.mark.parametrize("version", [4, 5])
def test_packets_are_the_same_in_chunks_of_any_size(version: int) -> None:
    """A byte alone, some at a time, or all at once."""
    data = stream(version)
    whole = cut(data, version, len(data))
    assert len(whole) == 5
    for n_bytes in (1, 2, 3, 7, 100, 250):
        assert cut(data, version, n_bytes) == whole


def test_the_payload_of_a_large_message_is_passed_on_by_reference() -> None:
    """A chunk that is nothing but payload is passed on as it came, before the message is whole."""
    header = write_packet(Publish("a", b"p" * 100_000), 5)[:-100_000]
    chunk = b"p" * 50_000
    received = _Received()
    packets = PacketStream(received, 5, 200_000)
    packets.receive_data(header)
    packets.receive_data(chunk)
    assert received.pieces[-1] is chunk
    assert packets.is_in_payload
    packets.receive_data(memoryview(b"p" * 50_000 + write_packet(PingResp(), 5)))
    assert received.packets[1:] == [write_packet(PingResp(), 5)]
    assert not packets.is_in_payload


@pytest.mark.parametrize(
    "data",
    [
        write_packet(Publish("a" * 200, b""), 5)[:-1],
        write_packet(PubAck(1, 0x80, {"reason_string": "x" * 200}), 5),
        bytes((0x40, 0xFF, 0xFF, 0xFF, 0xFF)),
        bytes((0x36, 5, 0, 1, 97, 0, 1, 0)),
        bytes((0x32, 9, 0, 1, 97, 0, 1, 0x80, 0x80, 0x80, 0x80)),
    ],
    ids=["topic too long", "too large", "endless length", "QoS 3", "endless property length"],
)
def test_what_is_no_packet_is_refused(data: bytes) -> None:
    """So is one above the limit, at its header; but for a payload, which is not collected."""
    with pytest.raises(PeerError):
        PacketStream(_Received(), 5, 100).receive_data(data)


def test_a_stream_that_is_paused_keeps_what_comes_until_it_goes_on() -> None:
    """Between two packets; a payload that has begun passes."""

    class Pausing(_Received):
        def payload(self, piece: Buffer, bytes_left: int) -> None:
            super().payload(piece, bytes_left)
            packets.is_paused = not bytes_left

    received = Pausing()
    packets = PacketStream(received, 5, 10_000)
    data = stream(5)
    for start in range(0, len(data), 7):
        packets.receive_data(data[start : start + 7])
    assert len(received.packets) == 2
    for n_packets in (3, 5, 5):
        packets.go_on()
        assert len(received.packets) == n_packets
