"""Cases that keep a broker busy, and the lateness of clients that have no part in them.

A pair sends a message every 15 ms on a topic of its own, on a schedule
(`benchmarks.loads.paced`). Beside it stands a case: something that one client, or a few, may do
within the limits of the example policy.

`retained_all_5`: 100,000 messages are retained, and five clients subscribe to all of them by ``#``,
which matches the pair's topic too.
`sessions_end`: 100,000 sessions without a connection, with a subscription each, expire within the
same second. They are made in some minutes, of which the pair sees nothing.
`slow_logger`: a client subscribes to ``#`` and reads 2 MB/s, another floods a topic.
`properties_allowed_50`: PUBLISH that is all User Properties, as many as allowed, to 50 readers.
`overlapping_*`: 8,192 filters with wildcards, of one client or of many, match each PUBLISH.
`subscribe`, `strings`, `levels`, `large`: one packet each, as expensive as allowed.

A case of one packet sends it again whenever the broker has answered for the last one, and not more
often than twice a second: each time some of the pair's messages meet it.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Final

from benchmarks.loads import wire
from benchmarks.loads.paced import Schedule
from benchmarks.loads.stream import Shape
from benchmarks.peers import PEERS, RunningPeer, running
from benchmarks.rows.latency import Lateness, Pacing, flooded_subscriber

INTERVAL_SECONDS: Final = 0.015

RETAINED_MESSAGES: Final = 100_000
RETAINED_BYTES: Final = 100
RETAINED_OF_A_LEVEL: Final = 1_000
RETAINED_READERS: Final = 5

SESSIONS: Final = 100_000
SESSION_SECONDS: Final = 0.003
"""So long it may take to make one; all expire after this time for each."""

LOGGER_BYTES: Final = 20_000
LOGGER_SECONDS: Final = 0.01
FLOOD: Final = Shape(64, 1_000)
FLOOD_MESSAGES: Final = 1 << 40

USER_PROPERTY: Final = b"\x26\x00\x00\x00\x00"
USER_PROPERTIES: Final = 250
READERS: Final = 50

OVERLAPPING_LEVELS: Final = 13
MANY_CLIENTS: Final = 64
FILTERS_OF_A_PACKET: Final = 512

PACKET_BYTES: Final = 1_000_000
MOST_FILTERS: Final = 10_000
STRING_BYTES: Final = 65_500
"""The size of a string of which two fit into 128 KiB."""

LARGE_BYTES: Final = 16_000_000
PAUSE_SECONDS: Final = 0.5

Case = Callable[[RunningPeer], AbstractContextManager[None]]
"""A context in which a broker is kept busy."""


@contextmanager
def reading(socks: Sequence[socket.socket]) -> Iterator[None]:
    """Read whatever comes for some clients, and throw it away."""
    ours, theirs = socket.socketpair()

    def read() -> None:
        poll = select.epoll()
        by_number = {sock.fileno(): sock for sock in socks}
        for number in (*by_number, ours.fileno()):
            poll.register(number, select.EPOLLIN)
        buffer = bytearray(1 << 18)
        while True:
            for number, _ in poll.poll():
                if number == ours.fileno():
                    poll.close()
                    return
                with suppress(OSError):
                    if not by_number[number].recv_into(buffer):
                        poll.unregister(number)

    thread = threading.Thread(target=read, name="readers")
    thread.start()
    try:
        yield
    finally:
        theirs.close()
        thread.join()
        ours.close()


@contextmanager
def _clients(
    peer: RunningPeer, names: Sequence[str], version: int
) -> Iterator[list[socket.socket]]:
    """Connect clients; those of MQTT 5 one after the other."""
    with ExitStack() as stack:
        socks = []
        for name in names:
            sock = stack.enter_context(wire.open_connection(peer.port))
            sock.sendall(wire.connect_packet(name, version=version))
            wire.read_connack(sock, version=version)
            socks.append(sock)
        yield socks


@contextmanager
def sending(sock: socket.socket, packets: Iterator[bytes], *, is_answered: bool) -> Iterator[None]:
    """Send one packet after the other, each when the broker has done with the last one.

    Args:
        sock: the socket of a client that receives nothing else.
        packets: the packets to send.
        is_answered: whether the broker answers the packet; otherwise a PINGREQ follows it.
    """
    stop = threading.Event()
    ping = b"" if is_answered else b"\xc0\x00"

    def send() -> None:
        with suppress(OSError, wire.WireError):
            sock.settimeout(60)
            for packet in packets:
                sock.sendall(packet + ping)
                wire.receive_packet(sock)
                if stop.wait(PAUSE_SECONDS):
                    return

    thread = threading.Thread(target=send, name="sender")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def retained(peer: RunningPeer) -> Iterator[None]:
    """Retain messages; clients that read at once subscribe to all of them."""
    with wire.open_client(peer.port, "retainer") as sock:
        retain = wire.PUBLISH | 1
        for start in range(0, RETAINED_MESSAGES, RETAINED_OF_A_LEVEL):
            packets = [
                wire.publish_packet(f"r/{start}/{number}", bytes(RETAINED_BYTES))
                for number in range(RETAINED_OF_A_LEVEL)
            ]
            sock.sendall(b"".join(bytes((retain,)) + packet[1:] for packet in packets))
        sock.sendall(b"\xc0\x00")
        wire.expect(sock, b"\xd0\x00")
    names = [f"reader-{number}" for number in range(RETAINED_READERS)]
    with _clients(peer, names, 4) as socks, reading(socks):
        for sock in socks:
            sock.sendall(wire.subscribe_packet(1, "#", 0))
        yield


@contextmanager
def sessions_end(peer: RunningPeer) -> Iterator[None]:
    """Leave sessions behind that expire together, shortly after the beginning."""
    end = time.monotonic() + SESSIONS * SESSION_SECONDS + 2
    for start in range(0, SESSIONS, wire.CONNECTS_AT_A_TIME):
        with ExitStack() as stack:
            socks = []
            for number in range(start, min(start + wire.CONNECTS_AT_A_TIME, SESSIONS)):
                seconds = max(1, int(end - time.monotonic()))
                connect = wire.connect_packet(f"away-{number}", version=5, expiry_seconds=seconds)
                subscribe = wire.subscribe_packet(1, f"site/{number}/command", 1, version=5)
                socks.append(stack.enter_context(wire.open_connection(peer.port)))
                socks[-1].sendall(connect + subscribe + wire.DISCONNECT)
            for sock in socks:
                while sock.recv(1 << 12):
                    pass
    time.sleep(max(0.0, end - time.monotonic() - 1))
    yield


def slow_logger(peer: RunningPeer) -> AbstractContextManager[None]:
    """Subscribe to `#` and read 2 MB/s, while another client floods."""
    return flooded_subscriber(
        peer, FLOOD, "#", chunk_bytes=LOGGER_BYTES, chunk_seconds=LOGGER_SECONDS
    )


@contextmanager
def _published(
    peer: RunningPeer, packets: Iterator[bytes], *, readers: int, topic_filter: str
) -> Iterator[None]:
    """Publish packets of MQTT 5 to readers."""
    names = [f"reader-{number}" for number in range(readers)]
    with _clients(peer, [*names, "big"], 5) as (*socks, sender):
        for sock in socks:
            wire.subscribe(sock, topic_filter, 0, version=5)
        with reading(socks), sending(sender, packets, is_answered=False):
            yield


@contextmanager
def user_properties(peer: RunningPeer) -> Iterator[None]:
    """Publish messages that are all User Properties, as many as a message may have."""
    packet = wire.publish_packet("big", b"", properties=USER_PROPERTY * USER_PROPERTIES)
    with _published(peer, itertools.repeat(packet), readers=READERS, topic_filter="big"):
        yield


@contextmanager
def strings(peer: RunningPeer) -> Iterator[None]:
    """Publish a message of a User Property that is as long as may be."""
    text = "\u00e9" * (STRING_BYTES // 2)
    value = len(text.encode()).to_bytes(2) + text.encode()
    packet = wire.publish_packet("big", b"", properties=b"\x26" + value + value)
    with _published(peer, itertools.repeat(packet), readers=READERS, topic_filter="big"):
        yield


@contextmanager
def large(peer: RunningPeer) -> Iterator[None]:
    """Publish a message of 16 MB."""
    packet = wire.publish_packet("big", bytes(LARGE_BYTES), properties=b"")
    with _published(peer, itertools.repeat(packet), readers=1, topic_filter="big"):
        yield


def overlapping_filters() -> list[str]:
    """Return 8,192 filters that all match whatever is below one topic."""
    levels = itertools.product("a+", repeat=OVERLAPPING_LEVELS)
    return ["/".join((*each, "#")) for each in levels]


@contextmanager
def overlapping(peer: RunningPeer, *, clients: int, is_for_each: bool = False) -> Iterator[None]:
    """Publish to topics that 8,192 filters match.

    Args:
        peer: a broker.
        clients: the number of clients that share the filters.
        is_for_each: whether every client has all filters.
    """
    filters = overlapping_filters()
    names = [f"reader-{number}" for number in range(clients)]
    below = "/".join("a" * OVERLAPPING_LEVELS)
    with _clients(peer, [*names, "big"], 5) as (*socks, sender):
        for number, sock in enumerate(socks):
            own = filters if is_for_each else filters[number::clients]
            for start in range(0, len(own), FILTERS_OF_A_PACKET):
                some = own[start : start + FILTERS_OF_A_PACKET]
                sock.sendall(wire.subscribe_packet(1, some, 0, version=5))
                wire.receive_packet(sock)
        packets = (
            wire.publish_packet(f"{below}/{number}", b"x", properties=b"")
            for number in itertools.count()
        )
        with reading(socks), sending(sender, packets, is_answered=False):
            yield


def _longest_filters(levels: int) -> list[str]:
    """Return as many filters of 1 MB as one client may have."""
    size = PACKET_BYTES // MOST_FILTERS - 3
    rest = "/".join("+" * levels)
    return [f"{number:05d}/{rest}".ljust(size, "x")[:size] for number in range(MOST_FILTERS)]


@contextmanager
def subscribe(peer: RunningPeer, *, levels: int) -> Iterator[None]:
    """Subscribe to 10,000 filters in one packet, unsubscribe from all in one, and again."""
    filters = _longest_filters(levels)
    packets = itertools.cycle(
        (
            wire.subscribe_packet(1, filters, 0, version=5),
            wire.frame(0xA2, b"\x00\x02\x00" + wire.unsubscribe_packet(2, filters)[6:]),
        )
    )
    with _clients(peer, ["big"], 5) as (sock,), sending(sock, packets, is_answered=True):
        yield


@contextmanager
def long_filters(peer: RunningPeer) -> Iterator[None]:
    """Subscribe to filters that are as long as may be, in a packet of 1 MB."""
    filters = [f"{n:02d}".ljust(STRING_BYTES, "x") for n in range(PACKET_BYTES // STRING_BYTES)]
    packet = wire.subscribe_packet(1, filters, 0, version=5)
    with (
        _clients(peer, ["big"], 5) as (sock,),
        sending(sock, itertools.repeat(packet), is_answered=True),
    ):
        yield


@contextmanager
def levels(peer: RunningPeer) -> Iterator[None]:
    """Publish to a topic of 128 levels that filters with two wildcards match, 8,128 if granted."""
    depth = 128
    filters = []
    for first, second in itertools.combinations(range(depth), 2):
        each = ["a"] * depth
        each[first] = each[second] = "+"
        filters.append("/".join(each))
    with _clients(peer, ["reader", "big"], 5) as (reader, sender):
        for start in range(0, len(filters), FILTERS_OF_A_PACKET):
            packet = wire.subscribe_packet(
                1, filters[start : start + FILTERS_OF_A_PACKET], 0, version=5
            )
            reader.sendall(packet)
            wire.receive_packet(reader)
        last = "/".join(["a"] * (depth - 1))
        packets = (
            wire.publish_packet(f"{last}/{'ab'[number % 2]}", b"x", properties=b"")
            for number in itertools.count()
        )
        with reading([reader]), sending(sender, packets, is_answered=False):
            yield


CASES: Final[dict[str, Case]] = {
    "retained_all_5": retained,
    "sessions_end": sessions_end,
    "slow_logger": slow_logger,
    "properties_allowed_50": user_properties,
    "strings": strings,
    "overlapping_1": partial(overlapping, clients=1),
    "overlapping_64": partial(overlapping, clients=MANY_CLIENTS),
    "overlapping_8_each": partial(overlapping, clients=8, is_for_each=True),
    "subscribe": partial(subscribe, levels=1),
    "subscribe_levels": partial(subscribe, levels=45),
    "long_filters": long_filters,
    "levels": levels,
    "large": large,
}


def measure(peer_name: str, case: str, seconds: float) -> Lateness:
    """Start a broker, and measure how late a pair's messages are beside a case.

    Args:
        peer_name: a name in `benchmarks.peers.PEERS`.
        case: a name in `CASES`.
        seconds: the time for which the pair sends.

    Raises:
        BenchmarkError: the broker or a side ended.
        WireError: a broker's answer is none that the case can go on with.
    """
    schedule = Schedule(1, INTERVAL_SECONDS, seconds)
    with running(PEERS[peer_name]) as peer, Pacing(peer.port, schedule) as pacing:
        pacing.run()
        with CASES[case](peer):
            return pacing.run()
