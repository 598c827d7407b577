"""How much memory does a broker take while the paths to all of its subscribers are congested?

Paper 002's memory experiment (figure 10) without its network. There are 77 subscribers of QoS 1, to
which 100 B and 1 MB are published every 4 s at QoS 0 and, to one of them, 10 KB every 5 s at QoS 1.
What the paper's `tc` did to the broker's outbound traffic, 100 ms and 20 % loss, leaves each TCP
connection some 10 kB/s: so much is read of each. The answer is the growth of the resident set in
that time. In the end everything is read, to show that memory was not saved by dropping messages.

It goes eight times as fast as in the paper: loopback lets the kernel hold 3 MB of each connection,
which a lossy path does not. The paper's broker took 200 MB with a copy for each subscriber and
50 MB without. It had been running for 250 s before; this begins with congestion, when no message is
on its way.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack
from typing import Final

from benchmarks.loads import wire
from benchmarks.peers import RunningPeer
from benchmarks.rows.memory import MEGABYTE, RECEIVE_BUFFER_BYTES, PeakSampler, wait_until_steady
from benchmarks.rows.row import Measurement, Row, Scale, Target

SUBSCRIBERS: Final = 77
CONGESTED_BYTES_PER_SECOND: Final = 10_000
TIMES_AS_FAST: Final = 8
TICK_SECONDS: Final = 0.1
IDLE_SECONDS: Final = 30.0
CHUNK_BYTES: Final = 1 << 18
LONGEST_HEADER_BYTES: Final = 20
"""The length of a message up to the end of its Packet Identifier; all messages are longer."""
STREAMS: Final = (
    ("Msg/Small", 100, 4.0, 0),
    ("Msg/Large", MEGABYTE, 4.0, 0),
    ("Latency", 10_000, 5.0, 1),
)
"""The topic, payload bytes, seconds between two messages and QoS of each stream, as table 3 has
them."""


class Publisher:
    """The paper's publishers, on one connection.

    Attributes:
        sent: the number of messages sent, by topic.
        sent_bytes: the bytes of their packets.
    """

    def __init__(self, sock: socket.socket, large_bytes: int) -> None:
        self.sent = {topic: 0 for topic, _, _, _ in STREAMS}
        self.sent_bytes = 0
        self._sock = sock
        self._large_bytes = large_bytes

    def send_due(self, seconds: float) -> None:
        """Publish what is due so many of the paper's seconds after the beginning."""
        for topic, payload_bytes, period, qos in STREAMS:
            if seconds < self.sent[topic] * period:
                continue
            self.sent[topic] += 1
            number = self.sent[topic]
            payload = number.to_bytes(2, "big") * (min(payload_bytes, self._large_bytes) // 2)
            packet = wire.publish_packet(topic, payload, number if qos else None)
            self._sock.sendall(packet)
            self.sent_bytes += len(packet)


class Subscriber:
    """Counts the messages that come on one connection, and acknowledges those of QoS 1.

    Attributes:
        received: the number of complete messages so far.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = 0
        self._data = bytearray()
        self._missing = 0

    def read(self, most_bytes: int) -> None:
        """Read what is there.

        Raises:
            WireError: something else came than a message, or the end.
        """
        try:
            chunk = self.sock.recv(most_bytes, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not chunk:
            raise wire.WireError("connection closed while messages were due")
        while chunk:
            if self._missing:
                taken = min(self._missing, len(chunk))
                self._missing -= taken
                self.received += not self._missing
                chunk = chunk[taken:]
                continue
            self._data += chunk
            if len(self._data) < LONGEST_HEADER_BYTES:
                return
            chunk = bytes(self._data)
            self._data.clear()
            head = chunk[:LONGEST_HEADER_BYTES]
            publish = wire.read_publish(head)
            if publish.first_byte & 0x06:
                packet_id = head[publish.packet_id_at : publish.packet_id_at + 2]
                self.sock.sendall(b"\x40\x02" + packet_id)
            self._missing = wire.size_of(head)


def read_all(subscribers: list[Subscriber], wanted: int) -> None:
    """Read as fast as it comes, until so much is there or nothing comes any more."""
    by_file = {each.sock.fileno(): each for each in subscribers}
    poll = select.poll()
    for file, each in by_file.items():
        each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK_BYTES)
        poll.register(file, select.POLLIN)
    while sum(each.received for each in subscribers) < wanted:
        ready = poll.poll(IDLE_SECONDS * 1000)
        if not ready:
            return
        for file, _ in ready:
            by_file[file].read(CHUNK_BYTES)


def measure_field_run(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return the growth of the broker's resident set in megabytes."""
    with ExitStack() as stack:
        subscribers = []
        for i in range(min(SUBSCRIBERS, scale.stalled_subscribers + 2)):
            sock = wire.open_client(
                peer.port, f"bench-field-{i}", receive_buffer_bytes=RECEIVE_BUFFER_BYTES
            )
            subscribers.append(Subscriber(stack.enter_context(sock)))
            wire.subscribe(sock, ["Msg/#", "Latency"] if not i else "Msg/#", 1)
        publisher = Publisher(
            stack.enter_context(wire.open_client(peer.port, "bench-field")), scale.large_bytes
        )
        before = wait_until_steady(peer, scale)
        sampler = PeakSampler(peer)
        with sampler.sampling():
            began = time.monotonic()
            while (seconds := time.monotonic() - began) < scale.congested_seconds:
                publisher.send_due(seconds * TIMES_AS_FAST)
                for subscriber in subscribers:
                    subscriber.read(int(CONGESTED_BYTES_PER_SECOND * TICK_SECONDS))
                time.sleep(TICK_SECONDS)
        everybody = publisher.sent["Msg/Small"] + publisher.sent["Msg/Large"]
        wanted = len(subscribers) * everybody + publisher.sent["Latency"]
        read_all(subscribers, wanted)
    return Measurement(
        value=(sampler.peak_bytes - before) / MEGABYTE,
        lost=wanted - sum(each.received for each in subscribers),
        details={
            "before_bytes": before,
            "peak_bytes": sampler.peak_bytes,
            "published_bytes": publisher.sent_bytes,
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
