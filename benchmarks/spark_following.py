"""How late is a message in Parquet while Spark follows a broker, and how many requests is that?

Part of ``python -m benchmarks.spark_ingest``. A broker has one durable queue; 1 KiB messages are
published at QoS 1 on a schedule. Each way follows them with Spark on two cores, at one interval
between two micro-batches: ``penstock spark``, and the alternatives of
`benchmarks.loads.spark_alternatives`. A message is late from the moment at which the schedule has
it until the file that lists its Parquet file is written (``_spark_metadata``, or ``_SUCCESS`` of a
folder). Messages of the first seconds, in which Java compiles, do not count: all of them are
written before the others come. Requests over HTTP are counted from then until all is written, and
once more while nothing is published.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import psutil
import typer
from pyarrow import parquet

from benchmarks.errors import BenchmarkError
from benchmarks.loads.counted_requests import RequestCounter
from benchmarks.loads.load import Side
from benchmarks.loads.paced import quantile
from benchmarks.loads.queue_publisher import HEAD, TOPICS, Publishing
from penstock.netem.figures.estimates import Estimate, at_least, at_most, bootstrap
from penstock.netem.figures.figure_file import Table
from penstock.netem.runs.broker_process import (
    ENVIRONMENT,
    RunningBroker,
    penstock_command,
    reserved_port,
)

QUEUE: Final = "bench"
GROUPS: Final = {"spark": {"kind": "offsets"}, "default": {"visibility_timeout": 600.0}}
PUBLISHING: Final = Publishing(connections=20, window=1_000, payload_bytes=1_024)
PATIENCE_SECONDS: Final = 300.0
"""A time that no step needs on a busy machine; only a step that hangs reaches it."""
STOP_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.2
TARGET_P50_SECONDS: Final = 1.5
TARGET_REQUESTS_RATIO: Final = 5.0
"""The least ratio of the requests of polling to those of the source."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of the published messages.

    Attributes:
        rate: the messages a second.
        warm_up_seconds: the time at the beginning whose messages do not count.
        idle_seconds: the time without messages at the end.
        trigger_seconds: the time between two micro-batches, and between two files of the
            subscriber.
    """

    rate: float = 2_000.0
    warm_up_seconds: float = 20.0
    seconds: float = 30.0
    idle_seconds: float = 5.0
    trigger_seconds: float = 0.5


FULL: Final = Schedule()
QUICK: Final = Schedule(rate=200.0, warm_up_seconds=2.0, seconds=3.0, idle_seconds=2.0)


@dataclass(frozen=True, slots=True)
class FollowingOutcome:
    """The results of one run of a way.

    Attributes:
        p50_seconds: the median time from a message's due time until it was in Parquet.
        p99_seconds: the time that 99 % of the messages do not exceed, likewise.
        requests: the HTTP requests for each 1,000 messages; None for a way without requests.
        idle_requests: the HTTP requests a second while no message is published; None for a way
            without requests.
    """

    p50_seconds: float
    p99_seconds: float
    requests: float | None
    idle_requests: float | None
    lost: int
    repeated: int


class WayLocations:
    """The ports and folders of a way's run.

    Attributes:
        url: the URL of the queue's HTTP API, at which requests are counted.
        trigger: the seconds between two micro-batches, as text.
        stack: the exit stack that ends the way's programs.
    """

    def __init__(
        self, folder: Path, mqtt_port: int, url: str, trigger: float, stack: ExitStack
    ) -> None:
        self.folder = folder
        self.mqtt_port = mqtt_port
        self.url = url
        self.trigger = f"{trigger:g}"
        self.output = folder / "messages"
        self.checkpoint = folder / "checkpoint"
        self.stack = stack

    def start(self, *arguments: str) -> None:
        """Start a program that follows, and wait until its query runs.

        Raises:
            BenchmarkError: it ended before.
        """
        process = self.stack.enter_context(_running(arguments, self.folder / "spark.log"))
        until = time.monotonic() + PATIENCE_SECONDS
        while not any(self.checkpoint.rglob("metadata")):
            if process.poll() is not None or time.monotonic() > until:
                log = (self.folder / "spark.log").read_text()[-1_000:]
                raise BenchmarkError(f"{' '.join(arguments)} starts no query: {log}")
            time.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class FollowingWay:
    """A way from the broker into Parquet.

    Attributes:
        commits: a function that yields, for each micro-batch, the time at which readers could see
            it, and its files.
    """

    name: str
    start: Callable[[WayLocations], None]
    commits: Callable[[Path], Iterator[tuple[float, list[Path]]]]
    has_requests: bool


def _start_penstock(place: WayLocations) -> None:
    place.start(
        *(sys.executable, "-m", "penstock.spark_bridge", "--url", place.url, "--queue", QUEUE),
        *("--output", str(place.output), "--checkpoint", str(place.checkpoint)),
        *("--trigger", place.trigger),
        *("--conf", "spark.sql.streaming.minBatchesToRetain=10000"),
    )


def _start_alternative(way: str, place: WayLocations) -> None:
    source = place.url
    if way == "files":
        lines = place.folder / "lines"
        lines.mkdir()
        subscriber = Side("benchmarks.loads.file_subscriber", place.mqtt_port, lines, place.trigger)
        place.stack.enter_context(closing(subscriber))
        subscriber.answer()
        source = str(lines)
    place.start(
        *(sys.executable, "-m", "benchmarks.loads.spark_alternatives", way, str(place.output)),
        *(str(place.checkpoint), place.trigger, source),
    )


def listed(output: Path) -> Iterator[tuple[float, list[Path]]]:
    """Yield when Spark's file sink listed files, and these files."""
    seen: set[str] = set()
    lists = (output / "_spark_metadata").glob("[0-9]*")
    for one in sorted(lists, key=lambda path: int(path.name.partition(".")[0])):
        entries = [json.loads(line)["path"] for line in one.read_text().splitlines()[1:]]
        fresh = [path for path in entries if path not in seen]
        seen.update(fresh)
        yield one.stat().st_mtime, [Path(unquote(urlsplit(path).path)) for path in fresh]


