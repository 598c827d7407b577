from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.errors import GroupTakenError, OptionError, one_line
from penstock.spark_bridge.options import SourceOptions, read_options
from penstock.spark_bridge.pipelines.building import read_stream
from penstock.spark_bridge.pipelines.config import Sink
from penstock.spark_bridge.pipelines.running import Query, Summaries, run
from penstock.spark_bridge.queue_reader import QueueReader
from penstock.spark_bridge.source import PenstockDataSource, StreamReader
from tests.campaigns.queue_kills import QUEUE as LOAD
from tests.campaigns.spark_kills import TRIGGER_SECONDS, Driver, Victim
from tests.campaigns.spark_kills import run as kill
from tests.helpers.gateway import gateway_of, held
from tests.helpers.redis_server import shared_redis
from tests.spark_bridge.memory_queue import MemoryQueue

LOAD_MESSAGES = 12_000
"""Some twelve micro-batches: three kills come within them."""


def put(client: QueueClient, first: int, count: int) -> list[str]:
    """Enqueue numbered messages; return their payloads as texts."""
    texts = [str(number) for number in range(first, first + count)]
    messages = [(f"telemetry/h/{text}", text.encode()) for text in texts]
    assert client.enqueue("telemetry", messages, publisher="test").stored == count
    return texts


def stream(spark: SparkSession, client: QueueClient, **options: Any) -> DataFrame:
    """Return the queue as a stream that does not wait for a server that is away."""
    given: dict[str, Any] = {"url": client.url, "queue": "telemetry", "retrySeconds": 0}
    return spark.readStream.format("penstock").options(**(given | options)).load()


def start(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    """Write a stream to Parquet files in a folder, with its checkpoint beside them."""
    writer = rows.writeStream.format("parquet").trigger(**trigger)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(
        str(folder / "rows")
    )


def ingest(spark: SparkSession, client: QueueClient, folder: Path, **options: Any) -> list[int]:
    """Read what the queue holds now; return the rows of each micro-batch that had any."""
    query = start(stream(spark, client, **options), folder, availableNow=True)
    query.awaitTermination()
    return [report.numInputRows for report in query.recentProgress if report.numInputRows]


def written(spark: SparkSession, folder: Path) -> Counter[str]:
    """Return how often each payload stands in the output."""
    rows = spark.read.parquet(str(folder / "rows")).selectExpr("cast(payload as string) text")
    return Counter(row.text for row in rows.collect())


def failure(spark: SparkSession, client: QueueClient, folder: Path, **options: Any) -> str:
    """Return the line that a user gets of a query that fails."""
    with pytest.raises(StreamingQueryException) as caught:
        ingest(spark, client, folder, **options)
    return one_line(caught.value)


def test_each_message_is_written_once_and_deleted_a_batch_later(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Micro-batches stay under their limit, and a finished one leaves the queue with the next."""
    texts = put(gateway, 0, 250)
    assert ingest(spark, gateway, tmp_path, maxRowsPerTrigger=100) == [100, 100, 50]
    assert held(gateway) == 50
    assert ingest(spark, gateway, tmp_path) == []
    texts += put(gateway, 250, 30)
    assert ingest(spark, gateway, tmp_path) == [30]
    assert held(gateway) == 30
    assert written(spark, tmp_path) == Counter(texts)
    assert len(list((tmp_path / "rows").glob("part-*"))) == 4  # one for each, of two queues


def test_tasks_read_from_redis_themselves_with_the_same_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What the gateway plans, as it is read by the gateway or by the tasks."""
    prefix = f"test-{uuid.uuid4().hex}"
    server = f"127.0.0.1:{shared_redis()}"
    layout = {"physical_queues": 2, "groups": {"spark": {"kind": "offsets"}}}
    section = {"engine": "redis", "redis": {"server": server, "prefix": prefix}}
    section |= {"http": "127.0.0.1:0", "queues": {"telemetry": layout}}
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"plugins": {"queue": section}}))
    with gateway_of(policy) as client:
        texts = put(client, 0, 20)
        assert ingest(spark, client, tmp_path) == [20]
        texts += put(client, 20, 50)
        told = failure(spark, client, tmp_path, redis=server, redisPrefix="other")
        assert f"queue 'telemetry': Redis server {server} has no physical queue" in told
        direct = {"redis": server, "redisPrefix": prefix}
        assert ingest(spark, client, tmp_path, **direct) == [50]  # the batch that failed
        texts += put(client, 70, 30)
        assert ingest(spark, client, tmp_path, **direct, minPartitions=3) == [30]
        assert written(spark, tmp_path) == Counter(texts)
        assert held(client) == 30


