"""Rows of Spark to a subscriber of a real broker, whose API has TLS and asks for a token."""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import concat, lit
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark_bridge.errors import OptionError, PublishError, QueueUnavailableError, one_line
from penstock.spark_bridge.options import read_options
from penstock.spark_bridge.pipelines.config import Sink
from penstock.spark_bridge.pipelines.one_reading import writer
from penstock.spark_bridge.pipelines.running import Query
from penstock.spark_bridge.pipelines.running import run as run_pipeline
from penstock.spark_bridge.queue_reader import QueueReader
from penstock.spark_bridge.sink import Staged, StreamWriter
from penstock.spark_bridge.sink_options import SINK_OPTION_NAMES
from penstock.spark_bridge.sink_rows import COLUMN_TYPES, check_columns
from penstock.spark_bridge.source import register
from tests.helpers.certificates import Authority
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker

DOCS = Path(__file__).parents[2] / "docs"


def section(page: str, title: str) -> str:
    """Return a section of a page."""
    return (DOCS / page).read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


QUEUE = {"http": "127.0.0.1:0", "publishing": {}, "queues": {"telemetry": {"topics": ["t/#"]}}}
TOKENS = {"spark": {"*": ["admin", "read", "publish"]}, "dashboard": {"*": ["read"]}}
"""Token, which is its name as well, to its roles by queue."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the broker."""
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    """A broker with a queue, one for all tests of the file."""
    authority = Authority(folder)
    certificate, key = authority.issue()
    callers = [
        {"name": name, "token_sha256": hashlib.sha256(name.encode()).hexdigest(), "roles": roles}
        for name, roles in TOKENS.items()
    ]
    (folder / "tokens.yaml").write_text(yaml.safe_dump({"tokens": callers}))
    keys = {"http_tls": {"certificate": certificate, "key": key}, "tokens": "tokens.yaml"}
    policy = anonymous_policy({"queue": QUEUE | keys})
    with running_broker(policy, folder) as running:
        yield running


@pytest.fixture(scope="module")
def server(broker: BrokerProcess, folder: Path) -> dict[str, str]:
    """Options of source and sink for the broker."""
    (folder / "token").write_text("spark\n")
    return {
        "url": broker.queue_url,
        "tokenFile": str(folder / "token"),
        "caFile": str(folder / "authority.pem"),
    }


@pytest.fixture
def device(broker: BrokerProcess) -> Iterator[PahoClient]:
    """A subscriber of the devices' commands."""
    with PahoClient(broker.port) as client:
        client.connect()
        client.subscribe("devices/#", 2)
        yield client


def alarms(spark: SparkSession, server: dict[str, str]) -> DataFrame:
    """Return the commands that windows of a queue's messages come to."""
    register(spark)
    messages = spark.readStream.format("penstock").options(**server)
    return (
        messages.option("queue", "telemetry")
        .load()
        .selectExpr(
            "concat('devices/', split(topic, '/')[1], '/window') AS topic",
            "CASE WHEN cast(cast(payload AS string) AS double) > 30 THEN 'open' END AS payload",
            "map('cause', cast(payload AS string)) AS user_properties",
        )
        .where("payload IS NOT NULL")
    )


def run(rows: DataFrame, server: dict[str, str], folder: Path, **options: Any) -> None:
    """Run a query until the queue is read."""
    writer = rows.writeStream.format("penstock").options(**server)
    writer = writer.option("checkpointLocation", str(folder)).options(**options)
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_detection_becomes_a_command_once(
    spark: SparkSession,
    broker: BrokerProcess,
    server: dict[str, str],
    device: PahoClient,
    tmp_path: Path,
) -> None:
    """Also where Spark repeats its last micro-batch, as after a crash behind the commit."""
    checkpoint = tmp_path / "checkpoint"
    with PahoClient(broker.port) as sensor:
        sensor.connect()
        for host, value in (("gate", b"21.5"), ("roof", b"31.5")):
            sensor.publish(f"t/{host}", value)
        run(alarms(spark, server), server, checkpoint, qos="2", expiry="60")
        message = device.message()
        assert (message.topic, message.payload, message.qos) == ("devices/roof/window", b"open", 2)
        assert message.properties is not None
        properties = message.properties.json()  # type: ignore[no-untyped-call]
        assert properties["UserProperty"] == [("cause", "31.5")]
        assert properties["MessageExpiryInterval"] <= 60
        shutil.rmtree(checkpoint / "commits")
        sensor.publish("t/gate", b"32")
        run(alarms(spark, server), server, checkpoint, qos="2")
        assert device.message().topic == "devices/gate/window"


def test_a_pipeline_publishes_the_rows_that_have_changed(
    spark: SparkSession,
    broker: BrokerProcess,
    server: dict[str, str],
    device: PahoClient,
    tmp_path: Path,
) -> None:
    """Spark has no update mode for a sink in Python; a repeated micro-batch publishes nothing."""
    source = server | {"queue": "telemetry", "group": "counts", "topicFilter": "t/n/#"}
    sums = spark.readStream.format("penstock").options(**source).load()
    counts = sums.groupBy(concat(lit("devices/"), "topic").alias("topic")).count()
    query = Query(
        name="counts",
        rows=counts.selectExpr("topic", "cast(count AS string) payload"),
        source=read_options(source),
        sinks={"q": Sink(format="penstock", mode="update", options=server | {"qos": 1})},
        checkpoint=str(tmp_path / "counts"),
    )
    with PahoClient(broker.port) as sensor:
        sensor.connect()
        for topics, told in (("ab", ["a 1", "b 1"]), ("b", ["b 2"]), ("a", ["a 2"])):
            for topic in topics:
                sensor.publish(f"t/n/{topic}", b"x")
            run_pipeline(spark, [query], None)
            found = [device.message() for _ in told]
            assert sorted(f"{one.topic[-1]} {one.payload.decode()}" for one in found) == told
            if told == ["b 2"]:
                (newest,) = (tmp_path / "counts" / "commits").glob("1*")
                newest.unlink()


