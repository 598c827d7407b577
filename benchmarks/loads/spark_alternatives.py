"""Two ways to follow a broker without a source for Spark, each a program that runs until it ends.

* ``files``: a subscriber with paho (`benchmarks.loads.file_subscriber`) writes lines of JSON into
  files, and Spark follows their folder into Parquet.
* ``requests``: ``foreachBatch`` of a query on Spark's clock receives messages over HTTP until
  nothing waits, writes them to a folder for each micro-batch, and acknowledges them.

Arguments: the way, the folder of the Parquet files, that of the checkpoint, the seconds between two
micro-batches, and the folder of the subscriber or the URL of the queue.
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import unbase64

from benchmarks.errors import BenchmarkError

QUEUE: Final = "bench"
GROUP: Final = "default"
RECEIVE_MESSAGES: Final = 100
"""The messages that one request asks for, as in the row `dequeue` of
`benchmarks.queue_throughput`."""

SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
"""The settings of Spark that ``penstock spark`` makes, too."""


def start_files(
    spark: SparkSession, output: str, checkpoint: str, seconds: str, folder: str
) -> Any:
    """Follow the files of a subscriber."""
    lines = spark.readStream.schema("topic STRING, payload STRING").json(folder)
    rows = lines.withColumn("payload", unbase64("payload"))
    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime=f"{seconds} seconds").start(output)


def start_requests(
    spark: SparkSession, output: str, checkpoint: str, seconds: str, url: str
) -> Any:
    """Receive messages in each micro-batch of a clock."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def ask(what: str, **body: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        path = f"/queues/{QUEUE}/groups/{GROUP}/{what}"
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != http.HTTPStatus.OK:
            raise BenchmarkError(f"{what}: {answer.status}: {text}")
        found: dict[str, Any] = json.loads(text)
        return found

    def receive(_clock: DataFrame, number: int) -> None:
        received: list[dict[str, Any]] = []
        while some := ask("receive", max_messages=RECEIVE_MESSAGES)["messages"]:
            received += some
        if not received:
            return
        rows = [(one["topic"], base64.b64decode(one["payload"])) for one in received]
        frame = spark.createDataFrame(rows, "topic STRING, payload BINARY")
        frame.coalesce(1).write.parquet(f"{output}/batch={number}")
        for start in range(0, len(received), RECEIVE_MESSAGES):
            some = received[start : start + RECEIVE_MESSAGES]
            ask("settle", action="ack", receipt_handles=[one["receipt_handle"] for one in some])

    clock = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    writer = clock.writeStream.foreachBatch(receive).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime=f"{seconds} seconds").start()


def main(argv: list[str]) -> None:
    """Run one of them until it fails or the process is ended."""
    way, output, checkpoint, seconds, source = argv
    builder = SparkSession.builder.appName(way).master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    start = {"files": start_files, "requests": start_requests}[way]
    start(builder.getOrCreate(), output, checkpoint, seconds, source).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
