"""Builds the queries of a pipeline, one for each sink.

Unless `reads_once` asks for one reading, each sink is a streaming query of its own, as in a program
that calls ``writeStream`` several times: with its own checkpoint and its own group of the queue. So
a sink that fails or falls behind does not affect the others, and the queue keeps what each of them
has still to read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark_bridge.decoders.formats import load_decoder
from penstock.spark_bridge.errors import BridgeError, step_line
from penstock.spark_bridge.hadoop_files import HadoopFolder
from penstock.spark_bridge.options import read_options
from penstock.spark_bridge.pipelines.changes import ChangeError, QueryRecord, compare, state_of
from penstock.spark_bridge.pipelines.config import (
    DECODED,
    INFER,
    MESSAGES,
    QUARANTINED,
    READ_ONCE,
    Decode,
    Pipeline,
    Sink,
    as_texts,
)
from penstock.spark_bridge.pipelines.decoding import (
    infer_schema,
    mark,
    sample_texts,
    undecoded,
    unusable,
    usable,
)
from penstock.spark_bridge.pipelines.one_reading import can_share, writer
from penstock.spark_bridge.pipelines.running import Query
from penstock.spark_bridge.source import FORMAT

T = TypeVar("T")

RECORD: Final = "pipeline.json"
"""The file in `storage` that describes the queries of the last run."""

INFERRED: Final = "schema.ddl"
"""The file in `storage` with the columns that were inferred in the first run."""

_SPARK_LOGS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Spark's loggers that would also write each error to standard error, with Java's stack."""


class StepError(BridgeError):
    """Spark cannot use a step of the pipeline; the text names its key."""

    status = 2


def read_stream(spark: SparkSession, texts: dict[str, str]) -> DataFrame:
    """Return the messages of a queue as a stream."""
    return spark.readStream.format(FORMAT).options(**texts).load()


