"""How much memory do stalled subscribers cost a broker?

Penstock grows by 1.06 bytes for each byte published, whatever their number; mosquitto 2.0.11 by
23.5 with 75 of them, aMQTT 0.12.1 by 2.6 (commit d9c24e0, three repetitions, spread under 2 %).
Rerun: ``penstock bench --rows memory_stalled``.

Subscribers of QoS 1 with a small receive buffer subscribe and then read nothing more. One
publisher sends large messages, all different, and has each acknowledged. The broker then
holds every message for every subscriber; the answer is the growth of its resident set over
the bytes published, 1.0 where each payload is in memory once. In the end one subscriber reads
on, to show that memory was not saved by dropping messages.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.loads import wire
from benchmarks.peers import RunningPeer
from benchmarks.rows.row import Figure, Measurement, Row, Scale, Target

TOPIC: Final = "bench/stalled"
LATE_PAYLOAD_BYTES: Final = 100_000
RECEIVE_BUFFER_BYTES: Final = 4096
MEGABYTE: Final = 1_000_000
SAMPLE_SECONDS: Final = 0.01
STEADY_RATIO: Final = 0.01
SETTLE_SECONDS: Final = 15.0
RESUMED_BUFFER_BYTES: Final = 1 << 20
RESUMED_TIMEOUT_SECONDS: Final = 30.0


class PeakSampler:
    """Keeps the highest resident set seen.

    Attributes:
        peak_bytes: the highest resident set so far.
    """

    def __init__(self, peer: RunningPeer) -> None:
        self.peak_bytes = peer.rss_bytes()
        self._peer = peer
        self._stop = threading.Event()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample on a thread until the block ends."""
        thread = threading.Thread(target=self._sample, name="rss-sampler")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, self._peer.rss_bytes())


def wait_until_steady(peer: RunningPeer, scale: Scale) -> int:
    """Return the resident set once it has moved by less than 1 % for a while."""
    deadline = time.monotonic() + SETTLE_SECONDS
    reference, since = peer.rss_bytes(), time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < scale.steady_seconds:
        time.sleep(SAMPLE_SECONDS)
        now_bytes = peer.rss_bytes()
        if abs(now_bytes - reference) > reference * STEADY_RATIO:
            reference, since = now_bytes, time.monotonic()
    return reference


def publish_different(port: int, messages: int, payload_bytes: int) -> None:
    """Publish messages of which no two are alike at QoS 1; return when all are acknowledged."""
    generator = random.Random(0)  # noqa: S311 - payloads, not secrets
    with wire.open_client(port, "bench-publisher") as sock:
        for packet_id in range(1, messages + 1):
            payload = generator.randbytes(payload_bytes)
            sock.sendall(wire.publish_packet(TOPIC, payload, packet_id))
            wire.expect(sock, bytes([0x40, 2]) + packet_id.to_bytes(2, "big"))


def read_on(sock: socket.socket, messages: int, payload_bytes: int) -> int:
    """Read and acknowledge what a stalled subscriber was owed.

    Returns:
        How many messages came before the connection fell silent or closed.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RESUMED_BUFFER_BYTES)
    sock.settimeout(RESUMED_TIMEOUT_SECONDS)
    head_bytes = len(wire.publish_packet(TOPIC, bytes(payload_bytes), 1)) - payload_bytes
    for received in range(messages):
        try:
            head = wire.receive_exactly(sock, head_bytes)
            wire.receive_exactly(sock, payload_bytes)
            sock.sendall(bytes([0x40, 2]) + head[-2:])
        except (OSError, wire.WireError):
            return received
        if head[0] & ~wire.DUPLICATE != wire.PUBLISH_QOS1:
            raise wire.WireError(f"read {head.hex(' ')}; expected a PUBLISH of QoS 1")
    return messages


def measure_stalled(
    peer: RunningPeer,
    scale: Scale,
    subscribers: int,
    messages: int,
    payload_bytes: int,
    *,
    is_read_by_all: bool,
) -> Measurement:
    """Return the growth of the broker's resident set over the bytes published.

    Args:
        peer: the broker.
        scale: the scale, which says when the resident set counts as steady.
        subscribers: the number of stalled subscribers.
        messages: the number of published messages.
        payload_bytes: the payload length of each message.
        is_read_by_all: whether all subscribers read everything in the end, which the peak then
            includes; otherwise one does, after the peak was taken.
    """
    total_bytes = messages * payload_bytes
    with ExitStack() as stack:
        stalled = []
        for i in range(subscribers):
            sock = wire.open_client(
                peer.port, f"bench-stalled-{i}", receive_buffer_bytes=RECEIVE_BUFFER_BYTES
            )
            stalled.append(stack.enter_context(sock))
            wire.subscribe(sock, TOPIC, 1)
        before = wait_until_steady(peer, scale)
        sampler = PeakSampler(peer)
        late = stalled if is_read_by_all else stalled[-1:]
        received = 0
        with sampler.sampling():
            publish_different(peer.port, messages, payload_bytes)
            settled = wait_until_steady(peer, scale)
            if is_read_by_all:
                received = sum(read_on(sock, messages, payload_bytes) for sock in late)
        if not is_read_by_all:
            received = read_on(late[0], messages, payload_bytes)
    afterwards = wait_until_steady(peer, scale)
    grown = sampler.peak_bytes - before
    return Measurement(
        value=grown / total_bytes,
        lost=len(late) * messages - received,
        details={
            "before_bytes": before,
            "peak_bytes": sampler.peak_bytes,
            "settled_bytes": settled,
            "payload_bytes": total_bytes,
            "in_all": grown / MEGABYTE,
            "afterwards": afterwards / before,
        },
    )


def measure_stalled_for_good(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return the growth with subscribers that read nothing while it is measured."""
    sizes = (scale.stalled_subscribers, scale.large_messages, scale.large_bytes)
    return measure_stalled(peer, scale, *sizes, is_read_by_all=False)


def measure_late_readers(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return the growth with readers that stall first and read everything then."""
    sizes = (scale.late_readers, scale.late_messages, LATE_PAYLOAD_BYTES)
    return measure_stalled(peer, scale, *sizes, is_read_by_all=True)


IN_ALL: Final = Figure(
    name="in_all",
    title="the same growth; of penstock-spill at most 36, its limit of 32 and some",
    unit="MB",
    target=Target(),
    store_targets={"penstock-spill": Target(most_value=36)},
)
AFTERWARDS: Final = Figure(
    name="afterwards",
    title="resident set when the subscribers have gone, over that before the messages",
    unit="x start",
    target=Target(most_value=1.1),
    store_targets={
        "penstock-spill": Target(most_value=1.1),
        "penstock-copy": Target(most_value=1.1),
    },
)

ROWS: Final = (
    Row(
        name="memory_stalled",
        group="memory",
        title="resident set growth over payload bytes, stalled QoS 1 subscribers",
        unit="x payload",
        target=Target(most_value=1.1),
        measure=measure_stalled_for_good,
        figures=(IN_ALL, AFTERWARDS),
        has_stores=True,
    ),
    Row(
        name="memory_late_readers",
        group="memory",
        title="the same, 20 readers of 100 kB messages that stall and then read all",
        unit="x payload",
        target=Target(most_value=1.1),
        measure=measure_late_readers,
        figures=(IN_ALL, AFTERWARDS),
        has_stores=True,
    ),
)
