"""How fast does a fleet with durable sessions get what has waited for it during an outage?

Each client subscribes at QoS 1 with a session that outlives its connection, and leaves. 100
messages of ten topics are published, each for all of them. Then the clients come back, some
hundreds at a time, and acknowledge what they get; a client stays connected when it has all of it.
The clock runs from the first connection to the last message of the last client.
"""

from __future__ import annotations

import random
import select
import socket
from contextlib import ExitStack
from typing import Final

from benchmarks.loads import wire
from benchmarks.peers import Options, RunningPeer
from benchmarks.rows.many_clients import AT_A_TIME
from benchmarks.rows.rates import Meter
from benchmarks.rows.row import Measurement, Row, Scale, Target

MESSAGES: Final = 100
PAYLOAD_BYTES: Final = 100
TOPICS: Final = 10
READING_AT_A_TIME: Final = 512
"""The clients that are still to get messages; more of them connect as these have all of theirs."""

STALL_SECONDS: Final = 30.0
BUFFER_BYTES: Final = 1 << 16


class Client:
    """A client that has come back."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""
        self.received = 0

    def read(self) -> None:
        """Read what there is and acknowledge the messages in it.

        Raises:
            wire.WireError: the broker has no session for it, or ends the connection.
        """
        data = self._sock.recv(BUFFER_BYTES)
        packets, self._rest = wire.whole_packets(self._rest + data)
        if not data:
            raise wire.WireError("the broker closed a connection")
        answers = b""
        for packet in packets:
            if packet[0] & 0xF0 == wire.PUBLISH:
                at = wire.read_publish(packet).packet_id_at
                answers += wire.PUBACK.to_bytes(1) + b"\x02" + packet[at : at + 2]
                self.received += 1
            elif packet != b"\x20\x02\x01\x00":
                raise wire.WireError(f"read {packet.hex(' ')}; expected a session that is present")
        if answers:
            self._sock.sendall(answers)


def _leave_sessions(port: int, names: list[str]) -> None:
    """Make the sessions, each with its subscription and without a connection."""
    for start in range(0, len(names), AT_A_TIME):
        with ExitStack() as stack:
            socks = []
            for name in names[start : start + AT_A_TIME]:
                socks.append(stack.enter_context(wire.open_connection(port)))
                socks[-1].sendall(wire.connect_packet(name, is_clean=False))
            for sock in socks:
                wire.read_connack(sock)
                wire.subscribe(sock, "outage/#", 1)
                sock.sendall(wire.DISCONNECT)
            for sock in socks:
                sock.recv(1)  # the broker has dealt with the end


def _publish(port: int) -> None:
    generator = random.Random(0)  # noqa: S311 - payloads, not secrets
    with wire.open_client(port, "outage-publisher") as sock:
        for number in range(1, MESSAGES + 1):
            payload = generator.randbytes(PAYLOAD_BYTES)
            sock.sendall(wire.publish_packet(f"outage/{number % TOPICS}", payload, number))
            wire.expect(sock, wire.acknowledgement(wire.PUBACK, number))


def _come_back(port: int, names: list[str], stack: ExitStack) -> int:
    """Connect all clients and read what waits for them; return how many messages are missing."""
    reading: dict[int, Client] = {}
    waiting = list(reversed(names))
    with select.epoll() as poller:
        while waiting or reading:
            while waiting and len(reading) < READING_AT_A_TIME:
                sock = stack.enter_context(wire.open_connection(port))
                sock.sendall(wire.connect_packet(waiting.pop(), is_clean=False))
                poller.register(sock.fileno(), select.EPOLLIN)
                reading[sock.fileno()] = Client(sock)
            ready = poller.poll(STALL_SECONDS)
            if not ready:
                break
            for descriptor, _ in ready:
                client = reading[descriptor]
                client.read()
                if client.received >= MESSAGES:
                    poller.unregister(descriptor)
                    del reading[descriptor]
    return sum(MESSAGES - client.received for client in reading.values())


def measure_outage(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return messages per second to clients that come back."""
    names = [f"bench-outage-{number}" for number in range(scale.idle_connections)]
    _leave_sessions(peer.port, names)
    _publish(peer.port)
    meter = Meter(peer)
    with ExitStack() as stack, meter:
        lost = _come_back(peer.port, names, stack)
    delivered = len(names) * MESSAGES - lost
    return Measurement(
        delivered / meter.elapsed_seconds, lost=lost, details=meter.details(delivered)
    )


ROWS: Final = (
    Row(
        name="outage",
        group="durable",
        title="durable sessions: 10,000 clients come back after an outage to 100 messages each",
        unit="delivered/s",
        target=Target(least_ratio=1),
        measure=measure_outage,
        options=Options(is_durable=True),
    ),
)
