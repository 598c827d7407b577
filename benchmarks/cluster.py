"""What does a message cost that goes through one more broker of a cluster, and what do faults?

Rerun: ``python -m benchmarks.cluster --figures FILE``; a look in seconds with ``--quick``. It needs
redis-server and mosquitto.

`benchmarks.cluster_faults` has further rows: what clients see of upgrades and faults.

A publisher is at one broker, and the subscriber at another one, of a cluster on a Redis server
without a disk. Messages have 64 bytes and one topic, and come in runs; at QoS 0 the next run begins
when the last one has arrived. What is counted is the processor time of both brokers and of Redis
for each message. Sessions end with their connection, or go on: then messages pass through the
mailbox of one. One broker without a cluster stands beside, and mosquitto. Setups take turns.

Pairs of clients at one port of two workers are spread by the kernel: half of the messages go from
one to the other. One broker has the same load.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import typer

from benchmarks.cluster_faults import QUICK, ROWS, Extent
from benchmarks.errors import BenchmarkError
from benchmarks.loads.access import Access
from benchmarks.loads.load import Load
from benchmarks.loads.redis_server import RedisServer, running_redis
from benchmarks.loads.stream import Shape
from benchmarks.loads.windowed import WindowedLoad, WindowedPlan
from benchmarks.peers import PEERS, Options, Peer, penstock_peer, running
from benchmarks.program import (
    DEFAULT_REPEATS,
    FiguresFile,
    JsonFile,
    Program,
    Quick,
    Repeats,
    choose,
    describe_run,
    doubts,
    running_command,
    tell,
    write_json,
)
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES
from benchmarks.rows.rates import MICROSECOND
from benchmarks.rows.report import format_value
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file

PAYLOAD_BYTES: Final = 64
N_WORKERS: Final = 2
RUN_MESSAGES: Final = 20_000
"""The messages of a run: less than what a broker lets wait for another one, so that none of QoS 0
is dropped."""
FULL_SECONDS: Final = 5.0
QUICK_SECONDS: Final = 0.3
LOOK_SECONDS: Final = 0.1
OPTIONS: Final = Options(inflight_messages=INFLIGHT_MESSAGES)

PUBLISHERS: Final = "publisher's broker"
SUBSCRIBERS: Final = "subscriber's broker"
REDIS: Final = "Redis"
ALONE: Final = "one broker"
MOSQUITTO: Final = "mosquitto"
ALL: Final = "all three"
WORKERS: Final = "two workers"
COSTS: Final = "costs"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of load.

    Attributes:
        words: its name.
        load: a function that connects it.
        most: the target: microseconds of all processes for each message.
        is_durable: sessions outlive their connections: those of a cluster have mailboxes.
    """

    words: str
    load: Callable[[Access], Load | WindowedLoad]
    most: float
    is_durable: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """What carries the messages.

    Attributes:
        access: how clients come in.
        processes: its processes, by what each of them is.
    """

    access: Access
    processes: Mapping[str, psutil.Process]


def _stream(access: Access) -> Load:
    return Load(access, Shape(least_bytes=PAYLOAD_BYTES, most_bytes=PAYLOAD_BYTES))


