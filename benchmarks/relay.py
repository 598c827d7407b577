"""The load's own ceiling: a stand-in for a broker that looks at nothing.

It answers CONNECT and SUBSCRIBE, then copies every chunk of bytes from the publisher to all
subscribers unread. No broker can be measured faster than this one on the same machine.

Where the publisher acknowledges, packets are told apart, as far as to know their identifiers:
they are forwarded as they are, and every acknowledgement is answered at once.
"""

from __future__ import annotations

import selectors
import socket
import sys
from typing import Final

from benchmarks import wire

BUFFER_BYTES: Final = 1 << 18
CONNECT: Final = 0x10
SUBSCRIBE: Final = 0x82
ANSWER_BYTES: Final = 4
PUBACK_HEAD: Final = bytes([wire.PUBACK, 2])
PUBREC_HEAD: Final = bytes([wire.PUBREC, 2])
PUBREL_HEAD: Final = bytes([wire.PUBREL, 2])
PUBCOMP_HEAD: Final = bytes([wire.PUBCOMP, 2])


def _read_short_packet(sock: socket.socket) -> bytes:
    """Return one whole packet of fewer than 128 bytes behind its fixed header, or b""."""
    header = sock.recv(2, socket.MSG_WAITALL)
    return header + wire.receive_exactly(sock, header[1]) if len(header) == len(b"hl") else b""


def accept_subscribers(server: socket.socket) -> tuple[list[socket.socket], socket.socket]:
    """Accept connections until one sends a PUBLISH.

    Returns:
        The subscribers, and the publisher with its first PUBLISH unread.
    """
    subscribers: list[socket.socket] = []
    while True:
        sock, _ = server.accept()
        if _read_short_packet(sock)[:1] != bytes([CONNECT]):
            sock.close()  # whoever only looked whether the port is open
            continue
        sock.sendall(wire.CONNACK_ACCEPTED)
        if sock.recv(1, socket.MSG_PEEK) != bytes([SUBSCRIBE]):
            return subscribers, sock
        packet = _read_short_packet(sock)
        sock.sendall(bytes([0x90, 3]) + packet[2:4] + packet[-1:])
        subscribers.append(sock)


def acknowledge_publisher(data: bytes, size: int, id_at: int) -> tuple[bytes, bytes, int]:
    """Answer a publisher.

    Args:
        data: whole packets and the beginning of one: PUBLISH, all of one size, and PUBREL.
        size: of a PUBLISH.
        id_at: where its Packet Identifier stands.

    Returns:
        The answers, the PUBLISH packets, and how many bytes were whole.
    """
    answers, forwarded = [], []
    at = 0
    while at < len(data):
        is_release = data[at] == wire.PUBREL
        stop = at + (ANSWER_BYTES if is_release else size)
        if stop > len(data):
            break
        if is_release:
            answers.append(PUBCOMP_HEAD + data[at + 2 : stop])
        else:
            head = PUBACK_HEAD if data[at] == wire.PUBLISH_QOS1 else PUBREC_HEAD
            answers.append(head + data[at + id_at : at + id_at + 2])
            forwarded.append(data[at:stop])
        at = stop
    return b"".join(answers), b"".join(forwarded), at


def acknowledge_subscriber(data: bytes) -> bytes:
    """Return the PUBRELs for the PUBRECs among whole acknowledgements."""
    return b"".join(
        PUBREL_HEAD + data[at + 2 : at + ANSWER_BYTES]
        for at in range(0, len(data), ANSWER_BYTES)
        if data[at] == wire.PUBREC
    )


def relay_acknowledged(publisher: socket.socket, subscriber: socket.socket) -> None:
    """Serve a publisher of QoS 1 or 2 and its subscriber, until one leaves."""
    first = publisher.recv(BUFFER_BYTES, socket.MSG_PEEK)
    form = wire.read_publish(first)
    size = wire.size_of(first)
    rests = {publisher: b"", subscriber: b""}
    with selectors.DefaultSelector() as selector:
        for sock in rests:
            selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                sock = publisher if key.fileobj is publisher else subscriber
                data = sock.recv(BUFFER_BYTES)
                if not data:
                    return
                data = rests[sock] + data
                if sock is publisher:
                    answers, forwarded, whole = acknowledge_publisher(data, size, form.packet_id_at)
                    subscriber.sendall(forwarded)
                else:
                    whole = len(data) // ANSWER_BYTES * ANSWER_BYTES
                    answers = acknowledge_subscriber(data[:whole])
                rests[sock] = data[whole:]
                sock.sendall(answers)


def main() -> None:
    """Serve one publisher and its subscribers, until the publisher leaves."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
        subscribers, publisher = accept_subscribers(server)
        if publisher.recv(1, socket.MSG_PEEK) != bytes([wire.PUBLISH]):
            relay_acknowledged(publisher, subscribers[0])
            return
        while size := publisher.recv_into(buffer):
            for subscriber in subscribers:
                subscriber.sendall(buffer[:size])


if __name__ == "__main__":
    main()
