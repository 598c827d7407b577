"""Writes the archive that lets Spark's Java start in about half the time, once per machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.spark_bridge.errors import BridgeError
from penstock.spark_bridge.session import build_session, java_options
from penstock.spark_bridge.telemetry import aggregate, parse_telemetry

_END_SECONDS: Final = 120.0
_PAYLOAD: Final = '{"host": "h", "metric": "cpu", "value": 1, "at": 1700000000}'


class ClassArchiveError(BridgeError):
    """The archive could not be written; Spark works without it, but starts more slowly."""


def write_class_archive(archive: Path, run_java: Callable[[str, Path], None] | None = None) -> None:
    """Run Java once, and archive the classes that it loads.

    With Spark this takes about half a minute and 200 MB. The file is replaced atomically.

    Args:
        archive: see ``session.class_archive_path``; an existing one is replaced.
        run_java: gets Java's options and a folder for its files, and runs Java to its end; None
            runs the program's queries on a handful of rows.

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
    """Send a few rows through the queries, from files in place of the queue."""
    messages = spark.range(10).selectExpr(
        "cast(id as int) physical_queue",
        "id offset",
        "'telemetry/host/cpu' topic",
        f"cast('{_PAYLOAD}' as binary) payload",
        "cast(1 as tinyint) qos",
        "'' publisher",
        "timestamp_seconds(1700000000) enqueued_at",
        "cast(null as string) properties",
    )
    messages.write.parquet(str(folder / "queue"))
    followed = spark.readStream.schema(messages.schema).parquet(str(folder / "queue"))
    windows = aggregate(parse_telemetry(followed), window_seconds=10, lateness_seconds=10)
    for query, rows in (("ingest", followed), ("aggregate", windows)):
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint" / query))
        writer.start(str(folder / query)).awaitTermination()


def _end_java(spark: SparkSession) -> None:
    """Stop Spark and wait for its Java, which writes the archive at its end."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - the only access to the process
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_SECONDS)
