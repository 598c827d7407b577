"""What do missed dequeues cost, and what do PMS, RDS and arrival signals save? See paper 000.

Rerun: ``python -m benchmarks.queue_strategies``; a look in seconds with ``--quick``. With
``--plot FILE`` it draws the curves beside the paper's figures 9 to 12 and 14.

Ten producers store single messages of 1 KB over HTTP in a queue of ten physical queues, each the
next one when the last one is answered. Ten back ends (BES) request up to 100 messages each, as a
Poisson process of lambda requests a second, but never a second one before the answer to the first,
and acknowledge what they get. The gateway has one core, and what it spends on requests that find
nothing, producers do not get: so messages received a second tell what a strategy costs.

With `conventional`, lambda is the rate of requests; the others hold a request for up to 5 s, so
that their rate is that of messages. The engine is `memory`: no disk takes part.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
import uvloop

from benchmarks.errors import BenchmarkError
from benchmarks.loads.gateway import gateway
from benchmarks.program import (
    DEFAULT_REPEATS,
    JsonFile,
    Program,
    Quick,
    Repeats,
    describe_run,
    tell,
    write_json,
)
from penstock.netem.runs.broker_process import ENVIRONMENT

STRATEGIES: Final = ("conventional", "pms", "rds", "rds+wake")
ARRIVAL_RATES: Final = (10, 50, 100, 150, 200)
QUICK_RATES: Final = (10, 200)
BACK_ENDS: Final = 10
PRODUCERS: Final = 10
PHYSICAL_QUEUES: Final = 10
N_MAX: Final = 100
WAIT_SECONDS: Final = 5.0
PAYLOAD: Final = "x" * 1000
FULL_SECONDS: Final = 5.0
QUICK_SECONDS: Final = 1.0
WARM_UP: Final = 0.2
"""Of these seconds, before those that count."""
TARGET: Final = 1.8
"""RDS beside conventional at the highest rate, as on the paper's servers."""
QUEUE: Final = "bench"


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Attributes:
        messages_per_second: received and acknowledged.
        hit_ratio: hit dequeues of all tries.
        messages_per_hit: found by a hit dequeue.
        requests_per_second: of the back ends.
    """

    messages_per_second: float
    hit_ratio: float
    messages_per_hit: float
    requests_per_second: float


class Connection:
    """A connection of HTTP/1.1 to the gateway: a client that costs less than what it measures."""

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


async def _consume(url: str, rate: float, rng: random.Random) -> None:
    connection = await Connection.to(url)
    group = f"/queues/{QUEUE}/groups/default"
    next_at = time.monotonic()
    while True:
        next_at += rng.expovariate(rate)
        delay = next_at - time.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)
        wanted = {"max_messages": N_MAX, "wait_seconds": WAIT_SECONDS}
        found = (await connection.ask("POST", f"{group}/receive", wanted))["messages"]
        if found:
            handles = [each["receipt_handle"] for each in found]
            settled = {"action": "ack", "receipt_handles": handles}
            await connection.ask("POST", f"{group}/settle", settled)
        next_at = max(next_at, time.monotonic() - 1 / rate)


async def _load(url: str, rate: float, seconds: float) -> dict[str, float]:
    """Run producers and back ends; return how much each counter grew a second."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_produce(url), name="producer") for _ in range(PRODUCERS)]
        for number in range(BACK_ENDS):
            consuming = _consume(url, rate, random.Random(number))  # noqa: S311 (no secret)
            tasks.append(group.create_task(consuming, name="back end"))
        look = await Connection.to(url)
        await asyncio.sleep(seconds * WARM_UP)
        before, began = await _counters(look), time.monotonic()
        await asyncio.sleep(seconds)
        after, elapsed = await _counters(look), time.monotonic() - began
        for task in tasks:
            task.cancel()
    return {name: (after[name] - before[name]) / elapsed for name in after}


