"""Messages on a schedule, and how late each one is: a process that sends and one that reads.

Each client sends a QoS 0 message every so often, at times that are fixed before the first is
sent. A message counts as late from the time when it was due, not from when it could be sent,
so that a broker that stops reading is charged with all that waits meanwhile (coordinated
omission). Both sides build the same schedule and share the system-wide monotonic clock.

The sender sleeps until shortly before each message is due and then watches the clock, because
a sleeping process wakes tens of microseconds late. How late it was is told beside the result. Both
sides have the processor before other processes where the user may set that (SCHED_FIFO, as root):
they measure the broker, not what else wants the two cores, and sleep nearly all of the time.
"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from benchmarks.loads import wire

TOPIC: Final = "bench/paced"
PAYLOAD_BYTES: Final = 64
SEQUENCE_BYTES: Final = 8
BUFFER_BYTES: Final = 1 << 16
WATCHED_SECONDS: Final = 0.0002
"""The sender sleeps until this long before a message is due, then watches the clock: where a core
is free, no sleep ends this late."""

IDLE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of the clients' messages.

    Attributes:
        interval_seconds: the time between two messages of a client.
        seconds: the time from the first message to the last one.
    """

    clients: int
    interval_seconds: float
    seconds: float

    def times(self) -> list[tuple[float, int]]:
        """Return each message's due time from the start, and its client, in order of time.

        Clients are out of step with each other at random, and each keeps its step.
        """
        generator = random.Random(0)  # noqa: S311 - phases, not secrets
        times = []
        for client in range(self.clients):
            due = generator.random() * self.interval_seconds
            while due < self.seconds:
                times.append((due, client))
                due += self.interval_seconds
        return sorted(times)


def packet(client: int, sequence: int) -> bytes:
    """Return the message of a client with its place in the schedule; all are of one length."""
    payload = sequence.to_bytes(SEQUENCE_BYTES, "big").ljust(PAYLOAD_BYTES, b".")
    return wire.publish_packet(f"{TOPIC}/{client:04d}", payload)


def quantile(ordered: list[float], share: float) -> float:
    """Return the value that this share of them does not exceed (nearest rank)."""
    return ordered[max(0, -(-int(share * 10_000) * len(ordered) // 10_000) - 1)]


def send(port: int, schedule: Schedule) -> None:
    """Connect, then send a schedule for each line with its start."""
    names = [f"bench-paced-{client}" for client in range(schedule.clients)]
    clients = wire.open_clients(port, names)
    for sock in clients:
        sock.settimeout(None)
    times = schedule.times()
    work = [
        (due, clients[client], packet(client, sequence))
        for sequence, (due, client) in enumerate(times)
    ]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        start = json.loads(line)["start"]
        late = []
        cpu_before = time.process_time()
        for offset, sock, data in work:
            due = start + offset
            while (early := due - time.monotonic()) > 0:
                if early > WATCHED_SECONDS:
                    time.sleep(early - WATCHED_SECONDS)
            sock.send(data)
            late.append(-early)
        answer = {"cpu": time.process_time() - cpu_before, "late_p99": quantile(sorted(late), 0.99)}
        print(json.dumps(answer), flush=True)


def receive_schedule(
    sock: socket.socket, start: float, times: list[tuple[float, int]]
) -> list[float]:
    """Read the messages of a schedule.

    Returns:
        Seconds from when each was due until it was read, of those that came.

    Raises:
        wire.WireError: a message arrived twice, or was never sent.
    """
    expected = [packet(client, sequence) for sequence, (_, client) in enumerate(times)]
    size = len(expected[0])
    seen = bytearray(len(expected))
    latencies: list[float] = []
    data = b""
    while len(latencies) < len(expected):
        try:
            chunk = sock.recv(BUFFER_BYTES)
        except TimeoutError:
            break
        now = time.monotonic()
        if not chunk:
            raise wire.WireError("the broker closed the reader's connection")
        data += chunk
        while len(data) >= size:
            sequence_at = size - PAYLOAD_BYTES
            sequence = int.from_bytes(data[sequence_at : sequence_at + SEQUENCE_BYTES], "big")
            if sequence >= len(expected) or data[:size] != expected[sequence] or seen[sequence]:
                raise wire.WireError(f"message {sequence} came twice or was never sent")
            seen[sequence] = 1
            latencies.append(now - start - times[sequence][0])
            data = data[size:]
    return latencies


def read(port: int, schedule: Schedule) -> None:
    """Subscribe, then read a schedule for each line with its start."""
    times = schedule.times()
    with wire.open_client(port, "bench-paced-reader") as sock:
        wire.subscribe(sock, f"{TOPIC}/+", 0)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            start = json.loads(line)["start"]
            sock.settimeout(max(0.0, start - time.monotonic()) + IDLE_SECONDS)
            cpu_before = time.process_time()
            ordered = sorted(receive_schedule(sock, start, times))
            answer = {
                "cpu": time.process_time() - cpu_before,
                "expected": len(times),
                "received": len(ordered),
                "p50": quantile(ordered, 0.5) if ordered else 0.0,
                "p99": quantile(ordered, 0.99) if ordered else 0.0,
                "p999": quantile(ordered, 0.999) if ordered else 0.0,
                "most": ordered[-1] if ordered else 0.0,
            }
            print(json.dumps(answer), flush=True)


def go_first() -> None:
    """Have the processor whenever it is wanted, where this is allowed."""
    with suppress(AttributeError, PermissionError):  # no such thing here, or not root
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def main() -> None:
    """Send or read, as the first argument says."""
    gc.disable()
    go_first()
    schedule = Schedule(**json.loads(sys.argv[3]))
    {"send": send, "read": read}[sys.argv[1]](int(sys.argv[2]), schedule)


if __name__ == "__main__":
    main()
