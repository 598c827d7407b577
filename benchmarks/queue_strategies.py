"""What do missed dequeues cost, and what do PMS, RDS and arrival signals save? See paper 000.

Rerun: ``python -m benchmarks.queue_strategies``; a look in seconds with ``--quick``. With
``--plot FILE`` it draws the curves of paper 000's figures 9 to 12 (figure 14 is figure 9 on real
servers), with ``--figures FILE`` it writes the tables for a page.

Ten producers store single messages of 1 KB over HTTP in a queue of ten physical queues, each the
next one when the last one is answered. Requests of each of ten back ends (BES) for up to 100
messages are a Poisson process of lambda requests a second over ten connections, as in ``penstock
plan dequeue``: a request for which none is free is not sent. What comes is acknowledged. The
gateway has one core, and what it spends on requests that find nothing, or little, producers do not
get: so messages received a second tell what a strategy costs.

The ceiling is the rate of the producers alone: no strategy can be above it. The highest lambda is
beyond the paper's. A missed dequeue costs the paper's system twenty enqueues and this gateway less
than one, so that the load of lambda 200 there is that of a higher one here.

With `conventional`, lambda is the rate of requests; the others hold a request for up to 5 s, so
that their rate is that of messages. The engine is `memory`: no disk takes part. Sleep times of
`rds`, figure 12, are measured at the paper's highest lambda.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
import uvloop

from benchmarks.errors import BenchmarkError
from benchmarks.loads.gateway import gateway
from benchmarks.program import (
    DEFAULT_REPEATS,
    FiguresFile,
    JsonFile,
    Program,
    Quick,
    Repeats,
    describe_run,
    doubts,
    tell,
    write_json,
)
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file
from penstock.netem.runs.broker_process import ENVIRONMENT

STRATEGIES: Final = ("conventional", "pms", "rds", "rds+wake")
ARRIVAL_RATES: Final = (10, 20, 50, 100, 150, 200, 400)
QUICK_RATES: Final = (10, 200)
SLEEP_SECONDS: Final = (0.02, 0.1, 0.5, 1.0, 5.0)
"""The sleep times with which `rds` is measured at `PAPER_RATE`."""
QUICK_SLEEP_SECONDS: Final = (0.1, 5.0)
DEFAULT_SLEEP_SECONDS: Final = 0.1
"""The queue's default sleep time, with which `rds` and `pms` are measured at all rates."""
PAPER_RATE: Final = 200
"""The highest lambda of the paper."""
BACK_ENDS: Final = 10
CONNECTIONS: Final = 10
"""The number of connections of one back end."""
PRODUCERS: Final = 10
PHYSICAL_QUEUES: Final = 10
N_MAX: Final = 100
WAIT_SECONDS: Final = 5.0
PAYLOAD: Final = "x" * 1000
FULL_SECONDS: Final = 3.0
QUICK_SECONDS: Final = 1.0
WARM_UP: Final = 0.2
"""The time before the measurement, as a share of its seconds."""
MOST_WINDOWS: Final = 100
"""The most times that the measurement is prolonged by its seconds while no message was counted:
a machine may be too busy for a single one."""
TARGET: Final = 1.8
"""The target ratio of RDS over conventional at `PAPER_RATE`, as on the paper's servers."""
FLAT: Final = 0.9
"""RDS is flat over lambda where its rate at `PAPER_RATE` over that at the lowest lambda is at least
this."""
CEILING: Final = "producers alone"
QUEUE: Final = "bench"


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Attributes:
        messages_per_second: the messages a second that were received and acknowledged.
        hit_ratio: the share of hit dequeues among all tries.
        messages_per_hit: the mean number of messages that a hit dequeue found.
        requests_per_second: the requests a second of the back ends.
    """

    messages_per_second: float
    hit_ratio: float
    messages_per_hit: float
    requests_per_second: float


class Connection:
    """A connection of HTTP/1.1 to the gateway, cheaper than the requests that it measures."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, url: str) -> Connection:
        """Connect."""
        at = urlsplit(url)
        return cls(*await asyncio.open_connection(at.hostname, at.port))

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the JSON value of its answer.

        Raises:
            BenchmarkError: it was refused.
        """
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        fields = answer.decode().lower().split("\r\n")
        length = next(int(field[15:]) for field in fields if field.startswith("content-length:"))
        found = json.loads(await self._reader.readexactly(length))
        if " 200 " not in fields[0]:
            raise BenchmarkError(f"{method} {path}: {fields[0]}: {found}")
        return found


async def _produce(url: str) -> None:
    connection = await Connection.to(url)
    while True:
        message = {"topic": "bench/1", "text": PAYLOAD}
        await connection.ask("POST", f"/queues/{QUEUE}/messages", message)


async def _request(url: str, asked: asyncio.Queue[None], is_done: Callable[[], None]) -> None:
    """Be one connection of a back end."""
    connection = await Connection.to(url)
    group = f"/queues/{QUEUE}/groups/default"
    wanted = {"max_messages": N_MAX, "wait_seconds": WAIT_SECONDS}
    while True:
        await asked.get()
        found = (await connection.ask("POST", f"{group}/receive", wanted))["messages"]
        if found:
            handles = [each["receipt_handle"] for each in found]
            settled = {"action": "ack", "receipt_handles": handles}
            await connection.ask("POST", f"{group}/settle", settled)
        is_done()


async def _back_end(url: str, rate: float, rng: random.Random) -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()
    n_busy = 0

    def is_done() -> None:
        nonlocal n_busy
        n_busy -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_request(url, asked, is_done), name="connection of a back end")
        next_at = time.monotonic()
        while True:
            next_at += rng.expovariate(rate)
            delay = next_at - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            if n_busy < CONNECTIONS:
                n_busy += 1
                asked.put_nowait(None)
            next_at = max(next_at, time.monotonic() - 1 / rate)


async def _load(url: str, rate: float, seconds: float) -> dict[str, float]:
    """Run producers and, with a rate, back ends; return how much each counter grew a second."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_produce(url), name="producer") for _ in range(PRODUCERS)]
        for number in range(BACK_ENDS if rate else 0):
            consuming = _back_end(url, rate, random.Random(number))  # noqa: S311 (no secret)
            tasks.append(group.create_task(consuming, name="back end"))
        look = await Connection.to(url)
        await asyncio.sleep(seconds * WARM_UP)
        before, began = await _counters(look), time.monotonic()
        counted = "settled" if rate else "stored"
        for _ in range(MOST_WINDOWS):
            await asyncio.sleep(seconds)
            after, elapsed = await _counters(look), time.monotonic() - began
            if after[counted] > before[counted]:
                break
        for task in tasks:
            task.cancel()
    return {name: (after[name] - before[name]) / elapsed for name in after}


