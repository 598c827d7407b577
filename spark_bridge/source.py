"""Penstock's queues as a Spark data source: ``spark.readStream.format("penstock")``.

Why each message is read exactly once: Spark writes the end of a micro-batch to its checkpoint
before the batch runs. So a killed query asks for the same range again, and the queue answers a
range in the same way until it is committed. The sink recognises a repeated batch by its number; the
file sink lists each batch's files in one atomic step. Spark calls ``commit`` with the end of a
finished micro-batch only when it plans the *following* one. So the queue always holds at least the
last batch, and deleted messages are never asked for again.

A group belongs to one query, by a name in the query's checkpoint (`offsets`). It is claimed when
the first micro-batch runs, whose end is in the checkpoint by then. Several sources of one query
have one name (`siblings`).

Three kinds of processes make a reader from the same options: the driver (offsets, plans, commits),
a planner, and each task. They share no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark_bridge.errors import OptionError, SparkVersionError
from penstock.spark_bridge.offsets import Position, QueuePosition, Range, split
from penstock.spark_bridge.options import SourceOptions, read_options
from penstock.spark_bridge.queue_reader import QueueReader, ReadSettings
from penstock.spark_bridge.rows import arrow_schema
from penstock.spark_bridge.schema import spark_ddl
from penstock.spark_bridge.siblings import Siblings
from penstock.spark_bridge.sink import BatchWriter, StreamWriter

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError as error:
    raise SparkVersionError(pyspark.__version__) from error

FORMAT = "penstock"


def register(spark: SparkSession) -> None:
    """Register ``format("penstock")`` with a session; may be repeated."""
    spark.dataSource.register(PenstockDataSource)


class QueuePartition(InputPartition):
    """The partition of one task: ranges, with the settings of their queues."""

    def __init__(self, wanted: Sequence[tuple[Range, ReadSettings | None]]) -> None:
        self.wanted = wanted


class PenstockDataSource(DataSource):
    """The data source ``penstock``; its options are those of ``penstock.spark_bridge.options``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a message, after checking the options.

        Raises:
            OptionError: an option is wrong. Spark calls this in ``load()``.
        """
        return spark_ddl(read_options(self._texts()).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what the queues hold, for no group."""
        options = self._checked(schema)
        if options.starting_position in ("group", "latest"):
            raise OptionError(
                f"option 'startingPosition': read {options.starting_position!r} for a batch read; "
                "allowed: earliest, a time or JSON"
            )
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that follows the queues."""
        options = self._checked(schema)
        if options.ending_position is not None:
            raise OptionError("option 'endingPosition': a stream has no end; allowed: batch reads")
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return a writer that publishes rows to MQTT."""
        if overwrite:
            raise OptionError("mode: read overwrite; allowed: append, as nothing takes a row back")
        return BatchWriter(schema, self._texts())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802
        """Return a writer that publishes each micro-batch, in any output mode."""
        return StreamWriter(schema, self._texts())

    def _checked(self, schema: StructType) -> SourceOptions:
        options = read_options(self._texts())
        own = arrow_schema(options.columns)
        given = to_arrow_schema(schema, timezone="UTC")
        if [(one.name, one.type) for one in given] != [(one.name, one.type) for one in own]:
            raise OptionError(
                f"schema: read the columns {', '.join(_shown(given))}; the source has "
                f"{', '.join(_shown(own))}: leave out .schema(...), and name the columns with the "
                "option 'columns'"
            )
        return options

    def _texts(self) -> Mapping[str, str]:
        options: MutableMapping[str, str] = self.options
        return options


def _shown(schema: pa.Schema) -> Iterator[str]:
    return (f"{one.name} {one.type}" for one in schema)


