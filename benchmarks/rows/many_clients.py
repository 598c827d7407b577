"""How fast is a broker with many clients that each do little?

`many_to_one`: each client has one QoS 0 message under way and sends the next when the reader
has it. The reader names the sender by what it reads; nothing is sent that was not asked for,
so that the broker meets as many small chunks as there are messages. The reader is woken by each:
one that waited for some (SO_RCVLOWAT) would stall a broker that leaves Nagle's algorithm on, as
mosquitto does, until the kernel's delayed acknowledgement.

`connecting`: 64 clients at a time connect, are accepted, disconnect, and wait until the broker
has closed the connection before the next takes the place. So each is counted when the broker
has dealt with all of it, and this machine's ports do not run out.
"""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from contextlib import ExitStack
from typing import Final, Self

from benchmarks.loads import wire
from benchmarks.peers import RunningPeer
from benchmarks.rows.rates import Meter, Run, measure_run
from benchmarks.rows.row import Measurement, Row, Scale, Target

PAYLOAD_BYTES: Final = 64
VARIANTS: Final = 8
"""The number of payloads that each client sends in turn, so that a message out of turn shows."""

TOPIC: Final = "bench/many"
BUFFER_BYTES: Final = 1 << 17
IDLE_SECONDS: Final = 30.0

AT_A_TIME: Final = 64
LEAST_CONNECTS: Final = 128


class ManyToOne:
    """Clients with one message each under way, and their reader.

    A context manager; the connections end with it.
    """

    def __init__(self, port: int, clients: int) -> None:
        generator = random.Random(0)  # noqa: S311 - payloads, not secrets
        self._packets: list[list[bytes]] = []
        for client in range(clients):
            topic = f"{TOPIC}/{client:04d}"
            payloads = [generator.randbytes(PAYLOAD_BYTES) for _ in range(VARIANTS)]
            self._packets.append([wire.publish_packet(topic, payload) for payload in payloads])
        self._size = len(self._packets[0][0])
        self._number_at = self._packets[0][0].index(b"/0000") + 1
        self._turns = [0] * clients
        with ExitStack() as stack:
            self._reader = stack.enter_context(wire.open_client(port, "bench-reader"))
            wire.subscribe(self._reader, f"{TOPIC}/+", 0)
            names = [f"bench-client-{client}" for client in range(clients)]
            self._clients = [stack.enter_context(sock) for sock in wire.open_clients(port, names)]
            for sock in self._clients:
                sock.settimeout(None)
            # The timeout is the kernel's: with Python's own, each call would poll the socket first.
            self._reader.settimeout(None)
            seconds = int(IDLE_SECONDS).to_bytes(8, "little") + bytes(8)
            self._reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
            self._stack = stack.pop_all()

    def run(self, messages: int) -> Run:
        """Publish so many messages, each client when the reader has its last.

        Raises:
            wire.WireError: something else than a client's next message came.
        """
        clients = min(messages, len(self._clients))
        cpu_before, started = time.process_time(), time.monotonic()
        for client in range(clients):
            self._clients[client].send(self._packets[client][self._turns[client]])
        published, delivered = clients, 0
        finished, rest = started, b""
        while delivered < messages:
            try:
                data = rest + self._reader.recv(BUFFER_BYTES)
            except (TimeoutError, BlockingIOError):
                break
            if len(data) == len(rest):
                raise wire.WireError("the broker closed the reader's connection")
            whole = len(data) // self._size * self._size
            rest = data[whole:]
            for at in range(0, whole, self._size):
                published += self._answer(data[at : at + self._size], is_last=published >= messages)
            delivered += whole // self._size
            finished = time.monotonic()
        cpu = time.process_time() - cpu_before
        return Run(published, delivered, published - delivered, finished - started, cpu)

    def _answer(self, packet: bytes, *, is_last: bool) -> int:
        """Take a client's message and send its next; return how many were sent."""
        client = int(packet[self._number_at : self._number_at + 4])
        packets, turn = self._packets[client], self._turns[client]
        if packet != packets[turn]:
            raise wire.WireError(f"a message of client {client} is not the one it sent last")
        self._turns[client] = turn = (turn + 1) % VARIANTS
        if is_last:
            return 0
        self._clients[client].send(packets[turn])
        return 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure_many_to_one(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return messages per second from many clients to one reader."""
    with ManyToOne(peer.port, scale.clients) as load:
        return measure_run(load, peer, scale)


class Connecting:
    """Clients that connect and disconnect, a number of them at a time, in order."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._connects = [wire.connect_packet(f"bench-connect-{i}") for i in range(AT_A_TIME * 2)]

    def run(self, seconds: float) -> int:
        """Connect and disconnect for so long; return how often.

        Raises:
            wire.WireError: a connection was refused.
        """
        coming: deque[socket.socket] = deque()
        going: deque[socket.socket] = deque()
        begun = done = 0
        deadline = time.monotonic() + seconds
        while coming or going or begun < LEAST_CONNECTS or time.monotonic() < deadline:
            is_over = begun >= LEAST_CONNECTS and time.monotonic() >= deadline
            if not is_over and len(coming) + len(going) < AT_A_TIME:
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                sock.connect(self._address)
                sock.send(self._connects[begun % len(self._connects)])
                coming.append(sock)
                begun += 1
                continue
            if coming and (is_over or len(coming) >= AT_A_TIME // 2):
                sock = coming.popleft()
                answer = sock.recv(4)
                if answer != wire.CONNACK_ACCEPTED:
                    raise wire.WireError(f"read {answer.hex(' ')}; expected a CONNACK")
                sock.send(wire.DISCONNECT)
                going.append(sock)
                continue
            sock = going.popleft()
            if sock.recv(1):
                raise wire.WireError("the broker sent something behind a DISCONNECT")
            sock.close()
            done += 1
        return done


def measure_connecting(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return connections made and ended per second."""
    load = Connecting(peer.port)
    load.run(scale.seconds * 0.1)
    with Meter(peer) as meter:
        count = load.run(scale.seconds)
    details = {"connects": count, **meter.details(count)}
    return Measurement(count / meter.elapsed_seconds, details=details)


ROWS: Final = (
    Row(
        name="many_to_one",
        group="many",
        title="QoS 0, 64 B, 500 clients to 1, one message each in flight",
        unit="delivered/s",
        target=Target(least_ratio=1),
        measure=measure_many_to_one,
        has_ceiling=True,
    ),
    Row(
        name="connecting",
        group="many",
        title="connect and disconnect, 64 at a time",
        unit="connects/s",
        target=Target(least_ratio=0.6),
        measure=measure_connecting,
        has_ceiling=True,
    ),
)