async def _counters(look: Connection) -> dict[str, float]:
    queue = await look.ask("GET", f"/queues/{QUEUE}")
    group = queue["groups"]["default"]
    requests = group.get("requests", {})
    names = ("requests", "hit_dequeues", "missed_dequeues", "messages")
    return {name: requests.get(name, 0) for name in names} | {
        "settled": group["settled"].get("ack", 0),
        "stored": queue["enqueued"]["requested"]["stored"],
    }


def measure_point(
    strategy: str, rate: float, seconds: float, sleep_time: float = DEFAULT_SLEEP_SECONDS
) -> Point:
    """Measure one strategy at one rate in a gateway of its own.

    Raises:
        BenchmarkError: the gateway or the load failed.
    """
    grown = _measure_load(strategy, rate, seconds, sleep_time)
    tries = grown["hit_dequeues"] + grown["missed_dequeues"]
    return Point(
        grown["settled"],
        grown["hit_dequeues"] / max(tries, 1e-9),
        grown["messages"] / max(grown["hit_dequeues"], 1e-9),
        grown["requests"],
    )


def measure_ceiling(seconds: float) -> Point:
    """Measure producers without back ends; its messages are stored ones."""
    return Point(_measure_load(STRATEGIES[0], 0, seconds)["stored"], 0.0, 0.0, 0.0)


def _measure_load(
    strategy: str, rate: float, seconds: float, sleep_time: float = DEFAULT_SLEEP_SECONDS
) -> dict[str, float]:
    keys = {"physical_queues": PHYSICAL_QUEUES, "dequeue": strategy, "sleep_time": sleep_time}
    with (
        tempfile.TemporaryDirectory() as folder,
        gateway(Path(folder), QUEUE, keys, engine="memory") as url,
    ):
        part = ["--part", url, str(rate), str(seconds)]
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.queue_strategies", *part],
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
    if ended.returncode:
        raise BenchmarkError(f"load of {strategy} at {rate}: {ended.stderr.strip()}")
    found: dict[str, float] = json.loads(ended.stdout)
    return found


