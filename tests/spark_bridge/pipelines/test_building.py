from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.spark_bridge.pipelines.building import RECORD, Built, StepError
from penstock.spark_bridge.pipelines.changes import ChangeError
from penstock.spark_bridge.pipelines.config import EXAMPLE, read_pipeline
from penstock.spark_bridge.schema import DEFAULT_COLUMNS, spark_ddl

FILE = "pipeline.yaml"
TEXT = EXAMPLE.read_text()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    """Work in a folder, as the program does in that of the file."""
    Path(tmp_path, "queue").mkdir()
    with chdir(tmp_path):
        yield


def read(spark: SparkSession, _: dict[str, str]) -> DataFrame:
    """Return a stream with the columns of the source."""
    return spark.readStream.schema(spark_ddl(DEFAULT_COLUMNS)).parquet(str(Path.cwd() / "queue"))


def build(spark: SparkSession, text: str, old: str = "", new: str = "") -> Built:
    """Let Spark check a pipeline with a text replaced.

    Paths get the folder, as Spark began in another.
    """
    assert old in text
    text = text.replace(old, new) if old else text
    for path in ("telemetry-data", "devices.csv"):
        text = text.replace(f": {path}", f": {Path.cwd() / path}")
    Path(FILE).write_text(text)
    return Built(spark, read_pipeline(Path(FILE), FILE), FILE, read)


def test_what_has_changed_since_the_last_run_is_told_or_refused(spark: SparkSession) -> None:
    """What Spark cannot take over from a checkpoint is not tried."""
    lines = TEXT.splitlines(keepends=True)
    at = lines.index("  messages:\n")
    text = "".join(lines[:at] + lines[at + 4 :])
    first = build(spark, text)
    assert first.notes == []
    assert not Path("telemetry-data", RECORD).exists()
    first.remember()
    assert build(spark, text, "data.at < 0", "data.at <= 0").notes == [
        f"sinks.{name}: changed from the next message on: decode"
        for name in ("windows", "quarantine")
    ]
    with pytest.raises(ChangeError, match=r"sinks.windows: its aggregates"):
        build(spark, text, "max(data.value)", "min(data.value)")


def test_a_sink_that_comes_back_is_compared_with_what_it_was(spark: SparkSession) -> None:
    """Its checkpoint is still there, with the state of its aggregates."""
    text = """
name: plant
storage: telemetry-data
source: {url: http://127.0.0.1:1, queue: plant}
views:
  topics: SELECT topic, max(qos) AS qos FROM messages GROUP BY topic
sinks:
  seen: {view: messages, format: console}
"""
    with_topics = f"{text}  topics: {{format: console, mode: complete}}\n"
    build(spark, with_topics).remember()
    gone = build(spark, text)
    assert [note.partition(";")[0] for note in gone.notes] == ["sinks.topics is gone"]
    gone.remember()
    again = build(spark, text)
    assert again.notes == []
    again.remember()
    with pytest.raises(ChangeError, match=r"sinks.topics: its aggregates"):
        build(spark, with_topics, "max(qos)", "min(qos)")
    assert build(spark, with_topics).notes == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("data.metric,\n", "data.metrik,\n", r"views.windows: \[FIELD_NOT_FOUND"),
        ("SELECT * FROM decoded", "SELECT FROM FROM decoded", r"views.readings: \["),
        ("data.at < 0", "data.att < 0", r"decode.refuse.clock_wrong: \[FIELD_NOT_FOUND"),
        ("unit STRING", "unit STRINGG STRING", r"decode.schema: \[PARSE_SYNTAX_ERROR"),
        ("# expires_at: timestamp_seconds(data.at)", "expires_at: nothing", r"expires_at: \["),
        (
            "# tables:\n#   devices: {format: csv, options: {path: devices.csv, header: true}}",
            "tables: {devices: {options: {path: gone}}}",
            r"tables.devices: \[PATH_NOT_FOUND",
        ),
        (
            "# tables:\n#   devices: {format: csv, options: {path: devices.csv, header: true}}",
            "tables: {devices: {format: delta}}",
            r"tables.devices: \[DATA_SOURCE_NOT_FOUND",
        ),
    ],
)
def test_what_spark_refuses_is_told_with_its_key(
    spark: SparkSession, old: str, new: str, told: str
) -> None:
    """On one line, before any query runs."""
    with pytest.raises(StepError, match=rf"^penstock: pipeline.yaml: {told}") as caught:
        build(spark, TEXT, old, new)
    assert "\n" not in caught.value.text


def test_a_view_may_join_a_table_of_devices(spark: SparkSession) -> None:
    """The table may have any format that Spark reads; the sink has the columns of the join."""
    Path("devices.csv").write_text("host,room\na,kitchen\n")
    text = """
name: plant
storage: data
source: {url: http://127.0.0.1:1, queue: plant}
tables:
  devices: {format: csv, options: {path: devices.csv, header: true}}
views:
  placed: SELECT room, topic FROM messages JOIN devices ON devices.host = messages.publisher
sinks:
  placed: {format: json, options: {path: data/placed}}
  seen: {view: messages, format: console}
"""
    built = build(spark, text)
    assert [query.name for query in built.queries] == ["placed", "seen"]
    assert built.queries[0].rows.columns == ["room", "topic"]
    assert built.queries[0].source.group == "plant-placed"
