from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.options import SourceOptions, read_options
from penstock.spark_bridge.pipeline import (
    PipelineError,
    PipelineOptions,
    Summary,
    run,
    source_texts,
)
from tests.helpers.gateway import held

HOSTS = ("a", "b")


def put(client: QueueClient, seconds: list[float], *more: bytes) -> int:
    """Enqueue telemetry of two hosts at the given times; return how many messages that were."""
    payloads = [
        json.dumps({"host": host, "metric": "cpu", "value": at % 60, "at": at}).encode()
        for at in seconds
        for host in HOSTS
    ] + list(more)
    messages = [("telemetry/x/cpu", payload) for payload in payloads]
    return client.enqueue("telemetry", messages).stored


def options(client: QueueClient, folder: Path, **more: Any) -> PipelineOptions:
    """Return options of a run in a folder."""
    return PipelineOptions(
        source=SourceOptions(url=client.url, queue="telemetry", retry_seconds=0),
        output=folder / "messages",
        checkpoint=folder / "checkpoint",
        **more,
    )


def test_options_reach_spark_and_come_back_unchanged() -> None:
    """The program's source is the same as ``spark.readStream``'s."""
    source = SourceOptions(url="http://h:1", queue="q", retry_seconds=0.5, fail_on_data_loss=False)
    assert read_options(source_texts(source)) == source


def test_messages_and_windows_are_written_and_the_queue_is_emptied(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """One run writes every message, aggregates the telemetry and lets the queue go."""
    sent = put(gateway, [1_000.0 + second for second in range(60)], b"\xff", b"{}")
    told: list[Summary] = []
    summary = run(
        spark,
        options(gateway, tmp_path, aggregate=tmp_path / "telemetry"),
        on_progress=told.append,
    )
    problems = {"malformed": 1, "incomplete": 1, "not_finite": 0, "clock_wrong": 0}
    assert summary == Summary(sent, 1, summary.ingest_seconds, sent, problems, 0)
    assert summary.ingest_seconds > 0
    assert told[-1] == summary
    assert held(gateway) == 0
    assert spark.read.parquet(str(tmp_path / "messages")).count() == sent
    windows = spark.read.parquet(str(tmp_path / "telemetry" / "windows"))
    complete = windows.groupBy("host").sum("messages").collect()
    # The newest event is at 1059 and 10 s may be late: windows that end by 1049 are complete.
    assert {row[0]: row[1] for row in complete} == dict.fromkeys(HOSTS, 40)
    unusable = spark.read.parquet(str(tmp_path / "telemetry" / "unusable"))
    assert sorted(row.problem for row in unusable.collect()) == ["incomplete", "malformed"]


def test_a_second_run_goes_on_and_counts_only_its_own(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """What came since is added, nothing is written or counted twice; late groups are told."""
    first = put(gateway, [1_000.0, 1_500.0])
    run(spark, options(gateway, tmp_path, aggregate=tmp_path / "telemetry"))
    second = put(gateway, [1_000.0, 1_501.0])
    again = options(gateway, tmp_path, aggregate=tmp_path / "telemetry")
    summary = run(spark, again)
    assert (summary.ingested_messages, summary.aggregated_messages) == (second, second)
    assert summary.late_groups == len(HOSTS)
    assert run(spark, again).ingested_messages == 0
    assert spark.read.parquet(str(tmp_path / "messages")).count() == first + second


def test_a_run_that_follows_reads_what_waits_when_it_is_stopped(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """The first request to stop loses nothing and leaves nothing behind."""
    sent = put(gateway, [1_000.0])
    told: list[Summary] = []

    def stop_requests() -> int:
        nonlocal sent
        if not told:
            return 0
        if sent == len(HOSTS):
            sent += put(gateway, [1_001.0, 1_002.0])
        return 1

    following = options(gateway, tmp_path, trigger_seconds=0.1)
    summary = run(spark, following, stop_requests=stop_requests, on_progress=told.append)
    assert summary.ingested_messages == sent == 3 * len(HOSTS)
    assert held(gateway) == 0


def test_what_a_stopped_query_was_writing_is_no_message(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Stopped between a task's end and the batch's, Spark leaves a file that no list has."""
    sent = put(gateway, [1_000.0])
    told: list[Summary] = []
    folder = tmp_path / "messages"

    def stop_requests() -> int:
        if told:
            written = next(folder.glob("part-*.parquet"))
            (folder / "part-00009-stopped.parquet").write_bytes(written.read_bytes())
        return bool(told)

    following = options(gateway, tmp_path, trigger_seconds=0.1)
    run(spark, following, stop_requests=stop_requests, on_progress=told.append)
    assert ds.dataset(folder, format="parquet").count_rows() == sent


def test_a_second_request_leaves_the_rest_in_the_queue(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Ending at once is safe: what was not read is still there."""
    sent = put(gateway, [1_000.0])
    summary = run(spark, options(gateway, tmp_path), stop_requests=lambda: 2)
    assert held(gateway) == sent - summary.ingested_messages


def test_a_failed_query_is_told_in_one_line(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """The reason, not Spark's traceback; the queue keeps its messages."""
    sent = put(gateway, [1_000.0])
    (tmp_path / "messages").mkdir()
    blocked = tmp_path / "messages" / "_spark_metadata"
    blocked.write_text("no directory")
    with pytest.raises(PipelineError) as caught:
        run(spark, options(gateway, tmp_path))
    assert "\n" not in str(caught.value)
    assert held(gateway) == sent