def _pairs(n_pairs: int, window: int) -> Callable[[Access], WindowedLoad]:
    wake_up_packets = max(1, window // 10)
    plan = WindowedPlan(n_pairs, window, PAYLOAD_BYTES, qos=1, wake_up_packets=wake_up_packets)
    return lambda access: WindowedLoad(access, plan)


KINDS: Final = (
    Kind("QoS 0", _stream, 3.0),
    Kind("QoS 1, window 100", _pairs(1, 100), 10.0),
    Kind("QoS 0, session goes on", _stream, 40.0, is_durable=True),
    Kind("QoS 1, window 100, session goes on", _pairs(1, 100), 40.0, is_durable=True),
)


SPREAD: Final = (
    Kind("20 pairs, QoS 1, window 20", _pairs(20, 20), 1.3),
    Kind("500 pairs, QoS 1, window 1", _pairs(500, 1), 1.3),
)
"""The target of these is how much two workers may take, where one broker takes 1."""


def node(name: str, server: str, n_workers: int = 1) -> Peer:
    """Return a broker of a cluster."""

    def change(policy: dict[str, Any], _: Path) -> None:
        del policy["persistence"]  # the engine keeps the sessions
        section = {"name": "bench", "node": name, "redis": {"server": server}}
        policy["cluster"] = section | {"workers": n_workers}
        del policy["plugins"]["queue"]  # whose file is one process's

    return penstock_peer("penstock", "of a cluster", change)


@contextmanager
def engine() -> Iterator[RedisServer]:
    """Start a Redis server without a disk."""
    folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
    with folder as place, running_redis(Path(place)) as redis:
        yield redis


@contextmanager
def cluster() -> Iterator[Setup]:
    """Start two brokers and their Redis."""
    with (
        engine() as redis,
        running(node("a", redis.address), OPTIONS) as first,
        running(node("b", redis.address), OPTIONS) as second,
    ):
        yield Setup(
            replace(first.access, subscriber_port=second.port),
            {
                PUBLISHERS: first.process,
                REDIS: psutil.Process(redis.pid),
                SUBSCRIBERS: second.process,
            },
        )


@contextmanager
def workers() -> Iterator[Setup]:
    """Start a broker of several processes, and its Redis."""
    with engine() as redis, running(node("a", redis.address, N_WORKERS), OPTIONS) as peer:
        while _n_listening(peer.port) < N_WORKERS:
            time.sleep(LOOK_SECONDS)
        found = {f"{WORKERS}, {each.pid}": each for each in peer.process.children()}
        yield Setup(peer.access, {REDIS: psutil.Process(redis.pid), **found})


def _n_listening(port: int) -> int:
    """Return how many processes listen on a port."""
    return sum(
        1
        for each in psutil.net_connections("tcp4")
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    )


@contextmanager
def alone(name: str, words: str) -> Iterator[Setup]:
    """Start one broker."""
    with running(PEERS[name], OPTIONS) as peer:
        yield Setup(peer.access, {words: peer.process})


def measure(kind: Kind, setup: Setup, seconds: float) -> dict[str, float]:
    """Return microseconds of processor time for each message, by process.

    Raises:
        BenchmarkError: a message was lost.
    """

    def used() -> dict[str, float]:
        times = {name: each.cpu_times() for name, each in setup.processes.items()}
        return {name: each.user + each.system for name, each in times.items()}

    with kind.load(replace(setup.access, is_durable=kind.is_durable)) as load:
        load.run(RUN_MESSAGES)
        n_messages = 0
        before, end = used(), time.monotonic() + seconds
        while time.monotonic() < end:
            run = load.run(RUN_MESSAGES)
            n_messages += run.delivered
            if run.lost:
                raise BenchmarkError(f"{kind.words}: {run.lost} of {RUN_MESSAGES} messages lost")
        after = used()
    found: dict[str, float] = {}
    for name in before:
        words = WORKERS if name.startswith(WORKERS) else name
        cost = (after[name] - before[name]) / MICROSECOND / n_messages
        found[words] = found.get(words, 0.0) + cost
    return found


def _table(
    found: Mapping[str, Mapping[str, list[float]]],
    kinds: Sequence[Kind],
    costs: Sequence[str],
    result: tuple[str, Callable[[Mapping[str, float]], float]],
    others: Sequence[str],
) -> Table:
    """Return the medians, a row for each kind of load, with what is made of them and its target."""
    head, judge = result
    rows = []
    for kind in kinds:
        values = {name: statistics.median(each) for name, each in found[kind.words].items()}
        judged = judge(values)
        target = f"at most {kind.most:g}: {'met' if judged <= kind.most else 'missed'}"
        shown = [format_value(values[name]) for name in costs]
        beside = [format_value(values[name]) for name in others]
        rows.append([kind.words, *shown, format_value(judged), target, *beside])
    return Table(["µs of processor time a message", *costs, head, "target", *others], rows)


def to_table(found: Mapping[str, Mapping[str, list[float]]]) -> Table:
    """Return what one more broker costs."""
    costs = (PUBLISHERS, REDIS, SUBSCRIBERS)
    result = ALL, lambda values: sum(values[name] for name in costs)
    return _table(found, KINDS, costs, result, (ALONE, MOSQUITTO))


def to_workers_table(found: Mapping[str, Mapping[str, list[float]]]) -> Table:
    """Return what workers cost."""
    result = "ratio", lambda values: (values[WORKERS] + values[REDIS]) / values[ALONE]
    return _table(found, SPREAD, (WORKERS, REDIS, ALONE), result, (MOSQUITTO,))


def measure_costs(repeats: int, *, quick: bool) -> dict[str, dict[str, list[float]]]:
    """Return microseconds of processor time by load and process, of each repetition."""
    setups = (
        (cluster, KINDS),
        (workers, SPREAD),
        (lambda: alone("penstock", ALONE), (*KINDS, *SPREAD)),
        (lambda: alone("mosquitto", MOSQUITTO), (*KINDS, *SPREAD)),
    )
    found: dict[str, dict[str, list[float]]] = {kind.words: {} for kind in (*KINDS, *SPREAD)}
    for number in range(repeats):
        for started, kinds in setups:
            with started() as setup:
                for kind in kinds:
                    costs = measure(kind, setup, QUICK_SECONDS if quick else FULL_SECONDS)
                    for name, cost in costs.items():
                        found[kind.words].setdefault(name, []).append(cost)
                        text = f"{kind.words}: {name}: {format_value(cost)}"
                        typer.echo(f"{number + 1}/{repeats} {text}", err=True)
    return found


def cluster_rows(
    rows: Annotated[
        str, typer.Option(help=f"{COSTS}, {', '.join(ROWS)}, with commas between; or all.")
    ] = "all",
    repeats: Repeats = DEFAULT_REPEATS,
    json_file: JsonFile = None,
    figures: FiguresFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Measure what a message costs that goes through one more broker, and what clients see."""
    chosen = choose("row", rows, {name: name for name in (COSTS, *ROWS)})
    if figures is not None:
        check_writable(figures)
    origin = replace(begin(running_command()), doubts=doubts())
    tables: dict[str, Table] = {}
    found: dict[str, Any] = {}
    if COSTS in chosen:
        found["microseconds"] = measure_costs(repeats, quick=quick)
        tables[COSTS] = to_table(found["microseconds"])
        tables["workers"] = to_workers_table(found["microseconds"])
    lines = []
    for name in chosen:
        if name != COSTS:
            lines.append(asyncio.run(ROWS[name](node, QUICK if quick else Extent())))
            typer.echo(": ".join(lines[-1]), err=True)
    if lines:
        tables["faults"] = Table(["what happens", "what clients see", "target"], lines)
    run = describe_run([PEERS["penstock"], PEERS["mosquitto"]])
    write_json(json_file, {"run": run, **found, "faults": lines})
    tell([str(table) for table in tables.values()], run)
    if figures is not None:
        write_figure_file(figures, origin, tables)


main: Final = Program(cluster_rows, "python -m benchmarks.cluster")


if __name__ == "__main__":
    sys.exit(main())