class InSession(Driver):
    """What ``penstock spark`` does, in the Spark of the tests."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        folder: Path,
        environment: Mapping[str, str],
        options: Sequence[str],
    ) -> None:
        super().__init__(url, folder, environment, options)
        self._spark = spark
        self._source = dict(option.split("=", 1) for option in self.options)
        self._source |= {"url": url, "queue": LOAD}
        self._run: Future[Summaries] = Future()
        self._n_stop_requests = 0

    @property
    def is_running(self) -> bool:
        """Whether the query runs."""
        return self.n_starts > 0 and not self._run.done()

    def start(self) -> None:
        """Start the query."""
        self.n_starts += 1
        query = Query(
            name="ingest",
            rows=read_stream(self._spark, self._source),
            source=read_options(self._source),
            sinks={"ingest": Sink(options={"path": str(self.folder / "messages")})},
            checkpoint=str(self.folder / "checkpoint" / "ingest"),
        )
        arguments = (self._spark, [query], TRIGGER_SECONDS)
        pool = ThreadPoolExecutor(1)
        self._run = pool.submit(run, *arguments, stop_requests=lambda: self._n_stop_requests)
        pool.shutdown(wait=False)

    def kill(self) -> None:
        """Stop the query at once."""
        self._n_stop_requests = 2
        wait([self._run] if self.n_starts else [])

    def await_start(self) -> None:
        """Return at once: a request to stop is heard from the start on."""

    def end(self) -> int:
        """Have it read what is left and end.

        Raises:
            PipelineError: the query failed.
        """
        self._n_stop_requests = 1
        self._run.result()
        return 0


@pytest.mark.timeout(1_200)
def test_each_message_is_written_once_though_the_redis_server_is_killed(
    spark: SparkSession,
) -> None:
    """Tasks read from it themselves; a gateway takes the place of the broker meanwhile."""
    make_driver = partial(InSession, spark)
    victims: list[Victim] = ["redis", "server", "redis"]
    findings = kill(LOAD_MESSAGES, victims, 1, engine="redis", make_driver=make_driver)
    assert not [each for each in findings if each.is_met is False], findings
    found = {each.name: each.value for each in findings}
    assert found["rows"] == LOAD_MESSAGES
    assert found["kills: redis"] == 2


def test_a_query_follows_the_queue(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """A processing-time trigger starts on an empty queue and reads what comes."""
    query = start(stream(spark, gateway), tmp_path, processingTime="100 milliseconds")
    texts = put(gateway, 0, 10)
    query.processAllAvailable()
    texts += put(gateway, 10, 10)
    query.processAllAvailable()
    query.stop()
    assert written(spark, tmp_path) == Counter(texts)
    assert held(gateway) <= 10


def test_a_batch_that_failed_is_read_again_the_same(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """A planned micro-batch keeps its range, whatever came to the queue since."""
    put(gateway, 0, 10)
    seen: list[tuple[int, list[Any]]] = []

    def take(rows: DataFrame, batch: int) -> None:
        seen.append((batch, sorted(rows.select("physical_queue", "offset").collect())))

    def fail(rows: DataFrame, batch: int) -> None:
        take(rows, batch)
        raise RuntimeError("the sink is full")

    def run(sink: Any) -> None:
        writer = stream(spark, gateway).writeStream.foreachBatch(sink).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run(fail)
    put(gateway, 10, 10)
    run(take)
    (failed, replayed, following) = seen
    assert replayed == failed
    assert [len(rows) for _, rows in seen] == [10, 10, 10]
    assert not set(replayed[1]) & set(following[1])


def test_a_queue_created_again_is_told_though_it_has_grown(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Its offsets fit the checkpoint; its incarnation does not."""
    put(gateway, 0, 10)
    ingest(spark, gateway, tmp_path)
    before = gateway.position("telemetry").incarnation
    settings = {"physical_queues": 2, "groups": {"spark": {"kind": "offsets"}}}
    gateway.delete_queue("telemetry")
    gateway.put_queue("telemetry", settings)
    texts = put(gateway, 100, 20)
    after = gateway.position("telemetry").incarnation
    text = failure(spark, gateway, tmp_path)
    assert (
        f"deleted and created again since the checkpoint was written (incarnation {before}" in text
    )
    assert f"the queue's is {after}" in text
    assert ingest(spark, gateway, tmp_path, failOnDataLoss=False) == [20]
    assert written(spark, tmp_path) >= Counter(texts)


