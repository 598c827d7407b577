"""Runs the queries of a pipeline to their end.

A query that follows its queue runs until the run is asked to stop. Then all queries read what still
waits, and the messages of the last micro-batch are deleted from the queue. Spark itself would do so
only when it plans another micro-batch.

Before and after a run, the folders of file sinks are cleaned of files that a killed run has left,
which are in no list of Spark's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark_bridge.errors import BridgeError, one_line, step_line
from penstock.spark_bridge.offsets import Position, least
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.pipelines.compaction import compact
from penstock.spark_bridge.pipelines.config import TO_MQTT, Sink, as_texts
from penstock.spark_bridge.pipelines.one_reading import publish
from penstock.spark_bridge.progress_totals import ProgressTotals
from penstock.spark_bridge.queue_reader import QueueReader
from penstock.spark_bridge.sink_folder import (
    check_place,
    local_folder,
    prepare_checkpoint,
    prepare_folder,
)

_LOOK_SECONDS: Final = 0.25
"""The seconds for which each running query is waited for before all are asked for their
progress."""

_RELEASE_SECONDS: Final = 5.0
"""The seconds without a new micro-batch after which the messages of the last one are deleted."""

_TASKS_END_SECONDS: Final = 10.0
"""The seconds that the tasks of a stopped query may take to end, which Spark interrupts."""

_TASKS_LOOK_SECONDS: Final = 0.02

WORKER_IS_LATE: Final = "Python worker failed to connect back"
"""Spark fails a query with this text when a Python worker has not started within 10 s, as on a busy
machine. There is no setting for it. The checkpoint stays valid."""

UPDATE: Final = "update"
"""Spark's output mode in which only changed rows are written."""

_STARTS: Final = 3
"""The number of starts of a query whose workers are late."""

_STOPS_AT_ONCE: Final = 2
"""The number of requests to stop after which nothing more is read."""


