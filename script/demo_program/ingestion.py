"""The consumers of the queues: Spark with its Parquet files, and a back end for the pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds

from penstock.plugins.queue.client import QueueClient, QueueError
from penstock.spark_bridge.pipelines.config import example_text
from script.demo_program.clients import PICTURES, TELEMETRY, read_number
from script.demo_program.errors import DemoError
from script.demo_program.policy import Places
from script.demo_program.programs import Program, Programs

VIEWERS: Final = "viewers"
"""The group of the queue of pictures in the example policy."""

TRIGGER_SECONDS: Final = 8
"""The time between two micro-batches."""

START_SECONDS: Final = 180.0
END_SECONDS: Final = 180.0
"""The longest wait for Spark on a slow machine; a start takes some seconds where the class
archive exists."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The content of the aggregated windows.

    Attributes:
        rows: the number of rows: a host, a metric and a process in one window.
        windows: the number of different windows.
        messages: the number of messages that are counted in them.
    """

    rows: int
    windows: int
    messages: int


class Spark:
    """The pipeline from the queue `telemetry` into Parquet files."""

    def __init__(self, programs: Programs, places: Places, folder: Path) -> None:
        """Write the pipeline's file and run it; `wait_until_started` before it is needed."""
        pipeline = folder / "pipeline.yaml"
        tables = folder / "telemetry-data"
        self.rows_folder = tables / "messages"
        self.windows_folder = tables / "windows"
        self._report = folder / "spark-report.json"
        pipeline.write_text(example_text(places.queue_url, TELEMETRY))
        self._program: Program = programs.start(
            "spark",
            "spark_bridge",
            *("run", str(pipeline), "--trigger", str(TRIGGER_SECONDS)),
            *("--report", str(self._report)),
        )

    def wait_until_started(self) -> None:
        """Wait until it runs.

        Raises:
            DemoError: it does not start.
        """
        self._program.wait_for("penstock spark: Spark", START_SECONDS)

    def finish(self) -> int:
        """Let it read what still waits, and end; return how many messages it has ingested.

        Raises:
            DemoError: it has failed.
        """
        self._program.ask_to_end()
        status = self._program.wait(END_SECONDS)
        if status:
            raise self._program.failure(f"ended with status {status}")
        ingested: int = json.loads(self._report.read_text())["messages"]["rows"]
        return ingested

    def numbers(self) -> list[int]:
        """Return the number of every message in the Parquet files."""
        payloads = ds.dataset(self.rows_folder, format="parquet").to_table(["payload"])
        return list(numbers_of(payloads.column("payload").to_pylist()))

    def windows(self) -> Windows:
        """Return what the complete windows hold; the newest are complete with later events."""
        if not any(self.windows_folder.glob("*.parquet")):
            return Windows(0, 0, 0)
        table = ds.dataset(self.windows_folder, format="parquet").to_table()
        starts = table.column("window_start").unique()
        messages = sum(table.column("messages").to_pylist())
        return Windows(table.num_rows, len(starts), messages)


def numbers_of(payloads: list[bytes]) -> Iterator[int]:
    """Yield the numbers of the demo's messages, of others -1."""
    for payload in payloads:
        number = read_number(payload)
        yield -1 if number is None else number


def queued_numbers(places: Places) -> list[int]:
    """Return the number of every message that waits in the queue `telemetry`.

    Raises:
        DemoError: the queue does not answer.
    """
    client = QueueClient(places.queue_url)
    numbers: list[int] = []
    try:
        start, end = client.position(TELEMETRY, "earliest"), client.position(TELEMETRY, "latest")
        for physical_queue, earliest in start.offsets.items():
            behind = end.offsets[physical_queue]
            batch = client.read_range(TELEMETRY, physical_queue, earliest, behind)
            numbers += numbers_of(batch.payload)
    except QueueError as error:
        raise DemoError(f"queue {TELEMETRY}: {error}") from error
    finally:
        client.close()
    return numbers


def take_pictures(places: Places, folder: Path) -> list[tuple[str, str]]:
    """Move all pictures from their queue into files, as a back end would.

    Returns:
        The topic and the SHA-256 of each, in order of arrival.

    Raises:
        DemoError: the queue does not answer.
    """
    folder.mkdir(exist_ok=True)
    client = QueueClient(places.queue_url)
    taken: list[tuple[str, str]] = []
    try:
        while deliveries := client.receive(PICTURES, VIEWERS, max_messages=4, wait_seconds=0.5):
            for delivery in deliveries:
                (folder / f"{delivery.topic.rpartition('/')[2]}.png").write_bytes(delivery.payload)
                digest = hashlib.sha256(delivery.payload).hexdigest()
                taken.append((delivery.topic, digest))
            client.settle(PICTURES, [one.receipt_handle for one in deliveries], group=VIEWERS)
    except QueueError as error:
        raise DemoError(f"queue {PICTURES}: {error}") from error
    finally:
        client.close()
    return taken
