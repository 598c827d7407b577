"""Spans of micro-batches, by the program with real Spark, a real gateway and a real collector."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pyspark.sql import SparkSession

from penstock.plugins.queue.client import OutgoingMessage, QueueClient
from penstock.spark_bridge.__main__ import main
from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.options import read_options
from penstock.spark_bridge.pipelines.batch_spans import BatchSpans, read_traced
from penstock.spark_bridge.pipelines.building import Built
from penstock.spark_bridge.pipelines.config import Sink, read_pipeline
from penstock.spark_bridge.pipelines.running import Query, run
from tests.helpers.gateway import running_gateway
from tests.helpers.spans import PARENT, running_collector, texts, traceparent

MOST_LINKS = 128
PROGRAM = (sys.executable, "-m", "penstock.spark_bridge")


def put(client: QueueClient, *values: str) -> None:
    """Enqueue a message for each `traceparent`."""
    client.enqueue(
        "telemetry",
        [
            OutgoingMessage("telemetry/a", b"x", {"user_property": [("traceparent", value)]})
            for value in values
        ],
    )


def sinks_of(span: Span) -> list[str]:
    """Return where a micro-batch was written."""
    (found,) = (one.value for one in span.attributes if one.key == "penstock.sinks")
    return [one.string_value for one in found.array_value.values]


def test_a_file_of_messages_has_a_span_with_links_to_their_traces(tmp_path: Path) -> None:
    """Of those that the publisher has sampled; all messages are in the table, and counted."""
    output = tmp_path / "messages"
    with running_gateway(tmp_path) as client, running_collector() as collector:
        put(client, traceparent(1), traceparent(2, "00"), "nonsense", traceparent(3))
        other = OutgoingMessage("telemetry/a", b"x", {"user_property": [("a", "b")]})
        client.enqueue("telemetry", [("telemetry/a", b"without properties"), other])
        given = ["--url", client.url, "--queue", "telemetry", "--output", str(output)]
        given += ["--checkpoint", str(tmp_path / "checkpoint"), "--otlp", collector.url]
        subprocess.run([*PROGRAM, *given], check=True, capture_output=True)
        (span,) = collector.spans()
    assert span.name == "process telemetry"
    assert not span.parent_span_id
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert {int.from_bytes(link.trace_id) for link in span.links} == {1, 3}
    assert {link.span_id.hex() for link in span.links} == {PARENT}
    said = texts(span)
    assert said["messaging.destination.name"] == "telemetry"
    assert said["messaging.consumer.group.name"] == "spark"
    values = {one.key: one.value for one in span.attributes}
    assert values["messaging.batch.message_count"].int_value == 6
    assert sinks_of(span) == [f"parquet {output}"]


@pytest.mark.parametrize(("option", "n_links"), [({}, MOST_LINKS), ({"columns": "topic"}, 0)])
def test_links_have_a_limit_and_need_the_column(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path, option: dict[str, str], n_links: int
) -> None:
    """They are to the traces that brokers choose, too; and there is a span for each micro-batch."""
    numbers = [*range(1, 301)]
    put(gateway, *(traceparent(number) for number in reversed(numbers)))
    given = {"url": gateway.url, "queue": "telemetry", "maxRowsPerTrigger": "300"} | option
    checkpoint = str(tmp_path / "checkpoint")

    def query() -> Query:
        return Query(
            name="traced",
            rows=read_traced(spark, given),
            source=read_options(given),
            sinks={"noop": Sink(format="noop")},
            checkpoint=checkpoint,
        )

    with running_collector() as collector:
        with closing(BatchSpans(collector.url)) as spans:
            run(spark, [query()], None, on_batch=spans.add)
            put(gateway, traceparent(1))
            run(spark, [query()], None, on_batch=spans.add)
        first, second = collector.spans()
    assert [int.from_bytes(link.trace_id) for link in first.links] == numbers[:n_links]
    assert len(second.links) == min(1, n_links)


def test_each_query_of_a_pipeline_has_its_own(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Also one that reads once for several sinks."""
    put(gateway, traceparent(1), traceparent(2))
    file = tmp_path / "pipeline.yaml"
    assert main(["new", str(file), "--url", gateway.url]) == 0
    text = file.read_text().replace(": telemetry-data", f": {tmp_path / 'data'}")
    file.write_text(text.replace("    group: spark ", "    #") + "\nreads_once: true\n")
    queries = Built(
        spark, read_pipeline(file, "pipeline.yaml"), "pipeline.yaml", read_traced
    ).queries
    with running_collector() as collector:
        with closing(BatchSpans(collector.url)) as spans:
            run(spark, queries, None, on_batch=spans.add)
        found = {
            texts(span)["messaging.consumer.group.name"]: (len(sinks_of(span)), len(span.links))
            for span in collector.spans()
        }
    assert found == {"telemetry-read-once": (2, 2), "telemetry-windows": (1, 2)}


def test_what_is_no_url_is_named() -> None:
    """Before Spark starts."""
    with pytest.raises(OptionError, match=r"--otlp: read 'jaeger:4318'; allowed: a URL such as"):
        BatchSpans("jaeger:4318")


def test_without_the_extra_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Spark starts."""
    monkeypatch.delitem(sys.modules, "penstock.spark_bridge.pipelines.batch_spans")
    monkeypatch.setitem(sys.modules, "penstock.plugins.trace.spans", None)
    with running_gateway(tmp_path) as client:
        given = [
            "--url",
            client.url,
            "--queue",
            "telemetry",
            "--output",
            str(tmp_path / "messages"),
        ]
        given += ["--checkpoint", str(tmp_path / "checkpoint"), "--otlp", "http://127.0.0.1:9/"]
        assert main(given) == 2
    assert "pip install 'penstock-mqtt[otel,spark]'" in capsys.readouterr().err
