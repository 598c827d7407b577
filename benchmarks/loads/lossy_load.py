"""Publisher and subscriber of `benchmarks.lossy_links`, as processes on their hosts."""

from __future__ import annotations

import contextlib
import heapq
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.loads.wire import (
    PUBACK,
    PUBLISH,
    PUBLISH_QOS1,
    WireError,
    acknowledgement,
    connect_packet,
    publish_packet,
    read_connack,
    read_publish,
    receive_packet,
    subscribe,
)

PORT: Final = 1883
START_SECONDS: Final = 30.0
HEAD: Final = struct.Struct("!Id")
"""At the beginning of each payload: its number, and the monotonic second it was due."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Messages of one kind.

    Attributes:
        name: in the results.
        topic: Topic Name.
        payload_bytes: length of each.
        period_seconds: between two.
        first_seconds: after the beginning; so that kinds do not fall together.
        goes_on: whether it goes on for a while after the end of a run.
    """

    name: str
    topic: str
    payload_bytes: int
    period_seconds: float
    first_seconds: float
    goes_on: bool = False

    def count(self, seconds: float, longer_seconds: float) -> int:
        """Return how many are due in a run, and in the seconds for which some go on after it."""
        seconds += longer_seconds * self.goes_on - self.first_seconds
        return max(0, int(seconds / self.period_seconds) + 1)


# Without messages after the end of a run, what is held then would wait until no news of its link is
# recent.
SMALL: Final = Stream("small", "alarms/1", 100, 0.5, 0.1, goes_on=True)
LARGE: Final = Stream("large", "pictures/1", 1_000_000, 5.0, 0.35)
STREAMS: Final = {stream.name: stream for stream in (SMALL, LARGE)}
BY_TOPIC: Final = {stream.topic: stream for stream in STREAMS.values()}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message at the subscriber.

    Attributes:
        stream: its kind.
        number: in its kind, from 0.
        due_at: monotonic seconds at which it was to be published.
        arrived_at: monotonic seconds at which its last byte was read, the first time.
    """

    stream: str
    number: int
    due_at: float
    arrived_at: float

    @property
    def latency_seconds(self) -> float:
        """From the time at which it was due to the last byte."""
        return self.arrived_at - self.due_at


def read_arrivals(file: Path) -> list[Arrival]:
    """Return what a subscriber has written."""
    arrivals = []
    for line in file.read_text().splitlines():
        stream, number, due_at, arrived_at = line.split()
        arrivals.append(Arrival(stream, int(number), float(due_at), float(arrived_at)))
    return arrivals


RECONNECT_SECONDS: Final = 1.0
"""What stock clients wait before they connect again, at the least."""


def _dial(address: str) -> socket.socket:
    """Connect as soon as the broker listens."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection((address, PORT), START_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _connect(address: str, client_id: str, *, is_clean: bool = True) -> socket.socket:
    sock = _dial(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(connect_packet(client_id, is_clean=is_clean))
    read_connack(sock)
    sock.settimeout(None)
    return sock


def _connect_again(address: str, client_id: str) -> socket.socket:
    """Come back to a session, however often it takes."""
    while True:
        time.sleep(RECONNECT_SECONDS)
        with contextlib.suppress(OSError, WireError):
            return _connect(address, client_id, is_clean=False)


def record(address: str, file: str, expected: int) -> None:
    """Subscribe, say so, and write down each message until all have come.

    The session outlives its connection: a broker may close that, and is connected to again.

    Args:
        address: of the broker.
        file: a line for each message.
        expected: how many there are.
    """
    client_id = "subscriber"
    sock = _connect(address, client_id, is_clean=False)
    subscribe(sock, list(BY_TOPIC), 1)
    print("ready", flush=True)
    seen: set[tuple[str, int]] = set()
    with Path(file).open("w", buffering=1) as lines:
        while len(seen) < expected:
            try:
                arrival = _receive(sock)
            except (OSError, WireError):
                sock.close()
                sock = _connect_again(address, client_id)
                continue
            if arrival is not None and (arrival.stream, arrival.number) not in seen:
                seen.add((arrival.stream, arrival.number))
                due_at, arrived_at = arrival.due_at, arrival.arrived_at
                lines.write(f"{arrival.stream} {arrival.number} {due_at!r} {arrived_at!r}\n")
    sock.close()


def _receive(sock: socket.socket) -> Arrival | None:
    """Return the next message, acknowledged; None for a packet that is none.

    Raises:
        OSError: the connection has failed.
        WireError: the broker has closed it.
    """
    packet = receive_packet(sock)
    if packet[0] & 0xF0 != PUBLISH:
        return None
    arrived_at = time.monotonic()
    # Of a large one, the head alone is looked at.
    publish = read_publish(packet[:200])
    number, due_at = HEAD.unpack_from(packet, publish.payload_at)
    at = publish.packet_id_at
    sock.sendall(acknowledgement(PUBACK, int.from_bytes(packet[at : at + 2], "big")))
    return Arrival(BY_TOPIC[publish.topic].name, number, due_at, arrived_at)


def _due(
    stream: Stream, begin_at: float, seconds: float, longer_seconds: float
) -> Iterator[tuple[float, int, str]]:
    for number in range(stream.count(seconds, longer_seconds)):
        yield begin_at + stream.first_seconds + number * stream.period_seconds, number, stream.name


def publish(begin_at: float, seconds: float, longer_seconds: float) -> None:
    """Publish each message when it is due, each kind on a connection of its own.

    Args:
        begin_at: monotonic seconds of the beginning.
        seconds: of the run.
        longer_seconds: for which small messages go on after it.
    """
    socks = {name: _connect("127.0.0.1", f"publisher of {name}") for name in STREAMS}
    rest = {name: os.urandom(each.payload_bytes - HEAD.size) for name, each in STREAMS.items()}
    plans = [_due(stream, begin_at, seconds, longer_seconds) for stream in STREAMS.values()]
    unacknowledged = 0
    for due_at, number, name in heapq.merge(*plans):
        time.sleep(max(0.0, due_at - time.monotonic()))
        payload = HEAD.pack(number, due_at) + rest[name]
        packet = publish_packet(STREAMS[name].topic, payload, number % 65_535 + 1)
        socks[name].sendall(packet)
        unacknowledged += packet[0] == PUBLISH_QOS1
        # Before the next one is due, the broker has had time to say that it has this one.
        if receive_packet(socks[name])[0] == PUBACK:
            unacknowledged -= 1
    print(unacknowledged, flush=True)
    for sock in socks.values():
        sock.close()


def main(argv: list[str]) -> None:
    """Be one of the two."""
    match argv:
        case ["record", address, file, expected]:
            record(address, file, int(expected))
        case ["publish", *times]:
            publish(*map(float, times))
        case _:
            raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
