"""Telemetry messages as rows, and their aggregates over windows of event time.

A telemetry message is published to ``telemetry/<host>/<metric>`` with the JSON payload ``{"host":
str, "metric": str, "value": number, "unit": str, "at": seconds since the Unix epoch}`` and
optionally ``"pid": int, "process": str``; further fields are ignored.

Every message is counted. One that cannot be used has a ``problem`` and no event time (the time of
its arrival would push the watermark past telemetry that arrives late from an edge, which would be
dropped):

* ``malformed``: not a JSON object, or a field of another type;
* ``incomplete``: host, metric, value or time is missing;
* ``not_finite``: the value is not a finite number, which would spoil every mean;
* ``clock_wrong``: the time is before 1970, or ahead of the arrival by more than
  ``MAX_CLOCK_SKEW_SECONDS``. A time that is ahead by less is replaced by the arrival: nothing is
  measured after its arrival, and one sender's clock must not make the others late.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

MAX_CLOCK_SKEW_SECONDS: Final = 60.0
"""More than clocks differ that are synchronised; beyond it, the time is not usable."""

PROBLEMS: Final = ("malformed", "incomplete", "not_finite", "clock_wrong")

OBSERVATION: Final = "telemetry"
"""Name of the counts in Spark's progress reports: ``messages`` and one for each problem."""

_CORRUPT: Final = "corrupt"
_PAYLOAD_DDL: Final = (
    "host STRING, metric STRING, value DOUBLE, unit STRING, at DOUBLE, process STRING,"
    f" {_CORRUPT} STRING"
)


def parse_telemetry(messages: DataFrame) -> DataFrame:
    """Return a row for each message, usable or not.

    Args:
        messages: rows with the source's columns ``payload`` and ``enqueued_at``.

    Returns:
        The columns of ``messages``, then ``event_time`` (timestamp), ``host``, ``metric``,
        ``process``, ``unit`` (strings), ``value`` (double), all null where unusable, and
        ``problem`` (null where there is none).
    """
    payload = f.from_json(
        f.col("payload").cast("string"), _PAYLOAD_DDL, {"columnNameOfCorruptRecord": _CORRUPT}
    )
    marked = messages.withColumn("told", payload).withColumn("problem", _problem())
    usable = f.col("problem").isNull()
    measured_at = f.least(f.timestamp_seconds("told.at"), "enqueued_at")
    return marked.select(
        *messages.columns,
        f.when(usable, measured_at).alias("event_time"),
        *(f.when(usable, f.col(f"told.{name}")).alias(name) for name in _KEPT),
        "problem",
    )


_KEPT: Final = ("host", "metric", "process", "unit", "value")


def _problem() -> Column:
    """Return the first problem of a parsed message; null for none."""
    told, at = f.col("told"), f.col("told.at")
    needed = ("host", "metric", "value", "at")
    missing = f.greatest(*(f.col(f"told.{name}").isNull() for name in needed))
    infinite = f.abs(f.col("told.value")) == float("inf")
    arrival = f.col("enqueued_at").cast("double")
    return (
        f.when(told.isNull() | f.col(f"told.{_CORRUPT}").isNotNull(), "malformed")
        .when(missing, "incomplete")
        .when(f.isnan("told.value") | infinite | f.isnan("told.at"), "not_finite")
        .when((at < 0) | (at > arrival + MAX_CLOCK_SKEW_SECONDS), "clock_wrong")
    )


def count_problems(telemetry: DataFrame) -> DataFrame:
    """Add the numbers of messages and of each problem to Spark's progress reports."""
    counts = [f.count(f.lit(1)).alias("messages")]
    counts += [f.count_if(f.col("problem") == problem).alias(problem) for problem in PROBLEMS]
    return telemetry.observe(OBSERVATION, *counts)


def unusable(telemetry: DataFrame) -> DataFrame:
    """Return the place and the problem of each message that has one.

    Args:
        telemetry: what ``parse_telemetry`` returned for the source's columns.

    Returns:
        Columns ``physical_queue`` and ``offset``, which identify the message, ``topic``,
        ``publisher``, ``enqueued_at`` and ``problem``.
    """
    return telemetry.where(f.col("problem").isNotNull()).select(
        "physical_queue", "offset", "topic", "publisher", "enqueued_at", "problem"
    )


def aggregate(telemetry: DataFrame, *, window_seconds: float, lateness_seconds: float) -> DataFrame:
    """Aggregate usable messages over windows of event time, for each host, metric and process.

    A window is complete, and appears, once an event arrives that is later than the window's end by
    ``lateness_seconds``. Later messages for it are late: Spark drops and counts them.

    Args:
        telemetry: what ``parse_telemetry`` returned, as a stream or not.
        window_seconds: length of a window, above 0.
        lateness_seconds: how much later than the newest one an event may arrive, 0 or more.

    Returns:
        Columns ``window_start``, ``window_end``, ``host``, ``metric``, ``process``, ``unit``,
        ``messages``, ``value_min``, ``value_mean``, ``value_max``.
    """
    usable = telemetry.where(f.col("problem").isNull())
    grouped = usable.withWatermark("event_time", f"{lateness_seconds} seconds").groupBy(
        f.window("event_time", f"{window_seconds} seconds"), "host", "metric", "process"
    )
    return grouped.agg(
        f.count(f.lit(1)).alias("messages"),
        f.min("value").alias("value_min"),
        f.avg("value").alias("value_mean"),
        f.max("value").alias("value_max"),
        f.max("unit").alias("unit"),
    ).select(
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
        "host",
        "metric",
        "process",
        "unit",
        "messages",
        "value_min",
        "value_mean",
        "value_max",
    )
