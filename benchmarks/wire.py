"""The few MQTT 3.1.1 packets that a load needs, built before the clock starts.

Kept apart from the broker's codec on purpose: a load that shared its code could not tell
when both are wrong.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

PUBLISH_QOS0: Final = 0x30
"""First byte of a PUBLISH of QoS 0, neither retained nor a duplicate."""

PUBLISH_QOS1: Final = 0x32
DUPLICATE: Final = 0x08

CONNACK_ACCEPTED: Final = b"\x20\x02\x00\x00"
"""CONNACK, no session present, return code 0."""

HANDSHAKE_TIMEOUT_SECONDS: Final = 30.0


class WireError(Exception):
    """A broker answered something else than the protocol asks for."""


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("!H", len(data)) + data


def _frame(first_byte: int, body: bytes) -> bytes:
    length = len(body)
    size = bytearray()
    while True:
        length, digit = divmod(length, 128)
        size.append(digit | 0x80 if length else digit)
        if not length:
            return bytes([first_byte]) + bytes(size) + body


def connect_packet(client_id: str) -> bytes:
    """Return a CONNECT with Clean Session and no keep-alive."""
    return _frame(0x10, _string("MQTT") + b"\x04\x02\x00\x00" + _string(client_id))


def subscribe_packet(packet_id: int, topic_filter: str, qos: int) -> bytes:
    """Return a SUBSCRIBE of one topic filter."""
    return _frame(0x82, struct.pack("!H", packet_id) + _string(topic_filter) + bytes([qos]))


def publish_packet(topic: str, payload: bytes, packet_id: int | None = None) -> bytes:
    """Return a PUBLISH: of QoS 1 where it has a packet id, else of QoS 0."""
    if packet_id is None:
        return _frame(PUBLISH_QOS0, _string(topic) + payload)
    return _frame(PUBLISH_QOS1, _string(topic) + struct.pack("!H", packet_id) + payload)


def receive_exactly(sock: socket.socket, size_bytes: int) -> bytes:
    """Return the next `size_bytes` bytes of a blocking socket.

    Raises:
        WireError: the peer closed the connection first.
        TimeoutError: they did not come within the socket's timeout.
    """
    data = bytearray()
    while len(data) < size_bytes:
        chunk = sock.recv(size_bytes - len(data))
        if not chunk:
            raise WireError(f"connection closed after {len(data)} of {size_bytes} bytes")
        data += chunk
    return bytes(data)


def expect(sock: socket.socket, answer: bytes) -> None:
    """Read one answer and compare it.

    Raises:
        WireError: the answer is another.
    """
    read = receive_exactly(sock, len(answer))
    if read != answer:
        raise WireError(f"read {read.hex(' ')}; expected {answer.hex(' ')}")


def open_client(
    port: int, client_id: str, *, receive_buffer_bytes: int | None = None
) -> socket.socket:
    """Return a blocking loopback connection on which CONNECT was accepted.

    Args:
        port: where the broker listens.
        client_id: Client Identifier.
        receive_buffer_bytes: SO_RCVBUF, set before the connection so that the window never
            grows past it; None for the system's own.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(HANDSHAKE_TIMEOUT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    try:
        sock.connect(("127.0.0.1", port))
        sock.sendall(connect_packet(client_id))
        expect(sock, CONNACK_ACCEPTED)
    except BaseException:
        sock.close()
        raise
    return sock


def subscribe(sock: socket.socket, topic_filter: str, qos: int) -> None:
    """Subscribe and wait for the SUBACK that grants `qos`."""
    sock.sendall(subscribe_packet(1, topic_filter, qos))
    expect(sock, bytes([0x90, 3, 0, 1, qos]))
