"""The program's queries: a queue into Parquet, and its telemetry into aggregates.

*Ingest* writes every message of the queue, whatever its content, to Parquet files. Two further
queries follow those files, not the queue: a queue belongs to the one query that commits it, while
any number of queries can read files. *Windows* aggregates telemetry; *unusable* lists the messages
that are not valid telemetry, with the reason. Each query has a checkpoint of its own, and Spark's
file sink lists the files of a micro-batch in one step. So each message is in the output exactly
once, and counts exactly once, however often the program is killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark_bridge.errors import BridgeError, one_line
from penstock.spark_bridge.offsets import Position
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.queue_reader import QueueReader
from penstock.spark_bridge.schema import SPARK_DDL
from penstock.spark_bridge.sink_folder import prepare_folder
from penstock.spark_bridge.source import FORMAT
from penstock.spark_bridge.tally import Tally
from penstock.spark_bridge.telemetry import (
    OBSERVATION,
    PROBLEMS,
    aggregate,
    count_problems,
    parse_telemetry,
    unusable,
)

_LOOK_SECONDS: Final = 0.25
"""Time to wait for each running query before all are asked for their progress."""


_TASKS_END_SECONDS: Final = 10.0
"""How long the tasks of a stopped query may take to end; Spark interrupts them."""

_TASKS_LOOK_SECONDS: Final = 0.02


class PipelineError(BridgeError):
    """A query failed; the text is the reason that Spark gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """What to run.

    Attributes:
        source: the queue.
        output: directory of the messages' Parquet files.
        checkpoint: directory of the queries' checkpoints.
        aggregate: directory of the Parquet files of ``windows`` and ``unusable``; None for ingest
            only.
        window_seconds: length of an aggregation window, above 0.
        lateness_seconds: how late telemetry may arrive and still count, 0 or more.
        trigger_seconds: seconds from one micro-batch to the next, until the caller stops the run;
            None reads what the queue holds now, and ends.
    """

    source: SourceOptions
    output: Path
    checkpoint: Path
    aggregate: Path | None = None
    window_seconds: float = 10.0
    lateness_seconds: float = 10.0
    trigger_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What one run did.

    Attributes:
        ingested_messages: messages written to Parquet.
        micro_batches: micro-batches that wrote them.
        ingest_seconds: duration of these micro-batches, from the request for the queue's offsets to
            Spark's commit log.
        aggregated_messages: messages that the aggregation read.
        problems: reasons why messages could not be used as telemetry, with their number; see
            ``telemetry``.
        late_groups: groups of one micro-batch, window, host, metric and process that came after
            their window was complete. Spark drops and counts them as groups, after grouping their
            messages.
    """

    ingested_messages: int
    micro_batches: int
    ingest_seconds: float
    aggregated_messages: int
    problems: Mapping[str, int]
    late_groups: int


def source_texts(options: SourceOptions) -> dict[str, str]:
    """Return the options as texts for Spark; ``read_options`` parses them."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def run(
    spark: SparkSession,
    options: PipelineOptions,
    *,
    stop_requests: Callable[[], int] = lambda: 0,
    on_progress: Callable[[Summary], None] = lambda _: None,
) -> Summary:
    """Run the queries to their end.

    With ``trigger_seconds`` they run until they are asked to stop, and then still read the waiting
    messages. The last micro-batch's messages are deleted from the queue at the end, as Spark itself
    would do so only when it plans another one.

    Args:
        spark: a session that knows the source (see ``session.build_session``).
        options: what to run.
        stop_requests: returns how often the run was asked to stop; called twice a second. From two
            on it ends at once, with the rest left in the queue.
        on_progress: called with the counts so far whenever they have changed.

    Returns:
        The counts of this run.

    Raises:
        PipelineError: a query failed. Its checkpoint is valid: the same run continues from there.
        SinkFolderError: a folder holds the output of another query.
    """
    pipeline = _Pipeline(spark, options, stop_requests, on_progress)
    try:
        pipeline.run()
    except PySparkException as error:
        raise PipelineError(one_line(error)) from error
    return pipeline.summary()