class BatchReader(DataSourceReader):
    """A reader of the messages between two fixed positions, which commits nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._queue = QueueReader(options)

    def partitions(self) -> list[InputPartition]:
        """Return what each task reads, by `split`."""
        options = self._options
        start = self._queue.located(options.starting_position or "earliest")
        end = self._queue.located(options.ending_position or "latest")
        found = _partitions(self._queue, start, end)
        # Spark replaces an empty list by a partition of its own.
        return found or [QueuePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        return _read(self._queue, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that follows the queues; Spark stores the position."""

    def __init__(
        self,
        options: SourceOptions,
        queue: QueueReader | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._options = options
        self._queue = queue or QueueReader(options)
        scope = f"{options.url} {options.group}"
        self._siblings = siblings or Siblings.of_driver(scope)
        self._target: Position | None = None
        self._latest: Position | None = None
        self._joined: Position | None = None
        self._initial: Position | None = None
        self._name = ""
        self._is_held = self._is_claimed = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a query whose checkpoint has no finished batch.

        Spark asks again until there is a micro-batch, and once more to repeat the first one.
        """
        if self._initial is None:
            joined = self._joined = self._queue.join()
            place = self._options.starting_position
            is_there = place is None or place == "group"
            initial = joined if is_there else self._queue.located(place or "group")
            self._initial = initial.named(self._siblings.new_name())
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch in rows; Spark knows no limit in bytes."""
        return ReadMaxRows(self._options.max_rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of an available-now run to the present end of the queues."""
        self._target = self._queue.located("latest")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch; ``start`` where nothing waits.

        It sends one request, which the server holds while there is nothing to read.
        """
        options = self._options
        given = self._position(start)
        if self._joined is None:
            self._joined = self._queue.join()
        if not self._name:
            self._name = given.reader or self._siblings.new_name()
            self._queue.check_group(self._name)
        # A queue that is new to the query begins at the position of its group.
        position = Position({**self._joined.named(self._name).queues, **given.queues})
        self._hold(position)
        is_limited = not isinstance(limit, ReadAllAvailable)
        plan = self._queue.plan(
            position,
            until=self._target,
            max_messages=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            max_bytes=options.max_bytes_per_trigger if is_limited else None,
            wait_seconds=0 if self._target is not None else options.wait_seconds,
        )
        self._latest = plan.latest
        ends = {
            queue: self._end(position.queues[queue], one) for queue, one in plan.end.queues.items()
        }
        return Position(ends).to_json()

    def _end(self, begin: QueuePosition, end: QueuePosition) -> QueuePosition:
        """Return the end of a micro-batch in a queue for the checkpoint."""
        if end.is_at(begin):
            return begin
        first = begin.first if begin.first == begin.following else None
        return replace(end, reader=self._name, first=first)

    def _hold(self, position: Position) -> None:
        """Tell the other sources of the query from where on this one may still read."""
        if not self._is_held:
            self._is_held = True
            self._siblings.hold(self._name or position.reader, position)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of the queues as last seen, for Spark's progress reports."""
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what each task reads, by `split`."""
        if start == end:
            return []
        past = self._position(end)
        begin = Position({**self._position(start).queues, **past.beginnings().queues})
        self._hold(begin)
        if not self._is_claimed:
            self._queue.claim(past)
            self._siblings.end_new()
            self._is_claimed = True
        return _partitions(self._queue, begin, past)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        return _read(self._queue, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete from the queues what no source of the query will read again."""
        position = self._position(end)
        name = self._name or position.reader
        self._queue.commit(self._siblings.least(name, position))

    def stop(self) -> None:
        """Close the connection."""
        self._siblings.close()
        self._queue.close()

    def _position(self, value: dict[str, Any]) -> Position:
        return Position.from_json(value, self._options.queues)


def _partitions(queue: QueueReader, start: Position, end: Position) -> list[InputPartition]:
    return [
        QueuePartition([(one, queue.read_settings(one.queue)) for one in ranges])
        for ranges in split(queue.ranges(start, end), queue.options.min_partitions)
    ]


def _read(queue: QueueReader, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, QueuePartition):
        raise TypeError(f"a partition of another source: {partition!r}")
    try:
        for wanted, settings in partition.wanted:
            yield from queue.read(wanted, settings)
    finally:
        queue.close()
