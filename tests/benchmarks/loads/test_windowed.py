from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchmarks.loads import windowed, wire
from benchmarks.loads.access import Access
from benchmarks.loads.windowed import Subscriber, WindowedPlan

PLAN = WindowedPlan(pairs=1, window=4, payload_bytes=10, qos=1)
PAYLOADS = [bytes([i]) * 10 for i in range(8)]


def published(position: int, packet_id: int) -> bytes:
    """Return the message at a position of the block, as a broker sends it."""
    return PLAN.packet(0, PAYLOADS[position % len(PAYLOADS)], packet_id)


@contextmanager
def subscribed_to(serve: Callable[[socket.socket], None]) -> Iterator[Subscriber]:
    """Yield a subscriber that waits for the first message, and let a broker serve it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def broker() -> None:
            sock, _ = server.accept()
            with sock:
                wire.receive_packet(sock)
                sock.sendall(wire.CONNACK_ACCEPTED)
                wire.receive_packet(sock)
                sock.sendall(bytes([wire.SUBACK, 3, 0, 1, 1]))
                serve(sock)
                sock.recv(1)

        thread = threading.Thread(target=broker)
        thread.start()
        subscriber = Subscriber(Access(server.getsockname()[1]), PLAN, 0)
        try:
            sent = published(0, 1)
            subscriber.learn(sent, sent, PLAN, PAYLOADS)
            subscriber.begin(10, 1)
            yield subscriber
        finally:
            subscriber.sock.close()
            thread.join()


def read_all(subscriber: Subscriber) -> None:
    """Read until the run is complete."""
    while subscriber.remaining:
        subscriber.read()


def test_packets_in_pieces_are_acknowledged_once_with_the_brokers_identifiers() -> None:
    """The broker chooses Packet Identifiers and where chunks end; each message has one PUBACK."""
    stream = b"".join(published(i, 500 + 3 * i) for i in range(10))
    answers: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(stream), 37):
            sock.sendall(stream[at : at + 37])
        answers.append(wire.receive_exactly(sock, 40))

    with subscribed_to(serve) as subscriber:
        read_all(subscriber)
        assert subscriber.received == 10
    expected = [wire.acknowledgement(wire.PUBACK, 500 + 3 * i) for i in range(10)]
    assert answers == [b"".join(expected)]


@pytest.mark.parametrize(
    ("packets", "told"),
    [
        ([published(0, 1), published(2, 2)], "message 1 is not the one"),
        ([published(0, 1), published(0, 2)], "message 1 is not the one"),
        ([published(0, 1), b"\xd0\x00" + bytes(60)], "a subscriber read d0 00"),
    ],
    ids=["loss", "duplicate", "another packet"],
)
def test_a_gap_or_a_duplicate_is_an_error(packets: list[bytes], told: str) -> None:
    """A stream that is not the published messages, each once and in order, is no result."""
    with (
        subscribed_to(lambda sock: sock.sendall(b"".join(packets))) as subscriber,
        pytest.raises(wire.WireError, match=told),
    ):
        read_all(subscriber)


def test_properties_may_come_in_another_order_and_not_with_other_values() -> None:
    """What a broker may choose is learned from its first message; the rest is compared."""
    plan = WindowedPlan(1, 4, 10, qos=1, version=5, properties=wire.five_properties())
    sent = plan.packet(0, PAYLOADS[0], 1)
    first, second = b"\x03\x00\x01a", b"\x26\x00\x01b\x00\x01c"
    turned = [
        wire.publish_packet("t", PAYLOADS[0], 1, properties=each)
        for each in (first + second, second + first, first + first)
    ]
    with subscribed_to(lambda _sock: None) as subscriber:
        assert subscriber.learn(sent, sent, plan, PAYLOADS) == 1
        assert subscriber.learn(turned[1], turned[0], plan, PAYLOADS) == 1
        with pytest.raises(wire.WireError, match="published"):
            subscriber.learn(turned[2], turned[0], plan, PAYLOADS)


def test_after_a_stall_a_side_is_woken_as_seldom_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is less than its low-water mark is read once nothing more comes, and the mark stays."""
    monkeypatch.setattr(windowed, "STALL_SECONDS", 0.001)
    marks = []
    read = Subscriber.read

    def noting_read(subscriber: Subscriber) -> None:
        marks.append(subscriber.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
        # From the first read on, a wait for the rest is no stall.
        monkeypatch.setattr(windowed, "STALL_SECONDS", windowed.IDLE_SECONDS)
        read(subscriber)

    monkeypatch.setattr(Subscriber, "read", noting_read)

    def serve(sock: socket.socket) -> None:
        sock.sendall(published(0, 1))
        wire.receive_exactly(sock, 4)
        sock.sendall(b"".join(published(i, i + 1) for i in range(1, 10)))
        wire.receive_exactly(sock, 36)

    with subscribed_to(serve) as subscriber:
        mark = 4 * subscriber.least_bytes
        subscriber.begin(10, mark)
        windowed.serve([subscriber])
        assert subscriber.received == 10
    assert marks[:2] == [1, mark]
