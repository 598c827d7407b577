"""How many messages does the queue store durably, and how fast do readers get them?

Rerun: ``python -m benchmarks.queue_throughput``; a look in seconds with ``--quick``.

Rows of 1 KiB messages in a logical queue of four physical queues, in an SQLite file with
`durability: full`:

* mqtt: a client process publishes to a broker at QoS 1 on twenty connections, each with up to 1,000
  messages unacknowledged; a message counts when its PUBACK has come, so when it is flushed to the
  disk. Progress says what broker and client take of the processor, as they share the machine;
* enqueue: through the sink as the broker calls it, in one process: the queue's share in `mqtt`; a
  message counts when its receipt is settled;
* dequeue: a client process of two threads receives in batches of 100 over HTTP from a gateway
  process, each request acknowledging what the one before has brought, until all is acknowledged;
* range: a client process plans and reads ranges of 10,000 over HTTP and commits them, as Spark
  does;
* groups: as `enqueue`, into a queue of one lease group and into one of eight. Then the only group
  of the one and a group of the other receive and acknowledge in process, by turns in short slices;
  the figure is the rate of the second in per cent of that of the first.

`memory` is `enqueue` and one group's receiving with the memory engine, in process. What runs in
process has the `Collector` of the product's programs, which leaves cycles alone while they are
busy.

The ceiling is the disk's: as many bytes written to a plain file and flushed as often as the
queue may at the most (every `commit_max_messages`). `enqueue` can only be measured from within:
this module alone of the benchmarks imports what it measures.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import psutil
import typer
import uvloop

from benchmarks.errors import BenchmarkError
from benchmarks.loads.gateway import FILE, gateway
from benchmarks.loads.load import Side
from benchmarks.loads.queue_publisher import Publishing
from benchmarks.loads.queue_servers import QUEUE_PEERS, running_queue
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
from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.message import Message
from penstock.broker.process.gc_control import Collector
from penstock.netem.runs.broker_process import ENVIRONMENT
from penstock.plugins.queue.client import QueueClient
from penstock.plugins.queue.config import LogicalQueueConfig, QueueConfig
from penstock.plugins.queue.logical_queue import ReceiveRequest
from penstock.plugins.queue.plugin import QueuePlugin

PAYLOAD_BYTES: Final = 1024
BATCH_MESSAGES: Final = 100
DEQUEUE_THREADS: Final = 2
"""The number of threads that receive, so that one works on its answer while another waits for its
own."""
RANGE_MESSAGES: Final = 10_000
PUBLISHING: Final = Publishing(connections=20, window=1_000, payload_bytes=PAYLOAD_BYTES)
UNSETTLED_MESSAGES: Final = PUBLISHING.connections * PUBLISHING.window
"""The number of messages of the row `enqueue` that wait for their commit at a time."""
CHUNK_MESSAGES: Final = 100
"""The number of messages that one turn of the loop brings, as chunks of several connections do."""
TOPICS: Final = 50
FULL_MESSAGES: Final = 200_000
QUICK_MESSAGES: Final = 20_000
PUBLISHER: Final = "benchmarks.loads.queue_publisher"
QUEUE: Final = "bench"
GROUP: Final = "readers"
SHARED_QUEUE: Final = "shared"
"""The queue of the row `groups` that has other groups, too."""
GROUPS: Final = 8
SLICES: Final = 36
"""The number of slices in which each queue of the row `groups` is drained, in turns. What slows the
machine for a while slows both queues, and no slice is at the end of a queue."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row of the table.

    Attributes:
        target: the least figure; None for a ceiling.
        measure: a function that measures it once in a folder, with a number of messages.
    """

    name: str
    target: int | None
    measure: Callable[[Path, int], float]
    unit: str = "messages/s"


class Settled:
    """A counter of receipts.

    Attributes:
        deduplication_id: the messages' deduplication identifier, which is missing.
    """

    deduplication_id = b""
    is_repeat = False

    def __init__(self) -> None:
        self.n_messages = 0
        self.refused = 0
        self._wanted = 0
        self._have_come = asyncio.Event()

    async def until(self, n_messages: int) -> None:
        """Wait until so many have come."""
        if self.n_messages < n_messages:
            self._wanted = n_messages
            self._have_come.clear()
            await self._have_come.wait()

    def settle(self, reason_code: int) -> None:
        """Take one outcome."""
        self.n_messages += 1
        self.refused += reason_code >= 0x80
        if self.n_messages == self._wanted:
            self._have_come.set()


def _queue_keys(kind: str, n_groups: int = 1) -> dict[str, Any]:
    """Return the keys of the measured queue; what was received stays so while it is measured."""
    keys: dict[str, Any] = {"kind": kind}
    if kind == "lease":
        keys["visibility_timeout"] = 600.0
    names = [GROUP, *(f"other{number}" for number in range(1, n_groups))]
    return {"physical_queues": 4, "groups": dict.fromkeys(names, keys)}


def _plugin(queues: dict[str, dict[str, Any]], engine: str = "sqlite") -> QueuePlugin:
    section = {"queues": queues, "path": FILE, "http": None, "engine": engine}
    config = validate_config(QueueConfig, section, "benchmark", "plugins.queue")
    return QueuePlugin.alone(config, logging.getLogger("bench"), "benchmark")


async def _store(plugin: QueuePlugin, n_messages: int, number: int = 0) -> float:
    """Store messages through a sink of the plugin; return the seconds.

    Raises:
        BenchmarkError: some were refused.
    """
    sink = plugin.sinks[number]
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(CHUNK_MESSAGES)]
    settled = Settled()
    begin = time.perf_counter()
    for sent in range(0, n_messages, CHUNK_MESSAGES):
        now = time.monotonic()
        for index in range(CHUNK_MESSAGES):
            topic = f"bench/{(sent + index) % TOPICS}"
            message = Message(topic, payloads[index], qos=1, arrived_at=now)
            if sink.reserve(message):
                settled.settle(0x97)
            else:
                sink.accept(message, settled)
        await asyncio.sleep(0)
        await settled.until(sent - UNSETTLED_MESSAGES)
    await settled.until(n_messages)
    seconds = time.perf_counter() - begin
    if settled.refused:
        raise BenchmarkError(f"{settled.refused} of {n_messages} messages were refused")
    return seconds


async def _receive(plugin: QueuePlugin, n_messages: int, queue: str = QUEUE) -> float:
    """Receive and acknowledge messages of a group in process; return the seconds."""
    service = plugin.service
    received = 0
    begin = time.perf_counter()
    while received < n_messages:
        request = ReceiveRequest(min(BATCH_MESSAGES, n_messages - received))
        batch = await service.queue(queue).receive(GROUP, request)
        if not batch:
            raise BenchmarkError(f"received {received} of {n_messages} messages")
        await service.settle(queue, GROUP, "ack", [each.receipt_handle for each in batch])
        received += len(batch)
    return time.perf_counter() - begin


async def _fill(kind: str, n_messages: int) -> float:
    """Store messages through the sink of an SQLite file; return messages per second."""
    plugin = _plugin({QUEUE: _queue_keys(kind)})
    await plugin.start()
    try:
        return n_messages / await _store(plugin, n_messages)
    finally:
        await plugin.close()


async def _memory(_kind: str, n_messages: int) -> float:
    """Store and receive with the memory engine; return messages per second of the slower."""
    plugin = _plugin({QUEUE: _queue_keys("lease")}, "memory")
    await plugin.start()
    try:
        stored = await _store(plugin, n_messages)
        received = await _receive(plugin, n_messages)
    finally:
        await plugin.close()
    return n_messages / max(stored, received)


async def _by_turns(kind: str, n_messages: int) -> float:
    """Return the rate of one of several groups in per cent of that of a single one."""
    plugin = _plugin({QUEUE: _queue_keys(kind), SHARED_QUEUE: _queue_keys(kind, GROUPS)})
    await plugin.start()
    seconds = dict.fromkeys((QUEUE, SHARED_QUEUE), 0.0)
    try:
        for number in range(len(seconds)):
            await _store(plugin, n_messages, number)
        for number in range(SLICES):
            for queue in sorted(seconds, reverse=number % 2 == 1):
                seconds[queue] += await _receive(plugin, n_messages // 40, queue)
    finally:
        await plugin.close()
    return 100 * seconds[QUEUE] / seconds[SHARED_QUEUE]


def _in_folder(folder: Path, *arguments: str) -> str:
    """Run a part of this program as a process of its own; return what it prints."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.queue_throughput", "--part", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=ENVIRONMENT,
    )
    if ended.returncode:
        raise BenchmarkError(f"{' '.join(arguments)}: {ended.stderr.strip()}")
    return ended.stdout