def test_a_notebook_that_peeks_deletes_nothing_and_is_told_how_to_look(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Another checkpoint on the group of a query; the query goes on."""
    texts = put(gateway, 0, 100)
    assert ingest(spark, gateway, tmp_path) == [100]
    texts += put(gateway, 100, 40)
    told = failure(spark, gateway, tmp_path / "notebook")
    assert "option 'group': read 'spark', which in queue 'telemetry' belongs to another q" in told
    assert "spark.read looks at messages without a group" in told
    assert held(gateway) == 140
    assert ingest(spark, gateway, tmp_path / "notebook", group="notebook") == [140]
    assert ingest(spark, gateway, tmp_path) == [40]
    assert written(spark, tmp_path) == Counter(texts)


def test_a_lost_checkpoint_is_told_where_the_output_is_kept(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Spark would pass over the batches whose numbers are in the output's list."""
    put(gateway, 0, 20)
    assert ingest(spark, gateway, tmp_path) == [20]
    shutil.rmtree(tmp_path / "checkpoint")
    texts = put(gateway, 20, 30)
    told = failure(spark, gateway, tmp_path)
    assert "If the checkpoint of that query is gone and this one is to take its place, give" in told
    assert told.endswith(
        "an empty output, too, and run: penstock queue seek telemetry spark earliest"
    )
    assert held(gateway) == 50
    for folder in ("checkpoint", "rows"):
        shutil.rmtree(tmp_path / folder)
    gateway.seek("telemetry", "spark", "earliest")
    assert ingest(spark, gateway, tmp_path) == [50]
    assert written(spark, tmp_path) >= Counter(texts)


def test_a_checkpoint_is_wound_back_as_far_as_the_retention_goes(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """As with Kafka: reading deletes nothing."""
    settings = gateway.queue("telemetry")["settings"] | {"retention_seconds": 3_600}
    gateway.put_queue("telemetry", settings)
    put(gateway, 0, 60)
    assert ingest(spark, gateway, tmp_path, maxRowsPerTrigger=20) == [20, 20, 20]
    for log in ("offsets", "commits"):
        for file in (tmp_path / "checkpoint" / log).glob("*[12]*"):
            file.unlink()
    (tmp_path / "rows").rename(tmp_path / "before")
    assert ingest(spark, gateway, tmp_path, maxRowsPerTrigger=30) == [30, 10]


@pytest.mark.parametrize("loads", [1, 2])
def test_sources_of_one_query_commit_what_all_of_them_have_read(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path, loads: int
) -> None:
    """A self-join, and two `load()`s that go on at different speeds; each message in both."""
    left = stream(spark, gateway)
    right = stream(spark, gateway, maxRowsPerTrigger=7) if loads > 1 else left
    texts = [
        frame.selectExpr(f"cast(payload as string) {name}", f"arrival_time {name}_at")
        for frame, name in ((left, "l"), (right, "r"))
    ]
    one, other = (
        frame.withWatermark(f"{name}_at", "1 hour") for frame, name in zip(texts, "lr", strict=True)
    )
    near = "l = r AND r_at BETWEEN l_at - INTERVAL 1 HOUR AND l_at + INTERVAL 1 HOUR"
    pairs = one.join(other, expr(near)).selectExpr("l AS payload")
    folder = tmp_path / str(loads)
    sent: list[str] = []
    for part in range(3):
        sent += put(gateway, 50 * part, 50)
        query = start(pairs, folder, availableNow=True)
        query.awaitTermination()
        assert written(spark, folder) == Counter(sent)
    assert held(gateway) <= 50


def test_an_unknown_queue_is_told_with_those_that_exist(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """The server's own list reaches the user."""
    text = failure(spark, gateway, tmp_path, queue="telemetri")
    assert text.startswith(f"no queue 'telemetri' at {gateway.url}")
    assert "allowed: telemetry" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "telemetry"}, "option 'url' is missing"),
        ({"url": "http://127.0.0.1:1"}, "option 'queue' is missing"),
        (
            {"url": "http://127.0.0.1:1", "queue": "q", "maxRowsPerTriger": "1"},
            "unknown option 'maxrowspertriger' (did you mean 'maxRowsPerTrigger'?)",
        ),
    ],
)
def test_wrong_options_are_told_by_load(
    spark: SparkSession, options: dict[str, str], told: str
) -> None:
    """A query with wrong options never starts."""
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("penstock").options(**options).load()
    assert one_line(caught.value).startswith(told)


