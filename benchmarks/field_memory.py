"""How much memory does a broker take while the paths to all of its subscribers are congested?

Paper 002's memory experiment (figure 10) without its network. There are 77 subscribers of QoS 1, to
which 100 B and 1 MB are published every 4 s at QoS 0 and, to one of them, 10 KB every 5 s at QoS 1.
What the paper's `tc` did to the broker's outbound traffic, 100 ms and 20 % loss, leaves each TCP
connection some 10 kB/s: so much is read of each. The answer is the growth of the resident set in
that time. In the end everything is read, to show that memory was not saved by dropping messages.

The paper's broker took 200 MB with a copy for each subscriber and 50 MB without. It had been
running for 250 s before; this begins with congestion, when no message is on its way.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack
from typing import Final

from benchmarks import wire
from benchmarks.memory import MEGABYTE, RECEIVE_BUFFER_BYTES, PeakSampler, wait_until_steady
from benchmarks.peers import RunningPeer
from benchmarks.rows import Measurement, Row, Scale, Target

SUBSCRIBERS: Final = 77
CONGESTED_BYTES_PER_SECOND: Final = 10_000
TICK_SECONDS: Final = 0.1
IDLE_SECONDS: Final = 10.0
CHUNK_BYTES: Final = 1 << 18
STREAMS: Final = (
    ("Msg/Small", 100, 4.0, 0),
    ("Msg/Large", MEGABYTE, 4.0, 0),
    ("Latency", 10_000, 5.0, 1),
)
"""(topic, payload bytes, seconds between two messages, QoS) of each, as table 3 has them."""


class Schedule:
    """The paper's publishers, on one connection.

    Attributes:
        sent: by topic, packets as a subscriber of QoS 1 gets them, in bytes.
    """

    def __init__(self, sock: socket.socket, large_bytes: int) -> None:
        self.sent = {topic: 0 for topic, _, _, _ in STREAMS}
        self._sock = sock
        self._large_bytes = large_bytes
        self._packet_id = 0
        self._due = {topic: 0.0 for topic, _, _, _ in STREAMS}

    def send_due(self, seconds: float) -> None:
        """Publish what is due so many seconds after the beginning."""
        for topic, payload_bytes, period, qos in STREAMS:
            if seconds < self._due[topic]:
                continue
            self._due[topic] += period
            self._packet_id += 1
            size = min(payload_bytes, self._large_bytes)
            payload = self._packet_id.to_bytes(2, "big") * (size // 2)
            packet = wire.publish_packet(topic, payload, self._packet_id if qos else None)
            self._sock.sendall(packet)
            self.sent[topic] += len(packet)


def read_slowly(subscribers: list[socket.socket], received: list[int]) -> None:
    """Read of each what its path would let through in one tick."""
    most = int(CONGESTED_BYTES_PER_SECOND * TICK_SECONDS)
    for i, sock in enumerate(subscribers):
        try:
            received[i] += len(sock.recv(most, socket.MSG_DONTWAIT))
        except BlockingIOError:
            continue


def read_all(subscribers: list[socket.socket], received: list[int], wanted: list[int]) -> None:
    """Read as fast as it comes, until everything is there or nothing comes any more."""
    by_file = {sock.fileno(): i for i, sock in enumerate(subscribers)}
    poll = select.poll()
    for sock in subscribers:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK_BYTES)
        poll.register(sock, select.POLLIN)
    while sum(received) < sum(wanted):
        ready = poll.poll(IDLE_SECONDS * 1000)
        if not ready:
            return
        for file, _ in ready:
            i = by_file[file]
            chunk = subscribers[i].recv(CHUNK_BYTES)
            received[i] += len(chunk)
            if not chunk:
                poll.unregister(file)


def measure_field_run(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return the growth of the broker's resident set in megabytes."""
    with ExitStack() as stack:
        subscribers = []
        for i in range(min(SUBSCRIBERS, scale.stalled_subscribers + 2)):
            sock = wire.open_client(
                peer.port, f"bench-field-{i}", receive_buffer_bytes=RECEIVE_BUFFER_BYTES
            )
            subscribers.append(stack.enter_context(sock))
            wire.subscribe(sock, ["Msg/#", "Latency"] if not i else "Msg/#", 1)
        publisher = stack.enter_context(wire.open_client(peer.port, "bench-field"))
        schedule = Schedule(publisher, scale.large_bytes)
        before = wait_until_steady(peer, scale)
        received = [0] * len(subscribers)
        sampler = PeakSampler(peer)
        with sampler.sampling():
            began = time.monotonic()
            while (seconds := time.monotonic() - began) < scale.congested_seconds:
                schedule.send_due(seconds)
                read_slowly(subscribers, received)
                time.sleep(TICK_SECONDS)
        everybody = schedule.sent["Msg/Small"] + schedule.sent["Msg/Large"]
        wanted = [everybody] * len(subscribers)
        wanted[0] += schedule.sent["Latency"]
        read_all(subscribers, received, wanted)
    missing = sum(max(0, w - r) for w, r in zip(wanted, received, strict=True))
    return Measurement(
        value=(sampler.peak_bytes - before) / MEGABYTE,
        lost=-(-missing // scale.large_bytes),
        details={
            "before_bytes": before,
            "peak_bytes": sampler.peak_bytes,
            "published_bytes": sum(schedule.sent.values()),
        },
    )


ROWS: Final = (
    Row(
        name="memory_field_run",
        group="memory",
        title="paper 002's field run: resident set growth while all paths are congested",
        unit="MB",
        target=Target(most_value=50),
        measure=measure_field_run,
        has_stores=True,
        store_targets={"penstock-spill": Target(most_value=50)},
    ),
)
