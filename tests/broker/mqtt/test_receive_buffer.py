from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.errors import MalformedPacketError, PeerError, ProtocolError
from penstock.broker.mqtt.packets import Packet, Publish
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import (
    LARGE_FRAME_BYTES,
    ReceiveBuffer,
    read_remaining_length,
)
from penstock.broker.mqtt.writer import write_packet
from tests.broker.mqtt.strategies import packets
from tests.broker.mqtt.vectors import VECTORS
from tests.helpers.effort import examples
from tests.helpers.frames import frames_of

LARGE = write_packet(Publish("t", bytes(range(256)) * 4096), 4)
"""A PUBLISH of one MiB."""
SMALL = write_packet(Publish("t", b"x"), 4)
MAXIMUM = 2 * 1024 * 1024


def read_all(buffer: ReceiveBuffer, chunk: bytes, version: int) -> list[Packet]:
    """Read the packets that a chunk completes."""
    data = buffer.receive_data(chunk)
    return [read_packet(first_byte, body, version) for first_byte, body in frames_of(buffer, data)]


def chunks_of(data: bytes, size_bytes: int) -> list[bytes]:
    """Cut bytes into chunks."""
    return [data[start : start + size_bytes] for start in range(0, len(data), size_bytes)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("size_bytes", [1, 2, 3, 7, 64, 10_000])
def test_packets_are_the_same_in_chunks_of_any_size(size_bytes: int, version: int) -> None:
    """All vectors in one stream come out, byte by byte and all at once."""
    vectors = [vector for vector in VECTORS if vector.version == version]
    stream = b"".join(vector.frame for vector in vectors)
    buffer = ReceiveBuffer(MAXIMUM)
    found = []
    for chunk in chunks_of(stream, size_bytes):
        found += read_all(buffer, chunk, version)
    assert found == [vector.packet for vector in vectors]
    assert buffer.pending_bytes == 0


@given(st.lists(packets(5), max_size=5), st.data())
@settings(max_examples=examples(50), deadline=None)
def test_packets_are_the_same_wherever_the_stream_is_cut(
    sent: list[Packet], data: st.DataObject
) -> None:
    """Chunks need not end where packets do."""
    stream = b"".join(write_packet(packet, 5) for packet in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    buffer = ReceiveBuffer(MAXIMUM)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += read_all(buffer, stream[start:end], 5)
    assert found == sent


def test_chunk_of_whole_frames_is_not_copied() -> None:
    """With nothing left over, the chunk itself is scanned."""
    buffer = ReceiveBuffer(MAXIMUM)
    chunk = SMALL * 3
    assert buffer.receive_data(chunk) is chunk
    buffer.unread(chunk, len(chunk))
    assert buffer.pending_bytes == 0
    assert buffer.receive_data(chunk) is chunk


def test_rest_is_joined_with_the_next_chunk() -> None:
    """What was given back stands before what comes next."""
    buffer = ReceiveBuffer(MAXIMUM)
    buffer.unread(SMALL + SMALL[:3], len(SMALL))
    assert buffer.pending_bytes == 3
    assert buffer.receive_data(SMALL[3:] + SMALL) == SMALL + SMALL
    assert buffer.pending_bytes == 0


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_frame_cut_in_its_header_goes_on_with_the_next_byte(cut: int) -> None:
    """Before its length is known, a frame is scanned again with each chunk."""
    buffer = ReceiveBuffer(MAXIMUM)
    buffer.unread(LARGE[:cut], 0)
    assert buffer.receive_data(b"") == b""
    assert buffer.pending_bytes == cut
    assert buffer.receive_data(LARGE[cut : cut + 1]) == LARGE[: cut + 1]


@pytest.mark.parametrize("size_bytes", [1000, 65_536])
@pytest.mark.parametrize("payload_bytes", [1024 * 1024, LARGE_FRAME_BYTES])
def test_large_frame_is_handed_out_at_once(payload_bytes: int, size_bytes: int) -> None:
    """Nothing is handed out until the last byte is there, then all of it."""
    frame = write_packet(Publish("t", bytes(range(256)) * (payload_bytes // 256)), 4)
    buffer = ReceiveBuffer(len(frame))
    first, *others, last = chunks_of(frame, size_bytes)
    assert list(frames_of(buffer, buffer.receive_data(first))) == []
    kept = size_bytes
    for chunk in others:
        assert buffer.receive_data(chunk) == b""
        kept += len(chunk)
        assert buffer.pending_bytes == kept
    assert buffer.receive_data(last + SMALL) == frame + SMALL


def test_frame_that_is_put_together_while_it_comes_is_not_copied_at_its_end() -> None:
    """To join 16 MB takes 15 ms, in which nobody is served; the last chunk costs that chunk."""
    frame = write_packet(Publish("t", bytes(2 * LARGE_FRAME_BYTES)), 4)
    first, *others, last = chunks_of(frame, 65_536)
    buffer = ReceiveBuffer(len(frame))
    tracemalloc.start()
    try:
        buffer.unread(first, 0)
        for chunk in others:
            assert buffer.receive_data(chunk) == b""
        data = buffer.receive_data(last)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data == frame
    assert most_bytes < 1.5 * len(frame)
    assert buffer.pending_bytes == 0


def test_memory_for_a_frame_follows_its_bytes_and_not_its_announcement() -> None:
    """Whoever announces 256 MB and sends nothing takes nothing."""
    tracemalloc.start()
    try:
        buffer = ReceiveBuffer(5 + (1 << 28))
        buffer.unread(b"\x30\xff\xff\xff\x7f" + bytes(100_000), 0)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer.missing_bytes > 200_000_000
    assert kept < 300_000


def test_large_frame_that_is_not_taken_leaves_nothing() -> None:
    """What comes next is handed out as it is."""
    frame = write_packet(Publish("t", bytes(2 * LARGE_FRAME_BYTES)), 4)
    buffer = ReceiveBuffer(len(frame))
    buffer.unread(frame[:100_000], 0)
    assert buffer.is_large
    buffer.clear()
    assert not buffer.is_large
    assert buffer.missing_bytes == 0
    assert buffer.receive_data(SMALL) is SMALL


def test_bytes_that_are_missing_are_known_with_the_length() -> None:
    """None while there is nothing, one while the length is not complete, then all to the end."""
    buffer = ReceiveBuffer(MAXIMUM)
    missing = [buffer.missing_bytes]
    for start, stop in ((0, 2), (2, 100), (100, len(LARGE) - 1), (len(LARGE) - 1, len(LARGE))):
        read_all(buffer, LARGE[start:stop], 4)
        missing.append(buffer.missing_bytes)
    assert missing == [0, 1, len(LARGE) - 100, 1, 0]


def test_trickle_of_a_large_frame_costs_its_bytes() -> None:
    """A peer that sends byte by byte makes no object for each byte."""
    buffer = ReceiveBuffer(MAXIMUM)
    buffer.unread(LARGE[:10], 0)
    tracemalloc.start()
    try:
        for position in range(10, 50_010):
            buffer.receive_data(LARGE[position : position + 1])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer.pending_bytes == 50_010
    assert kept < 2 * 50_000
    assert buffer.receive_data(LARGE[50_010:]) == LARGE


def test_small_rest_does_not_keep_a_large_chunk() -> None:
    """The rest is a copy: the chunk it came in can go."""
    released = []

    class Chunk(bytes):
        """Bytes that say when they are released."""

        def __del__(self) -> None:
            released.append(len(self))

    buffer = ReceiveBuffer(MAXIMUM)
    chunk = Chunk(LARGE + SMALL[:3])
    buffer.unread(buffer.receive_data(chunk), len(LARGE))
    del chunk
    assert released == [len(LARGE) + 3]
    assert buffer.receive_data(SMALL[3:]) == SMALL


def test_frame_of_the_largest_size_is_taken() -> None:
    """The limit is on the whole packet, and is itself allowed."""
    buffer = ReceiveBuffer(len(LARGE))
    assert [first for first, _ in frames_of(buffer, buffer.receive_data(LARGE))] == [0x30]
    assert list(frames_of(buffer, buffer.receive_data(LARGE[:10]))) == []
    assert buffer.receive_data(LARGE[10:]) == LARGE


def test_frame_too_large_is_refused_when_it_is_announced() -> None:
    """The header is enough to refuse a packet (3.1.2.11.4)."""
    buffer = ReceiveBuffer(len(LARGE) - 1)
    with pytest.raises(ProtocolError, match=r"allowed: at most 1048582") as refusal:
        list(frames_of(buffer, buffer.receive_data(LARGE[:4])))
    assert refusal.value.reason_code == ReasonCode.PACKET_TOO_LARGE


def test_whole_frame_too_large_is_refused() -> None:
    """The limit holds for frames that came in one chunk, and not for those before."""
    buffer = ReceiveBuffer(len(SMALL))
    frames = frames_of(buffer, SMALL + write_packet(Publish("t", b"xy"), 4))
    assert next(frames) == (0x30, SMALL[2:])
    with pytest.raises(ProtocolError) as refusal:
        next(frames)
    assert refusal.value.reason_code == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize("data", [b"\x30\x80\x80\x80\x80", b"\x30\xff\xff\xff\xff\x7f"])
def test_length_of_five_bytes_is_malformed(data: bytes) -> None:
    """A Remaining Length has four bytes at most (2.1.4)."""
    buffer = ReceiveBuffer(MAXIMUM)
    with pytest.raises(MalformedPacketError):
        list(frames_of(buffer, data))
    with pytest.raises(MalformedPacketError):
        buffer.unread(data, 0)


@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        ("30", (0, 0)),
        ("30 80", (0, 0)),
        ("30 808080", (0, 0)),
        ("30 00", (2, 0)),
        ("30 7f", (2, 127)),
        ("30 8001", (3, 128)),
        ("30 ffffff7f", (5, 268_435_455)),
        ("30 808000", (4, 0)),
    ],
)
def test_remaining_length(digits: str, expected: tuple[int, int]) -> None:
    """One to four bytes of seven bits, the least first; longer forms are taken."""
    assert read_remaining_length(bytes.fromhex(digits), 0) == expected


@given(st.lists(st.binary(max_size=20), max_size=10))
@settings(max_examples=examples(300))
def test_random_bytes_raise_only_errors_of_the_peer(chunks: list[bytes]) -> None:
    """Whatever comes in, only `PeerError` escapes, and no byte is lost before it."""
    buffer = ReceiveBuffer(1000)
    stream = b"".join(chunks)
    position = 0
    try:
        for chunk in chunks:
            for first_byte, body in frames_of(buffer, buffer.receive_data(chunk)):
                assert first_byte == stream[position]
                position, size_bytes = read_remaining_length(stream, position)
                assert body == stream[position : position + size_bytes]
                position += size_bytes
    except PeerError:
        return
    assert position + buffer.pending_bytes == len(stream)