def test_a_batch_read_takes_what_lies_between_two_places(
    spark: SparkSession, gateway: QueueClient
) -> None:
    """With the columns that it names, and leaves the queue as it is."""
    put(gateway, 0, 20)

    def read(**options: Any) -> DataFrame:
        reader = spark.read.format("penstock").options(url=gateway.url, queue="telemetry")
        return reader.options(**options).load()

    rows = read(columns="topic,offset,user_properties")
    assert rows.columns == ["topic", "offset", "user_properties"]
    assert rows.count() == 20
    (first, *_) = rows.orderBy("topic").collect()
    assert (first.topic, first.user_properties) == ("telemetry/h/0", None)
    half = json.dumps({"telemetry": {"0": 5, "1": 5}})
    assert read(endingPosition=half, columns="offset").count() == 10
    rest = read(startingPosition=half, minPartitions=4, columns="offset")
    assert (rest.rdd.getNumPartitions(), rest.count()) == (4, 10)
    assert read(topicFilter="telemetry/h/7").count() == 1
    assert read(startingPosition="2100-01-01T00:00:00Z").count() == 0
    assert held(gateway) == 20


@pytest.mark.parametrize(
    ("options", "schema", "told"),
    [
        ({"startingPosition": "latest"}, None, "option 'startingPosition': read 'latest' for a b"),
        ({}, "payload STRING", "schema: read the columns payload string; the source has queue"),
        ({"columns": "payload"}, "payload STRING", "schema: read the columns payload string; the"),
    ],
)
def test_what_a_batch_read_cannot_do_is_told(
    spark: SparkSession, options: dict[str, str], schema: str | None, told: str
) -> None:
    """Anything else would fail late and unclearly."""
    reader = spark.read.format("penstock").options(url="http://127.0.0.1:1", queue="q", **options)
    with pytest.raises(PySparkException) as caught:
        (reader.schema(schema) if schema else reader).load().collect()
    assert one_line(caught.value).startswith(told)


