"""The subscribing side of a load, a process of its own: counts packets on arrival.

Received bytes are compared with the published ones. The kernel is asked to wake the process only
when some packets have arrived (SO_RCVLOWAT): a reader that woke up for each one would take
processor time from the measured broker.
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Final

from benchmarks.loads import wire
from benchmarks.loads.access import Access
from benchmarks.loads.stream import CHUNK_BYTES, Expectation, Shape, Traffic

WAKE_UP_BYTES: Final = 1 << 10
"""SO_RCVLOWAT of the reader. With this value mosquitto delivers most per processor second: with
less, each of its packets wakes the reader; with more, the kernel has to compact what waits."""

TLS_RECORD_BYTES: Final = 1 << 14
"""The most plain text of one TLS record [RFC 8446, 5.1]."""

IDLE_SECONDS: Final = 30.0
"""After a silence of this length, missing messages count as lost."""


class Subscriber:
    """One connection and what it received in this run.

    Attributes:
        received_bytes: the bytes received in this run.
        is_intact: whether the received bytes are those that were published, in order and without a
            gap.
    """

    def __init__(self, access: Access, number: int, expectation: Expectation) -> None:
        self.sock, _ = access.open_subscriber(number)
        wire.subscribe(self.sock, expectation.topic_filters, 0)
        self.sock.setblocking(False)
        self.received_bytes = 0
        self.is_intact = True
        self._stream = expectation.stream
        self._expected_bytes = 0
        self._wake_up_bytes = 1
        # TLS takes bytes out of the kernel that are not yet read here.
        self._is_tls = access.context is not None
        self._near_end_bytes = TLS_RECORD_BYTES if self._is_tls else 0

    def expect(self, size_bytes: int) -> None:
        """Begin a run."""
        self.received_bytes = 0
        self.is_intact = True
        self._expected_bytes = size_bytes
        self._set_wake_up(self._wake_up_for(size_bytes))

    def wake_for_anything(self) -> None:
        """Be woken by a single byte: the run may be at its end."""
        self._set_wake_up(1)

    def receive(self, buffer: bytearray) -> bool:
        """Read the received bytes and compare them.

        Returns:
            Whether all expected bytes have come.

        Raises:
            wire.WireError: the connection was closed, more came than was published, or as much
                and not the same.
        """
        with memoryview(buffer) as view:
            size = self._read(view)
        if not size:
            return False
        if self.is_intact:
            with memoryview(buffer)[:size] as chunk:
                self.is_intact = self._stream.holds(self.received_bytes, chunk)
        self.received_bytes += size
        remaining = self._expected_bytes - self.received_bytes
        if remaining < 0 or not (remaining or self.is_intact):
            raise wire.WireError("something else than the published packets, in order, came")
        if remaining and (wake_up := self._wake_up_for(remaining)) < self._wake_up_bytes:
            self._set_wake_up(wake_up)
        return not remaining

    def _read(self, view: memoryview) -> int:
        """Return how many bytes were read: with TLS of all records that have come."""
        size = 0
        while size < len(view):
            try:
                more = self.sock.recv_into(view[size:])
            except ssl.SSLWantReadError:  # part of a record, or a session ticket
                break
            if not more:
                raise wire.WireError("the broker closed a subscriber's connection")
            size += more
            if not self._is_tls:
                break
        return size

    def _wake_up_for(self, remaining: int) -> int:
        return max(1, min(WAKE_UP_BYTES, remaining - self._near_end_bytes))

    @property
    def is_complete(self) -> bool:
        """Return whether all expected bytes have arrived."""
        return self.received_bytes == self._expected_bytes

    def packets(self) -> int:
        """Return how many packets came; where some are missing, by their mean length."""
        if self.is_intact:
            return self._stream.packets_in(self.received_bytes)
        return int(self.received_bytes / self._stream.mean_packet_bytes)

    def _set_wake_up(self, size_bytes: int) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
        self._wake_up_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The received packets of one run.

    Attributes:
        finished: the time at which the last byte was read, monotonic seconds.
        packets: the number of packets received, over all subscribers.
    """

    finished: float
    packets: int


def receive_run(subscribers: list[Subscriber], *, idle_seconds: float = IDLE_SECONDS) -> Arrivals:
    """Read until all subscribers have what they expect, or nothing comes any more."""
    buffer = bytearray(CHUNK_BYTES)
    finished = time.monotonic()
    is_last_look = False
    with selectors.DefaultSelector() as selector:
        for subscriber in subscribers:
            if subscriber.is_complete:
                continue
            selector.register(subscriber.sock, selectors.EVENT_READ, subscriber)
        while selector.get_map():
            ready = selector.select(idle_seconds)
            if not ready and is_last_look:
                break
            is_last_look = not ready
            if is_last_look:
                for key in selector.get_map().values():
                    key.data.wake_for_anything()
            for key, _ in ready:
                if key.data.receive(buffer):
                    selector.unregister(key.data.sock)
            if ready:
                finished = time.monotonic()
    return Arrivals(finished, sum(subscriber.packets() for subscriber in subscribers))


def main() -> None:
    """Subscribe, then count a run for each line read."""
    access, shape = (json.loads(each) for each in sys.argv[1:3])
    access, traffic = Access(**access), Traffic(Shape(**shape))
    subscribers = [
        Subscriber(access, i, expectation) for i, expectation in enumerate(traffic.expectations)
    ]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        messages = json.loads(line)["messages"]
        expected = 0
        for subscriber, expectation in zip(subscribers, traffic.expectations, strict=True):
            expected += expectation.stream.count_of(messages)
            subscriber.expect(expectation.stream.size_of(messages))
        print(json.dumps({"armed": True}), flush=True)
        cpu_before = time.process_time()
        arrivals = receive_run(subscribers)
        cpu = time.process_time() - cpu_before
        answer = {
            "finished": arrivals.finished,
            "packets": arrivals.packets,
            "expected": expected,
            "cpu": cpu,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
