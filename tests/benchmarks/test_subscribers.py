from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import wire
from benchmarks.subscribers import Subscriber, receive_run

PACKET = wire.publish_packet("t", b"x" * 10)


@contextmanager
def subscribed_to(*chunks: bytes) -> Iterator[Subscriber]:
    """Yield a subscriber of a broker that sends these chunks and then stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                wire.receive_exactly(sock, len(wire.connect_packet("s")))
                sock.sendall(wire.CONNACK_ACCEPTED)
                wire.receive_exactly(sock, len(wire.subscribe_packet(1, "t", 0)))
                sock.sendall(bytes([0x90, 3, 0, 1, 0]))
                for chunk in chunks:
                    sock.sendall(chunk)
                sock.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        subscriber = Subscriber(server.getsockname()[1], "s", "t")
        try:
            yield subscriber
        finally:
            subscriber.sock.close()
            thread.join()


def test_packets_are_counted_across_chunks() -> None:
    """A packet that comes in pieces counts once."""
    stream = PACKET * 100
    with subscribed_to(stream[:7], stream[7:500], stream[500:]) as subscriber:
        subscriber.expect(len(stream))
        assert receive_run([subscriber], len(PACKET)).packets == 100


def test_what_does_not_come_is_missing_from_the_count() -> None:
    """A run ends in silence too, with the packets that came."""
    with subscribed_to(PACKET * 7) as subscriber:
        subscriber.expect(len(PACKET) * 10)
        assert receive_run([subscriber], len(PACKET), idle_seconds=0.05).packets == 7


@pytest.mark.parametrize("strange", [PACKET + b"\xd0\x00" + PACKET, PACKET * 3])
def test_other_bytes_than_the_published_are_an_error(strange: bytes) -> None:
    """A stream that is not the published packets is no result."""
    with subscribed_to(strange) as subscriber:
        subscriber.expect(len(PACKET) * 2)
        with pytest.raises(wire.WireError, match="something else"):
            receive_run([subscriber], len(PACKET), idle_seconds=0.05)
