"""The frames in a `ReceiveBuffer`, cut as the connection cuts them."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.mqtt.receive_buffer import (
    ReceiveBuffer,
    packet_too_large,
    read_remaining_length,
)


def frames_of(buffer: ReceiveBuffer, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (first byte, body) of each whole frame, then let the buffer keep the rest.

    The generator must be run to its end: the rest is kept only then.

    Args:
        buffer: the buffer that received it.
        data: the newest result of its `receive_data`.
    """
    position = 0
    size = len(data)
    while position < size:
        body_start, body_bytes = read_remaining_length(data, position)
        end = body_start + body_bytes
        if not body_start or end > size:
            break
        if end - position > buffer._maximum_packet_size:
            raise packet_too_large(end - position, buffer._maximum_packet_size)
        yield data[position], data[body_start:end]
        position = end
    buffer.unread(data, position)