def _enqueue(folder: Path, n_messages: int) -> float:
    return float(_in_folder(folder, "fill", "lease", str(n_messages)))


def _mqtt(folder: Path, n_messages: int) -> float:
    """Publish to a broker; tell what it and the client take of the processor."""
    with (
        running_queue(QUEUE_PEERS["penstock"], folder) as server,
        closing(Side(PUBLISHER, server.mqtt_port, json.dumps(asdict(PUBLISHING)))) as publisher,
    ):
        publisher.answer()
        broker = psutil.Process(server.pid)
        before = broker.cpu_times()
        publisher.tell(messages=n_messages)
        told = publisher.answer()
        after = broker.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    of_broker, of_client = (1e6 * seconds / n_messages for seconds in (cpu, told["cpu"]))
    typer.echo(f"mqtt: broker {of_broker:.1f} us, client {of_client:.1f} us a message", err=True)
    return float(n_messages / told["seconds"])


def _memory_engine(folder: Path, n_messages: int) -> float:
    return float(_in_folder(folder, "memory", "lease", str(n_messages)))


def _groups(folder: Path, n_messages: int) -> float:
    return float(_in_folder(folder, "groups", "lease", str(n_messages)))


def _ceiling(folder: Path, n_messages: int) -> float:
    """Write and flush as many bytes to a plain file."""
    commit_messages = QueueConfig(queues={QUEUE: LogicalQueueConfig()}).commit_max_messages
    block = os.urandom(PAYLOAD_BYTES * commit_messages)
    begin = time.perf_counter()
    with (folder / "plain").open("wb", buffering=0) as file:
        for _ in range(0, n_messages, commit_messages):
            file.write(block)
            os.fsync(file.fileno())
    return n_messages / (time.perf_counter() - begin)