class PipelineError(BridgeError):
    """A query failed; the text is the reason that Spark gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A streaming query from a queue to one sink, or to several.

    Attributes:
        name: the name of the query in Spark.
        rows: the rows that are written; for several sinks, the rows that are read for them.
        source: options of the source, whose group is committed.
        checkpoint: path or URI of the query's own checkpoint folder.
        write: a function that writes a micro-batch to several sinks; None where Spark writes to the
            one sink.
    """

    name: str
    rows: DataFrame
    source: SourceOptions
    sinks: Mapping[str, Sink]
    checkpoint: str
    write: Callable[[DataFrame, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of one query in this run.

    Attributes:
        micro_batches: the number of micro-batches that had messages.
        seconds: their duration, from the request for the queue's offsets to Spark's commit log.
        late_groups: rows that reached an aggregate after their window was complete. Spark drops and
            counts them when it has grouped a micro-batch.
        observed: the counts of payloads: ``messages``, ``expired``, and each reason for the
            quarantine; {} where the query decodes none.
        rate: the rows a second of the newest micro-batch.
        lag: the number of messages that wait behind it, by ``QUEUE/NUMBER`` of the physical queue.
    """

    rows: int
    micro_batches: int
    seconds: float
    late_groups: int
    observed: Mapping[str, int]
    rate: float
    lag: Mapping[str, int]


Summaries = Mapping[str, Summary]
"""Summaries by the name of the query."""


def run(
    spark: SparkSession,
    queries: Sequence[Query],
    trigger_seconds: float | None,
    *,
    stop_requests: Callable[[], int] = lambda: 0,
    on_progress: Callable[[Summaries], None] = lambda _: None,
    on_batch: Callable[[Query, Mapping[str, Any]], None] = lambda *_: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Summaries:
    """Run queries to their end.

    Args:
        spark: a session that knows the source (see ``session.build_session``).
        queries: the queries to run.
        trigger_seconds: the seconds from one micro-batch to the next, until the run is asked to
            stop; with None, the run reads the messages that the queue holds, and ends.
        stop_requests: a function that returns how often the run was asked to stop; it is called
            twice a second. After two requests the run ends at once and leaves the rest in the
            queue.
        on_progress: is called with the counts so far whenever they have changed.
        on_batch: is called with Spark's report, as JSON values, of each micro-batch that had
            messages, after its commit.
        tell: is called with a line for each file that is deleted.

    Raises:
        PipelineError: a query failed; the others were stopped. Their checkpoints are valid: the
            same run continues from there.
        SinkFolderError: a folder holds the output of another query.
    """
    running = _Run(spark, queries, trigger_seconds, stop_requests, on_progress, on_batch, tell)
    try:
        running.run()
    except PySparkException as error:
        raise PipelineError(one_line(error)) from error
    return running.summaries()


class _Running:
    """A query and its counts; it is started again for the last part of a run."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.totals = ProgressTotals()
        self.stream: StreamingQuery | None = None
        self.released: list[dict[str, Any]] = []
        self.changed_at = time.monotonic()
        self.compact_at = {
            name: self.changed_at + sink.compact_every
            for name, sink in query.sinks.items()
            if sink.compact is not None
        }

    def join(self) -> None:
        """Create the query's group, if it does not exist."""
        queue = QueueReader(self.query.source)
        try:
            queue.join()
        finally:
            queue.close()

    def release(self) -> None:
        """Delete the messages that the last finished micro-batch has read.

        Spark reports a batch after it has written its number to the commit log, and then never asks
        for it again.
        """
        ends = self.totals.ends
        if ends and ends != self.released:
            queue = QueueReader(self.query.source)
            names = self.query.source.queues
            try:
                queue.commit(least([Position.from_json(end, names) for end in ends]))
            finally:
                queue.close()
            self.released = ends


class _Run:
    def __init__(
        self,
        spark: SparkSession,
        queries: Sequence[Query],
        trigger_seconds: float | None,
        stop_requests: Callable[[], int],
        on_progress: Callable[[Summaries], None],
        on_batch: Callable[[Query, Mapping[str, Any]], None],
        tell: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._running = [_Running(query) for query in queries]
        self._trigger_seconds = trigger_seconds
        self._stop_requests = stop_requests
        self._on_progress = on_progress
        self._on_batch = on_batch
        self._tell = tell

    def run(self) -> None:
        """Follow the queue if there is a trigger, then read the rest, then commit."""
        self._prepare_folders()
        # All groups must exist before one commits, so that the queue keeps what they have to read.
        for one in self._running:
            one.join()
        seconds = self._trigger_seconds
        while seconds is not None and not self._stop_requests():
            self._go(self._running, stop_at=1, processingTime=f"{seconds} seconds")
            self._tidy(is_over=False)
        # One after the other, as each has some Python processes.
        for one in self._running:
            if self._stop_requests() < _STOPS_AT_ONCE:
                self._go([one], stop_at=_STOPS_AT_ONCE, availableNow=True)
        self._tidy(is_over=True)
        for one in self._running:
            one.release()

    def summaries(self) -> Summaries:
        """Return the counts so far."""
        return {one.query.name: _summary(one.totals) for one in self._running}

    def _go(self, running: list[_Running], *, stop_at: int, **trigger: Any) -> None:
        """Start queries and watch them; start again where a Python worker was late.

        Raises:
            PySparkException: one of them failed.
        """
        for starts_left in reversed(range(_STARTS)):
            self._start(running, **trigger)
            try:
                self._watch(running, stop_at=stop_at)
            except PySparkException as error:
                if not starts_left or WORKER_IS_LATE not in str(error):
                    raise
                self._wait_for_tasks()
                self._prepare_folders()
            else:
                return

    def _start(self, running: list[_Running], **trigger: Any) -> None:
        """Start queries.

        Raises:
            PipelineError: Spark refuses a sink, such as one whose package it lacks; none runs.
        """
        for one in running:
            query = one.query
            checkpoint = local_folder(query.checkpoint)
            if checkpoint is not None:
                self._tell_deleted(prepare_checkpoint(checkpoint))
            try:
                one.stream = _start(query, **trigger)
            except (PySparkException, Py4JJavaError) as error:
                for stream in [each.stream for each in running if each.stream is not None]:
                    stream.stop()
                names = ", ".join(map(repr, query.sinks))
                raise PipelineError(f"sink {names}: {step_line(error)}") from error

    def _watch(self, running: list[_Running], *, stop_at: int) -> None:
        """Wait until the queries have ended, one has failed, or files are to be joined."""
        streams = [one.stream for one in running if one.stream is not None]
        try:
            while any(stream.isActive for stream in streams):
                if self._stop_requests() >= stop_at or any(map(_failure, streams)):
                    break
                for stream in streams:
                    # It takes fractions of seconds, although its annotation says otherwise.
                    stream.awaitTermination(_LOOK_SECONDS)  # type: ignore[arg-type]
                self._collect()
                if stop_at < _STOPS_AT_ONCE and self._is_time_to_compact():
                    break
        except PySparkException:
            pass  # a query's, which is raised below
        finally:
            for stream in streams:
                stream.stop()
        self._collect()
        for stream in streams:
            failure = _failure(stream)
            if failure is not None:
                raise failure

    def _is_time_to_compact(self) -> bool:
        now = time.monotonic()
        return any(now >= at for one in self._running for at in one.compact_at.values())

    def _collect(self) -> None:
        """Read the queries' reports, and release the messages of idle ones."""
        has_changed = False
        now = time.monotonic()
        for one in self._running:
            newest = None if one.stream is None else one.stream.lastProgress
            if newest is not None and newest.batchId >= one.totals.batch_id:
                assert one.stream is not None  # noqa: S101 - it has reported
                for progress in one.stream.recentProgress:
                    report = json.loads(progress.json)
                    if one.totals.add(report):
                        has_changed, one.changed_at = True, now
                        self._on_batch(one.query, report)
            if now - one.changed_at >= _RELEASE_SECONDS:
                one.release()
        if has_changed:
            self._on_progress(self.summaries())

    def _tidy(self, *, is_over: bool) -> None:
        """Delete what stopped queries have left, and join small files where that is due."""
        self._wait_for_tasks()
        self._prepare_folders()
        now = time.monotonic()
        for one in self._running:
            for name, sink in one.query.sinks.items():
                folder = None if sink.path is None else local_folder(sink.path)
                if sink.compact is None or folder is None:
                    continue
                if is_over or now >= one.compact_at[name]:
                    compact(folder, sink.compact)
                    one.compact_at[name] = now + sink.compact_every

    def _prepare_folders(self) -> None:
        """Delete what killed runs have left in each local folder. No query may be running.

        Raises:
            SinkFolderError: a folder holds the output of another query.
        """
        for one in self._running:
            checkpoint = local_folder(one.query.checkpoint)
            for sink in one.query.sinks.values():
                folder = None if sink.path is None else local_folder(sink.path)
                if folder is not None and checkpoint is not None:
                    self._tell_deleted(prepare_folder(folder, checkpoint, sink.partition_by))
                elif sink.path is not None:
                    check_place(self._spark, sink.path, one.query.checkpoint)

    def _tell_deleted(self, files: Sequence[Path]) -> None:
        for file in files:
            self._tell(f"deleted {file}, which a run that was stopped had left unfinished")

    def _wait_for_tasks(self) -> None:
        """Wait until the tasks of stopped queries have ended.

        Stopping a query does not wait for its tasks, which may go on writing for a moment.
        """
        java = self._spark.sparkContext._jsc  # noqa: SLF001 - no other access to tasks
        tracker = java.sc().statusTracker()
        deadline = time.monotonic() + _TASKS_END_SECONDS
        while any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
            if time.monotonic() >= deadline:
                break
            time.sleep(_TASKS_LOOK_SECONDS)


def _start(query: Query, **trigger: Any) -> StreamingQuery:
    """Start a query.

    Raises:
        PySparkException, Py4JJavaError: Spark refuses a sink.
    """
    writer = query.rows.writeStream.queryName(query.name).trigger(**trigger)
    writer = writer.option("checkpointLocation", query.checkpoint)
    if query.write is not None:
        return writer.foreachBatch(query.write).start()
    (sink,) = query.sinks.values()
    writer = writer.outputMode(sink.mode)
    if sink.format == TO_MQTT and sink.mode == UPDATE:
        # Spark has no update mode for a sink in Python.
        return writer.foreachBatch(lambda rows, batch: publish(sink, rows, str(batch))).start()
    writer = writer.format(sink.format).options(**as_texts(sink.options))
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    return writer.start() if sink.table is None else writer.toTable(sink.table)


def _failure(stream: StreamingQuery) -> Exception | None:
    return None if stream.isActive else stream.exception()


def _summary(totals: ProgressTotals) -> Summary:
    return Summary(
        rows=totals["rows"],
        micro_batches=totals["batches"],
        seconds=totals["milliseconds"] / 1_000,
        late_groups=totals["late"],
        observed=totals.observed(),
        rate=totals.rate,
        lag=totals.lag,
    )
