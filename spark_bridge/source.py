"""Penstock's queue as a Spark data source: ``spark.readStream.format("penstock")``.

How reading is exactly once. Spark writes a micro-batch's end position to its checkpoint before it
runs, so a killed query asks for the same range again, and the queue answers a range the same way
until it is committed. The sink recognises a repeated batch by its number (the file sink lists each
batch's files in one atomic step). Spark calls ``commit`` with the end of a finished micro-batch
only when it plans the *following* one, so the queue always holds at least the last batch: deleted
messages are never asked for again.

Three kinds of processes make a reader from the same options: the driver (offsets, plans, commits),
a planner, and each task. They share no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.offsets import Position, Range, latest, plan_end, plan_ranges
from penstock.spark_bridge.options import SourceOptions, read_options
from penstock.spark_bridge.queue_reader import QueueReader
from penstock.spark_bridge.schema import COLUMNS, SPARK_DDL

FORMAT = "penstock"


def register(spark: SparkSession) -> None:
    """Register ``format("penstock")`` with a session; may be repeated."""
    spark.dataSource.register(PenstockDataSource)


class QueuePartition(InputPartition):
    """What one task reads: a range of one physical queue."""

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted


class PenstockDataSource(DataSource):
    """A logical queue; its options are those of ``penstock.spark_bridge.options``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a message, after checking the options.

        Raises:
            OptionError: an option is wrong. Spark calls this in ``load()``, the best place to
                report it.
        """
        read_options(self._texts())
        return SPARK_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what the queue holds now, for any group; it commits nothing."""
        return BatchReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that follows the queue."""
        return StreamReader(self._checked(schema))

    def _checked(self, schema: StructType) -> SourceOptions:
        names = [name for name, *_ in COLUMNS]
        if schema.fieldNames() != names:
            raise OptionError(
                f"schema: read the columns {', '.join(schema.fieldNames())}, the source has "
                f"{', '.join(names)}; leave out .schema(...) and select what is wanted"
            )
        return read_options(self._texts())

    def _texts(self) -> Mapping[str, str]:
        options: MutableMapping[str, str] = self.options
        return options


class BatchReader(DataSourceReader):
    """Reads what the queue holds when the query is planned, and commits nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self._queue = QueueReader(options)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each physical queue, empty ones included."""
        held = self._queue.held()
        return [
            QueuePartition(Range(number, *ends, held.incarnation))
            for number, ends in sorted(held.offsets.items())
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        return _read(self._queue, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the queue; Spark stores the position."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._queue = QueueReader(options)
        self._target: Position | None = None
        self._latest: Position | None = None
        self._has_joined = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the group's position: the start of a query without a checkpoint."""
        position = self._queue.join()
        self._has_joined = True
        return position.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch."""
        return ReadMaxRows(self._options.max_messages_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of an available-now run to the present end of the queue."""
        self._target = latest(self._options.queue, self._queue.held())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch; ``start`` where nothing waits."""
        if not self._has_joined:  # a query with a checkpoint
            self._queue.join()
            self._has_joined = True
        held = self._queue.held()
        position = self._queue.resume(self._position(start), held)
        past = self._latest = latest(self._options.queue, held)
        if self._target is not None:
            past = self._target
        elif past == position:
            past = self._latest = self._queue.wait_for_messages(position)
        max_messages = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return plan_end(position, past, max_messages=max_messages).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of the queue as last seen, for Spark's progress reports."""
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each physical queue that has messages in the micro-batch."""
        if start == end:
            return []
        held = self._queue.held()
        begin, past = self._position(start), self._position(end)
        self._queue.resume(begin, held)
        self._queue.resume(past, held)
        return [QueuePartition(wanted) for wanted in plan_ranges(begin, past, held)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        return _read(self._queue, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete from the queue what Spark will not ask for again."""
        self._queue.commit(self._position(end))

    def stop(self) -> None:
        """Close the connection."""
        self._queue.close()

    def _position(self, value: dict[str, Any]) -> Position:
        return Position.from_json(value, self._options.queue)


def _read(queue: QueueReader, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, QueuePartition):
        raise TypeError(f"a partition of another source: {partition!r}")
    try:
        yield from queue.record_batches(partition.wanted)
    finally:
        queue.close()
