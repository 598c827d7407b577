from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.spark_bridge.schema import SPARK_DDL
from penstock.spark_bridge.telemetry import (
    MAX_CLOCK_SKEW_SECONDS,
    aggregate,
    count_problems,
    parse_telemetry,
    unusable,
)

KEPT = ("host", "metric", "process", "unit", "value")
ARRIVAL = 1_700_000_000.5
GOOD: dict[str, Any] = {
    "host": "edge-1",
    "metric": "cpu",
    "value": 12.5,
    "unit": "percent",
    "at": 1_700_000_000.25,
}


def messages(spark: SparkSession, *payloads: bytes) -> DataFrame:
    """Return messages with the source's columns."""
    arrival = datetime.fromtimestamp(ARRIVAL, UTC)
    rows = [
        (0, offset, "telemetry/edge-1/cpu", bytearray(payload), 1, "probe", arrival, None)
        for offset, payload in enumerate(payloads)
    ]
    return spark.createDataFrame(rows, SPARK_DDL).coalesce(1)


def telemetry(**changes: Any) -> bytes:
    """Return a payload; a field set to None is left out."""
    fields = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return json.dumps(fields).encode()


def parse(spark: SparkSession, *payloads: bytes) -> list[Row]:
    """Return what telemetry adds to messages, in order, and the event time as seconds."""
    parsed = parse_telemetry(messages(spark, *payloads))
    seconds = "cast(event_time as double) seconds"
    return parsed.selectExpr(seconds, *KEPT, "problem").collect()


def test_a_usable_message_keeps_its_fields_and_its_own_time(spark: SparkSession) -> None:
    """The event time is the sender's, to the microsecond."""
    (row,) = parse(spark, telemetry(pid=17, process="sshd", extra=[1]))
    assert row.asDict() == {
        "seconds": GOOD["at"],
        "host": "edge-1",
        "metric": "cpu",
        "process": "sshd",
        "unit": "percent",
        "value": 12.5,
        "problem": None,
    }


def test_a_whole_number_is_a_value_and_a_unit_is_not_needed(spark: SparkSession) -> None:
    """JSON has one kind of number."""
    (row,) = parse(spark, telemetry(value=3, unit=None, at=1_700_000_000))
    assert (row.value, row.unit, row.problem) == (3.0, None, None)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "malformed"),
        (b"\xff\x00 picture", "malformed"),
        (b'{"host": "a", ', "malformed"),
        (b'"text"', "malformed"),
        (b"17", "malformed"),
        (telemetry(value="high"), "malformed"),
        (telemetry(at="now"), "malformed"),
        (b"{}", "incomplete"),
        (telemetry(host=None), "incomplete"),
        (telemetry(metric=None), "incomplete"),
        (telemetry(value=None), "incomplete"),
        (telemetry(at=None), "incomplete"),
        (telemetry(value=float("nan")), "not_finite"),
        (telemetry(value=float("-inf")), "not_finite"),
        (telemetry(value=float("nan"), at=float("nan")), "not_finite"),
        (telemetry(at=ARRIVAL + MAX_CLOCK_SKEW_SECONDS + 1), "clock_wrong"),
        (telemetry(at=1e300), "clock_wrong"),
        (telemetry(at=float("inf")), "clock_wrong"),
        (telemetry(at=-1.0), "clock_wrong"),
    ],
)
def test_what_cannot_be_used_is_named_and_has_no_time(
    spark: SparkSession, payload: bytes, problem: str
) -> None:
    """No payload, whatever it holds, fails the query or leaves without being counted."""
    (row,) = parse(spark, payload)
    assert row.asDict() == dict.fromkeys(("seconds", *KEPT)) | {"problem": problem}


def test_a_clock_a_little_ahead_counts_as_the_arrival(spark: SparkSession) -> None:
    """One sender's clock must not push the watermark past the others' telemetry."""
    (row,) = parse(spark, telemetry(at=ARRIVAL + MAX_CLOCK_SKEW_SECONDS - 1))
    assert (row.problem, row.seconds) == (None, ARRIVAL)


def test_unusable_messages_are_listed_with_their_place_and_reason(spark: SparkSession) -> None:
    """Whoever sent them can be found, and what they sent among all messages."""
    found = unusable(parse_telemetry(messages(spark, telemetry(), b"noise", b"{}"))).collect()
    assert [(row.physical_queue, row.offset, row.problem) for row in found] == [
        (0, 1, "malformed"),
        (0, 2, "incomplete"),
    ]
    assert (found[0].topic, found[0].publisher) == ("telemetry/edge-1/cpu", "probe")


def test_windows_hold_what_was_measured_in_them(spark: SparkSession) -> None:
    """Count, least, mean and greatest value by window, host, metric and process."""
    parsed = parse_telemetry(
        messages(
            spark,
            telemetry(value=1, at=1_700_000_000.0),
            telemetry(value=4, at=1_700_000_000.4),
            telemetry(value=9, at=1_699_999_999.9),
            telemetry(value=7, at=1_700_000_000.0, process="sshd"),
            b"noise",
        )
    )
    windows = aggregate(parsed, window_seconds=10.0, lateness_seconds=2.5)
    rows = windows.selectExpr(
        "cast(window_start as long) begin",
        "cast(window_end as long) - cast(window_start as long) seconds",
        "metric",
        "process",
        "messages",
        "value_min",
        "value_mean",
        "value_max",
    ).collect()
    assert {tuple(row) for row in rows} == {
        (1_700_000_000, 10, "cpu", None, 2, 1.0, 2.5, 4.0),
        (1_699_999_990, 10, "cpu", None, 1, 9.0, 9.0, 9.0),
        (1_700_000_000, 10, "cpu", "sshd", 1, 7.0, 7.0, 7.0),
    }


def test_progress_reports_carry_the_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own reports say how many messages came and what was wrong with them."""
    rows = messages(spark, telemetry(), telemetry(at=-1), b"a", b"b")
    rows.write.parquet(str(tmp_path / "in"))
    followed = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    writer = count_problems(parse_telemetry(followed)).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress is not None
    assert query.lastProgress.observedMetrics["telemetry"].asDict() == {
        "messages": 4,
        "malformed": 2,
        "incomplete": 0,
        "not_finite": 0,
        "clock_wrong": 1,
    }
