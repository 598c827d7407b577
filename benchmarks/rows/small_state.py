"""What does a broker keep in memory for each connection, filter and queued message?

All figures are growth of the resident set, once it is steady, divided by how many caused it.

`memory_connections`: clients with a keep-alive connect and are silent.
`memory_filters`: a hundred clients subscribe topic filters with wildcards, all different.
`memory_queued`: a session that is offline is sent messages of 1,000 bytes at QoS 1; then four
sessions together are sent as many, which tells what each further session of a message costs.
In the end all of them connect and read everything, and what the broker then takes is compared
with what it took before.
"""

from __future__ import annotations

import random
import resource
import socket
from contextlib import ExitStack
from typing import Final

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from benchmarks.loads.access import Access
from benchmarks.loads.stream import wildcard_filters
from benchmarks.loads.windowed import Publisher, Subscriber, WindowedPlan, serve
from benchmarks.peers import RunningPeer
from benchmarks.rows.memory import wait_until_steady
from benchmarks.rows.row import Figure, Measurement, Row, Scale, Target

KEEP_ALIVE_SECONDS: Final = 600
SPARE_FILES: Final = 200
FILTER_CLIENTS: Final = 100
FILTERS_OF_A_PACKET: Final = 100
KILOBYTE: Final = 1000
QUEUED: Final = WindowedPlan(pairs=2, window=100, payload_bytes=KILOBYTE, qos=1)
PAYLOADS: Final = 500
FURTHER_SESSIONS: Final = 3


def measure_connections(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return kilobytes for each idle connection.

    Raises:
        BenchmarkError: so many files may not be open.
    """
    count = scale.idle_connections
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < count + SPARE_FILES:
        raise BenchmarkError(
            f"{count} connections need as many open files and {SPARE_FILES} more;"
            f" {allowed} are allowed (ulimit -Hn)"
        )
    before = wait_until_steady(peer, scale)
    names = [f"bench-idle-{i:05d}" for i in range(count)]
    with ExitStack() as stack:
        for sock in wire.open_clients(peer.port, names, keep_alive=KEEP_ALIVE_SECONDS):
            stack.enter_context(sock)
        after = wait_until_steady(peer, scale)
    return Measurement(
        value=(after - before) / count / KILOBYTE,
        details={"connections": count, "before_bytes": before, "after_bytes": after},
    )


def measure_filters(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return kilobytes for each subscription."""
    filters = wildcard_filters(scale.filters)
    names = [f"bench-filters-{i}" for i in range(FILTER_CLIENTS)]
    with ExitStack() as stack:
        clients = [stack.enter_context(sock) for sock in wire.open_clients(peer.port, names)]
        before = wait_until_steady(peer, scale)
        for i, sock in enumerate(clients):
            own = filters[i::FILTER_CLIENTS]
            for start in range(0, len(own), FILTERS_OF_A_PACKET):
                wire.subscribe(sock, own[start : start + FILTERS_OF_A_PACKET], 0)
        after = wait_until_steady(peer, scale)
    return Measurement(
        value=(after - before) / scale.filters / KILOBYTE,
        details={"filters": scale.filters, "before_bytes": before, "after_bytes": after},
    )


def _payloads() -> list[bytes]:
    generator = random.Random(0)  # noqa: S311 - payloads, not secrets
    return [generator.randbytes(KILOBYTE) for _ in range(PAYLOADS)]


def publish(access: Access, pair: int, messages: int, payloads: list[bytes]) -> None:
    """Publish messages and have each acknowledged."""
    publisher = Publisher(access, QUEUED, pair, payloads)
    with publisher.sock as sock:
        sock.settimeout(None)
        publisher.begin(messages, 1)
        publisher.start(messages)
        serve([publisher])
    if publisher.remaining:
        raise wire.WireError(f"{publisher.remaining} of {messages} messages not acknowledged")


def take_leave(sock: socket.socket) -> None:
    """Disconnect and wait until the broker has closed the connection."""
    sock.settimeout(wire.HANDSHAKE_TIMEOUT_SECONDS)
    sock.sendall(wire.DISCONNECT)
    while sock.recv(1 << 16):
        pass


def drain(access: Access, session: str, pair: int, messages: int, payloads: list[bytes]) -> int:
    """Resume a session, read and acknowledge what it was sent; return what is missing.

    Of a session that the broker has not kept, everything is.
    """
    subscriber = Subscriber(access, QUEUED, pair, session=session)
    with subscriber.sock as sock:
        sent = QUEUED.packet(pair, payloads[0], 1)
        subscriber.learn(sent, sent, QUEUED, payloads)
        sock.settimeout(None)
        subscriber.begin(messages, 1)
        serve([subscriber])
        take_leave(sock)
    return subscriber.remaining


def measure_queued(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return kilobytes for each message that waits for an offline session."""
    messages, payloads = scale.queued_messages, _payloads()
    sessions = {f"bench-offline-{i}": min(i, 1) for i in range(2 + FURTHER_SESSIONS)}
    for session, pair in sessions.items():
        with Subscriber(peer.access, QUEUED, pair, session=session).sock as sock:
            take_leave(sock)
    before = wait_until_steady(peer, scale)
    publish(peer.access, 0, messages, payloads)
    with_one = wait_until_steady(peer, scale)
    publish(peer.access, 1, messages, payloads)
    with_more = wait_until_steady(peer, scale)
    lost = sum(
        drain(peer.access, session, pair, messages, payloads) for session, pair in sessions.items()
    )
    afterwards = wait_until_steady(peer, scale)
    for session in sessions:  # a clean session ends the one that was kept
        with wire.open_client(peer.port, session) as sock:
            take_leave(sock)
    one = with_one - before
    further = (with_more - with_one - one) / FURTHER_SESSIONS
    return Measurement(
        value=one / messages / KILOBYTE,
        lost=lost,
        details={
            "further_session_kilobytes": further / messages / KILOBYTE,
            "afterwards_ratio": afterwards / before,
            "before_bytes": before,
            "one_session_bytes": with_one,
            "five_sessions_bytes": with_more,
            "afterwards_bytes": afterwards,
        },
    )


ROWS: Final = (
    Row(
        name="memory_connections",
        group="memory",
        title="resident set for an idle connection",
        unit="KB",
        target=Target(most_value=6),
        measure=measure_connections,
    ),
    Row(
        name="memory_filters",
        group="memory",
        title="the same for a subscription",
        unit="KB",
        target=Target(most_value=0.5),
        measure=measure_filters,
    ),
    Row(
        name="memory_queued",
        group="memory",
        title="the same for a 1 KB message that waits for an offline session",
        unit="KB",
        target=Target(most_value=1.4),
        measure=measure_queued,
        figures=(
            Figure(
                "further_session_kilobytes",
                "the same for each further session it waits for",
                "KB",
                Target(most_value=0.2),
            ),
            Figure(
                "afterwards_ratio",
                "resident set after all has been read, over that before",
                "x start",
                Target(most_value=1.1),
            ),
        ),
    ),
)
