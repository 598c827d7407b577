from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.plugins.queue.client import Position, QueueClient
from penstock.spark_bridge.errors import one_line
from penstock.spark_bridge.schema import ARROW_SCHEMA
from tests.helpers.gateway import GROUP, held, running_gateway


def put(client: QueueClient, first: int, count: int) -> list[str]:
    """Enqueue numbered messages; return their payloads as texts."""
    texts = [str(number) for number in range(first, first + count)]
    messages = [(f"telemetry/h/{text}", text.encode()) for text in texts]
    assert client.enqueue("telemetry", messages, publisher="test").stored == count
    return texts


def stream(spark: SparkSession, client: QueueClient, **options: Any) -> DataFrame:
    """Return the queue as a stream that does not wait for a server that is away."""
    given: dict[str, Any] = {"url": client.url, "queue": "telemetry", "retry_seconds": 0}
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
    assert ingest(spark, gateway, tmp_path, max_messages_per_batch=100) == [100, 100, 50]
    assert held(gateway) == 50
    assert ingest(spark, gateway, tmp_path) == []
    texts += put(gateway, 250, 30)
    assert ingest(spark, gateway, tmp_path) == [30]
    assert held(gateway) == 30
    assert written(spark, tmp_path) == Counter(texts)


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


def test_a_batch_read_leaves_the_queue_as_it_is(spark: SparkSession, gateway: QueueClient) -> None:
    """``spark.read`` shows what is there, every column of it, and deletes nothing."""
    put(gateway, 7, 1)
    read = spark.read.format("penstock").options(url=gateway.url, queue="telemetry").load()
    assert read.columns == ARROW_SCHEMA.names
    (row,) = read.collect()
    assert (row.topic, bytes(row.payload), row.publisher) == ("telemetry/h/7", b"7", "test")
    assert row.properties is None
    assert held(gateway) == 1


def test_a_batch_read_of_an_empty_queue_has_no_rows(
    spark: SparkSession, gateway: QueueClient
) -> None:
    """Nothing there is no error."""
    read = spark.read.format("penstock").options(url=gateway.url, queue="telemetry").load()
    assert read.count() == 0


def test_more_physical_queues_need_no_new_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """The policy file may grow a queue between two runs."""
    with running_gateway(tmp_path, physical_queues=1) as client:
        texts = put(client, 0, 10)
        assert ingest(spark, client, tmp_path) == [10]
    with running_gateway(tmp_path, physical_queues=3) as client:
        texts += put(client, 10, 30)
        assert ingest(spark, client, tmp_path) == [30]
    assert written(spark, tmp_path) == Counter(texts)


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
    assert ingest(spark, gateway, tmp_path, fail_on_data_loss=False) == [20]
    assert written(spark, tmp_path) >= Counter(texts)


def test_a_checkpoint_of_the_old_format_is_read_on(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Older positions have no incarnation; the next micro-batch stores it."""
    texts = put(gateway, 0, 10)
    assert ingest(spark, gateway, tmp_path) == [10]
    (log,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]")
    incarnation = gateway.position("telemetry").incarnation
    text = log.read_text()
    assert incarnation in text
    log.write_text(text.replace(f'"incarnation": "{incarnation}", ', ""))
    (tmp_path / "checkpoint" / "offsets" / f".{log.name}.crc").unlink()
    texts += put(gateway, 10, 6)
    assert ingest(spark, gateway, tmp_path) == [6]
    assert written(spark, tmp_path) == Counter(texts)
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: file.name)
    assert incarnation in newest.read_text()


def test_queries_of_two_groups_read_the_same_queue(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Each gets every message; the queue keeps what one of them has not read."""
    texts = put(gateway, 0, 10)
    for group in ("spark", "archive"):
        assert ingest(spark, gateway, tmp_path / group, group=group) == [10]
        assert written(spark, tmp_path / group) == Counter(texts)
    assert gateway.group("telemetry", "archive")["settings"]["kind"] == "offsets"


def test_a_queue_created_anew_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets that went back are never taken for "nothing new"."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with running_gateway(tmp_path / "first") as client:
        put(client, 0, 10)
        ingest(spark, client, tmp_path)
    with running_gateway(tmp_path / "second") as client:
        text = failure(spark, client, tmp_path)
        assert "deleted and created again" in text
        assert "empty checkpoint directory" in text
        texts = put(client, 100, 4)
        assert ingest(spark, client, tmp_path, fail_on_data_loss=False) == [4]
        assert written(spark, tmp_path) >= Counter(texts)


def test_messages_committed_by_another_query_are_told(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """Two queries of one group would share its messages by chance."""
    put(gateway, 0, 10)
    ingest(spark, gateway, tmp_path)
    put(gateway, 10, 10)
    incarnation = gateway.position("telemetry").incarnation
    gateway.commit("telemetry", GROUP, Position(incarnation, {0: 8, 1: 5}))
    text = failure(spark, gateway, tmp_path)
    assert "offsets 5 to 7 of physical queue 0 left the queue before this query read them" in text


def test_a_checkpoint_of_another_queue_is_told(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """A checkpoint directory belongs to one queue."""
    put(gateway, 0, 1)
    ingest(spark, gateway, tmp_path)
    (tmp_path / "other").mkdir()
    with running_gateway(tmp_path / "other", "alarms") as client:
        text = failure(spark, client, tmp_path, queue="alarms")
        assert text.startswith("the checkpoint belongs to queue 'telemetry', the query reads 'a")


def test_an_unknown_queue_is_told_with_those_that_exist(
    spark: SparkSession, gateway: QueueClient, tmp_path: Path
) -> None:
    """The server's own list reaches the user."""
    text = failure(spark, gateway, tmp_path, queue="telemetri")
    assert text.startswith(f"no queue 'telemetri' at {gateway.url}")
    assert "allowed: telemetry" in text


def test_a_server_that_is_down_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """The address stands in the error."""
    with running_gateway(tmp_path) as client:
        pass
    text = failure(spark, client, tmp_path)
    assert text.startswith("queue 'telemetry' cannot be reached")
    assert client.url in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "telemetry"}, "option 'url' is missing"),
        ({"url": "http://127.0.0.1:1"}, "option 'queue' is missing"),
        (
            {"url": "http://127.0.0.1:1", "queue": "q", "max_messages": "1"},
            "unknown option 'max_messages' (did you mean 'max_messages_per_batch'?)",
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


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, gateway: QueueClient) -> None:
    """The columns are the source's; anything else would fail late and unclearly."""
    reader = spark.read.format("penstock").options(url=gateway.url, queue="telemetry")
    with pytest.raises(PySparkException) as caught:
        reader.schema("payload STRING").load().collect()
    assert one_line(caught.value).startswith("schema: read the columns payload")
