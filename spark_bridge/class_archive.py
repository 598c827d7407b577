"""Writes the archive of Spark's classes, with which Java starts in about half the time."""

from __future__ import annotations

import json
import tempfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.spark_bridge.errors import BridgeError
from penstock.spark_bridge.pipelines.building import Built
from penstock.spark_bridge.pipelines.config import EXAMPLE, read_pipeline
from penstock.spark_bridge.schema import DEFAULT_COLUMNS, spark_ddl
from penstock.spark_bridge.session import build_session, java_options

_END_SECONDS: Final = 120.0
_PAYLOAD: Final = b'{"host": "h", "metric": "cpu", "value": 1, "at": 1700000000}'


class ClassArchiveError(BridgeError):
    """An error: the archive could not be written, without which Spark starts more slowly."""


def write_class_archive(archive: Path, run_java: Callable[[str, Path], None] | None = None) -> None:
    """Run Java once, and archive the classes that it loads.

    With Spark this takes about half a minute and 200 MB. The file is replaced atomically.

    Args:
        archive: see ``session.class_archive_path``; an existing one is replaced.
        run_java: a function that runs Java to its end with the given options and a folder for its
            files; None runs the program's queries on a handful of rows.

    Raises:
        ClassArchiveError: Java did not write it.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=archive.parent) as name:
        folder = Path(name)
        written = folder / archive.name
        options = java_options(short_run=True, archive=written, write_archive=True)
        (run_java or _run_spark)(options, folder)
        if not written.is_file():
            raise ClassArchiveError(f"Java wrote no class archive to {archive.parent}")
        written.replace(archive)


def _run_spark(options: str, folder: Path) -> None:
    spark = build_session(java_settings=options, log_file=folder / "spark.log")
    try:
        rehearse(spark, folder)
    finally:
        _end_java(spark)


def rehearse(spark: SparkSession, folder: Path) -> None:
    """Send a few rows through the queries of the example, from files in place of the queue."""
    row = {"topic": "t", "payload": b64encode(_PAYLOAD).decode(), "arrival_time": "2023-11-15"}
    text = f.from_json(f.lit(json.dumps(row)), spark_ddl(DEFAULT_COLUMNS))
    messages = spark.range(10).select(text.alias("message")).select("message.*")
    messages.write.parquet(str(folder / "queue"))

    def read(session: SparkSession, _: dict[str, str]) -> DataFrame:
        return session.readStream.schema(messages.schema).parquet(str(folder / "queue"))

    example = replace(read_pipeline(EXAMPLE, EXAMPLE.name), storage=str(folder / "storage"))
    for query in Built(spark, example, EXAMPLE.name, read).queries:
        (sink,) = query.sinks.values()
        writer = query.rows.writeStream.format(sink.format).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", query.checkpoint)
        writer.start(str(folder / query.name)).awaitTermination()


def _end_java(spark: SparkSession) -> None:
    """Stop Spark and wait for its Java, which writes the archive at its end."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - the only access to the process
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_SECONDS)
