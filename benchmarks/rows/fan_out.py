"""How many bytes a second does a broker hand on when each message is large and has many readers?

One publisher sends messages of 1 MiB at QoS 0, the next when all readers have the last but one:
two are under way, so that the broker reads one while it writes the other, and no peer's memory
fills. What is measured is bytes of payload at the readers. In a first round each byte is
compared; then the kernel counts bytes and throws them away (MSG_TRUNC), because copying them
would take a reader on the same machine as long as the broker.
"""

from __future__ import annotations

import random
import select
import socket
import time
from contextlib import ExitStack
from typing import Final

from benchmarks.loads import wire
from benchmarks.peers import RunningPeer
from benchmarks.rows.rates import Meter
from benchmarks.rows.row import Measurement, Row, Scale, Target

PAYLOAD_BYTES: Final = 1 << 20
MEGABYTE: Final = 1_000_000
TOPIC: Final = "bench/large"
UNDER_WAY: Final = 2
WAKE_UP_BYTES: Final = 1 << 17
IDLE_SECONDS: Final = 30.0


class FanOut:
    """One publisher and its readers, connected; sends and reads on one thread."""

    def __init__(self, port: int, readers: int, stack: ExitStack) -> None:
        self._publisher = stack.enter_context(wire.open_client(port, "bench-publisher"))
        self._publisher.setblocking(False)
        self._readers: dict[int, socket.socket] = {}
        for i in range(readers):
            sock = stack.enter_context(wire.open_client(port, f"bench-reader-{i}"))
            wire.subscribe(sock, TOPIC, 0)
            sock.setblocking(False)
            self._readers[sock.fileno()] = sock
        generator = random.Random(0)  # noqa: S311 - payloads, not secrets
        self._packet = wire.publish_packet(TOPIC, generator.randbytes(PAYLOAD_BYTES))
        self._buffer = bytearray(len(self._packet))

    def run(self, messages: int, *, is_compared: bool) -> int:
        """Publish a number of messages.

        Returns:
            The number of bytes that did not arrive.

        Raises:
            wire.WireError: other bytes came.
        """
        size, total = len(self._packet), len(self._packet) * messages
        view = memoryview(self._packet)
        received = dict.fromkeys(self._readers, 0)
        sent, allowed = 0, min(UNDER_WAY, messages) * size
        with select.epoll() as poller:
            for descriptor, sock in self._readers.items():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAKE_UP_BYTES)
                poller.register(descriptor, select.EPOLLIN)
            publisher = self._publisher.fileno()
            poller.register(publisher, select.EPOLLOUT)
            busy = len(self._readers)
            while busy and (ready := poller.poll(IDLE_SECONDS)):
                for descriptor, _ in ready:
                    if descriptor == publisher:
                        stop = min(sent % size + allowed - sent, size)
                        sent += self._publisher.send(view[sent % size : stop])
                        if sent == allowed:
                            poller.modify(publisher, 0)
                        continue
                    received[descriptor] += self._read(
                        descriptor, received[descriptor] % size, is_compared=is_compared
                    )
                    if total - received[descriptor] < WAKE_UP_BYTES:
                        left = max(1, total - received[descriptor])
                        sock = self._readers[descriptor]
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, left)
                        if received[descriptor] == total:
                            poller.unregister(descriptor)
                            busy -= 1
                if sent == allowed < total:
                    complete = min(received.values()) // size
                    due = min((complete + UNDER_WAY) * size, total)
                    if due > allowed:
                        allowed = due
                        poller.modify(publisher, select.EPOLLOUT)
        return total * len(received) - sum(received.values())

    def _read(self, descriptor: int, position: int, *, is_compared: bool) -> int:
        """Return how many bytes one reader took, compared from a position of the packet."""
        sock = self._readers[descriptor]
        if not is_compared:
            taken = sock.recv_into(self._buffer, 0, socket.MSG_TRUNC)
        else:
            room = len(self._packet) - position
            taken = sock.recv_into(self._buffer, room)
            with memoryview(self._buffer)[:taken] as chunk:
                if not self._packet.startswith(chunk, position):
                    raise wire.WireError("something else than the published packet came")
        if not taken:
            raise wire.WireError("the broker closed a reader's connection")
        return taken


def measure_fan_out(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return megabytes of payload per second at all readers together."""
    with ExitStack() as stack:
        load = FanOut(peer.port, scale.readers, stack)
        started = time.monotonic()
        load.run(UNDER_WAY, is_compared=True)
        load.run(UNDER_WAY, is_compared=False)
        each = (time.monotonic() - started) / (2 * UNDER_WAY)
        messages = max(UNDER_WAY, int(scale.seconds / each))
        with Meter(peer) as meter:
            missing = load.run(messages, is_compared=False)
    megabytes = (messages * PAYLOAD_BYTES * scale.readers - missing) / MEGABYTE
    return Measurement(
        value=megabytes / meter.elapsed_seconds,
        lost=-(-missing // PAYLOAD_BYTES),
        details={"published_messages": messages, **meter.details(messages * scale.readers)},
    )


ROWS: Final = (
    Row(
        name="large_1to50",
        group="large",
        title="QoS 0, 1 MiB, 1 to 50",
        unit="MB/s",
        target=Target(least_ratio=1),
        measure=measure_fan_out,
        has_ceiling=True,
    ),
)