def succeeded(output: Path) -> Iterator[tuple[float, list[Path]]]:
    """Yield when a folder of each micro-batch was complete, and its files."""
    for one in output.glob("batch=*/_SUCCESS"):
        yield one.stat().st_mtime, list(one.parent.glob("*.parquet"))


WAYS: Final = (
    FollowingWay("penstock spark", _start_penstock, listed, True),
    FollowingWay("paho, files, Spark", partial(_start_alternative, "files"), listed, False),
    FollowingWay(
        "foreachBatch, requests", partial(_start_alternative, "requests"), succeeded, True
    ),
)
SOURCE, POLLING = WAYS[0].name, WAYS[2].name


@contextmanager
def _running(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with all that it starts."""
    with log.open("wb") as file:
        process = subprocess.Popen(arguments, stdout=file, stderr=file, env=ENVIRONMENT)
    try:
        yield process
    finally:
        family = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        for one in psutil.wait_procs(family, timeout=1)[1]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a broker with the queue; yield its ports of MQTT and HTTP."""
    with reserved_port() as mqtt, reserved_port() as http:
        queue = {"topics": [f"{TOPICS}/#"], "groups": GROUPS, "physical_queues": 2}
        policy = {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{mqtt}"}},
            "plugins": {"queue": {"http": f"127.0.0.1:{http}", "queues": {QUEUE: queue}}},
        }
        broker = RunningBroker("penstock", penstock_command(folder, policy), folder)
        try:
            broker.wait_until_listening(mqtt)
            broker.wait_until_listening(http)
            yield mqtt, http
        finally:
            broker.stop()


def follow(way: FollowingWay, folder: Path, schedule: Schedule) -> FollowingOutcome:
    """Publish and follow once, in an empty folder.

    Raises:
        BenchmarkError: a program failed.
        RunError: the broker failed.
    """
    n_before = int(schedule.rate * schedule.warm_up_seconds)
    n_messages = n_before + int(schedule.rate * schedule.seconds)
    with ExitStack() as stack:
        mqtt, http = stack.enter_context(_broker(folder))
        counter = RequestCounter(http)
        stack.enter_context(counter.running())
        place = WayLocations(folder, mqtt, counter.url, schedule.trigger_seconds, stack)
        way.start(place)
        publisher = stack.enter_context(
            closing(Side("benchmarks.loads.queue_publisher", mqtt, json.dumps(asdict(PUBLISHING))))
        )
        publisher.answer()
        publisher.tell(messages=n_before, rate=schedule.rate)
        publisher.answer()
        _wait_for(place, way, n_before)
        begin = counter.requests
        n_counted = n_messages - n_before
        publisher.tell(messages=n_counted, rate=schedule.rate, first=n_before)
        publisher.answer()
        _wait_for(place, way, n_messages)
        requests = counter.requests - begin
        idle_begin = counter.requests
        time.sleep(schedule.idle_seconds)
        idle_requests = counter.requests - idle_begin
    late, rows = lateness(way.commits(place.output))
    counted = sorted(late[number] for number in late if number >= n_before)
    return FollowingOutcome(
        p50_seconds=quantile(counted, 0.5),
        p99_seconds=quantile(counted, 0.99),
        requests=1_000 * requests / n_counted if way.has_requests else None,
        idle_requests=idle_requests / schedule.idle_seconds if way.has_requests else None,
        lost=n_messages - len(late),
        repeated=rows - len(late),
    )


def _wait_for(place: WayLocations, way: FollowingWay, n_messages: int) -> None:
    """Wait until so many rows are there for readers, or no more come."""
    known: dict[Path, int] = {}
    until = time.monotonic() + PATIENCE_SECONDS
    while sum(known.values()) < n_messages and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        for _, files in way.commits(place.output):
            for file in files:
                if file not in known:
                    known[file] = parquet.read_metadata(file).num_rows


def lateness(commits: Iterator[tuple[float, list[Path]]]) -> tuple[dict[int, float], int]:
    """Return how late each message was, by its number, in seconds, and how many rows there are."""
    since_boot = time.time() - time.monotonic()
    late: dict[int, float] = {}
    n_rows = 0
    for at, files in commits:
        for file in files:
            for payload in parquet.ParquetFile(file).read(["payload"])["payload"].to_pylist():
                number, due = HEAD.unpack_from(payload)
                late[number] = min(late.get(number, float("inf")), at - since_boot - due)
                n_rows += 1
    return late, n_rows


def measure(
    repeats: int, folder: Path, schedule: Schedule, ways: Sequence[FollowingWay] = WAYS
) -> dict[str, list[FollowingOutcome]]:
    """Follow the queue by each way in turn.

    Raises:
        BenchmarkError: a program failed.
    """
    outcomes: dict[str, list[FollowingOutcome]] = {way.name: [] for way in ways}
    for repetition in range(1, repeats + 1):
        for way in ways:
            with tempfile.TemporaryDirectory(dir=folder.resolve(), prefix="penstock-bench-") as own:
                outcome = follow(way, Path(own), schedule)
            outcomes[way.name].append(outcome)
            said = f"p50 {outcome.p50_seconds:.2f} s, p99 {outcome.p99_seconds:.2f} s"
            typer.echo(f"{repetition}/{repeats} {way.name}: {said}", err=True)
    return outcomes


def to_tables(outcomes: Mapping[str, Sequence[FollowingOutcome]]) -> dict[str, Table]:
    """Return the ways beside each other, and how they stand to the targets."""
    seconds = "{:.2f}".format
    rows = []
    for name, of_way in outcomes.items():
        asked = [one.requests for one in of_way if one.requests is not None]
        idle = [one.idle_requests for one in of_way if one.idle_requests is not None]
        rows.append(
            (
                name,
                median_of([one.p50_seconds for one in of_way]).show(seconds),
                median_of([one.p99_seconds for one in of_way]).show(seconds),
                f"{statistics.median(asked):.1f}" if asked else "-",
                f"{statistics.median(idle):.1f}" if idle else "-",
                str(sum(one.lost for one in of_way)),
                str(sum(one.repeated for one in of_way)),
            )
        )
    columns = ("way", "p50, s", "p99, s", "requests per 1,000 messages", "requests/s when idle")
    return {"followed": Table((*columns, "lost", "twice"), rows), "targets": _judged(outcomes)}


def median_of(values: Sequence[float]) -> Estimate:
    """Return the median of the repetitions, with its interval where they are enough."""
    return bootstrap(len(values), lambda units: statistics.median(values[unit] for unit in units))


def _judged(outcomes: Mapping[str, Sequence[FollowingOutcome]]) -> Table:
    late = median_of([one.p50_seconds for one in outcomes[SOURCE]])
    pairs = zip(outcomes[SOURCE], outcomes[POLLING], strict=True)
    ratios = [(polled.requests or 0.0) / (asked.requests or math.inf) for asked, polled in pairs]
    fewer = median_of(ratios)
    rows = (
        (
            f"{SOURCE}: p50, s",
            format(late, ".2f"),
            f"at most {TARGET_P50_SECONDS:g}",
            at_most(late, TARGET_P50_SECONDS),
        ),
        (
            f"requests of {POLLING} over those of {SOURCE}",
            format(fewer, ".1f"),
            f"at least {TARGET_REQUESTS_RATIO:g}",
            at_least(fewer, TARGET_REQUESTS_RATIO),
        ),
    )
    return Table(("figure", "found", "target", "verdict"), rows)