def _over_http(part: str, kind: str) -> Callable[[Path, int], float]:
    def measure(folder: Path, n_messages: int) -> float:
        _in_folder(folder, "fill", kind, str(n_messages))
        with gateway(folder, QUEUE, _queue_keys(kind)) as url:
            return float(_in_folder(folder, part, url, str(n_messages)))

    return measure


def _drain(url: str, n_messages: int) -> float:
    """Receive and acknowledge everything; return messages per second."""
    client = QueueClient(url)
    lock = threading.Lock()
    n_received = 0

    def work() -> None:
        nonlocal n_received
        handles: list[str] = []
        while n_received < n_messages or handles:
            # The last one finds nothing, and acknowledges what came before.
            received = client.receive(
                QUEUE, GROUP, max_messages=BATCH_MESSAGES, acknowledge=handles
            )
            if received.failed:
                raise BenchmarkError(f"not acknowledged: {received.failed}")
            handles = [delivery.receipt_handle for delivery in received]
            with lock:
                n_received += len(received)

    begin = time.perf_counter()
    with ThreadPoolExecutor(DEQUEUE_THREADS) as threads:
        for working in [threads.submit(work) for _ in range(DEQUEUE_THREADS)]:
            working.result()
    return n_messages / (time.perf_counter() - begin)