class _Pipeline:
    """One run; the queries are restarted for its second part, and their counts continue."""

    def __init__(
        self,
        spark: SparkSession,
        options: PipelineOptions,
        stop_requests: Callable[[], int],
        on_progress: Callable[[Summary], None],
    ) -> None:
        self._spark = spark
        self._options = options
        self._stop_requests = stop_requests
        self._on_progress = on_progress
        self._ingested = Tally()
        self._aggregated = Tally(OBSERVATION)

    def run(self) -> None:
        """Follow the queue if the options ask for that, then read the rest, then commit."""
        seconds = self._options.trigger_seconds
        self._sweep()
        # The file source needs an existing directory.
        self._options.output.mkdir(parents=True, exist_ok=True)
        if seconds is not None:
            following = [self._ingest(processingTime=f"{seconds} seconds")]
            following += self._aggregate(processingTime=f"{seconds} seconds")
            self._watch(following, stop_at=1)
        self._watch([self._ingest(availableNow=True)], stop_at=2)
        self._watch(self._aggregate(availableNow=True), stop_at=2)
        # A query that was stopped leaves incomplete output as well.
        self._wait_for_tasks()
        self._sweep()
        self._release()

    def summary(self) -> Summary:
        """Return the counts so far."""
        counts = self._aggregated
        return Summary(
            ingested_messages=self._ingested["rows"],
            micro_batches=self._ingested["batches"],
            ingest_seconds=self._ingested["milliseconds"] / 1_000,
            aggregated_messages=counts[f"{OBSERVATION}.messages"],
            problems={problem: counts[f"{OBSERVATION}.{problem}"] for problem in PROBLEMS},
            late_groups=counts["late"],
        )

    def _ingest(self, **trigger: Any) -> _Running:
        reader = self._spark.readStream.format(FORMAT)
        messages = reader.options(**source_texts(self._options.source)).load()
        return self._start(messages, "ingest", self._ingested, trigger)

    def _aggregate(self, **trigger: Any) -> list[_Running]:
        options = self._options
        if options.aggregate is None:
            return []
        messages = self._spark.readStream.schema(SPARK_DDL).parquet(str(options.output))
        telemetry = parse_telemetry(messages)
        windows = aggregate(
            count_problems(telemetry),
            window_seconds=options.window_seconds,
            lateness_seconds=options.lateness_seconds,
        )
        return [
            self._start(windows, "windows", self._aggregated, trigger),
            self._start(unusable(telemetry), "unusable", Tally(), trigger),
        ]

    def _folders(self) -> dict[str, Path]:
        """Return where each query writes."""
        folders = {"ingest": self._options.output}
        if self._options.aggregate is not None:
            folders |= {name: self._options.aggregate / name for name in ("windows", "unusable")}
        return folders

    def _sweep(self) -> None:
        """Delete files that no list has, in each folder. No query may be running."""
        for name, folder in self._folders().items():
            prepare_folder(folder, self._options.checkpoint / name)

    def _wait_for_tasks(self) -> None:
        """Wait until the tasks of stopped queries have ended.

        A query that is stopped tells them to end and does not wait; until then they write.
        """
        java = self._spark.sparkContext._jsc  # noqa: SLF001 - no other access to tasks
        tracker = java.sc().statusTracker()
        deadline = time.monotonic() + _TASKS_END_SECONDS
        while any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
            if time.monotonic() >= deadline:
                break
            time.sleep(_TASKS_LOOK_SECONDS)

    def _start(self, rows: DataFrame, name: str, tally: Tally, trigger: dict[str, Any]) -> _Running:
        writer = rows.writeStream.format("parquet").queryName(name).trigger(**trigger)
        writer = writer.option("checkpointLocation", str(self._options.checkpoint / name))
        return _Running(writer.start(str(self._folders()[name])), tally)

    def _watch(self, running: list[_Running], *, stop_at: int) -> None:
        """Wait until all queries have ended; stop them after so many requests."""
        try:
            while any(one.query.isActive for one in running):
                if self._stop_requests() >= stop_at:
                    break
                for one in running:
                    # Takes fractions of seconds, whatever its annotation says.
                    one.query.awaitTermination(_LOOK_SECONDS)  # type: ignore[arg-type]
                self._collect(running)
        finally:
            for one in running:
                one.query.stop()
        self._collect(running)
        for one in running:
            failure = one.query.exception()
            if failure is not None:
                raise failure

    def _collect(self, running: list[_Running]) -> None:
        changed = False
        for one in running:
            newest = one.query.lastProgress
            if newest is not None and newest.batchId >= one.tally.batch_id:
                for report in one.query.recentProgress:
                    changed |= one.tally.add(json.loads(report.json))
        if changed:
            self._on_progress(self.summary())

    def _release(self) -> None:
        """Delete the messages that the last finished micro-batch read.

        Its report comes after Spark has written its number to the checkpoint's commit log, so Spark
        never asks for it again.
        """
        end = self._ingested.end
        if end is not None:
            queue = QueueReader(self._options.source)
            queue.commit(Position.from_json(end, self._options.source.queue))
            queue.close()


@dataclass(frozen=True, slots=True)
class _Running:
    query: StreamingQuery
    tally: Tally
