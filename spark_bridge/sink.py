"""Publishes rows of a DataFrame to MQTT: ``df.writeStream.format("penstock")`` and ``df.write``.

Why each row is published once: a task only uploads its rows to the broker's stage. On the driver,
Spark calls ``commit`` with what the tasks that count have returned, and the broker publishes their
rows as the batch (query id, batch number). Where Spark repeats a batch after a crash, with the same
split or another one, the broker recognises it and publishes nothing. The query id is Spark's own,
from the checkpoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark_bridge.batch_publisher import BatchPublisher, Stage
from penstock.spark_bridge.errors import OptionError, PublishError
from penstock.spark_bridge.sink_options import SinkOptions, read_sink_options
from penstock.spark_bridge.sink_rows import check_columns

QUERY_ID: Final = "sql.streaming.queryId"
"""The name of the property in which Spark tells a task the id of its query."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The message of a task to the driver.

    Attributes:
        writer: the name of the writer of the stage. Spark makes another writer on the driver for
            the commit of a micro-batch.
        query_id: the id of the query, from its checkpoint; "" for a batch write.
    """

    stage: Stage
    writer: str
    query_id: str


class _Writer:
    """The base of both writers, which Spark pickles for each task."""

    def __init__(self, schema: StructType, texts: Mapping[str, str]) -> None:
        self._options: SinkOptions = read_sink_options(texts)
        self._names = schema.fieldNames()
        types = {one.name: one.dataType.simpleString() for one in schema.fields}
        check_columns(types, self._options.defaults)
        self._writer = uuid.uuid4().hex

    def _stage(self, rows: Iterator[Row]) -> Staged:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        query_id = None if context is None else context.getLocalProperty(QUERY_ID)
        publisher = BatchPublisher(self._options, self._writer)
        try:
            stage = publisher.stage(partition, self._names, rows)
        finally:
            publisher.close()
        return Staged(stage, self._writer, query_id or "")

    def _publish(self, query: str, batch: int, staged: list[Staged]) -> None:
        publisher = BatchPublisher(self._options, staged[0].writer)
        try:
            publisher.publish(query, batch, [one.stage for one in staged])
        finally:
            publisher.close()

    def _give_up(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what tasks have uploaded; uploads of which no task has told expire."""
        for writer in {one.writer for one in _staged(messages)}:
            publisher = BatchPublisher(self._options, writer)
            publisher.give_up()
            publisher.close()


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """Return the messages of tasks that had rows."""
    return [one for one in messages if isinstance(one, Staged) and one.stage.n_rows]


class StreamWriter(_Writer, DataSourceStreamWriter):
    """Publishes the micro-batches of a query."""

    def __init__(self, schema: StructType, texts: Mapping[str, str]) -> None:
        super().__init__(schema, texts)
        if self._options.write_id:
            raise OptionError(
                "option 'writeId': read it for a stream; allowed: for batch writes, as a stream "
                "has its query id"
            )

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Upload the rows of a task."""
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish a micro-batch, once."""
        staged = _staged(messages)
        if not staged:
            return
        query_id = staged[0].query_id
        if not query_id:
            raise PublishError(
                f"batch {batchId}: read no query id: this Spark does not tell tasks "
                f"{QUERY_ID}; allowed: Spark 4.1 or later"
            )
        self._publish(query_id, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what the tasks of a micro-batch have uploaded."""
        self._give_up(messages)


class BatchWriter(_Writer, DataSourceWriter):
    """Publishes the rows of one batch write."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Upload the rows of a task."""
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish them, once."""
        staged = _staged(messages)
        if staged:  # no query id has a colon
            self._publish(f"write:{self._options.write_id or self._writer}", 0, staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have uploaded."""
        self._give_up(messages)