def test_one_reading_publishes_for_several_sinks_once(
    spark: SparkSession,
    broker: BrokerProcess,
    server: dict[str, str],
    device: PahoClient,
    tmp_path: Path,
) -> None:
    """A repeated micro-batch publishes nothing of either."""
    source = server | {"queue": "telemetry", "group": "once", "topicFilter": "t/once"}
    sinks = {name: Sink(format="penstock", options=server | {"qos": 1}) for name in ("a", "b")}

    def rows_of(read: DataFrame) -> dict[str, DataFrame]:
        return {name: read.selectExpr(f"'devices/{name}' topic", "payload") for name in sinks}

    query = Query(
        name="once",
        rows=spark.readStream.format("penstock").options(**source).load(),
        source=read_options(source),
        sinks=sinks,
        checkpoint=str(tmp_path / "once"),
        write=writer(sinks, rows_of),
    )
    with PahoClient(broker.port) as sensor:
        sensor.connect()
        for payload in (b"1", b"2"):
            sensor.publish("t/once", payload)
            run_pipeline(spark, [query], None)
            max((tmp_path / "once" / "commits").glob("[0-9]*")).unlink()
            found = [device.message() for _ in sinks]
            assert sorted((one.topic, one.payload) for one in found) == [
                (f"devices/{name}", payload) for name in sinks
            ]


def test_a_driver_commits_what_another_writer_has_staged(
    server: dict[str, str], device: PahoClient
) -> None:
    """As Spark does: a writer for the tasks of a query, and one for each commit."""
    schema = StructType([StructField("topic", StringType()), StructField("payload", StringType())])
    options = server | {"checkpointLocation": "x"}

    def staged(*payloads: str) -> Staged:
        task = pickle.loads(pickle.dumps(StreamWriter(schema, options)))  # noqa: S301 (ours)
        found = task.write(iter([Row("devices/x", payload) for payload in payloads]))
        assert isinstance(found, Staged)
        return replace(found, query_id="query")

    driver = StreamWriter(schema, options)
    driver.commit([staged("1", "2"), None], 0)
    driver.commit([staged("2", "1")], 0)
    driver.abort([staged("given up"), None], 1)
    driver.commit([staged("3")], 1)
    assert device.payloads(3) == [b"1", b"2", b"3"]
    with pytest.raises(PublishError, match="batch 2: read no query id"):
        driver.commit([replace(staged("4"), query_id="")], 2)
    with pytest.raises(OptionError, match="option 'writeId': read it for a stream"):
        StreamWriter(schema, options | {"writeId": "x"})


def test_the_example_of_the_page_is_one_that_spark_and_the_sink_take(spark: SparkSession) -> None:
    """Its columns and types; it is not started."""
    text = section("how-to/spark-job.md", "Write rows back to MQTT")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example.partition("query =")[0], "spark-job.md", "exec"), names)  # noqa: S102 (the page's own)
    schema = names["commands"].schema
    check_columns({one.name: one.dataType.simpleString() for one in schema}, {})
    assert names["spark"] is spark


def test_the_page_lists_every_column_and_option() -> None:
    """A user reads the tables, not the source."""
    text = section("reference/spark.md", "Rows back to MQTT")
    columns, options = text.split("| option of the sink |")
    assert re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", columns, re.MULTILINE))) == [
        *COLUMN_TYPES
    ]
    told = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", options, re.MULTILINE)))
    assert sorted(told) == sorted(SINK_OPTION_NAMES)


def test_a_batch_write_publishes_rows_once_for_each_write_id(
    spark: SparkSession, server: dict[str, str], device: PahoClient
) -> None:
    """Without one, each write is a batch of its own. A row that is wrong is named."""
    register(spark)
    rows = spark.range(5).selectExpr("'devices/a' AS topic", "cast(id AS string) AS payload")

    def write(frame: DataFrame, **options: str) -> None:
        given = server | options
        frame.write.format("penstock").mode("append").options(**given).save()

    write(rows.repartition(2), writeId="monday")
    write(rows.repartition(3), writeId="monday")
    assert sorted(device.payloads(5)) == [b"0", b"1", b"2", b"3", b"4"]
    wrong = rows.coalesce(1).selectExpr("if(payload = '3', 'devices/+', topic) AS topic", "payload")
    with pytest.raises(Exception, match="partition 0, row 3") as raised:
        write(wrong)
    told = one_line(raised.value)
    assert told.startswith("partition 0, row 3: topic: malformed packet")
    write(rows.limit(1).selectExpr("'end' AS payload"), topic="devices/end")
    assert device.message().payload == b"end"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"token": "nobody's"}, "401"),
        ({"token": "dashboard"}, "403|this token may not create it"),
        ({"tokenFile": "", "token": ""}, "401"),
        ({"token": "spark", "caFile": ""}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_wrong_credentials_are_told_by_source_and_sink(
    server: dict[str, str], options: dict[str, str], told: str
) -> None:
    """At once where the server refuses; an unknown authority is no answer."""
    texts = {"url": server["url"], "caFile": server["caFile"], "retrySeconds": "0"} | options
    reader = QueueReader(read_options(texts | {"queue": "telemetry", "group": "new"}))
    with pytest.raises(QueueUnavailableError, match=told):
        reader.join()
    schema = StructType([StructField("topic", StringType()), StructField("payload", StringType())])
    with pytest.raises(PublishError, match=told):
        StreamWriter(schema, texts).write(iter([Row("devices/x", "never")]))