async def _counters(look: Connection) -> dict[str, float]:
    group = (await look.ask("GET", f"/queues/{QUEUE}"))["groups"]["default"]
    requests = group.get("requests", {})
    names = ("requests", "hit_dequeues", "missed_dequeues", "messages")
    return {name: requests.get(name, 0) for name in names} | {
        "settled": group["settled"].get("ack", 0)
    }


def measure_point(strategy: str, rate: float, seconds: float) -> Point:
    """Measure one strategy at one rate in a gateway of its own.

    Raises:
        BenchmarkError: the gateway or the load failed.
    """
    keys = {"physical_queues": PHYSICAL_QUEUES, "dequeue": strategy}
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
    grown = json.loads(ended.stdout)
    tries = grown["hit_dequeues"] + grown["missed_dequeues"]
    return Point(
        grown["settled"],
        grown["hit_dequeues"] / max(tries, 1e-9),
        grown["messages"] / max(grown["hit_dequeues"], 1e-9),
        grown["requests"],
    )


Points = dict[str, dict[int, list[Point]]]
"""By strategy and rate, one of each repetition."""


def measure(rates: Sequence[int], seconds: float, repeats: int) -> Points:
    """Measure all strategies, one after the other at each rate."""
    points: Points = {strategy: {rate: [] for rate in rates} for strategy in STRATEGIES}
    for repetition in range(1, repeats + 1):
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


def to_markdown(points: Points) -> list[str]:
    """Return the table, and whether the target is met."""
    rates = list(points[STRATEGIES[0]])
    lines = [
        "| lambda | strategy | messages/s | spread | hit ratio | messages a hit | requests/s |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rate in rates:
        for strategy in STRATEGIES:
            found = points[strategy][rate]
            received = [point.messages_per_second for point in found]
            lines.append(
                f"| {rate} | {strategy} | {statistics.median(received):,.0f} "
                f"| {min(received):,.0f} - {max(received):,.0f} "
                f"| {median(found, 'hit_ratio'):.2f} | {median(found, 'messages_per_hit'):,.1f} "
                f"| {median(found, 'requests_per_second'):,.0f} |"
            )
    top = rates[-1]
    ratios = [
        rds.messages_per_second / max(conventional.messages_per_second, 1e-9)
        for rds, conventional in zip(points["rds"][top], points["conventional"][top], strict=True)
    ]
    ratio = statistics.median(ratios)
    is_met = "met" if min(ratios) >= TARGET else "missed" if max(ratios) < TARGET else "not shown"
    lines += [
        "",
        (
            f"RDS beside conventional at lambda {top}: {ratio:.2f} "
            f"({min(ratios):.2f} - {max(ratios):.2f}), target {TARGET}: {is_met}"
        ),
    ]
    return lines


def draw(points: Points, file: Path) -> None:
    """Draw messages a second, hit ratio and messages a hit over lambda."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    panels = {
        "messages_per_second": "messages/s (figures 9, 10 and 14)",
        "hit_ratio": "hit ratio (figure 11)",
        "messages_per_hit": "messages a hit dequeue (figure 12)",
    }
    figure, grid = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for axes, (name, title) in zip(grid, panels.items(), strict=True):
        for strategy, by_rate in points.items():
            values = [median(found, name) for found in by_rate.values()]
            axes.plot(list(by_rate), values, marker="o", label=strategy)
        axes.set(title=title, xlabel="lambda, requests/s of each of ten back ends", ylim=(0, None))
    grid[0].legend()
    figure.savefig(file, dpi=110)


def bench(
    repeats: Repeats = DEFAULT_REPEATS,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Measure the dequeue strategies on this machine: a Markdown table on standard output."""
    seconds = QUICK_SECONDS if quick else FULL_SECONDS
    points = measure(QUICK_RATES if quick else ARRIVAL_RATES, seconds, repeats)
    run = describe_run(seconds=f"{seconds:g} a point")
    figures = {
        strategy: {
            str(rate): [point.messages_per_second for point in found]
            for rate, found in by_rate.items()
        }
        for strategy, by_rate in points.items()
    }
    write_json(json_file, {"run": run, "messages_per_second": figures})
    if plot is not None:
        draw(points, plot)
    tell(to_markdown(points), run)


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
