"""How fast does Spark get a filled queue into Parquet files, and how late is a message there?

Rerun: ``python -m benchmarks.spark_ingest``; a look with ``--quick``. ``--parts`` chooses one of
the two: ``filled``, which this page explains, and ``followed``, of `benchmarks.spark_following`.
Figures of ``docs/evidence/spark.md``, each in some 25 minutes of a quiet machine::

    python -m benchmarks.spark_ingest --parts filled --figures docs/figures/spark-filled.json
    python -m benchmarks.spark_ingest --parts followed --figures docs/figures/spark-followed.json
    python -m script.fill_pages

Rows of telemetry as JSON: 200 B, and the same filled up to 1 KiB. A queue of two physical queues is
filled over HTTP by a real gateway once, on SQLite or on a Redis server; each repetition gets a copy
of its file (or of the server's snapshot), a gateway and a server of its own, and runs ``penstock
spark`` on two cores until the queue is empty, in micro-batches as by default. What is measured is
what Spark reports of its micro-batches: from asking the queue for its offsets to the checkpoint's
commit log, Parquet files and deletes in the queue included, Java's start excluded. The first
micro-batch loads Spark's classes and starts the Python workers, so two numbers are given: with it,
and without it. In rows on Redis, tasks read from the server, and the gateway plans and commits.

Gateway, server, Java and Python workers share the machine's cores, and what each takes of the
processor for a row is told: of its whole life for Java and Python, with their starts.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import psutil
import typer
from pyarrow import parquet

from benchmarks import spark_following
from benchmarks.errors import BenchmarkError
from benchmarks.loads.gateway import running_gateway, section
from benchmarks.loads.redis_server import running_redis
from benchmarks.program import (
    FiguresFile,
    JsonFile,
    Program,
    Quick,
    Repeats,
    choose,
    describe_run,
    doubts,
    tell,
    write_json,
)
from benchmarks.spark_following import median_of
from penstock.netem.figures.estimates import LEAST_UNITS, at_least
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file
from penstock.netem.runs.broker_process import ENVIRONMENT

PROGRAMS: Final = ("java", "python", "gateway", "redis")
"""The programs whose processor time is shown."""

QUEUE: Final = "telemetry"
KEYS: Final = {"groups": {"spark": {"kind": "offsets"}}, "physical_queues": 2}
REQUEST_MESSAGES: Final = 2_000
LOOK_SECONDS: Final = 0.25
"""The time between two looks at the processor time of Spark's processes, some of which end
early."""
PARTS: Final = ("filled", "followed")
GATEWAY: Final = "through the gateway"
_PROGRESS: Final = re.compile(r"ingest: ([\d,]+) messages in ([\d,]+) micro-batches, ([\d,.]+) s")


@dataclass(frozen=True, slots=True)
class SparkRow:
    """A row of the table.

    Attributes:
        target: the least rows a second.
        engine: the engine of the queue. With `redis`, tasks read from the server.
    """

    name: str
    about: str
    payload_bytes: int
    messages: int
    quick_messages: int
    target: int
    engine: str = "sqlite"


@dataclass(frozen=True, slots=True)
class IngestRate:
    """The result of one measurement.

    Attributes:
        whole: the rows a second over all micro-batches.
        warm: the rows a second over all but the first; None where there was only one.
        cpu: the processor time of each process in microseconds a row, by name.
    """

    whole: float
    warm: float | None
    cpu: Mapping[str, float] = field(default_factory=dict)


ROWS: Final = (
    SparkRow("telemetry_200B", f"200 B, {GATEWAY}", 200, 1_000_000, 40_000, 50_000),
    SparkRow("telemetry_1KiB", f"1 KiB, {GATEWAY}", 1_024, 3_000_000, 20_000, 100_000),
    # All of it in memory, and as many as make Spark use both compilers.
    SparkRow(
        "telemetry_1KiB_redis",
        "1 KiB, straight from Redis",
        1_024,
        2_000_000,
        20_000,
        150_000,
        engine="redis",
    ),
)


class Served(NamedTuple):
    """A queue that a gateway serves.

    Attributes:
        pids: the process ids of the processes that serve it, by name.
    """

    url: str
    pids: Mapping[str, int]
    options: Sequence[str]


@contextmanager
def served(folder: Path, engine: str, *, is_kept: bool = False) -> Iterator[Served]:
    """Serve the queue of a folder.

    Args:
        folder: the folder of its file, which may not exist yet.
        engine: the engine, `sqlite` or `redis`.
        is_kept: whether the messages stored meanwhile are kept for the next server.
    """
    with ExitStack() as stack:
        pids: dict[str, int] = {}
        options: list[str] = []
        plugin = section(QUEUE, KEYS, engine=engine)
        redis = None
        if engine == "redis":
            redis = stack.enter_context(running_redis(folder))
            plugin["redis"] = {"server": redis.address}
            pids["redis"] = redis.pid
            options = ["--option", f"redis={redis.address}"]
        gateway = stack.enter_context(running_gateway(folder, plugin))
        yield Served(gateway.urls[0], pids | {"gateway": gateway.pid}, options)
        if redis is not None and is_kept:
            redis.save()


def payloads(size: int, count: int) -> Iterator[bytes]:
    """Yield telemetry messages of exactly `size` bytes, no two alike."""
    rng = random.Random(size)  # noqa: S311 - the same load in every run
    began_at = time.time() - 600
    for number in range(count):
        fields = {
            "host": f"host-{number % 20}",
            "metric": f"metric-{number % 7}",
            "value": round(rng.random() * 100, 3),
            "unit": "percent",
            "at": round(began_at + number * 1e-4, 4),
            "note": "",
        }
        missing = size - len(json.dumps(fields))
        fields["note"] = rng.randbytes(missing // 2 + 1).hex()[:missing]
        yield json.dumps(fields).encode()


def fill(folder: Path, row: SparkRow, count: int) -> None:
    """Enqueue the row's messages in a new queue.

    Raises:
        BenchmarkError: the queue refused some.
    """
    with served(folder, row.engine, is_kept=True) as serving:
        connection = http.client.HTTPConnection(urlsplit(serving.url).netloc)
        source = payloads(row.payload_bytes, count)
        while batch := list(itertools.islice(source, REQUEST_MESSAGES)):
            rows = [
                {"topic": f"telemetry/{number % 100}", "payload": base64.b64encode(one).decode()}
                for number, one in enumerate(batch)
            ]
            body = json.dumps({"messages": rows})
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/queues/{QUEUE}/messages", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != http.HTTPStatus.OK:
                raise BenchmarkError(f"enqueue: {answer.status}: {text}")
        connection.close()


def ingest(filled: Path, folder: Path, count: int, engine: str) -> IngestRate:
    """Let the program empty a copy of the filled queue; return how fast it was.

    Raises:
        BenchmarkError: it failed, or the files do not hold every message.
    """
    shutil.copytree(filled, folder)
    # The copy's way to the disk is not what is measured.
    os.sync()
    output = folder / "messages"
    with served(folder, engine) as serving:
        program = [
            *(sys.executable, "-m", "penstock.spark_bridge"),
            *("--url", serving.url, "--queue", QUEUE, *serving.options),
            *("--output", str(output), "--checkpoint", str(folder / "checkpoint")),
        ]
        before = {name: _cpu(psutil.Process(pid)) for name, pid in serving.pids.items()}
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as process:
            seconds = _cpu_of_family(process)
            told, complaints = process.communicate()
        for name, pid in serving.pids.items():
            seconds[name] = _cpu(psutil.Process(pid)) - before[name]
    if process.returncode:
        raise BenchmarkError(f"penstock spark: {complaints.strip()}")
    written = sum(parquet.read_metadata(file).num_rows for file in output.glob("*.parquet"))
    if written != count:
        raise BenchmarkError(f"{written} of {count} messages are in the files")
    cpu = {name: 1e6 * of_one / count for name, of_one in sorted(seconds.items())}
    return replace(read_rate(told), cpu=cpu)


def _cpu(process: psutil.Process) -> float:
    """Return the seconds of processor time that a process took, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _cpu_of_family(process: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for the end of a program; return the processor time of its processes, in seconds.

    What it prints must fit into pipes.
    """
    last: dict[psutil.Process, tuple[str, float]] = {}
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            program = psutil.Process(process.pid)
            for one in (program, *program.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    last[one] = ("java" if one.name() == "java" else "python", _cpu(one))
        time.sleep(LOOK_SECONDS)
    seconds = dict.fromkeys(("java", "python"), 0.0)
    for name, of_one in last.values():
        seconds[name] += of_one
    return seconds


def read_rate(output: str) -> IngestRate:
    """Read what the program said of its progress.

    Raises:
        BenchmarkError: it said nothing.
    """
    told = [
        (int(rows.replace(",", "")), int(batches.replace(",", "")), float(seconds.replace(",", "")))
        for rows, batches, seconds in _PROGRESS.findall(output)
    ]
    if not told:
        raise BenchmarkError(f"penstock spark told no progress: {output}")
    rows, batches, seconds = told[-1]
    first_rows, first_batches, first_seconds = told[0]
    warm = None
    if first_batches < batches:
        warm = (rows - first_rows) / (seconds - first_seconds)
    return IngestRate(rows / seconds, warm)


def measure_rows(repeats: int, folder: Path, *, quick: bool) -> dict[str, list[IngestRate]]:
    """Measure all rows in turn.

    Raises:
        BenchmarkError: a message was lost, or a program failed.
    """
    rates: dict[str, list[IngestRate]] = {row.name: [] for row in ROWS}
    with tempfile.TemporaryDirectory(dir=folder.resolve()) as place:
        for row in ROWS:
            filled = Path(place) / row.name
            filled.mkdir()
            fill(filled, row, messages(row, quick=quick))
        for repetition in range(1, repeats + 1):
            for row in ROWS:
                run = Path(place) / "run"
                n_messages = messages(row, quick=quick)
                rate = ingest(Path(place) / row.name, run, n_messages, row.engine)
                shutil.rmtree(run)
                rates[row.name].append(rate)
                said = f"{rate.whole:,.0f} rows/s, warm {shown(rate.warm)}; {shown_cpu(rate.cpu)}"
                typer.echo(f"{repetition}/{repeats} {row.name}: {said}", err=True)
    return rates


def messages(row: SparkRow, *, quick: bool) -> int:
    """Return how many messages one measurement of a row has."""
    return row.quick_messages if quick else row.messages


def shown(rate: float | None) -> str:
    """Return a rate for people."""
    return "-" if rate is None else f"{rate:,.0f}"


def shown_cpu(cpu: Mapping[str, float]) -> str:
    """Return processor times for people."""
    parts = ", ".join(f"{name} {of_one:.1f}" for name, of_one in cpu.items())
    return f"{sum(cpu.values()):.1f} us of the processor a row ({parts})"


def to_table(rates: Mapping[str, Sequence[IngestRate]]) -> Table:
    """Return the rows with their medians over the repetitions."""
    columns = ("filled queue into Parquet", "rows/s", "range", "target", "verdict", "warm, rows/s")
    rows = []
    for row in ROWS:
        whole = [rate.whole for rate in rates[row.name]]
        warm = [rate.warm for rate in rates[row.name] if rate.warm is not None]
        found = median_of(whole)
        rows.append(
            (
                row.about,
                format(found, ",.0f"),
                f"{min(whole):,.0f} - {max(whole):,.0f}",
                f"at least {row.target:,}",
                at_least(found, row.target),
                format(median_of(warm), ",.0f") if warm else "-",
                *(_shown_median(one.cpu.get(name) for one in rates[row.name]) for name in PROGRAMS),
            )
        )
    return Table((*columns, *(f"{name}, us a row" for name in PROGRAMS)), rows)


def _shown_median(values: Iterable[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{statistics.median(found):.1f}" if found else "-"


def bench(
    repeats: Repeats = LEAST_UNITS,
    folder: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Where all files lie.")
    ] = Path(),
    figures: FiguresFile = None,
    json_file: JsonFile = None,
    parts: Annotated[str, typer.Option(help=f"{', '.join(PARTS)} or all.")] = "all",
    *,
    quick: Quick = False,
) -> None:
    """Measure a queue's way into Parquet on this machine: Markdown tables on standard output."""
    chosen = choose("part", parts, {part: part for part in PARTS})
    run = describe_run(
        versions=f"PySpark {version('pyspark')}, pyarrow {version('pyarrow')}, {java_version()}"
    )
    origin = replace(begin(run["command"]), doubts=doubts())
    if figures is not None:
        check_writable(figures)
    document: dict[str, Any] = {}
    tables: dict[str, Table] = {}
    if "filled" in chosen:
        rates = measure_rows(repeats, folder, quick=quick)
        document["rows_per_second"] = {
            name: [asdict(rate) for rate in of_row] for name, of_row in rates.items()
        }
        tables["filled"] = to_table(rates)
        run["messages"] = ", ".join(f"{row.name} {messages(row, quick=quick):,}" for row in ROWS)
    if "followed" in chosen:
        schedule = spark_following.QUICK if quick else spark_following.FULL
        outcomes = spark_following.measure(repeats, folder, schedule)
        document["followed"] = {
            name: [asdict(outcome) for outcome in of_way] for name, of_way in outcomes.items()
        }
        tables |= spark_following.to_tables(outcomes)
        run["schedule"] = ", ".join(f"{name} {value:g}" for name, value in asdict(schedule).items())
    if figures is not None:
        write_figure_file(figures, origin, tables)
    write_json(json_file, {"run": run, **document})
    tell(["\n\n".join(map(str, tables.values()))], run)


def java_version() -> str:
    """Return the first line of what Java says of itself."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return said.stderr.partition("\n")[0]


main: Final = Program(bench, "python -m benchmarks.spark_ingest")


if __name__ == "__main__":
    sys.exit(main())
