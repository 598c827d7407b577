"""Writes the archive that lets Spark's Java start in about half the time, once per machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_bridge.errors import BridgeError
from spark_bridge.session import build_session, java_options
from spark_bridge.telemetry import aggregate, parse_telemetry

_END_SECONDS: Final = 120.0
_PAYLOAD: Final = '{"host": "h", "metric": "cpu", "value": 1, "at": 1700000000}'


class ClassArchiveError(BridgeError):
    """The archive could not be written; Spark works without it, and starts more slowly."""


def write_class_archive(archive: Path) -> None:
    """Run what the program runs, on a handful of rows, and keep the classes that took.

    Takes about half a minute and 200 MB. The file appears whole or not at all.

    Args:
        archive: see ``session.class_archive_path``; one that is there is replaced.

    Raises:
        ClassArchiveError: Java did not write it.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=archive.parent) as name:
        folder = Path(name)
        written = folder / archive.name
        spark = build_session(
            java_settings=java_options(short_run=True, archive=written, write_archive=True),
            log_file=folder / "spark.log",
        )
        try:
            _rehearse(spark, folder)
        finally:
            _end_java(spark)
        if not written.is_file():
            raise ClassArchiveError(f"Java wrote no class archive to {archive.parent}")
        written.replace(archive)


def _rehearse(spark: SparkSession, folder: Path) -> None:
    """Send a few rows through the queries; files stand for the queue."""
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
    """Stop Spark and wait for its Java, which writes the archive as the last thing it does."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - the only way to the process
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_SECONDS)