class Built:
    """A pipeline whose steps Spark has checked; nothing runs yet.

    Attributes:
        queries: a query for each sink; with `reads_once` one for all sinks that can share it.
        notes: lines for the user: what was inferred, and what has changed since the last run.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        file: str,
        read: Callable[[SparkSession, dict[str, str]], DataFrame] = read_stream,
    ) -> None:
        """Build the queries.

        Raises:
            StepError: Spark refuses a step.
            SampleError: no schema can be inferred.
            ChangeError: a checkpoint cannot be continued.
        """
        self.notes: list[str] = []
        self._spark = spark
        self._pipeline = pipeline
        self._file = file
        self._read = read
        self._has_tried = False
        self._storage = HadoopFolder(spark, pipeline.storage)
        for log in _SPARK_LOGS:
            logging.getLogger(log).setLevel(logging.CRITICAL)
        self._schema = self._payload_schema()
        self._read_tables()
        text = self._storage.read(RECORD)
        before = {} if text is None else json.loads(text)
        known, gone = (
            {name: QueryRecord.from_json(each) for name, each in before.get(key, {}).items()}
            for key in ("queries", "gone")
        )
        for name in gone.keys() & pipeline.all_sinks.keys():
            if gone[name].reads_once:
                raise ChangeError(
                    f"sinks.{name}: read a sink that was gone, and the query {READ_ONCE} has read "
                    "on without it; allowed: another name, and a place of its own"
                )
        # The checkpoint of a sink that was gone is still there when it comes back.
        known |= {name: gone[name] for name in gone.keys() & pipeline.all_sinks.keys()}
        alone = {name: self._query(name) for name in pipeline.all_sinks}
        shared = [name for name, query in alone.items() if self._shares(name, query.rows, known)]
        self.queries = [query for name, query in alone.items() if name not in shared]
        if shared:
            self.queries.insert(0, self._shared_query(shared))
        if known and pipeline.reads_once != any(one.reads_once for one in known.values()):
            self.notes.append("reads_once changes nothing: what held at the first run stays")
        self._records = {
            name: self._record(name, query, is_shared=name in shared)
            for name, query in alone.items()
        }
        self.notes += compare(known, self._records)
        self._gone = {
            name: record for name, record in (gone | known).items() if name not in self._records
        }

    def remember(self) -> None:
        """Record the queries for the next run; to be called when they begin to run."""
        texts = {
            key: {name: record.to_json() for name, record in records.items()}
            for key, records in (("queries", self._records), ("gone", self._gone))
        }
        self._storage.write(RECORD, json.dumps(texts, indent=1))

    def _shares(self, name: str, rows: DataFrame, known: Mapping[str, QueryRecord]) -> bool:
        """Say whether a sink is one of those for which one query reads.

        Spark's file sink needs every micro-batch of its query from the first on: a sink that came
        later, or that read by itself, cannot join.

        Raises:
            ChangeError: it was one, and needs a query of its own.
        """
        was_shared = name in known and known[name].reads_once
        if not was_shared and (known or not self._pipeline.reads_once):
            return False
        why = self._why_alone(self._pipeline.all_sinks[name], rows)
        if why and was_shared:
            raise ChangeError(
                f"sinks.{name}: {why}; allowed: what the query {READ_ONCE} can write for several "
                "sinks, or another name for the sink, which then reads alone"
            )
        if why:
            self.notes.append(f"sinks.{name} reads alone: {why}")
        return not why

    def _why_alone(self, sink: Sink, rows: DataFrame) -> str:
        """Say why a sink cannot share a query; "" where it can.

        Spark is asked whether it could stream the rows, as it does not check a micro-batch.
        """
        decode = self._pipeline.decode
        if sink.group is not None:
            return "it has a group of its own"
        if not can_share(sink):
            return "a repeated write would not be passed over"
        if decode is not None and decode.arrays:
            return "a message is several rows by decode.arrays"
        if state_of(_plan(rows)):
            return "its view keeps state"
        java: Any = self._spark._jvm  # noqa: SLF001 - PySpark asks only for a stream that starts
        append = java.org.apache.spark.sql.streaming.OutputMode.Append()
        checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        try:
            checker.checkForStreaming(_plan(rows), append)
        except (PySparkException, Py4JJavaError) as error:
            return step_line(error)
        return ""

    def _query(self, name: str) -> Query:
        pipeline = self._pipeline
        texts = pipeline.source_texts(name)
        rows = self._views(*self._messages(texts))[pipeline.view_of(name)]
        return Query(
            name=name,
            rows=rows,
            source=read_options(texts),
            sinks={name: pipeline.all_sinks[name]},
            checkpoint=pipeline.checkpoint(name),
        )

    def _shared_query(self, names: Sequence[str]) -> Query:
        pipeline = self._pipeline
        texts = pipeline.source_texts(READ_ONCE)
        sinks = {name: pipeline.all_sinks[name] for name in names}
        messages, marked = self._messages(texts)
        read = messages if marked is None else marked
        for name, rows in self._rows_of(read, sinks).items():
            columns = sinks[name].partition_by
            self._step(f"sinks.{name}.partition_by", partial(rows.select, *columns or "*"))
        return Query(
            name=READ_ONCE,
            rows=read,
            source=read_options(texts),
            sinks=sinks,
            checkpoint=pipeline.checkpoint(READ_ONCE),
            write=writer(sinks, lambda read: self._rows_of(read, sinks)),
        )

    def _rows_of(self, read: DataFrame, sinks: Iterable[str]) -> dict[str, DataFrame]:
        """Return the rows of each sink for those that the shared query has read."""
        decodes = self._pipeline.decode is not None
        views = self._views(undecoded(read), read) if decodes else self._views(read, None)
        return {name: views[self._pipeline.view_of(name)] for name in sinks}

    def _messages(self, texts: dict[str, str]) -> tuple[DataFrame, DataFrame | None]:
        """Return (the messages of the queue, the same decoded; None where nothing is decoded)."""
        messages = self._step("source", partial(self._read, self._spark, texts))
        decode = self._pipeline.decode
        return messages, None if decode is None else self._marked(messages, decode)

    def _views(self, messages: DataFrame, marked: DataFrame | None) -> dict[str, DataFrame]:
        """Return all views of a stream of messages, or of one micro-batch, by name."""
        views = {MESSAGES: messages}
        if marked is not None:
            views |= {DECODED: usable(marked), QUARANTINED: unusable(marked)}
        session = messages.sparkSession
        for view, rows in views.items():
            rows.createOrReplaceTempView(view)
        for view, sql in self._pipeline.views.items():
            views[view] = self._step(f"views.{view}", partial(session.sql, sql))
            views[view].createOrReplaceTempView(view)
        return views

    def _marked(self, messages: DataFrame, decode: Decode) -> DataFrame:
        """Decode the messages; the conditions are tried when the first sink's are."""
        assert self._schema is not None  # noqa: S101 - there is one where payloads are decoded
        options = self._pipeline.decoder_options()
        expires_at = self._pipeline.expires_at
        kinds = {"arrays": decode.arrays, "rescue": decode.rescue}
        if not self._has_tried:
            # Each alone, so that an error names its key.
            bare = mark(messages, self._schema, options, {}, None, **kinds)
            for reason, condition in decode.refuse.items():
                self._step(f"decode.refuse.{reason}", partial(bare.where, condition))
            if expires_at is not None:
                check = f"({expires_at}) < current_timestamp()"
                self._step("expires_at", partial(bare.where, check))
            self._has_tried = True
        return mark(messages, self._schema, options, decode.refuse, expires_at, **kinds)

    def _payload_schema(self) -> StructType | None:
        decode = self._pipeline.decode
        if decode is None:
            return None
        options = self._pipeline.decoder_options()
        ddl = decode.schema
        if options is not None and decode.schema is None:
            ddl = load_decoder(options).schema
        if ddl == INFER:
            ddl = self._storage.read(INFERRED)
            if ddl is None:
                ddl = self._inferred(decode)
        text = ddl or ""
        schema = self._step("decode.schema", lambda: StructType.fromDDL(text))
        if not isinstance(schema, StructType):
            raise StepError(f"{self._file}: decode.schema: read {text!r}; allowed: columns as DDL")
        return schema

    def _inferred(self, decode: Decode) -> str:
        any_sink = next(iter(self._pipeline.sinks))
        options = read_options(self._pipeline.source_texts(any_sink))
        texts = sample_texts(options, self._pipeline.decoder_options(), decode.sample)
        ddl = infer_schema(self._spark, texts)
        self._storage.write(INFERRED, ddl)
        self.notes.append(
            f"decode.schema: inferred from {len(texts):,} messages, and kept in "
            f"{self._pipeline.storage}/{INFERRED}: {ddl}"
        )
        return ddl

    def _read_tables(self) -> None:
        for name, table in self._pipeline.tables.items():
            reader = self._spark.read.format(table.format).options(**as_texts(table.options))
            if table.schema is not None:
                reader = self._step(f"tables.{name}.schema", partial(reader.schema, table.schema))
            self._step(f"tables.{name}", reader.load).createOrReplaceTempView(name)

    def _record(self, name: str, query: Query, *, is_shared: bool) -> QueryRecord:
        pipeline = self._pipeline
        sink = query.sinks[name]
        steps = {f"views.{name}": sql for name, sql in pipeline.views.items()}
        if self._schema is not None:
            keys = asdict(pipeline.decode)  # type: ignore[arg-type]
            said = {name: value for name, value in keys.items() if value is not False}
            steps["decode"] = json.dumps(said, sort_keys=True)
            steps["decode.schema"] = self._schema.toDDL()
        steps["expires_at"] = pipeline.expires_at or ""
        texts = pipeline.source_texts(READ_ONCE if is_shared else name)
        return QueryRecord(
            queue=", ".join(query.source.queues),
            group=read_options(texts).group,
            place=place_of(sink),
            mode=sink.mode,
            state=state_of(_plan(query.rows)),
            columns=query.rows.schema.toDDL(),
            steps=steps,
            types=query.rows.schema.jsonValue(),
            partition_by=sink.partition_by,
            reads_once=is_shared,
        )

    def _step(self, key: str, work: Callable[[], T]) -> T:
        """Let Spark check a step.

        Raises:
            StepError: it refuses it.
        """
        try:
            return work()
        except (PySparkException, Py4JJavaError) as error:
            raise StepError(f"{self._file}: {key}: {step_line(error)}") from error


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no other way in


def place_of(sink: Sink) -> str:
    """Return where a sink writes, as text."""
    place = sink.table or sink.options.get("path", "")
    return f"{sink.format} {place}".strip()
