from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.errors import MalformedPacketError, PeerError, ProtocolError
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import (
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.sidecar.client_stream import ClientStream
from tests.helpers.proxied_clients import packets_in

MAX_BYTES = 268_435_460
HELD = 99
"""Packet ids from here on are refused by the streams of these tests."""

ACKNOWLEDGEMENTS = st.builds(
    lambda kind, packet_id, code, text: kind(
        packet_id, code, {"reason_string": text} if text else {}
    ),
    st.sampled_from([PubAck, PubRec]),
    st.integers(1, 200),
    st.sampled_from([0, 0x87]),
    st.sampled_from(["", "no", "x" * 200]),
)
OTHERS: st.SearchStrategy[Packet] = st.one_of(
    st.builds(lambda size: Publish("t", b"p" * size), st.integers(0, 300)),
    st.builds(PubRel, st.integers(1, 200)),
    st.builds(PubComp, st.integers(1, 200)),
    st.just(PingReq()),
    st.just(Subscribe(1, (SubscriptionRequest("a/#", 1),))),
    st.just(Disconnect()),
)
PACKETS = st.lists(ACKNOWLEDGEMENTS | OTHERS, max_size=8)


class Stream:
    """A stream of which the test keeps what was asked and passed on."""

    def __init__(self, version: int = 5, maximum_packet_size: int = MAX_BYTES) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.n_pings = 0
        self.out: list[bytes] = []
        self.stream = ClientStream(
            version, maximum_packet_size, self._may_pass, self._take_run, self._pinged
        )

    def _may_pass(self, packet_type: int, packet_id: int, reason_code: int) -> bool:
        self.asked.append((packet_type, packet_id, reason_code))
        return packet_id < HELD

    def _take_run(self, data: bytes, position: int) -> int:
        """Take PUBACK packets of success, one after the other."""
        while len(data) - position >= 4 and data[position : position + 2] == b"\x40\x02":
            packet_id = int.from_bytes(data[position + 2 : position + 4])
            if packet_id >= HELD or packet_id % 3 == 0:
                break
            self.asked.append((0x4, packet_id, 0))
            position += 4
        return position

    def _pinged(self) -> None:
        self.n_pings += 1

    def receive(self, *chunks: bytes) -> bytes:
        """Receive chunks; return all that was passed on so far."""
        for chunk in chunks:
            self.stream.receive_data(chunk, self.out)
        return b"".join(self.out)


def is_held(packet: Packet) -> bool:
    """Say whether the streams of these tests refuse a packet."""
    return isinstance(packet, PubAck | PubRec | PubComp) and packet.packet_id >= HELD


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at some places."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(PACKETS, st.lists(st.integers(0, 5000), max_size=12))
def test_bytes_pass_untouched_but_for_refused_acknowledgements(
    packets: list[Packet], cuts: list[int]
) -> None:
    """However the bytes are cut into chunks, each frame is passed on or left out as a whole."""
    frames = [write_packet(packet, 5) for packet in packets]
    stream = Stream()
    passed = stream.receive(*cut(b"".join(frames), cuts))
    kept = [f for f, packet in zip(frames, packets, strict=True) if not is_held(packet)]
    assert passed == b"".join(kept)
    assert stream.asked == [
        (packet.packet_type, packet.packet_id, packet.reason_code)
        for packet in packets
        if isinstance(packet, PubAck | PubRec | PubComp)
    ]
    assert stream.n_pings == packets.count(PingReq())


@given(PACKETS, st.lists(st.integers(0, 5000), max_size=12), st.integers(0, 12))
def test_a_packet_is_inserted_between_two_frames(
    packets: list[Packet], cuts: list[int], after: int
) -> None:
    """The proxy's own packet never splits one of the client's, and goes as soon as it can."""
    own = write_packet(PubAck(7, 0x83), 5)
    stream = Stream()
    chunks = cut(b"".join(write_packet(packet, 5) for packet in packets), cuts)
    stream.receive(*chunks[:after])
    if frame := stream.stream.insert(own):
        stream.out.append(frame)
    passed = packets_in(stream.receive(*chunks[after:]), 5)
    kept = [packet for packet in packets if not is_held(packet)]
    assert PubAck(7, 0x83) in passed
    passed.remove(PubAck(7, 0x83))
    assert passed == kept


def test_a_long_frame_is_passed_on_as_it_comes() -> None:
    """Nothing of a large PUBLISH is kept: what has come goes on at once."""
    frame = write_packet(Publish("t", b"x" * 100_000), 5)
    stream = Stream()
    assert stream.receive(frame[:50_000]) == frame[:50_000]
    assert stream.receive(frame[50_000:99_999]) == frame[:99_999]


def test_what_stands_before_a_malformed_packet_is_passed_on() -> None:
    """Only the packet that breaks the rules does not reach the broker."""
    good = write_packet(Publish("t", b"x"), 5)
    stream = Stream()
    with pytest.raises(MalformedPacketError):
        stream.receive(good + b"\x36\x02ab")
    assert b"".join(stream.out) == good


@pytest.mark.parametrize(
    ("data", "version", "error", "text"),
    [
        (b"\x40\x01\x00", 5, MalformedPacketError, "PUBACK of 1 bytes; allowed: 2 or more"),
        (b"\x70\x03\x00\x01\x00", 4, MalformedPacketError, "PUBCOMP of 3 bytes; allowed: 2"),
        (b"\xc0\xff\xff\xff\xff", 5, MalformedPacketError, "remaining length"),
        (b"\x20\x02\x00\x00", 5, ProtocolError, "CONNACK from the client"),
        (b"\x10", 5, ProtocolError, "a second CONNECT"),
        (b"\x00", 4, MalformedPacketError, "read 0x00"),
        (b"\x30\xe8\x07", 4, ProtocolError, "packet of 1003 bytes; allowed: at most 1000"),
    ],
)
def test_what_breaks_the_format_is_named(
    data: bytes, version: int, error: type[PeerError], text: str
) -> None:
    """The first bytes are enough: nothing is collected to find the fault."""
    with pytest.raises(error, match=text):
        Stream(version, maximum_packet_size=1000).receive(data)


def test_the_error_of_a_large_packet_has_its_reason_code() -> None:
    """The client is told that its packet is too large."""
    with pytest.raises(ProtocolError) as caught:
        Stream(maximum_packet_size=1000).receive(b"\x30\xe8\x07")
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE


def test_an_acknowledgement_of_mqtt_3_1_is_seen_whatever_its_flags() -> None:
    """They mean nothing there."""
    stream = Stream(version=3)
    assert stream.receive(b"\x4f\2\0\1\x8a\6\0\1\0\1a\0") == b"\x4f\2\0\1\x8a\6\0\1\0\1a\0"
    assert stream.asked == [(PacketType.PUBACK, 1, 0)]
