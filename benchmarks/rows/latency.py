"""How late are small messages on a schedule, and how much later while another client floods?

`latency`: 500 clients send a message a second each to one reader, for as long as it takes to
see one in a thousand. `fair_publisher` and `fair_subscriber`: the p99 of one client that sends
400 a second to a reader of its own, alone and while another client publishes QoS 0 as fast as it
is read: to a subscriber that keeps up, or to one that takes no more than 6.5 MB/s. Both are
measured in turn, three times, and their medians compared, as another guest of the machine may take
a core for some milliseconds at any time.

Five processes share two cores then, and a scheduler that lets each have its share makes who wakes
up wait for milliseconds: of mosquitto, which handles a packet or two between two looks at the
network, the ratio was 1.3 to 5 in one run. So what floods stands back (SCHED_IDLE): it has all that
the broker and the pair leave.
"""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Self

from benchmarks.loads import wire
from benchmarks.loads.load import Load, Side
from benchmarks.loads.paced import Schedule
from benchmarks.loads.stream import TOPIC_FILTER, Shape
from benchmarks.peers import RunningPeer
from benchmarks.rows.rates import BROKER_CPU, MICROSECOND
from benchmarks.rows.row import Figure, Measurement, Row, Scale, Target
from benchmarks.rows.throughput import UNIFORM

LEAD_SECONDS: Final = 0.05
"""The time between the order to start and the start; both processes are ready by then."""

PAIR_INTERVAL_SECONDS: Final = 0.0025
FLOOD_MESSAGES: Final = 1 << 40
"""A number of messages that no broker carries before the flood is ended."""

FLOOD_LEAD_SECONDS: Final = 0.2
FAIRNESS_ROUNDS: Final = 3
SLOW_READ_BYTES: Final = 1 << 16
SLOW_READ_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Lateness:
    """The lateness of the messages of one schedule, in seconds.

    Attributes:
        p50: the lateness that half of them do not exceed.
        p99: the lateness that 99 % of them do not exceed.
        p999: the lateness that 99.9 % of them do not exceed.
        sender_p99: the lateness of the sender that 99 % of its messages do not exceed.
        lost: the messages that did not arrive.
        load_cpu_ratio: the processor time of the load, divided by the elapsed time.
    """

    p50: float
    p99: float
    p999: float
    most: float
    sender_p99: float
    lost: int
    load_cpu_ratio: float


