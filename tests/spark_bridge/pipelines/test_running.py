from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.broker.errors import ConfigError
from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.__main__ import main
from penstock.spark_bridge.errors import BridgeError
from penstock.spark_bridge.options import read_options
from penstock.spark_bridge.pipelines import running
from penstock.spark_bridge.pipelines.building import Built, read_stream
from penstock.spark_bridge.pipelines.changes import ChangeError
from penstock.spark_bridge.pipelines.config import Sink, read_pipeline
from penstock.spark_bridge.pipelines.metrics import QueryMetrics
from penstock.spark_bridge.pipelines.running import PipelineError, Query, Summaries, run
from penstock.spark_bridge.sink_folder import SinkFolderError
from tests.helpers.gateway import held
from tests.helpers.process import ROOT, Program, running_broker

HOSTS = ("a", "b")
FILE = "pipeline.yaml"
DATA = "telemetry-data"
PAGE = ROOT / "docs" / "how-to" / "spark.md"
WAIT_MILLISECONDS = 60_000


def telemetry(host: str, at: float, **fields: Any) -> bytes:
    """Return a message of the example."""
    return json.dumps({"host": host, "metric": "cpu", "value": at % 60, "at": at} | fields).encode()


def put(client: QueueClient, seconds: list[float], *more: bytes) -> int:
    """Enqueue telemetry of two hosts at the given times; return how many messages that were."""
    payloads = [telemetry(host, at) for at in seconds for host in HOSTS]
    messages = [("telemetry/x/cpu", payload) for payload in (*payloads, *more)]
    return client.enqueue("telemetry", messages).stored


def built(spark: SparkSession, client: QueueClient, folder: Path) -> Built:
    """Let Spark check what `new` writes for the gateway's queue, with its data in a folder."""
    file = folder / FILE
    if not file.exists():
        assert main(["new", str(file), "--url", client.url]) == 0
        file.write_text(file.read_text().replace(": telemetry-data", f": {folder / DATA}"))
    return Built(spark, read_pipeline(file, FILE), FILE)


def lag(client: QueueClient, group: str) -> int:
    """Return what `penstock queue stats` shows as waiting for a group."""
    waiting: int = client.queue("telemetry")["groups"][group]["waiting"]
    return waiting


