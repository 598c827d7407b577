"""The subscribing side of a load, a process of its own: counts packets on arrival.

All packets of a run have one size, so a packet is counted by finding the first byte of a
PUBLISH at each multiple of it; anything else in the stream ends the run with an error. The
kernel is asked to wake the process only when 64 KiB have come (SO_RCVLOWAT): a reader that
woke for each small packet would take processor time from the broker it measures.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from typing import Final

from benchmarks import wire

BUFFER_BYTES: Final = 1 << 18
WAKE_UP_BYTES: Final = 1 << 16

IDLE_SECONDS: Final = 10.0
"""Silence after which what has not come counts as lost."""


class Subscriber:
    """One connection and the count of what it received in this run.

    Attributes:
        sock: the connection, subscribed.
        received_bytes: of this run.
    """

    def __init__(self, port: int, name: str, topic: str) -> None:
        self.sock = wire.open_client(port, name)
        wire.subscribe(self.sock, topic, 0)
        self.sock.setblocking(False)
        self.received_bytes = 0
        self._expected_bytes = 0
        self._wake_up_bytes = 1

    def expect(self, size_bytes: int) -> None:
        """Begin a run."""
        self.received_bytes = 0
        self._expected_bytes = size_bytes
        self._set_wake_up(min(WAKE_UP_BYTES, size_bytes))

    def wake_for_anything(self) -> None:
        """Be woken by a single byte: the run may be at its end."""
        self._set_wake_up(1)

    def receive(self, buffer: bytearray, packet_bytes: int) -> bool:
        """Read once and count.

        Returns:
            Whether all expected bytes have come.

        Raises:
            wire.WireError: the connection was closed, or something else than the expected
                packets came.
        """
        size = self.sock.recv_into(buffer)
        if not size:
            raise wire.WireError("the broker closed a subscriber's connection")
        first = -self.received_bytes % packet_bytes
        starts = buffer[first:size:packet_bytes]
        self.received_bytes += size
        remaining = self._expected_bytes - self.received_bytes
        if starts.count(wire.PUBLISH_QOS0) != len(starts) or remaining < 0:
            raise wire.WireError("something else than the published packets came")
        if 0 < remaining < self._wake_up_bytes:
            self._set_wake_up(remaining)
        return not remaining

    def _set_wake_up(self, size_bytes: int) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
        self._wake_up_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came in one run.

    Attributes:
        finished: monotonic seconds at which the last byte was read.
        packets: whole packets received, over all subscribers.
    """

    finished: float
    packets: int


def receive_run(
    subscribers: list[Subscriber], packet_bytes: int, *, idle_seconds: float = IDLE_SECONDS
) -> Arrivals:
    """Read until all subscribers have what they expect, or nothing comes any more."""
    buffer = bytearray(BUFFER_BYTES)
    finished = time.monotonic()
    is_last_look = False
    with selectors.DefaultSelector() as selector:
        for subscriber in subscribers:
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
                if key.data.receive(buffer, packet_bytes):
                    selector.unregister(key.data.sock)
            if ready:
                finished = time.monotonic()
    packets = sum(subscriber.received_bytes // packet_bytes for subscriber in subscribers)
    return Arrivals(finished, packets)


def main() -> None:
    """Subscribe, then count a run for each line read."""
    port, topic, payload_bytes, clients = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5])
    packet_bytes = len(wire.publish_packet(topic, bytes(payload_bytes)))
    subscribers = [Subscriber(port, f"bench-subscriber-{i}", topic) for i in range(clients)]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        for subscriber in subscribers:
            subscriber.expect(json.loads(line)["messages"] * packet_bytes)
        print(json.dumps({"armed": True}), flush=True)
        cpu_before = time.process_time()
        arrivals = receive_run(subscribers, packet_bytes)
        cpu = time.process_time() - cpu_before
        answer = {"finished": arrivals.finished, "packets": arrivals.packets, "cpu": cpu}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