class Pacing:
    """The two processes of a schedule, connected.

    A context manager; they end with it.
    """

    def __init__(self, port: int, schedule: Schedule) -> None:
        self._schedule = schedule
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._reader = self._start(stack, "read", port)
            self._sender = self._start(stack, "send", port)
            self._stack = stack.pop_all()

    def _start(self, stack: ExitStack, role: str, port: int) -> Side:
        described = json.dumps(asdict(self._schedule))
        side = Side("benchmarks.loads.paced", role, port, described)
        stack.callback(side.close)
        side.answer()
        return side

    def run(self) -> Lateness:
        """Carry the schedule through once.

        Raises:
            BenchmarkError: a side has ended, as when the broker closed its connection.
        """
        start = time.monotonic() + LEAD_SECONDS
        self._reader.tell(start=start)
        self._sender.tell(start=start)
        sent: dict[str, Any] = self._sender.answer()
        read: dict[str, Any] = self._reader.answer()
        return Lateness(
            p50=read["p50"],
            p99=read["p99"],
            p999=read["p999"],
            most=read["most"],
            sender_p99=sent["late_p99"],
            lost=read["expected"] - read["received"],
            load_cpu_ratio=(read["cpu"] + sent["cpu"]) / self._schedule.seconds,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure_latency(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return the median lateness in microseconds; the tail is in the details."""
    schedule = Schedule(scale.clients, 1.0, scale.latency_seconds)
    with Pacing(peer.port, schedule) as pacing:
        cpu_before = peer.cpu_seconds()
        late = pacing.run()
        cpu = peer.cpu_seconds() - cpu_before
    return Measurement(
        value=late.p50 / MICROSECOND,
        lost=late.lost,
        details={
            "p99_microseconds": late.p99 / MICROSECOND,
            "p999_microseconds": late.p999 / MICROSECOND,
            "most_microseconds": late.most / MICROSECOND,
            "sender_p99_microseconds": late.sender_p99 / MICROSECOND,
            "broker_cpu_ratio": cpu / scale.latency_seconds,
            BROKER_CPU: cpu / MICROSECOND / len(schedule.times()),
            "load_cpu_ratio": late.load_cpu_ratio,
        },
    )


@contextmanager
def flooding_publisher(peer: RunningPeer) -> Iterator[None]:
    """Publish as fast as the broker reads, to a subscriber that reads at once."""
    load = Load(peer.access, UNIFORM)
    try:
        load.stand_back()
        load.begin(FLOOD_MESSAGES)
        yield
    finally:
        load.close()


@contextmanager
def flooded_subscriber(
    peer: RunningPeer,
    shape: Shape = UNIFORM,
    topic_filter: str = TOPIC_FILTER,
    *,
    chunk_bytes: int = SLOW_READ_BYTES,
    chunk_seconds: float = SLOW_READ_SECONDS,
) -> Iterator[None]:
    """Publish as fast as the broker reads, to a subscriber that reads slowly."""
    stop = threading.Event()

    def read_slowly(sock: socket.socket) -> None:
        while not stop.wait(chunk_seconds):
            with suppress(TimeoutError):  # a broker may be slower still
                sock.recv(chunk_bytes)

    with wire.open_client(peer.port, "bench-flooded") as sock, ExitStack() as stack:
        wire.subscribe(sock, topic_filter, 0)
        sock.settimeout(chunk_seconds)
        arguments = json.dumps(asdict(peer.access)), json.dumps(asdict(shape))
        publisher = Side("benchmarks.loads.publisher", *arguments)
        stack.callback(publisher.close)
        publisher.answer()
        publisher.stand_back()
        reader = threading.Thread(target=read_slowly, args=(sock,), name="slow-reader")
        reader.start()
        stack.callback(reader.join)
        stack.callback(stop.set)
        publisher.tell(messages=FLOOD_MESSAGES)
        yield


def measure_fairness(peer: RunningPeer, scale: Scale, *, is_slow: bool) -> Measurement:
    """Return the p99 of a pair under another's flood, over that alone."""
    schedule = Schedule(1, PAIR_INTERVAL_SECONDS, scale.latency_seconds / (2 * FAIRNESS_ROUNDS))
    alone: list[Lateness] = []
    flooded: list[Lateness] = []
    with Pacing(peer.port, schedule) as pacing:
        for _ in range(FAIRNESS_ROUNDS):
            alone.append(pacing.run())
            with flooded_subscriber(peer) if is_slow else flooding_publisher(peer):
                time.sleep(FLOOD_LEAD_SECONDS)
                flooded.append(pacing.run())
    alone_p99 = statistics.median(late.p99 for late in alone)
    flooded_p99 = statistics.median(late.p99 for late in flooded)
    sender_p99 = statistics.median(late.sender_p99 for late in flooded)
    return Measurement(
        value=flooded_p99 / alone_p99,
        lost=sum(late.lost for late in alone + flooded),
        details={
            "alone_p50_microseconds": statistics.median(late.p50 for late in alone) / MICROSECOND,
            "alone_p99_microseconds": alone_p99 / MICROSECOND,
            "flooded_p50_microseconds": (
                statistics.median(late.p50 for late in flooded) / MICROSECOND
            ),
            "flooded_p99_microseconds": flooded_p99 / MICROSECOND,
            "flooded_sender_p99_microseconds": sender_p99 / MICROSECOND,
            "load_cpu_ratio": max(late.load_cpu_ratio for late in flooded),
        },
    )


ROWS: Final = (
    Row(
        name="latency",
        group="latency",
        title="500 clients with a message a second each to 1, open loop: p50",
        unit="us",
        target=Target(most_ratio=1.2),
        measure=measure_latency,
        has_ceiling=True,
        figures=(
            Figure("p99_microseconds", "the same, p99", "us", Target(most_ratio=1.5)),
            Figure("p999_microseconds", "the same, p99.9", "us", Target()),
        ),
    ),
    Row(
        name="fair_publisher",
        group="fairness",
        title="p99 of a pair while another publisher floods, over that alone",
        unit="x alone",
        target=Target(most_value=3),
        measure=partial(measure_fairness, is_slow=False),
        figures=(Figure("flooded_p99_microseconds", "that p99", "us", Target()),),
    ),
    Row(
        name="fair_subscriber",
        group="fairness",
        title="the same while a slow subscriber is flooded",
        unit="x alone",
        target=Target(most_value=3),
        measure=partial(measure_fairness, is_slow=True),
        figures=(Figure("flooded_p99_microseconds", "that p99", "us", Target()),),
    ),
)
