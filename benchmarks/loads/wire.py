"""The few MQTT packets that a load needs, built before the clock starts.

This codec is separate from the broker's on purpose: a load that shared its code could not detect a
mistake in both. Versions are protocol levels: 4 is MQTT 3.1.1, 5 is MQTT 5.0.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

PUBLISH: Final = 0x30
"""The first byte of a PUBLISH of QoS 0, neither retained nor a duplicate; other QoS add qos <<
1."""

PUBLISH_QOS1: Final = 0x32
DUPLICATE: Final = 0x08
RETAIN: Final = 0x01

CONNACK: Final = 0x20
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBACK: Final = 0x90
UNSUBACK: Final = 0xB0

CONNACK_ACCEPTED: Final = b"\x20\x02\x00\x00"
"""A CONNACK of MQTT 3.1.1 with no session present and return code 0."""

DISCONNECT: Final = b"\xe0\x00"

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"

HANDSHAKE_TIMEOUT_SECONDS: Final = 30.0
CONNECTS_AT_A_TIME: Final = 64

RECEIVE_MAXIMUM: Final = 0x21
NEVER_EXPIRES: Final = b"\x05\x11\xff\xff\xff\xff"
"""The properties of a CONNECT of MQTT 5 with a Session Expiry Interval that has no end."""

DEFAULT_RECEIVE_MAXIMUM: Final = 65_535

_ONE_BYTE: Final = frozenset({0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A})
_TWO_BYTES: Final = frozenset({0x13, 0x21, 0x22, 0x23})
_FOUR_BYTES: Final = frozenset({0x02, 0x11, 0x18, 0x27})
_STRINGS: Final = frozenset({0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F})
_STRING_PAIR: Final = 0x26


class WireError(Exception):
    """An error: a broker's answer is not what the protocol requires."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The content of a CONNACK.

    Attributes:
        receive_maximum: the number of unacknowledged messages of QoS 1 and 2 that it accepts; MQTT
            3.1.1 has no limit.
    """

    session_present: bool
    receive_maximum: int


@dataclass(frozen=True, slots=True)
class Publish:
    """A PUBLISH that was read.

    Attributes:
        packet_id_at: the offset of the Packet Identifier; with QoS 0, the offset behind the Topic
            Name.
        properties: the identifier and the encoded value of each property, sorted; empty for MQTT
            3.1.1.
    """

    first_byte: int
    topic: str
    packet_id_at: int
    payload_at: int
    properties: list[tuple[int, bytes]]


def _string(text: str) -> bytes:
    return _binary(text.encode())


def _binary(data: bytes) -> bytes:
    return struct.pack("!H", len(data)) + data


def _variable_integer(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, digit = divmod(value, 128)
        encoded.append(digit | 0x80 if value else digit)
        if not value:
            return bytes(encoded)


def _read_variable_integer(data: bytes, at: int) -> tuple[int, int]:
    """Return the value and the offset behind it."""
    value = shift = 0
    while True:
        digit = data[at]
        at += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
        shift += 7


def frame(first_byte: int, body: bytes) -> bytes:
    """Return a packet."""
    return bytes([first_byte]) + _variable_integer(len(body)) + body


def five_properties() -> bytes:
    """Return five properties of a PUBLISH, encoded, as applications send them."""
    return (
        b"\x03" + _string("application/json") + b"\x08" + _string("bench/answers")
        + b"\x09" + _binary(bytes(range(8)))
        + b"\x26" + _string("source") + _string("bench")
        + b"\x26" + _string("unit") + _string("celsius")
    )  # fmt: skip


def connect_packet(
    client_id: str,
    *,
    version: int = 4,
    is_clean: bool = True,
    keep_alive: int = 0,
    login: tuple[str, str] | None = None,
    will: tuple[str, bytes] | None = None,
    expiry_seconds: int | None = None,
) -> bytes:
    """Return a CONNECT, by default with Clean Session and no keep-alive.

    Args:
        client_id: the Client Identifier.
        version: the protocol level.
        is_clean: whether the session begins and ends with the connection; else it never expires.
        keep_alive: the Keep Alive, seconds.
        login: a user name and a password; None for neither.
        will: the topic and the payload of a will of QoS 0, for MQTT 3.1.1; None for none.
        expiry_seconds: the Session Expiry Interval of MQTT 5; None for what `is_clean` says.
    """
    flags = (2 if is_clean else 0) | (0 if will is None else 4) | (0 if login is None else 0xC0)
    head = _string("MQTT") + bytes([version, flags]) + struct.pack("!H", keep_alive)
    if version == 5:
        lasting = NEVER_EXPIRES
        if expiry_seconds is not None:
            lasting = NEVER_EXPIRES[:2] + expiry_seconds.to_bytes(4, "big")
        head += b"\x00" if is_clean and expiry_seconds is None else lasting
    last = b"" if will is None else _string(will[0]) + _binary(will[1])
    return frame(0x10, head + _string(client_id) + last + b"".join(map(_string, login or ())))


def subscribe_packet(
    packet_id: int, topic_filters: str | Sequence[str], qos: int, *, version: int = 4
) -> bytes:
    """Return a SUBSCRIBE of one or more topic filters."""
    filters = [topic_filters] if isinstance(topic_filters, str) else topic_filters
    head = struct.pack("!H", packet_id) + (b"\x00" if version == 5 else b"")
    return frame(0x82, head + b"".join(_string(each) + bytes([qos]) for each in filters))


def unsubscribe_packet(packet_id: int, topic_filters: Sequence[str]) -> bytes:
    """Return an UNSUBSCRIBE of MQTT 3.1.1."""
    return frame(0xA2, struct.pack("!H", packet_id) + b"".join(map(_string, topic_filters)))


def publish_packet(
    topic: str,
    payload: bytes,
    packet_id: int | None = None,
    *,
    qos: int = 1,
    properties: bytes | None = None,
    is_retained: bool = False,
) -> bytes:
    """Return a PUBLISH packet; it has QoS `qos` if it has a Packet Identifier, else QoS 0.

    Args:
        topic: the Topic Name.
        payload: the payload, of any length.
        packet_id: the Packet Identifier; None for QoS 0.
        qos: the QoS, 1 or 2.
        properties: the encoded properties, for MQTT 5; None for MQTT 3.1.1.
        is_retained: whether the broker is to keep it.
    """
    first_byte, head = PUBLISH | (RETAIN if is_retained else 0), _string(topic)
    if packet_id is not None:
        first_byte |= qos << 1
        head += struct.pack("!H", packet_id)
    if properties is not None:
        head += _variable_integer(len(properties)) + properties
    return frame(first_byte, head + payload)


def acknowledgement(first_byte: int, packet_id: int) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP of either version that reports success."""
    return struct.pack("!BBH", first_byte, 2, packet_id)


