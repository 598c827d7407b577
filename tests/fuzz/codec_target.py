"""Any bytes in any chunks: the codec raises PeerError and nothing else.

An input is one byte (protocol version, size of the chunks) and then what is received.
"""

from __future__ import annotations

from penstock.broker.errors import PeerError
from penstock.broker.mqtt.reader import answer_version, read_packet
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.frames import frames_of

MAXIMUM_PACKET_SIZE = 4096


def run(data: bytes) -> None:
    """Read what an input says, and write what was read."""
    if not data:
        return
    version = 3 + data[0] % 3
    step = data[0] // 3 or 65_536
    received = data[1:]
    whole = frames(received, len(received) or 1)
    assert frames(received, step) == whole, "chunks make a difference"
    for first_byte, body in whole:
        answer_version(body)
        try:
            packet = read_packet(first_byte, body, version)
        except PeerError as error:
            assert error.reason_code >= 0x80  # noqa: PT017 (of the error, not that it comes)
            continue
        written = write_packet(packet, version)
        ((again_first, again_body),) = frames(written, len(written))
        again = read_packet(again_first, again_body, version)
        assert again == packet, f"{packet} was written as {again}"


def frames(received: bytes, step: int) -> list[tuple[int, bytes]]:
    """Cut what is received in chunks into frames, up to one that no peer may send."""
    buffer = ReceiveBuffer(MAXIMUM_PACKET_SIZE)
    found: list[tuple[int, bytes]] = []
    try:
        for start in range(0, len(received), step):
            data = buffer.receive_data(received[start : start + step])
            for frame in frames_of(buffer, data) if data else ():
                found.append(frame)  # noqa: PERF402 (what came before an error counts)
    except PeerError as error:
        assert error.reason_code >= 0x80  # noqa: PT017 (of the error, not that it comes)
    return found
