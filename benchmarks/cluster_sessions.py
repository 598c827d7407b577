"""What does the memory hold for sessions whose clients are away, in a cluster?

Rerun: ``python -m benchmarks.cluster_sessions --figures FILE``; a look in seconds with ``--quick``.
It needs redis-server.

Clients come to one of two brokers, subscribe to a topic of their own at QoS 1, and leave; their
sessions go on. Then a client publishes a message for some that have one topic. What is told is what
Redis has more of its own count (`used_memory`), and each broker of resident memory.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import psutil

from benchmarks.cluster import PUBLISHERS, REDIS, SUBSCRIBERS, Setup, cluster
from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from benchmarks.program import (
    FiguresFile,
    Program,
    Quick,
    describe_run,
    doubts,
    running_command,
    tell,
)
from benchmarks.rows.report import format_value
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file

AT_ONCE: Final = 100
"""Clients that are connected at a time."""
FULL_SESSIONS: Final = 100_000
QUICK_SESSIONS: Final = 500
FULL_READERS: Final = 1000
QUICK_READERS: Final = 100
PAYLOADS: Final = ((1024, 1), (1024, 100), (1024 * 1024, 1))
"""Bytes of messages, and how many."""
QUIET_SECONDS: Final = 5.0
"""A memory is read once it has not grown for so long: what nodes tell each other has come."""


async def _leave_session(port: int, client_id: str, topic: str) -> None:
    """Have a session that subscribes to a topic."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(wire.connect_packet(client_id, is_clean=False))
    writer.write(wire.subscribe_packet(1, topic, 1))
    answer = await reader.readexactly(9)
    if answer != b"\x20\x02\0\0\x90\x03\0\x01\x01":
        raise BenchmarkError(f"{client_id}: CONNACK and SUBACK: read {answer!r}")
    writer.write(b"\xe0\0")
    await reader.read()
    writer.close()


async def _leave_sessions(port: int, n_sessions: int, topic_of: Callable[[int], str]) -> None:
    numbers = iter(range(n_sessions))

    async def leave_some() -> None:
        for number in numbers:
            topic = topic_of(number)
            await _leave_session(port, f"bench-away-{topic}-{number}", topic)

    await asyncio.gather(*(leave_some() for _ in range(AT_ONCE)))


async def _publish(port: int, topic: str, payload: bytes, n_messages: int) -> None:
    """Publish messages, each once the one before is acknowledged."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(wire.connect_packet("bench-publisher"))
    await reader.readexactly(4)
    for _ in range(n_messages):
        writer.write(wire.publish_packet(topic, payload, 1))
        await reader.readexactly(4)
    writer.close()


def _redis_bytes(process: psutil.Process) -> int:
    """Return what a Redis server says that it uses."""
    port = next(one.laddr.port for one in process.net_connections() if one.status == "LISTEN")
    with wire.open_connection(port) as sock:
        sock.sendall(b"INFO memory\r\n")
        found = b""
        while b"used_memory:" not in found:
            found += sock.recv(65_536)
    return int(found.partition(b"used_memory:")[2].split()[0])


def memory(setup: Setup) -> dict[str, int]:
    """Return the bytes of each process once they do not grow any more."""
    processes = setup.processes
    before: dict[str, int] = {}
    quiet_at = time.monotonic() + QUIET_SECONDS
    while True:
        found = {
            name: _redis_bytes(each) if name == REDIS else each.memory_info().rss
            for name, each in processes.items()
        }
        if any(found[name] > before.get(name, 0) * 1.001 for name in found):
            before, quiet_at = found, time.monotonic() + QUIET_SECONDS
        elif time.monotonic() >= quiet_at:
            return found
        time.sleep(QUIET_SECONDS / 10)


def cluster_sessions(figures: FiguresFile = None, *, quick: Quick = False) -> None:
    """Measure the memory that sessions take whose clients are away."""
    if figures is not None:
        check_writable(figures)
    origin = replace(begin(running_command()), doubts=doubts())
    n_sessions = QUICK_SESSIONS if quick else FULL_SESSIONS
    n_readers = QUICK_READERS if quick else FULL_READERS
    columns = [REDIS, PUBLISHERS, SUBSCRIBERS]
    rows: list[list[str]] = []
    with cluster() as setup:
        port = setup.access.port
        asyncio.run(_leave_sessions(port, 1000, lambda number: f"warm/{number}"))
        before = memory(setup)
        asyncio.run(_leave_sessions(port, n_sessions, lambda number: f"bench/{number}"))
        after = memory(setup)
        each = [(after[name] - before[name]) / n_sessions for name in columns]
        rows.append([f"each of {n_sessions:,} sessions", *map(format_value, each)])
        asyncio.run(_leave_sessions(port, n_readers, lambda _: "all"))
        for n_bytes, n_messages in PAYLOADS:
            before = memory(setup)
            asyncio.run(_publish(port, "all", bytes(n_bytes), n_messages))
            after = memory(setup)
            each = [(after[name] - before[name]) / n_messages for name in columns]
            text = f"a message of {n_bytes:,} B for {n_readers:,} of them, one of {n_messages}"
            rows.append([text, *map(format_value, each)])
    table = Table(["bytes of memory", *columns], rows)
    tell([str(table)], describe_run([]))
    if figures is not None:
        write_figure_file(figures, origin, {"sessions": table})


main: Final = Program(cluster_sessions, "python -m benchmarks.cluster_sessions")


if __name__ == "__main__":
    sys.exit(main())