def read_properties(data: bytes, at: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return the properties at an offset, each with its encoded value, and the offset behind."""
    size, at = _read_variable_integer(data, at)
    end = at + size
    properties = []
    while at < end:
        kind = data[at]
        at += 1
        if kind in _ONE_BYTE:
            size = 1
        elif kind in _TWO_BYTES:
            size = 2
        elif kind in _FOUR_BYTES:
            size = 4
        elif kind in _STRINGS:
            size = 2 + int.from_bytes(data[at : at + 2], "big")
        elif kind == _STRING_PAIR:
            size = 2 + int.from_bytes(data[at : at + 2], "big")
            size += 2 + int.from_bytes(data[at + size : at + size + 2], "big")
        else:
            raise WireError(f"read the property {kind:#x}; this load does not know it")
        properties.append((kind, data[at : at + size]))
        at += size
    return sorted(properties), end


def read_publish(packet: bytes, *, version: int = 4) -> Publish:
    """Return where the parts of a PUBLISH stand.

    Raises:
        WireError: it is another packet.
    """
    if packet[0] & 0xF0 != PUBLISH:
        raise WireError(f"read {packet[:16].hex(' ')}; expected a PUBLISH")
    _, at = _read_variable_integer(packet, 1)
    topic_end = at + 2 + int.from_bytes(packet[at : at + 2], "big")
    topic = packet[at + 2 : topic_end].decode()
    at = topic_end + 2 if packet[0] & 0x06 else topic_end
    properties: list[tuple[int, bytes]] = []
    if version == 5:
        properties, at = read_properties(packet, at)
    return Publish(packet[0], topic, topic_end, at, properties)


def body_at(packet: bytes) -> int:
    """Return where the variable header of a packet begins."""
    return _read_variable_integer(packet, 1)[1]


def size_of(packet: bytes) -> int:
    """Return the length of the packet that begins here."""
    size, at = _read_variable_integer(packet, 1)
    return at + size


def whole_packets(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the packets that are there in full, and what is left of the data."""
    packets = []
    at = 0
    with suppress(IndexError):  # the length itself is not there in full
        while True:
            size, body = _read_variable_integer(data, at + 1)
            end = body + size
            if end > len(data):
                break
            packets.append(data[at:end])
            at = end
    return packets, data[at:]


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


def receive_packet(sock: socket.socket) -> bytes:
    """Return the next whole packet of a blocking socket.

    Raises:
        WireError: the peer closed the connection first.
        TimeoutError: it did not come within the socket's timeout.
    """
    head = receive_exactly(sock, 2)
    while head[-1] >= 0x80:
        head += receive_exactly(sock, 1)
    size, _ = _read_variable_integer(head, 1)
    return head + receive_exactly(sock, size)


def expect(sock: socket.socket, answer: bytes) -> None:
    """Read one answer and compare it.

    Raises:
        WireError: the answer is another.
    """
    read = receive_exactly(sock, len(answer))
    if read != answer:
        raise WireError(f"read {read.hex(' ')}; expected {answer.hex(' ')}")


def read_connack(sock: socket.socket, *, version: int = 4) -> Accepted:
    """Read the answer to a CONNECT.

    Raises:
        WireError: it is another packet, or the connection was refused.
    """
    packet = receive_packet(sock)
    if packet[0] != CONNACK or packet[3] != 0:
        raise WireError(f"read {packet[:16].hex(' ')}; expected a CONNACK that accepts")
    receive_maximum = DEFAULT_RECEIVE_MAXIMUM
    if version == 5:
        for kind, value in read_properties(packet, 4)[0]:
            if kind == RECEIVE_MAXIMUM:
                receive_maximum = int.from_bytes(value, "big")
    return Accepted(bool(packet[2] & 1), receive_maximum)


def open_connection(
    port: int, *, receive_buffer_bytes: int | None = None, context: ssl.SSLContext | None = None
) -> socket.socket:
    """Return a blocking loopback connection on which nothing was sent yet.

    Args:
        port: the TCP port of the broker.
        receive_buffer_bytes: SO_RCVBUF, set before the connection so that the window never
            grows past it; None for the system's own.
        context: the TLS context; None without TLS.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(HANDSHAKE_TIMEOUT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    try:
        sock.connect(("127.0.0.1", port))
        return sock if context is None else context.wrap_socket(sock, server_hostname="localhost")
    except BaseException:
        sock.close()
        raise


def open_client(
    port: int,
    client_id: str,
    *,
    version: int = 4,
    is_clean: bool = True,
    receive_buffer_bytes: int | None = None,
    context: ssl.SSLContext | None = None,
) -> socket.socket:
    """Return a blocking loopback connection on which a CONNECT was accepted."""
    sock = open_connection(port, receive_buffer_bytes=receive_buffer_bytes, context=context)
    try:
        sock.sendall(connect_packet(client_id, version=version, is_clean=is_clean))
        read_connack(sock, version=version)
    except BaseException:
        sock.close()
        raise
    return sock


def open_clients(
    port: int, client_ids: Sequence[str], *, keep_alive: int = 0
) -> list[socket.socket]:
    """Return a connection for each client, opened some at a time, so that many take little longer.

    Args:
        port: the TCP port of the broker.
        client_ids: the Client Identifiers, one for each connection.
        keep_alive: the Keep Alive, seconds; the caller must end before it is over.
    """
    clients: list[socket.socket] = []
    for start in range(0, len(client_ids), CONNECTS_AT_A_TIME):
        batch = []
        for client_id in client_ids[start : start + CONNECTS_AT_A_TIME]:
            batch.append(open_connection(port))
            batch[-1].sendall(connect_packet(client_id, keep_alive=keep_alive))
        for sock in batch:
            read_connack(sock)
        clients += batch
    return clients


def subscribe(
    sock: socket.socket, topic_filters: str | Sequence[str], qos: int, *, version: int = 4
) -> None:
    """Subscribe and wait for the SUBACK that grants `qos` to each filter."""
    count = 1 if isinstance(topic_filters, str) else len(topic_filters)
    sock.sendall(subscribe_packet(1, topic_filters, qos, version=version))
    packet = receive_packet(sock)
    if packet[0] != SUBACK or packet[-count:] != bytes([qos]) * count:
        raise WireError(f"read {packet[:16].hex(' ')}; expected a SUBACK that grants QoS {qos}")