Points = dict[str, dict[int, list[Point]]]
"""The points by strategy and rate, one for each repetition; those of `CEILING` have rate 0."""


SleepPoints = dict[float, list[Point]]
"""The points by sleep time, one for each repetition."""
Side = tuple[str, Sequence[Point]]
"""One side of a comparison: its name, and a point for each repetition."""


def measure_sleep_times(sleep_times: Sequence[float], seconds: float, repeats: int) -> SleepPoints:
    """Measure `rds` with each sleep time, one after the other."""
    points: SleepPoints = {sleep_time: [] for sleep_time in sleep_times}
    for repetition in range(1, repeats + 1):
        for sleep_time in sleep_times:
            point = measure_point("rds", PAPER_RATE, seconds, sleep_time)
            points[sleep_time].append(point)
            told = f"{repetition}/{repeats} rds, sleep time {sleep_time:g} s"
            typer.echo(f"{told}: {point.messages_per_second:,.0f} messages/s", err=True)
    return points


def measure(rates: Sequence[int], seconds: float, repeats: int) -> Points:
    """Measure the ceiling and all strategies, one after the other at each rate."""
    points: Points = {strategy: {rate: [] for rate in rates} for strategy in STRATEGIES}
    points[CEILING] = {0: []}
    for repetition in range(1, repeats + 1):
        points[CEILING][0].append(measure_ceiling(seconds))
        for rate in rates:
            for strategy in STRATEGIES:
                point = measure_point(strategy, rate, seconds)
                points[strategy][rate].append(point)
                told = f"{repetition}/{repeats} lambda {rate} {strategy}"
                typer.echo(f"{told}: {point.messages_per_second:,.0f} messages/s", err=True)
    return points


def median(points: Sequence[Point], name: str) -> float:
    """Return the median of one attribute."""
    values: list[float] = [getattr(point, name) for point in points]
    return statistics.median(values)


def tables(points: Points, sleep_points: SleepPoints) -> dict[str, Table]:
    """Return what was measured, and how it stands to the paper."""
    columns = ["messages/s", "spread", "hit ratio", "messages a hit", "requests/s"]
    rates = list(points[STRATEGIES[0]])
    rows = [["-", CEILING, *_cells(points[CEILING][0])[:2], "-", "-", "-"]]
    for rate, strategy in itertools.product(rates, STRATEGIES):
        rows.append([str(rate), strategy, *_cells(points[strategy][rate])])
    sleeps = [[f"{seconds:g} s", *_cells(found)] for seconds, found in sleep_points.items()]
    low, top = rates[0], rates[-1]
    at = PAPER_RATE if PAPER_RATE in rates else top

    def side(strategy: str, rate: int) -> Side:
        return (f"{strategy}, lambda {rate}", points[strategy][rate])

    conventional, rds, pms = (side(name, at) for name in ("conventional", "rds", "pms"))
    longest = max(sleep_points)
    slow_rds = (f"rds, lambda {PAPER_RATE}, sleep time {longest:g} s", sleep_points[longest])
    ratios = [
        _ratio_row(rds, conventional, at_least=TARGET),
        _ratio_row(slow_rds, conventional, at_least=TARGET),
        _ratio_row((CEILING, points[CEILING][0]), conventional),
        _ratio_row(rds, side("rds", low), at_least=FLAT),
        _ratio_row(pms, conventional, at_least=1.0),
        _ratio_row(pms, rds, at_most=1.0),
        _ratio_row(pms, slow_rds, at_most=1.0),
    ]
    if top > at:
        ratios.append(_ratio_row(side("rds", top), side("conventional", top), at_least=TARGET))
        ratios.append(_ratio_row(side("rds", top), rds, at_least=FLAT))
    return {
        "strategies": Table(["lambda", "strategy", *columns], rows),
        "sleep times": Table(["sleep time of rds", *columns], sleeps),
        "ratios": Table(["messages/s of", "over", "median", "spread", "bound", "verdict"], ratios),
    }


