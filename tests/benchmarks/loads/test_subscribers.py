from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.loads import wire
from benchmarks.loads.access import Access
from benchmarks.loads.stream import CHUNK_BYTES, TOPIC_FILTER, Shape, Traffic
from benchmarks.loads.subscribers import Subscriber, receive_run
from tests.helpers.process import SECONDS

EXPECTATION = Traffic(Shape(least_bytes=8, most_bytes=12, topics=3)).expectations[0]
STREAM = EXPECTATION.stream
BLOCK = STREAM.block


def packets(start: int, stop: int) -> bytes:
    """Return some packets of the stream."""
    return BLOCK[STREAM.size_of(start) : STREAM.size_of(stop)]


@contextmanager
def subscribed_to(*chunks: bytes, is_waiting: bool = True) -> Iterator[Subscriber]:
    """Yield a subscriber of a broker that sends these chunks and then stays silent.

    Args:
        chunks: as they are written.
        is_waiting: they are in the socket when the block begins, so that silence is what follows.
    """
    has_sent = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                wire.receive_exactly(sock, len(wire.connect_packet("bench-subscriber-0")))
                sock.sendall(wire.CONNACK_ACCEPTED)
                wire.receive_exactly(sock, len(wire.subscribe_packet(1, TOPIC_FILTER, 0)))
                sock.sendall(bytes([0x90, 3, 0, 1, 0]))
                for chunk in chunks:
                    sock.sendall(chunk)
                has_sent.set()
                sock.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        subscriber = Subscriber(Access(server.getsockname()[1]), 0, EXPECTATION)
        try:
            if is_waiting:
                assert has_sent.wait(SECONDS)
            yield subscriber
        finally:
            subscriber.sock.close()
            thread.join()


def test_packets_are_counted_across_chunks() -> None:
    """A packet that comes in pieces counts once, also where the block begins anew."""
    messages = STREAM.packets_in(len(BLOCK)) + 100
    sent = (BLOCK * 2)[: STREAM.size_of(messages)]
    assert len(sent) > 2 * CHUNK_BYTES
    with subscribed_to(sent[:7], sent[7:500], sent[500:], is_waiting=False) as subscriber:
        subscriber.expect(len(sent))
        assert receive_run([subscriber]).packets == messages


def test_what_does_not_come_is_missing_from_the_count() -> None:
    """A run ends in silence too, with the packets that came."""
    with subscribed_to(packets(0, 7)) as subscriber:
        subscriber.expect(STREAM.size_of(10))
        assert receive_run([subscriber], idle_seconds=0.05).packets == 7


def test_packets_after_a_gap_are_counted_by_their_mean_length() -> None:
    """Losses in the middle are told as losses, not as a foreign stream."""
    with subscribed_to(packets(0, 300), packets(400, 1000)) as subscriber:
        subscriber.expect(STREAM.size_of(1000))
        assert receive_run([subscriber], idle_seconds=0.05).packets == pytest.approx(900, abs=30)


@pytest.mark.parametrize(
    "strange",
    [
        packets(0, 3),
        packets(1, 2) + packets(0, 1),
        packets(0, 2)[:-1] + bytes([packets(0, 2)[-1] ^ 1]),
    ],
    ids=["one packet too many", "wrong order", "changed payload"],
)
def test_other_bytes_than_the_published_are_an_error(strange: bytes) -> None:
    """A stream that is not the published packets, in order, is no result."""
    with subscribed_to(strange) as subscriber:
        subscriber.expect(STREAM.size_of(2))
        with pytest.raises(wire.WireError, match="something else"):
            receive_run([subscriber], idle_seconds=0.05)