def test_a_query_reads_several_queues_from_a_place_on_in_many_tasks(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """A queue that the checkpoint lacks begins where its group stands."""
    texts = put(gateway, 0, 20)
    start = json.dumps({"telemetry": {"0": 8, "1": 8}})
    options = {"startingPosition": start, "minPartitions": 4}
    assert ingest(spark, gateway, tmp_path, **options) == [4]
    assert len(list((tmp_path / "rows").glob("part-*"))) == 4
    gateway.put_queue("more", {"physical_queues": 1})
    gateway.enqueue("more", [("t", b"more")])
    texts += put(gateway, 20, 2)
    assert ingest(spark, gateway, tmp_path, queue="telemetry,more") == [3]
    assert sum(written(spark, tmp_path).values()) == 7
    assert written(spark, tmp_path)["more"] == 1
    assert set(written(spark, tmp_path)) < {*texts, "more"}
    told = failure(spark, gateway, tmp_path)
    assert told.startswith("the checkpoint belongs to queue 'more', the query reads 'telemetry'")


def test_an_idle_query_asks_once_for_each_trigger() -> None:
    """The server holds the question; neither group nor settings are asked for again."""
    queue = MemoryQueue()
    options = SourceOptions(url="http://127.0.0.1:9", queues=("telemetry",))
    stream = StreamReader(options, QueueReader(options, queue))
    start = stream.initialOffset()
    queue.requests.clear()
    for _ in range(10):
        assert stream.latestOffset(start, stream.getDefaultReadLimit()) == start
    assert queue.requests == ["plan"] * 10
    assert queue.waits == [options.wait_seconds] * 10


def test_a_trigger_with_messages_asks_for_a_plan_the_ranges_and_a_commit() -> None:
    """Nothing else: positions say what a micro-batch reads."""
    queue = MemoryQueue()
    columns = ("offset", "payload")
    options = SourceOptions(url="http://127.0.0.1:9", queues=("telemetry",), columns=columns)
    stream = StreamReader(options, QueueReader(options, queue))
    start = stream.initialOffset()
    queue.put(0, b"a", b"b")
    queue.requests.clear()
    end = stream.latestOffset(start, ReadAllAvailable())
    (part,) = stream.partitions(start, end)
    assert [batch.num_rows for batch in stream.read(part)] == [2]
    stream.commit(end)
    assert queue.requests == ["plan", "commit", "read", "queue", "commit"]  # the group is claimed
    for once in (True, False):
        queue.put(0, b"c")
        queue.requests.clear()
        start, end = end, stream.latestOffset(end, ReadAllAvailable())
        assert stream.partitions(start, end)
        stream.commit(end)
        assert queue.requests == ["plan", "commit"], once
    latest = stream.reportLatestOffset()
    assert latest is not None
    assert latest["telemetry"]["next"] == end["telemetry"]["next"]


def test_an_available_now_run_ends_where_the_queue_ended_at_its_start() -> None:
    """What comes meanwhile is for the next run; nothing is waited for."""
    queue = MemoryQueue()
    options = SourceOptions(url="http://127.0.0.1:9", queues=("telemetry",))
    stream = StreamReader(options, QueueReader(options, queue))
    queue.put(0, b"a", b"b")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    queue.put(0, b"late")
    end = stream.latestOffset(start, ReadMaxRows(1))
    assert end["telemetry"]["next"] == {"0": 1, "1": 0}
    end = stream.latestOffset(end, ReadMaxRows(5))
    assert end["telemetry"]["next"] == {"0": 2, "1": 0}
    assert stream.latestOffset(end, ReadMaxRows(5)) == end
    assert queue.waits == [0, 0, 0]


def test_a_new_query_keeps_its_place_until_its_first_micro_batch() -> None:
    """Spark asks at each trigger, and once more where it repeats the first micro-batch."""
    queue = MemoryQueue()
    options = SourceOptions(
        url="http://127.0.0.1:9", queues=("telemetry",), starting_position="latest"
    )
    queue.put(0, b"old")
    stream = StreamReader(options, QueueReader(options, queue))
    start = stream.initialOffset()
    queue.put(0, b"a", b"b")
    assert stream.initialOffset() == start
    end = stream.latestOffset(start, ReadAllAvailable())
    queue.put(0, b"c")
    # Killed, and started again: the checkpoint has the end alone.
    again = StreamReader(options, QueueReader(options, queue))
    (part,) = again.partitions(again.initialOffset(), end)
    (batch,) = again.read(part)
    assert batch.column("payload").to_pylist() == [b"a", b"b"]
    following = again.latestOffset(end, ReadAllAvailable())
    assert "first" not in following["telemetry"]
    assert following["telemetry"]["next"] == {"0": 4, "1": 0}
    assert following["telemetry"]["reader"] == end["telemetry"]["reader"]


def test_a_query_without_a_micro_batch_claims_nothing() -> None:
    """What it has read for nobody: its name is in no checkpoint."""
    queue = MemoryQueue()
    options = SourceOptions(url="http://127.0.0.1:9", queues=("telemetry",))
    queue.put(0, b"a")
    for _ in range(2):
        stream = StreamReader(options, QueueReader(options, queue))
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert queue.readers == {}
    assert stream.partitions(stream.initialOffset(), end)
    assert queue.readers == {"spark": end["telemetry"]["reader"]}
    other = StreamReader(options, QueueReader(options, queue))
    with pytest.raises(GroupTakenError):
        other.latestOffset(other.initialOffset(), ReadAllAvailable())
    own = StreamReader(options, QueueReader(options, queue))
    assert own.latestOffset(end, ReadAllAvailable()) == end


def test_a_stream_has_no_end() -> None:
    """The option is for batch reads."""
    given = {"url": "http://h:1", "queue": "q", "endingPosition": "latest", "columns": "topic"}
    schema = StructType([StructField("topic", StringType(), False)])
    with pytest.raises(OptionError, match="'endingPosition': a stream has no end"):
        PenstockDataSource(given).streamReader(schema)
