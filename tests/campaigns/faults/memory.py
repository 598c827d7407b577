"""Fault: each limit of memory is filled and more is offered; the broker must stay within it."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.loads import wire
from tests.campaigns.faults.case import Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject

LIMIT_BYTES: Final = 128 * 1024 * 1024
LIMIT_SCALE: Final = 10.0
"""Limits of memory shrink less than the effort, by this factor: some MB come and go in any process,
whatever is stored."""

N_LIMIT_SESSIONS: Final = 20_000
MOST_RATIO: Final = 1.1
MOST_SESSION_KB: Final = 6.0
"""The memory of a session that the documentation promises."""

MORE: Final = 1.3
"""The ratio of what is offered to what there is room for."""

N_SESSIONS: Final = 5_000
N_PARTS: Final = 40
N_INFLIGHT: Final = 1_000
READ_AT_A_TIME: Final = 100
INFLIGHT_BYTES: Final = 1_450
"""The memory of a message with a payload of 1 KB and its delivery."""

SMALL: Final = bytes(100)
PAYLOAD_BYTES: Final = 1_000
WILL: Final = bytes(60_000)
LONG_LEVEL: Final = "x" * 30_000
FILTERS_OF_SESSION: Final = 10_000
FILTERS_AT_A_TIME: Final = 100
MESSAGES_AT_A_TIME: Final = 1_000
SETTLE_SECONDS: Final = 1.0
DELIVERY_BYTES: Final = 144
"""The memory of a message for each session that it waits for, as the documentation says."""

SHORT_FILTER_BYTES: Final = 600
"""A lower bound for the memory of a short filter."""

DISCONNECT: Final = b"\xe0\x00"


@dataclass(frozen=True, slots=True)
class Room:
    """The resources of one filling.

    Attributes:
        broker: the running broker.
        limit: the limit, in bytes or sessions.
        effort: the extent of the fault.
        stack: the exit stack of what stays open until the resident set is read.
    """

    broker: Subject
    limit: int
    effort: Effort
    stack: ExitStack

    def client(self, client_id: str, *, is_clean: bool = False) -> socket.socket:
        """Return a client that stays connected; its session stays where it is not clean."""
        sock = wire.open_client(self.broker.port, client_id, is_clean=is_clean)
        return self.stack.enter_context(sock)

    def publish(self, packets: Iterable[Callable[[int], bytes]]) -> None:
        """Publish at QoS 1, many at a time; each is acknowledged, kept or not."""
        source = iter(packets)
        with wire.open_client(self.broker.port, "publisher") as sock:
            while batch := list(itertools.islice(source, MESSAGES_AT_A_TIME)):
                sock.sendall(b"".join(make(number) for number, make in enumerate(batch, start=1)))
                wire.receive_exactly(sock, 4 * len(batch))

    def leave(self, client_id: str, topic_filters: Sequence[str] = ()) -> None:
        """Leave a session behind, with as many subscriptions as are granted."""
        with wire.open_client(self.broker.port, client_id, is_clean=False) as sock:
            n_each = FILTERS_AT_A_TIME if len("".join(topic_filters[:1])) < PAYLOAD_BYTES else 1
            for first in range(0, len(topic_filters), n_each):
                filters = topic_filters[first : first + n_each]
                sock.sendall(wire.subscribe_packet(1, filters, 1))
                wire.receive_packet(sock)
            sock.sendall(DISCONNECT)


@dataclass(frozen=True, slots=True)
class Filling:
    """A limit, and the messages or sessions that fill it.

    Attributes:
        name: the name of the limit, and of what fills it.
        fill: a function that offers more than there is room for.
        limits: the limits of Penstock; keys whose value is None get the bytes of the limit.
        lines: the lines of mosquitto.conf, with ``{}`` for the bytes; none where it has no such
            limit.
    """

    name: str
    fill: Callable[[Room], None]
    limits: Mapping[str, Any]
    lines: Sequence[str] = ()


def _message(topic: str, number: int, *, retain: bool = False) -> Callable[[int], bytes]:
    """Return what makes a PUBLISH of a payload of its own, with a Packet Identifier."""

    def make(packet_id: int) -> bytes:
        payload = number.to_bytes(8, "big") * (PAYLOAD_BYTES // 8)
        packet = wire.publish_packet(topic, payload, packet_id)
        return bytes([packet[0] | retain]) + packet[1:]

    return make


def fill_many_sessions(room: Room) -> None:
    """Let each small message wait for very many sessions."""
    n_sessions = room.effort.count(N_SESSIONS, least=10)
    for number in range(n_sessions):
        room.leave(f"many{number}", ["q"])
    n_messages = int(MORE * room.limit / (n_sessions * DELIVERY_BYTES)) + 1
    room.publish(
        itertools.repeat(lambda number: wire.publish_packet("q", SMALL, number), n_messages)
    )


def fill_one_topic(room: Room) -> None:
    """Let messages of one topic wait for one session."""
    room.leave("one", ["q/#"])
    n_messages = int(MORE * room.limit / PAYLOAD_BYTES)
    room.publish(_message("q/1", number) for number in range(n_messages))


def fill_many_topics(room: Room, *, retain: bool = False) -> None:
    """Let messages wait for one session, or be retained, each of a topic that no other has."""
    if not retain:
        room.leave("topics", ["site/#"])
    n_messages = int(1.5 * room.limit / PAYLOAD_BYTES)  # 195,000 and more of 128 MiB
    room.publish(
        _message(f"site/device{number}/state", number, retain=retain)
        for number in range(n_messages)
    )


def fill_retained(room: Room) -> None:
    """Publish a retained message on each of many topics."""
    fill_many_topics(room, retain=True)


def fill_inflight(room: Room) -> None:
    """Leave sessions whose clients have read messages and answered none; then let more wait.

    They read as many as fill the limit: what a client that is there reads is not held back by it.
    """
    n_messages = int(room.limit / INFLIGHT_BYTES)
    for session, start in enumerate(range(0, n_messages, N_INFLIGHT)):
        topic = f"inflight{session}"
        with wire.open_client(room.broker.port, topic, is_clean=False) as sock:
            wire.subscribe(sock, topic, 1)
            end = min(start + N_INFLIGHT, n_messages)
            for first in range(start, end, READ_AT_A_TIME):
                numbers = range(first, min(first + READ_AT_A_TIME, end))
                room.publish(_message(topic, number) for number in numbers)
                for _ in numbers:
                    wire.receive_packet(sock)
    fill_one_topic(room)


def fill_short_filters(room: Room) -> None:
    """Leave sessions with thousands of different filters of four levels each."""
    n_filters = int(MORE * room.limit / SHORT_FILTER_BYTES)
    for first in range(0, n_filters, FILTERS_OF_SESSION):
        numbers = range(first, min(first + FILTERS_OF_SESSION, n_filters))
        filters = [f"site{first}/device{n // 100}/{n % 100}/+" for n in numbers]
        room.leave(f"short{first}", filters)


def fill_long_filters(room: Room) -> None:
    """Leave sessions with a hundred different filters of 60 KB each."""
    n_filters = int(MORE * room.limit / (2 * len(LONG_LEVEL))) + 1
    for first in range(0, n_filters, FILTERS_AT_A_TIME):
        numbers = range(first, min(first + FILTERS_AT_A_TIME, n_filters))
        room.leave(f"long{first}", [f"{n}/{LONG_LEVEL}/{LONG_LEVEL}" for n in numbers])


def fill_parts(room: Room) -> None:
    """Send the beginning of a message of 200 MB on each of many connections, and stay."""
    head = b"\x30\x80\x80\xd0\x5f" + struct.pack("!H", 1) + b"t"
    part = head + bytes(2 * room.limit // N_PARTS)
    for number in range(N_PARTS):
        with contextlib.suppress(OSError):  # above the limit one of them is closed
            room.client(f"part{number}", is_clean=True).sendall(part)


def fill_wills(room: Room) -> None:
    """Leave sessions with a will of 60 KB each, which is delayed; MQTT 5."""
    never = b"\x05\x11" + struct.pack("!I", 3600)  # Session Expiry Interval
    delay = b"\x05\x18" + struct.pack("!I", 3600)  # Will Delay Interval
    for number in range(int(MORE * room.limit / len(WILL)) + 1):
        texts = [b"will%d" % number, b"will", WILL]
        client_id, topic, payload = (struct.pack("!H", len(text)) + text for text in texts)
        head = b"\x00\x04MQTT\x05\x06\x00\x00" + never
        with wire.open_connection(room.broker.port) as sock:
            sock.sendall(wire.frame(0x10, head + client_id + delay + topic + payload))
            wire.receive_packet(sock)  # it may be refused


def fill_sessions(room: Room) -> None:
    """Leave more sessions than there may be."""
    for number in range(int(MORE * room.limit)):
        with contextlib.suppress(wire.WireError):
            room.leave(f"s{number}")


QUEUES: Final = {
    "total_queued_bytes": None,
    "queued_bytes": 2 * LIMIT_BYTES,
    "queued_messages": 10**6,
    "queue_full": "drop_newest",
}
OWN_LINES: Final = ("max_queued_messages 0", "max_queued_bytes {}")
ALL_LINES: Final = ("max_queued_messages 0", "memory_limit {}")
SUBSCRIPTIONS: Final = {"total_subscription_bytes": None, "subscription_bytes": LIMIT_BYTES}

FILLINGS: Final = (
    Filling("100 bytes for 5,000 sessions", fill_many_sessions, QUEUES, ALL_LINES),
    Filling("1 KB of one topic", fill_one_topic, QUEUES, OWN_LINES),
    Filling("1 KB of each topic", fill_many_topics, QUEUES, OWN_LINES),
    Filling("inflight to absent sessions", fill_inflight, QUEUES, ALL_LINES),
    Filling("retained, 1 KB", fill_retained, {"retained_bytes": None}, ALL_LINES),
    Filling("filters of 4 levels", fill_short_filters, SUBSCRIPTIONS, ALL_LINES),
    Filling("filters of 60 KB", fill_long_filters, SUBSCRIPTIONS, ALL_LINES),
    Filling("parts of packets", fill_parts, {"total_received_bytes": None}, ALL_LINES),
    Filling("wills of 60 KB", fill_wills, {"total_will_bytes": None}, ALL_LINES),
)


def _growth_bytes(broker: Subject, fill: Callable[[Room], None], limit: int, effort: Effort) -> int:
    """Start a broker, fill a limit, and return by what its resident set has grown."""
    broker.start()
    try:
        with wire.open_client(broker.port, "first") as sock:
            wire.subscribe(sock, "first", 1)
        before = broker.rss_bytes()
        with ExitStack() as stack:
            try:
                fill(Room(broker, limit, effort, stack))
            except (OSError, wire.WireError):
                if broker.is_ours:
                    raise  # mosquitto's memory_limit ends connections
            time.sleep(min(SETTLE_SECONDS, effort.seconds / 4))
            return broker.rss_bytes() - before
    finally:
        broker.kill()


def inflict(broker: Subject, _rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Fill one limit after the other, each of a broker that has just started."""
    limit = round(LIMIT_BYTES * min(1.0, LIMIT_SCALE * effort.scale))
    findings = []
    for filling in FILLINGS:
        if not broker.is_ours and not filling.lines:
            continue
        limits = {key: limit if each is None else each for key, each in filling.limits.items()}
        broker.configure({"limits": limits}, [line.format(limit) for line in filling.lines])
        n_bytes = _growth_bytes(broker, filling.fill, limit, effort)
        findings.append(Finding(f"{filling.name}: of the limit", n_bytes / limit, most=MOST_RATIO))
    if broker.is_ours:
        n_sessions = effort.count(N_LIMIT_SESSIONS, least=10)
        limits = {"sessions": n_sessions, "sessions_per_address": n_sessions}
        broker.configure({"limits": limits})
        n_kb = _growth_bytes(broker, fill_sessions, n_sessions, effort) / n_sessions / 1000
        findings.append(Finding("a session, of `sessions`", n_kb, "KB", most=MOST_SESSION_KB))
    return findings


MEMORY: Final = Fault(
    "memory",
    "each limit of memory set to 128 MiB (mosquitto: max_queued_bytes or memory_limit), and more "
    "than that offered: growth of the resident set",
    inflict,
)