def test_the_example_goes_from_a_queue_to_tables_and_goes_on(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Decoded, windowed, quarantined, counted, and continued.

    The queue has the first sink's group alone: what that commits is there for the others, too.
    """
    data = tmp_path / DATA
    noise = [b"\xff", b"{}", telemetry("a", 1_000, value=float("inf")), telemetry("a", -1)]
    sent = put(gateway, [1_000.0 + second for second in range(60)], *noise)
    listener = QueryMetrics("127.0.0.1:0")
    spark.streams.addListener(listener)
    with closing(listener):
        first = built(spark, gateway, tmp_path)
        assert first.notes == []
        first.remember()
        told: list[Summaries] = []
        summaries = run(spark, first.queries, None, on_progress=told.append)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(WAIT_MILLISECONDS)
        metrics = page(listener)
        spark.streams.removeListener(listener)

    assert set(summaries) == {"messages", "windows", "quarantine"}
    assert {one.rows for one in summaries.values()} == {sent}
    assert told[-1] == summaries
    reasons = {"malformed": 1, "incomplete": 1, "not_finite": 1, "clock_wrong": 1}
    assert dict(summaries["windows"].observed) == {"messages": sent, "expired": 0, **reasons}
    assert summaries["messages"].observed == {}

    assert spark.read.parquet(f"{data}/messages").count() == sent
    windows = spark.read.parquet(f"{data}/windows")
    # The newest event is at 1059 and 2 s may be late: windows that end by 1057 are complete.
    assert {row[0]: row[1] for row in windows.groupBy("host").sum("messages").collect()} == {
        "a": 55,
        "b": 55,
    }
    row = windows.orderBy("window_start", "host").first()
    assert row is not None
    assert (row.host, row.metric, row.messages) == ("a", "cpu", 5)
    assert (row.value_min, row.value_mean, row.value_max) == (40.0, 42.0, 44.0)
    quarantined = spark.read.parquet(f"{data}/quarantine").orderBy("reason").collect()
    assert [(row.reason, bytes(row.payload)) for row in quarantined] == [
        ("clock_wrong", noise[3]),
        ("incomplete", noise[1]),
        ("malformed", noise[0]),
        ("not_finite", noise[2]),
    ]
    assert quarantined[1].detail == "no value for host, metric, value, at"
    groups = ("spark", "telemetry-windows", "telemetry-quarantine")
    assert {lag(gateway, group) for group in groups} == {0}
    assert held(gateway) == 0

    assert 'penstock_spark_quarantined_total{query="windows",reason="malformed"} 1.0' in metrics
    place = 'physical_queue="0",query="messages",queue="telemetry"'
    assert f"penstock_spark_lag_messages{{{place}}} 0.0" in metrics
    assert 'penstock_spark_running{query="windows"}' in metrics
    assert 'penstock_spark_batch_seconds_count{query="messages"}' in metrics

    second = put(gateway, [1_000.0, 1_061.0])
    again = built(spark, gateway, tmp_path)
    assert again.notes == []
    summaries = run(spark, again.queries, None)
    assert {one.rows for one in summaries.values()} == {second}
    assert summaries["windows"].late_groups == len(HOSTS)
    assert spark.read.parquet(f"{data}/messages").count() == sent + second


def test_the_page_goes_from_sensors_to_a_chart_and_back_to_a_device(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files, with other ports and folders, and five times as fast."""
    section = PAGE.read_text().partition("## From sensors to a chart")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    policy, *texts = [text for language, text in blocks if language != "sh"]
    layout = yaml.safe_load(policy)
    layout["plugins"]["queue"]["http"] = "127.0.0.1:0"
    layout["listeners"] = {"default": {"bind": "127.0.0.1:0"}}
    monkeypatch.chdir(tmp_path)
    with running_broker(layout, tmp_path) as broker, ExitStack() as stack:
        names = ("sensors.py", "device.py", FILE, "chart.py")
        for name, text in zip(names, texts, strict=True):
            assert f"`{name}`" in section
            text = text.replace("1883", str(broker.port))  # noqa: PLW2901 - the page's
            text = text.replace("http://127.0.0.1:8080", broker.queue_url)  # noqa: PLW2901
            text = text.replace("rooms-data", str(tmp_path / "rooms-data"))  # noqa: PLW2901
            text = text.replace("now / 5", "now").replace("5 seconds", "1 second")  # noqa: PLW2901
            Path(name).write_text(text.replace("time.sleep(2)", "break"))
        device, sensors = (
            Program(["bash", "-c", f"exec {sys.executable} {name} 1>&2"])
            for name in ("device.py", "sensors.py")
        )
        stack.callback(device.kill)
        stack.callback(sensors.kill)
        queries = Built(spark, read_pipeline(Path(FILE), FILE), FILE).queries
        opened = "rooms/roof/window open\n"
        run(spark, queries, 1.0, stop_requests=lambda: int(opened in device.log))
    rows = ds.dataset("rooms-data/windows", format="parquet").to_table().to_pylist()
    assert {row["room"] for row in rows} == {"cellar", "roof"}
    assert {row["celsius"] for row in rows if row["room"] == "cellar"} == {15.0}
    assert set(device.log.splitlines()) == {opened.strip()}
    drawing = Path("chart.py").read_text()
    early = tmp_path / "early"
    (early / "windows").mkdir(parents=True)
    (early / "windows" / "part-00000-unfinished.parquet").write_bytes(b"PAR1")
    for data in (early / "missing", early, tmp_path / "rooms-data"):
        assert not Path("chart.png").exists()
        text = drawing.replace(str(tmp_path / "rooms-data"), str(data))
        exec(compile(text, "chart.py", "exec"), {})  # noqa: S102 (the page's own)
    assert Path("chart.png").read_bytes().startswith(b"\x89PNG")


def page(listener: QueryMetrics) -> str:
    """Return what Prometheus reads."""
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def raw(spark: SparkSession, client: QueueClient, folder: Path, **changes: Any) -> Query:
    """Return the query of a queue into Parquet files in `messages`, as `stream` has it."""
    texts = {"url": client.url, "queue": "telemetry"}
    return Query(
        name="ingest",
        rows=read_stream(spark, texts),
        source=read_options(texts),
        sinks={"ingest": Sink(options={"path": str(folder / "messages")}, **changes)},
        checkpoint=str(folder / "checkpoint" / "ingest"),
    )


def test_a_run_that_follows_reads_what_waits_when_it_is_stopped(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """The first request to stop loses nothing; small files are joined, those of others stay."""
    sent = put(gateway, [1_000.0])
    messages = tmp_path / "messages"
    told: list[Summaries] = []

    def stop_requests() -> int:
        nonlocal sent
        if not told:
            return 0
        if sent == len(HOSTS):
            sent += put(gateway, [1_001.0, 1_002.0])
            (messages / "daily").mkdir()
            written = next(messages.glob("part-*.parquet"))
            written.with_name("daily").joinpath(written.name).write_bytes(written.read_bytes())
        return 1

    interval = "spark.sql.streaming.fileSink.log.compactInterval"
    spark.conf.set(interval, 2)
    query = raw(spark, gateway, tmp_path, compact=1_000_000)
    summaries = run(spark, [query], 0.1, stop_requests=stop_requests, on_progress=told.append)
    spark.conf.unset(interval)
    assert summaries["ingest"].rows == sent == 3 * len(HOSTS)
    assert held(gateway) == 0
    assert len(list(messages.glob("part-joined-*"))) == 1
    assert ds.dataset(list(map(str, messages.glob("*.parquet")))).count_rows() == sent
    assert spark.read.parquet(str(messages)).count() == sent
    assert len(list((messages / "daily").iterdir())) == 1

    sent += put(gateway, [1_003.0])
    assert run(spark, [query], None)["ingest"].rows == len(HOSTS)
    assert spark.read.parquet(str(messages)).count() == sent


def test_what_a_killed_run_has_left_is_named_and_deleted(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Its batch is written again, and any reader of the folder finds each message once."""
    gateway.put_group("telemetry", "keeps", {"kind": "offsets"})
    sent = put(gateway, [1_000.0])
    query = raw(spark, gateway, tmp_path)
    told: list[str] = []
    run(spark, [query], None, tell=told.append)
    finished = set((tmp_path / "messages").glob("part-*.parquet"))
    sent += put(gateway, [1_001.0])
    run(spark, [query], None, tell=told.append)
    assert told == []
    # As where it is killed before it lists the files of its batch.
    unfinished = set((tmp_path / "messages").glob("part-*.parquet")) - finished
    for log in (tmp_path / "messages" / "_spark_metadata", Path(query.checkpoint) / "commits"):
        for file in (log / "1", log / ".1.crc"):
            file.unlink(missing_ok=True)
    run(spark, [query], None, tell=told.append)
    left = "which a run that was stopped had left unfinished"
    assert sorted(told) == sorted(f"deleted {file}, {left}" for file in unfinished)
    written = set((tmp_path / "messages").glob("part-*.parquet"))
    assert not written & unfinished
    assert ds.dataset(list(map(str, written))).count_rows() == sent


ONE_READING = """
name: plant
storage: FOLDER/storage
source: {url: URL, queue: telemetry}
reads_once: true
decode:
  format: json
  schema: host STRING NOT NULL, metric STRING, value DOUBLE, at DOUBLE
views:
  hot: SELECT data.host AS host, data.value AS value FROM decoded WHERE data.value >= 30
  hosts: SELECT data.host AS host, count(*) AS n FROM decoded GROUP BY data.host
sinks:
  raw: {view: messages, options: {path: "FOLDER/all rows"}}
  hot: {format: json, partition_by: [host], options: {path: FOLDER/hot, compression: gzip}}
  hosts: {format: noop, mode: update}
"""


def test_one_query_reads_for_all_sinks_without_state(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Each message is read and decoded once for files and the quarantine; an aggregate reads alone.

    The second run is killed after it has written one of its folders, and before its commit: what
    it writes again, each folder has once.
    """

    def build(text: str = ONE_READING) -> Built:
        text = text.replace("FOLDER", str(tmp_path)).replace("URL", gateway.url)
        (tmp_path / FILE).write_text(text)
        return Built(spark, read_pipeline(tmp_path / FILE, FILE), FILE)

    def counts() -> list[int]:
        hot = spark.read.json(f"{tmp_path}/hot")
        assert "host" in hot.columns
        quarantine = spark.read.parquet(f"{tmp_path}/storage/quarantine")
        return [spark.read.parquet(f"{tmp_path}/all rows").count(), hot.count(), quarantine.count()]

    first = build()
    assert [query.name for query in first.queries] == ["read-once", "hosts"]
    assert set(first.queries[0].sinks) == {"raw", "hot", "quarantine"}
    assert first.notes == ["sinks.hosts reads alone: a repeated write would not be passed over"]
    first.remember()
    sent = put(gateway, [10.0, 40.0], b"{}")
    summaries = run(spark, first.queries, None)
    assert {name: one.rows for name, one in summaries.items()} == {"read-once": sent, "hosts": sent}
    observed = summaries["read-once"].observed
    assert (observed["messages"], observed["incomplete"]) == (sent, 1)
    assert counts() == [sent, len(HOSTS), 1]
    groups = gateway.queue("telemetry")["groups"]
    assert {"plant-read-once", "plant-hosts"} <= set(groups)
    assert "plant-raw" not in groups

    gateway.put_group("telemetry", "keeps", {"kind": "offsets"})
    sent += put(gateway, [41.0])
    run(spark, build().queries, None)
    commits = tmp_path / "storage" / "checkpoints" / "read-once" / "commits"
    for log in (tmp_path / "hot" / "_spark_metadata", commits):
        newest = max(int(file.name) for file in log.glob("[0-9]*"))
        for file in (log / f"{newest}", log / f".{newest}.crc"):
            file.unlink(missing_ok=True)
    run(spark, build().queries, None)
    assert counts() == [sent, 2 * len(HOSTS), 1]

    # What came later reads alone: Spark's file sink lacks the micro-batches before it.
    later = build(ONE_READING + "  decoded: {options: {path: FOLDER/decoded}}\n")
    assert set(later.queries[0].sinks) == {"raw", "hot", "quarantine"}
    assert [query.name for query in later.queries[1:]] == ["hosts", "decoded"]
    sent += put(gateway, [42.0])
    run(spark, later.queries, None)
    assert counts() == [sent, 3 * len(HOSTS), 1]
    later.remember()
    kept = build(ONE_READING.replace("reads_once: true", "reads_once: false"))
    assert kept.queries[0].name == "read-once"
    assert kept.notes[-1].startswith("sinks.decoded is gone; its group keeps messages")
    assert "reads_once changes nothing: what held at the first run stays" in kept.notes

    # A change that needs a query of its own is refused: rows would be wrong in each micro-batch.
    ranked = "SELECT *, row_number() OVER (PARTITION BY data.host ORDER BY data.at) n FROM decoded"
    for old, new in (
        ("SELECT data.host AS host, data.value AS value FROM decoded", ranked),
        ("partition_by: [host]", "partition_by: [host], group: own"),
    ):
        with pytest.raises(ChangeError, match=r"^penstock: sinks\.hot: .*then reads alone"):
            build(ONE_READING.replace(old, new))

    # The others go on when a sink is gone, and so it has missed rows when it comes back.
    without_hot = re.sub(r"  hot: \{format.*\n", "", ONE_READING)
    gone = build(without_hot)
    assert "sinks.hot is gone" in gone.notes
    gone.remember()
    with pytest.raises(ChangeError, match=r"sinks\.hot: read a sink that was gone"):
        build()


def test_a_failure_of_one_reading_names_the_sink_and_the_reason(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """As Spark gives it; nothing is lost."""
    sent = put(gateway, [1.0])
    text = ONE_READING.replace("data.value AS value", "raise_error('too hot') AS value")
    text = text.replace("WHERE data.value >= 30", "")
    text = text.replace("FOLDER", str(tmp_path)).replace("URL", gateway.url)
    (tmp_path / FILE).write_text(text)
    queries = Built(spark, read_pipeline(tmp_path / FILE, FILE), FILE).queries
    with pytest.raises(PipelineError, match=r"^penstock: sink 'hot': .*too hot"):
        run(spark, queries, None)
    assert held(gateway) == sent


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("partition_by: [host]", "partition_by: [colour]", r"sinks\.hot\.partition_by: .*colour"),
        ("format: json\n", "format: json\n  arrays: true\n", r"reads_once: read true; allowed: no"),
    ],
)
def test_what_one_reading_cannot_do_is_told_before_it_reads(
    spark: SparkSession, tmp_path: Path, old: str, new: str, told: str
) -> None:
    """With the key."""
    text = ONE_READING.replace("FOLDER", str(tmp_path)).replace("URL", "http://127.0.0.1:1")
    assert old in text
    (tmp_path / FILE).write_text(text.replace(old, new))
    with pytest.raises((BridgeError, ConfigError), match=told):
        Built(spark, read_pipeline(tmp_path / FILE, FILE), FILE)


def test_a_new_checkpoint_on_a_used_place_elsewhere_is_refused(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Spark would skip the query's first batches, and the queue would delete their messages."""
    sent = put(gateway, [1_000.0])
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata" / "0").write_text("v1")
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    settings.set("fs.viewfs.mounttable.used.link./rows", tmp_path.as_uri())
    elsewhere = Sink(options={"path": "viewfs://used/rows"})
    with pytest.raises(SinkFolderError, match=r"^penstock: viewfs://used/rows holds "):
        run(spark, [replace(raw(spark, gateway, tmp_path), sinks={"ingest": elsewhere})], None)
    assert held(gateway) == sent


def test_a_sink_is_a_table_of_the_catalog(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """The table may have any format whose package Spark has; a missing one is named.

    The run before was killed while Spark wrote its first plan, and has left half of it.
    """
    sent = put(gateway, [1_000.0])
    plans = tmp_path / "checkpoint" / "ingest" / "offsets"
    plans.mkdir(parents=True)
    (plans / ".0.57a2f7ee.tmp").write_text("")
    options: dict[str, Any] = {"path": str(tmp_path / "readings")}
    plain = raw(spark, gateway, tmp_path)
    table = replace(
        plain, sinks={"ingest": Sink(format="json", table="kept_readings", options=options)}
    )
    assert run(spark, [table], None)["ingest"].rows == sent
    sent += put(gateway, [1_001.0])
    run(spark, [table], None)
    assert spark.table("kept_readings").count() == sent
    spark.sql("DROP TABLE kept_readings")
    delta = replace(
        plain, sinks={"ingest": Sink(format="delta")}, checkpoint=str(tmp_path / "delta")
    )
    with pytest.raises(PipelineError, match=r"^penstock: sink 'ingest': .* data source: delta\. "):
        run(spark, [delta], None)


def test_a_run_that_is_ended_at_once_leaves_the_rest_in_the_queue(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Two requests to stop: what was not read is still there."""
    sent = put(gateway, [1_000.0])
    summaries = run(spark, [raw(spark, gateway, tmp_path)], None, stop_requests=lambda: 2)
    assert held(gateway) == sent - summaries["ingest"].rows


def test_a_query_that_fails_ends_the_run_with_one_line(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """The other queries do not go on alone, and the queue keeps what was not read."""
    sent = put(gateway, [1_000.0])
    blocked = tmp_path / "messages" / "_spark_metadata"
    blocked.parent.mkdir()
    blocked.write_text("no directory")
    noop = replace(
        raw(spark, gateway, tmp_path),
        name="other",
        sinks={"other": Sink(format="noop")},
        checkpoint=str(tmp_path / "checkpoint" / "other"),
    )
    with pytest.raises(PipelineError) as caught:
        run(spark, [raw(spark, gateway, tmp_path), noop], 0.1)
    assert "\n" not in str(caught.value)
    assert held(gateway) == sent
    assert not spark.streams.active


class Anything:
    """Stands for Spark: any call and attribute is itself, and there is nothing in it."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, *_: Any, **__: Any) -> Anything:
        """Return itself."""
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Ended(Anything):
    """A streaming query that has ended."""

    isActive = False  # noqa: N815 - Spark's name
    lastProgress = None  # noqa: N815 - Spark's name

    def __init__(self, failure: str | None) -> None:
        self.failure = failure

    def exception(self) -> Exception | None:
        """Return why."""
        return None if self.failure is None else PySparkException(self.failure)


class Writer(Anything):
    """Starts queries that end as they are told to."""

    def __init__(self, *failures: str | None) -> None:
        self.failures = list(failures)

    def start(self) -> Ended:
        """Return the next query."""
        return Ended(self.failures.pop(0))

    @property
    def writeStream(self) -> Writer:  # noqa: N802 - Spark's name
        """Return what starts the query."""
        return self


LATE = "Job aborted: Python worker failed to connect back."


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ((LATE, LATE, None), None),
        ((LATE, LATE, LATE, None), "Python worker failed"),
        ((LATE, "no space left", None), "no space left"),
    ],
)
def test_a_query_whose_worker_is_late_is_started_again(
    monkeypatch: pytest.MonkeyPatch, failures: tuple[str | None, ...], told: str | None
) -> None:
    """A busy machine does not end the run at once; any other failure does."""
    monkeypatch.setattr(running, "QueueReader", Anything())
    writer: Any = Writer(*failures)
    source = read_options({"url": "http://127.0.0.1:1", "queue": "q"})
    query = Query(
        name="q", rows=writer, source=source, sinks={"q": Sink(format="noop")}, checkpoint="gone"
    )
    spark: Any = Anything()
    if told is None:
        assert run(spark, [query], None)["q"].rows == 0
        assert not writer.failures
    else:
        with pytest.raises(PipelineError, match=told):
            run(spark, [query], None)