def _cells(found: Sequence[Point]) -> list[str]:
    """Return what the repetitions of a measurement come to."""
    received = [point.messages_per_second for point in found]
    return [
        f"{statistics.median(received):,.0f}",
        f"{min(received):,.0f} - {max(received):,.0f}",
        f"{median(found, 'hit_ratio'):.2f}",
        f"{median(found, 'messages_per_hit'):,.1f}",
        f"{median(found, 'requests_per_second'):,.0f}",
    ]


def _ratio_row(
    one: Side, other: Side, at_least: float | None = None, at_most: float | None = None
) -> list[str]:
    """Return a ratio, paired by repetition; one whose spread straddles the bound shows nothing."""
    ratios = [
        ours.messages_per_second / max(theirs.messages_per_second, 1e-9)
        for ours, theirs in zip(one[1], other[1], strict=True)
    ]
    low, high = min(ratios), max(ratios)
    bound, verdict = "-", "-"
    if at_least is not None:
        bound = f"at least {at_least:g}"
        verdict = "met" if low >= at_least else "missed" if high < at_least else "not shown"
    elif at_most is not None:
        bound = f"at most {at_most:g}"
        verdict = "met" if high <= at_most else "missed" if low > at_most else "not shown"
    return [
        one[0],
        other[0],
        f"{statistics.median(ratios):.2f}",
        f"{low:.2f} - {high:.2f}",
        bound,
        verdict,
    ]


def draw(points: Points, sleep_points: SleepPoints, file: Path) -> None:
    """Draw messages a second, hit ratio and messages a hit over lambda, and over the sleep time."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    panels = {
        "messages_per_second": "messages/s (figures 9 and 14)",
        "hit_ratio": "hit ratio (figure 10)",
        "messages_per_hit": "messages a hit dequeue (figure 11)",
    }
    figure, grid = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    *over_rates, over_sleep_times = grid.flat
    for axes, (name, title) in zip(over_rates, panels.items(), strict=True):
        for strategy in STRATEGIES:
            by_rate = points[strategy]
            values = [median(found, name) for found in by_rate.values()]
            axes.plot(list(by_rate), values, marker="o", label=strategy)
        axes.set(title=title, xlabel="lambda, requests/s of each of ten back ends", ylim=(0, None))
    ceiling = median(points[CEILING][0], "messages_per_second")
    over_rates[0].axhline(ceiling, color="gray", linestyle=":", label=CEILING)
    over_rates[0].legend()
    received = [median(found, "messages_per_second") for found in sleep_points.values()]
    over_sleep_times.plot(list(sleep_points), received, marker="o", label="rds")
    over_sleep_times.set(
        title=f"messages/s by sleep time, lambda {PAPER_RATE} (figure 12)",
        xlabel="sleep time, s",
        xscale="log",
        ylim=(0, None),
    )
    figure.savefig(file, dpi=110)


def bench(
    repeats: Repeats = DEFAULT_REPEATS,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
    figures: FiguresFile = None,
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Measure the dequeue strategies on this machine: Markdown tables on standard output."""
    seconds = QUICK_SECONDS if quick else FULL_SECONDS
    run = describe_run(seconds=f"{seconds:g} a point")
    origin = replace(begin(run["command"]), doubts=doubts())
    if figures is not None:
        check_writable(figures)
    points = measure(QUICK_RATES if quick else ARRIVAL_RATES, seconds, repeats)
    sleep_times = QUICK_SLEEP_SECONDS if quick else SLEEP_SECONDS
    sleep_points = measure_sleep_times(sleep_times, seconds, repeats)
    found = tables(points, sleep_points)
    if figures is not None:
        write_figure_file(figures, origin, found)
    received = {
        strategy: {
            str(rate): [point.messages_per_second for point in found]
            for rate, found in by_rate.items()
        }
        for strategy, by_rate in points.items()
    }
    write_json(json_file, {"run": run, "messages_per_second": received})
    if plot is not None:
        draw(points, sleep_points, plot)
    tell(["\n\n".join(map(str, found.values()))], run)


_measure: Final = Program(bench, "python -m benchmarks.queue_strategies")


def main(argv: list[str]) -> int:
    """Run the benchmark, or its load in a process of its own."""
    if argv[:1] == ["--part"]:
        url, rate, seconds = argv[1:]
        print(json.dumps(uvloop.run(_load(url, float(rate), float(seconds)))))
        return 0
    return _measure(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
