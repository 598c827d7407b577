"""How long does a broker take to come back with what it has kept?

Rerun: ``python -m benchmarks.restart``; a look in seconds with ``--quick``.

10,000 clients with Clean Session 0 subscribe at QoS 1 and leave; 100,000 messages of 100 bytes are
published to them, 10 each, and acknowledged. Then the broker is killed (``kill -9``) and started
again on its database. The clock runs from the start of the process to the CONNACK of one of the
clients, which then must get its 10 messages.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.errors import BenchmarkError
from benchmarks.loads.wire import (
    connect_packet,
    expect,
    publish_packet,
    receive_exactly,
    subscribe_packet,
)
from benchmarks.program import DEFAULT_REPEATS, Program, Quick, Repeats, describe_run, tell
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    RunningBroker,
    penstock_command,
    reserved_port,
)

FULL_SESSIONS: Final = 10_000
QUICK_SESSIONS: Final = 500
MESSAGES_EACH: Final = 10
PAYLOAD_BYTES: Final = 100
WINDOW: Final = 500
CONNECTIONS: Final = 100
"""Clients that come and go at the same time, so that they share commits."""
START_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.005
"""Between two looks at whether it listens: a part of what is measured."""

TARGET_SECONDS: Final = 10.0

PERSISTENT: Final = b"\x00"
"""Connect flags: Clean Session 0."""


def _persistent_connect(client_id: str) -> bytes:
    """Return a CONNECT with Clean Session 0."""
    packet = connect_packet(client_id)
    flags_at = packet.index(b"MQTT\x04") + 5
    return packet[:flags_at] + PERSISTENT + packet[flags_at + 1 :]


def _policy(port: int) -> dict[str, Any]:
    return {
        "listeners": {"default": {"bind": f"127.0.0.1:{port}"}},
        "persistence": {"path": "sessions.db", "durability": "normal"},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}},
    }


@contextlib.contextmanager
def _broker(folder: Path, port: int) -> Iterator[int]:
    """Run the broker and kill it in the end; yield its process id."""
    broker = RunningBroker("penstock", penstock_command(folder, _policy(port)), folder)
    try:
        broker.wait_until_listening(port, START_SECONDS, LOOK_SECONDS)
        yield broker.process.pid
    finally:
        broker.kill()


def _fill(port: int, n_sessions: int) -> None:
    """Make the sessions, and leave messages for them."""
    for first in range(0, n_sessions, CONNECTIONS):
        numbers = range(first, min(first + CONNECTIONS, n_sessions))
        socks = [socket.create_connection(("127.0.0.1", port), START_SECONDS) for _ in numbers]
        for number, sock in zip(numbers, socks, strict=True):
            client = f"client-{number}"
            sock.sendall(_persistent_connect(client) + subscribe_packet(1, f"to/{client}", 1))
        for sock in socks:
            expect(sock, b"\x20\x02\x00\x00\x90\x03\x00\x01\x01")
            sock.sendall(b"\xe0\x00")
            sock.close()
    payload = bytes(PAYLOAD_BYTES)
    topics = [f"to/client-{number}" for number in range(n_sessions)] * MESSAGES_EACH
    with socket.create_connection(("127.0.0.1", port), START_SECONDS) as sock:
        sock.sendall(connect_packet("publisher"))
        expect(sock, b"\x20\x02\x00\x00")
        for first in range(0, len(topics), WINDOW):
            some = topics[first : first + WINDOW]
            sock.sendall(b"".join(publish_packet(t, payload, n + 1) for n, t in enumerate(some)))
            receive_exactly(sock, 4 * len(some))


def measure(n_sessions: int) -> tuple[float, float]:
    """Fill a broker, kill it and start it again, once.

    Returns:
        (seconds from the start to a client's CONNACK, MB of resident set then).

    Raises:
        BenchmarkError: it did not start, or something was lost.
    """
    with tempfile.TemporaryDirectory() as name, reserved_port() as port:
        folder = Path(name)
        with _broker(folder, port):
            _fill(port, n_sessions)
        started = time.perf_counter()
        with (
            _broker(folder, port) as pid,
            socket.create_connection(("127.0.0.1", port), START_SECONDS) as sock,
        ):
            sock.sendall(_persistent_connect("client-0"))
            answer = receive_exactly(sock, 4)
            seconds = time.perf_counter() - started
            if answer != b"\x20\x02\x01\x00":
                raise BenchmarkError(f"the session is lost: CONNACK {answer.hex()}")
            size = len(publish_packet("to/client-0", bytes(PAYLOAD_BYTES), 1))
            receive_exactly(sock, MESSAGES_EACH * size)
            megabytes = psutil.Process(pid).memory_info().rss / 1e6
    return seconds, megabytes


def bench(
    repeats: Repeats = DEFAULT_REPEATS,
    *,
    quick: Quick = False,
) -> None:
    """Measure a restart on this machine: a Markdown table on standard output."""
    n_sessions = QUICK_SESSIONS if quick else FULL_SESSIONS
    found = [measure(n_sessions) for _ in range(repeats)]
    seconds = [one for one, _ in found]
    megabytes = statistics.median(one for _, one in found)
    median = statistics.median(seconds)
    n_messages = n_sessions * MESSAGES_EACH
    lines = [
        f"| restart | target, s | median of {repeats}, s | least - most | met | RSS, MB |",
        "|---|---|---|---|---|---|",
        (
            f"| {n_sessions:,} sessions, {n_messages:,} messages | {TARGET_SECONDS:g} "
            f"| {median:.2f} | {min(seconds):.2f} - {max(seconds):.2f} "
            f"| {'yes' if median < TARGET_SECONDS else 'no'} | {megabytes:.0f} |"
        ),
    ]
    tell(lines, describe_run())


main: Final = Program(bench, "python -m benchmarks.restart")


if __name__ == "__main__":
    sys.exit(main())
