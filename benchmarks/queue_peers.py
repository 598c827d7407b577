"""Is the queue ahead of RabbitMQ, and of another server of Amazon SQS?

Rerun: ``python -m benchmarks.queue_peers``; a look in a minute or two with ``--quick``.

First table: 1 KiB messages published through MQTT at QoS 1 by ten connections, each with 100
unacknowledged, and drained by two consumer processes, that acknowledge what they have. Penstock
(SQLite, `durability: full`) is drained over HTTP by `QueueClient` in batches of at most 100, by two
threads a process; and, as `penstock-mqtt`, by subscribers of `$queue/NAME`, which are sent messages
as those of RabbitMQ are. RabbitMQ puts messages by its MQTT plugin into a durable queue bound to
amq.topic, which pika drains over AMQP with manual acknowledgements and a prefetch of 200.

* publish: nobody consumes; until the last PUBACK;
* drain: what was published before; until the last message is consumed;
* through: published while consumers wait; until the last message is consumed;
* p50, p99: from when a message was due to be published until a consumer has it, on a schedule of a
  rate that all carry.

Second table: messages of 1 KiB sent by boto3 in batches of ten, then received and deleted in
batches of ten, by two threads, from the SQS API of Penstock, durable as above, and from moto, which
keeps them in memory. They are fewer, as moto looks through its whole queue at each request.

Peers take turns within a repetition, each started anew in a folder of its own. Consumers check that
each message came once.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.errors import BenchmarkError
from benchmarks.loads.load import Side
from benchmarks.loads.paced import quantile
from benchmarks.loads.queue_publisher import Publishing
from benchmarks.loads.queue_servers import QUEUE, QUEUE_PEERS, QueuePeer, QueueServer, running_queue
from benchmarks.program import (
    DEFAULT_REPEATS,
    JsonFile,
    Program,
    Quick,
    Repeats,
    choose,
    describe_run,
    tell,
    write_json,
)
from benchmarks.rows.report import format_value

PAYLOAD_BYTES: Final = 1024
PUBLISHING: Final = Publishing(connections=10, window=100, payload_bytes=PAYLOAD_BYTES)
CONSUMERS: Final = 2
PATIENCE_SECONDS: Final = 60.0
"""After this time without a message, missing messages are lost."""
SQS_THREADS: Final = 2
SQS_BATCH_MESSAGES: Final = 10


@dataclass(frozen=True, slots=True)
class QueueRunSize:
    """The extent of a run.

    Attributes:
        messages: the number of messages for each rate of the first table.
        rate: the messages a second on the schedule.
        sqs_messages: the number of messages for each rate of the second table; a multiple of ten.
    """

    messages: int
    rate: float
    seconds: float
    sqs_messages: int


FULL: Final = QueueRunSize(100_000, 1_000, 20, 1_000)
QUICK: Final = QueueRunSize(10_000, 1_000, 5, 500)

Figures = dict[str, float]
"""The figures of one peer in one repetition, by name."""


class Consumers:
    """The consumer processes of a queue.

    A context manager through `closing`; the processes end with it.
    """

    def __init__(self, server: QueueServer) -> None:
        protocol, address = server.consuming
        self._sides = [
            Side("benchmarks.loads.queue_drain", protocol, address, QUEUE) for _ in range(CONSUMERS)
        ]
        for side in self._sides:
            side.answer()
        self._changed = threading.Condition()
        self._batches: list[dict[str, Any]] = []
        self._failure: BenchmarkError | None = None
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def begin(self) -> None:
        """Let them consume until they are closed."""
        for side in self._sides:
            side.tell(go=True)
            thread = threading.Thread(target=self._listen, args=(side,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _listen(self, side: Side) -> None:
        try:
            while True:
                batch = side.answer()
                with self._changed:
                    self._batches.append(batch)
                    self._changed.notify()
        except (BenchmarkError, ValueError, OSError) as error:
            with self._changed:
                if not self._is_closed:
                    self._failure = BenchmarkError(f"a consumer failed: {error}")
                self._changed.notify()

    def take(self, messages: int) -> tuple[float, list[float]]:
        """Wait until messages 0 to `messages` have been received.

        Returns:
            The time at which the last one was received, in monotonic seconds, and the lateness of
            each.

        Raises:
            BenchmarkError: one did not come, or came more than once, or a consumer failed.
        """
        n_come = total = 0
        finished = 0.0
        late: list[float] = []
        while n_come < messages:
            with self._changed:
                while not self._batches:
                    if self._failure is not None:
                        raise self._failure
                    if not self._changed.wait(PATIENCE_SECONDS):
                        raise BenchmarkError(f"{n_come} of {messages} messages came")
                batches, self._batches = self._batches, []
            for batch in batches:
                n_come += batch["messages"]
                total += batch["sum"]
                finished = max(finished, batch["at"])
                late += batch["late"]
        if n_come != messages or total != messages * (messages - 1) // 2:
            raise BenchmarkError(f"{n_come} messages came of {messages}, some more than once")
        return finished, late

    def close(self) -> None:
        """End the processes."""
        self._is_closed = True
        for side in self._sides:
            side.close()
        for thread in self._threads:
            thread.join()


def measure_mqtt(server: QueueServer, size: QueueRunSize) -> Figures:
    """Publish and drain; return the figures of the first table."""
    with ExitStack() as stack:
        publisher = Side(
            "benchmarks.loads.queue_publisher", server.mqtt_port, json.dumps(asdict(PUBLISHING))
        )
        stack.enter_context(closing(publisher))
        publisher.answer()
        publisher.tell(messages=size.messages)
        published = publisher.answer()["seconds"]
        consumers = stack.enter_context(closing(Consumers(server)))
        begin = time.monotonic()
        consumers.begin()
        drained, _ = consumers.take(size.messages)
        through_begin = time.monotonic()
        publisher.tell(messages=size.messages)
        through, _ = consumers.take(size.messages)
        publisher.answer()
        paced = int(size.rate * size.seconds)
        publisher.tell(messages=paced, rate=size.rate)
        _, late = consumers.take(paced)
        publisher.answer()
    late.sort()
    return {
        "publish": size.messages / published,
        "drain": size.messages / (drained - begin),
        "through": size.messages / (through - through_begin),
        "p50": 1000 * quantile(late, 0.5),
        "p99": 1000 * quantile(late, 0.99),
    }


# -- Amazon SQS ----------------------------------------------------------------------------------


def _new_sqs(url: str) -> Any:
    import boto3  # noqa: PLC0415 - the extra `peers` has it
    from botocore.config import Config  # noqa: PLC0415 - the same

    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id="bench",
        aws_secret_access_key="bench",  # noqa: S106 - neither server asks for one
        config=Config(retries={"total_max_attempts": 1}, max_pool_connections=SQS_THREADS),
    )


def measure_sqs(server: QueueServer, size: QueueRunSize) -> Figures:
    """Send, and receive and delete; return the figures of the second table."""
    sqs = _new_sqs(server.sqs_url)
    queue = sqs.create_queue(QueueName="bench-sqs", Attributes={"VisibilityTimeout": "600"})
    url = queue["QueueUrl"]
    body = "x" * PAYLOAD_BYTES
    lock = threading.Lock()
    bodies: list[str] = []
    times: dict[str, list[float]] = {"send": [], "receive": []}

    def send(thread: int) -> None:
        for first in range(thread * SQS_BATCH_MESSAGES, size.sqs_messages, step):
            numbers = range(first, first + SQS_BATCH_MESSAGES)
            entries = [{"Id": str(n), "MessageBody": f"{n:08d}{body[8:]}"} for n in numbers]
            begin = time.perf_counter()
            answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
            times["send"].append(time.perf_counter() - begin)
            if answer.get("Failed"):
                raise BenchmarkError(f"not stored: {answer['Failed'][0]}")

    def receive(_thread: int) -> None:
        while len(bodies) < size.sqs_messages:
            begin = time.perf_counter()
            answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=SQS_BATCH_MESSAGES)
            messages = answer.get("Messages", [])
            if not messages:
                if time.perf_counter() - started > PATIENCE_SECONDS:
                    raise BenchmarkError(f"{len(bodies)} of {size.sqs_messages} messages came")
                continue
            entries = [
                {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]}
                for n, message in enumerate(messages)
            ]
            deleted = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
            times["receive"].append(time.perf_counter() - begin)
            if deleted.get("Failed"):
                raise BenchmarkError(f"not deleted: {deleted['Failed'][0]}")
            with lock:
                bodies.extend(message["Body"][:8] for message in messages)

    step = SQS_BATCH_MESSAGES * SQS_THREADS
    rates = {}
    for name, work in (("send", send), ("receive", receive)):
        started = time.perf_counter()
        with ThreadPoolExecutor(SQS_THREADS) as threads:
            list(threads.map(work, range(SQS_THREADS)))
        rates[name] = size.sqs_messages / (time.perf_counter() - started)
    # One whose deletion took longer than its visibility timeout comes again.
    if len(set(bodies)) != size.sqs_messages:
        raise BenchmarkError(f"{len(set(bodies))} of {size.sqs_messages} came, in {len(bodies)}")
    return {
        "send": rates["send"],
        "receive": rates["receive"],
        "send p99": 1000 * quantile(sorted(times["send"]), 0.99),
        "receive p99": 1000 * quantile(sorted(times["receive"]), 0.99),
    }


# -- the tables ----------------------------------------------------------------------------------

FIGURES: Final = {
    "publish": "messages/s",
    "drain": "messages/s",
    "through": "messages/s",
    "p50": "ms",
    "p99": "ms",
    "send": "messages/s",
    "receive": "messages/s",
    "send p99": "ms",
    "receive p99": "ms",
}
"""The unit of each figure, by name."""

Results = dict[str, dict[str, list[float]]]
"""The values of all repetitions, by peer and figure."""


def to_markdown(results: Results) -> list[str]:
    """Return one table: a line for each figure and peer."""
    repeats = max(len(values) for by_name in results.values() for values in by_name.values())
    lines = [
        f"| figure | unit | peer | median of {repeats} | spread | Penstock to it |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    ours = results.get("penstock", {})
    names = dict.fromkeys(name for by_name in results.values() for name in by_name)
    for name in names:
        for peer, by_name in results.items():
            values = by_name[name]
            median = statistics.median(values)
            ratio = "-"
            if peer != "penstock" and ours:
                ratio = f"{statistics.median(ours[name]) / median:.2g} x"
            shown = format_value(median)
            spread = f"{format_value(min(values))} - {format_value(max(values))}"
            lines.append(f"| {name} | {FIGURES[name]} | {peer} | {shown} | {spread} | {ratio} |")
    return lines


def measure(
    peers: Iterable[QueuePeer],
    repeats: int,
    folder: Path,
    measure_one: Callable[[QueueServer], Figures],
) -> Results:
    """Measure peers in turn, each repetition with new processes and files.

    Raises:
        BenchmarkError: a message was lost, or a server failed.
    """
    results: Results = defaultdict(lambda: defaultdict(list))
    for repetition in range(1, repeats + 1):
        for peer in peers:
            with running_queue(peer, folder) as server:
                figures = measure_one(server)
            for name, value in figures.items():
                results[peer.name][name].append(value)
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            typer.echo(f"{repetition}/{repeats} {peer.name}: {shown}", err=True)
    return results


def installed(peers: Sequence[QueuePeer]) -> tuple[list[QueuePeer], list[str]]:
    """Return the peers that can run, and what the others miss, in words."""
    missing = {peer.name: peer.missing() for peer in peers}
    able = [peer for peer in peers if not missing[peer.name]]
    return able, [f"{name} is left out; it needs {what}" for name, what in missing.items() if what]


def bench(
    repeats: Repeats = DEFAULT_REPEATS,
    peers: Annotated[
        str, typer.Option(help=f"Of {', '.join(QUEUE_PEERS)}; or all.", metavar="NAMES")
    ] = "all",
    rate: Annotated[
        float | None, typer.Option(min=1, help="Messages a second of the schedule.")
    ] = None,
    folder: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Where servers keep their files.")
    ] = Path(),
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Compare the queue with other servers on this machine: two Markdown tables."""
    size = QUICK if quick else FULL
    if rate is not None:
        size = QueueRunSize(size.messages, rate, size.seconds, size.sqs_messages)
    able, complaints = installed(choose("peer", peers, QUEUE_PEERS))
    for complaint in complaints:
        typer.echo(complaint, err=True)
    mqtt = measure(
        [peer for peer in able if peer.has_mqtt],
        repeats,
        folder,
        lambda server: measure_mqtt(server, size),
    )
    sqs = measure(
        [peer for peer in able if peer.has_sqs],
        repeats,
        folder,
        lambda server: measure_sqs(server, size),
    )
    versions = ", ".join(f"{peer.name} {peer.version()} ({peer.about})" for peer in able)
    run = describe_run(
        versions=versions,
        messages=f"{size.messages:,} through MQTT, {size.sqs_messages:,} through SQS",
        schedule=f"{size.rate:,.0f} messages/s for {size.seconds:g} s",
    )
    write_json(json_file, {"run": run, "mqtt": mqtt, "sqs": sqs})
    lines: list[str] = []
    for title, results in (("MQTT", mqtt), ("Amazon SQS", sqs)):
        if results:
            lines += ["", f"{title}:", "", *to_markdown(results)]
    tell([*lines[1:], *complaints], run)
    if complaints:
        raise typer.Exit(1)


main: Final = Program(bench, "python -m benchmarks.queue_peers")

if __name__ == "__main__":
    sys.exit(main())
