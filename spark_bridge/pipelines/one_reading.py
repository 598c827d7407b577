"""One query that reads and decodes each message once, for several sinks (`reads_once`).

Spark hands its micro-batches to a function, which writes the rows of each sink. Windows and joins
of streams do not go on from one micro-batch to the next in there, so such sinks keep queries of
their own. Each write can be repeated, as the function is called again for a micro-batch that a run
has not finished: files by Spark's own file sink, which lists the micro-batches of a folder in
``_spark_metadata`` and passes over a number that it has listed; rows for MQTT by their write id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.spark_bridge.errors import BridgeError, step_line
from penstock.spark_bridge.pipelines.config import TO_MQTT, Sink, as_texts
from penstock.spark_bridge.sink import QUERY_ID
from penstock.spark_bridge.sink_folder import local_folder

_FILE_FORMATS: Final = {
    "csv": "csv.CSVFileFormat",
    "json": "json.JsonFileFormat",
    "orc": "orc.OrcFileFormat",
    "parquet": "parquet.ParquetFileFormat",
    "text": "text.TextFileFormat",
    "xml": "xml.XmlFileFormat",
}
"""Spark's class of each format, below ``org.apache.spark.sql.execution.datasources``."""


class SharedSinkError(BridgeError):
    """Spark cannot write a micro-batch to a sink; the text names it."""


def can_share(sink: Sink) -> bool:
    """Say whether a repeated write of a sink's rows changes nothing."""
    return sink.mode == "append" and (sink.path is not None or sink.format == TO_MQTT)


def writer(
    sinks: Mapping[str, Sink], rows_of: Callable[[DataFrame], Mapping[str, DataFrame]]
) -> Callable[[DataFrame, int], None]:
    """Return the function that writes a micro-batch to all sinks."""

    def write(read: DataFrame, batch: int) -> None:
        read.persist()
        try:
            for name, rows in rows_of(read).items():
                sink = sinks[name]
                try:
                    if sink.format == TO_MQTT:
                        publish(sink, rows, f"{name}:{batch}")
                    else:
                        _write_files(sink, rows, batch)
                except (PySparkException, Py4JJavaError) as error:
                    raise SharedSinkError(f"sink {name!r}: {step_line(error)}") from error
        finally:
            read.unpersist()

    return write


def publish(sink: Sink, rows: DataFrame, batch: str) -> None:
    """Publish the rows of a micro-batch once: a batch write of the same id publishes nothing."""
    query_id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    frame = rows.write.format(TO_MQTT).options(**as_texts(sink.options))
    frame.option("writeId", f"{query_id}:{batch}").mode("append").save()


def _write_files(sink: Sink, rows: DataFrame, batch: int) -> None:
    """Hand the rows of a micro-batch to Spark's file sink, which has no other way in."""
    session: Any = rows.sparkSession
    java = session._jvm  # noqa: SLF001
    spark_sql = java.org.apache.spark.sql.execution
    file_format = spark_sql.datasources
    for part in _FILE_FORMATS[sink.format].split("."):
        file_format = getattr(file_format, part)
    folder = local_folder(str(sink.path))
    options = as_texts(sink.options)
    file_sink = spark_sql.streaming.sinks.FileStreamSink(
        session._jsparkSession,  # noqa: SLF001
        options.pop("path") if folder is None else f"file:{folder.absolute()}",
        file_format(),
        java.PythonUtils.toSeq(list(sink.partition_by)),
        java.PythonUtils.toScalaMap(options),
    )
    file_sink.addBatch(batch, rows._jdf)  # noqa: SLF001