def _read(url: str, n_messages: int) -> float:
    """Read and commit everything in ranges; return messages per second."""
    client = QueueClient(url)
    begin = time.perf_counter()
    read = 0
    at = client.position(QUEUE)
    while read < n_messages:
        end = client.plan(QUEUE, at, max_messages=RANGE_MESSAGES)
        if end == at:
            raise BenchmarkError(f"read {read} of {n_messages} messages")
        for number, behind in end.offsets.items():
            start = at.offsets[number]
            if start < behind:
                batch = client.read_range(QUEUE, number, start, behind, incarnation=end.incarnation)
                read += len(batch.payload)
        client.commit(QUEUE, GROUP, end)
        at = end
    return n_messages / (time.perf_counter() - begin)


ROWS: Final = (
    QueueRow("mqtt", 80_000, _mqtt),
    QueueRow("enqueue", None, _enqueue),
    QueueRow("dequeue", 60_000, _over_http("drain", "lease")),
    QueueRow("range", 100_000, _over_http("read", "offsets")),
    QueueRow("memory", 150_000, _memory_engine),
    QueueRow("groups", 90, _groups, unit="%"),
    QueueRow("ceiling", None, _ceiling),
)

_IN_LOOP: Final = {"fill": _fill, "memory": _memory, "groups": _by_turns}
_OVER_HTTP: Final = {"drain": _drain, "read": _read}


def _part(arguments: list[str]) -> float:
    """Do what a process of the benchmark's own is for."""
    name, of, n_messages = arguments[0], arguments[1], int(arguments[2])
    if name in _IN_LOOP:
        Collector()  # as the product's programs do, it takes the place of Python's own runs
        return uvloop.run(_IN_LOOP[name](of, n_messages))
    return _OVER_HTTP[name](of, n_messages)


def measure_rows(n_messages: int, repeats: int, folder: Path) -> dict[str, list[float]]:
    """Measure all rows in turn, each repetition in new files.

    Raises:
        BenchmarkError: a message was lost, or a process failed.
    """
    rates: dict[str, list[float]] = {row.name: [] for row in ROWS}
    for repetition in range(1, repeats + 1):
        for row in ROWS:
            with tempfile.TemporaryDirectory(dir=folder.resolve()) as place:
                rates[row.name].append(row.measure(Path(place), n_messages))
            rate = rates[row.name][-1]
            typer.echo(f"{repetition}/{repeats} {row.name}: {rate:,.0f} {row.unit}", err=True)
    return rates


def to_markdown(rates: dict[str, list[float]]) -> list[str]:
    """Return the table."""
    repeats = len(rates[ROWS[0].name])
    lines = [
        f"| row | target | median of {repeats} | unit | spread | met |",
        "| --- | ---: | ---: | --- | ---: | --- |",
    ]
    for row in ROWS:
        values = rates[row.name]
        median = statistics.median(values)
        target = "-" if row.target is None else f"{row.target:,}"
        is_met = "-" if row.target is None else "yes" if median >= row.target else "no"
        spread = f"{min(values):,.0f} - {max(values):,.0f}"
        lines.append(
            f"| {row.name} | {target} | {median:,.0f} | {row.unit} | {spread} | {is_met} |"
        )
    return lines


def bench(
    repeats: Repeats = DEFAULT_REPEATS,
    folder: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Where the queue's file lies.")
    ] = Path(),
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Measure the queue on this machine: a Markdown table on standard output."""
    n_messages = QUICK_MESSAGES if quick else FULL_MESSAGES
    rates = measure_rows(n_messages, repeats, folder)
    run = describe_run(
        versions=f"SQLite {sqlite3.sqlite_version}, aiohttp {aiohttp.__version__}",
        messages=f"{n_messages:,} of {PAYLOAD_BYTES} B a measurement",
    )
    write_json(json_file, {"run": run, "figures": rates})
    tell(to_markdown(rates), run)


_measure: Final = Program(bench, "python -m benchmarks.queue_throughput")


def main(argv: list[str]) -> int:
    """Run the benchmark, or one of its parts in a process of its own."""
    if argv[:1] == ["--part"]:
        print(_part(argv[1:]))
        return 0
    return _measure(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
