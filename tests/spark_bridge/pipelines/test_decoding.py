from __future__ import annotations

import json
from typing import Any

import cbor2
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.decoders.formats import DecoderOptions
from penstock.spark_bridge.options import read_options
from penstock.spark_bridge.pipelines.decoding import (
    SampleError,
    infer_schema,
    mark,
    sample_texts,
    unusable,
    usable,
)

DDL = "host STRING NOT NULL, value DOUBLE NOT NULL, at DOUBLE, more STRUCT<a: INT>"
REFUSE = {"infinite": "abs(data.value) = double('infinity')", "early": "data.at < 0"}
EXPIRES_AT = "timestamp_seconds(data.at)"
LATER = 4_000_000_000.0


def messages(spark: SparkSession, payloads: list[bytes]) -> DataFrame:
    """Return messages with a number and a payload."""
    rows = [(number, bytearray(payload)) for number, payload in enumerate(payloads)]
    return spark.createDataFrame(rows, "offset INT, payload BINARY").coalesce(1)


def decode(
    spark: SparkSession, payloads: list[bytes], options: DecoderOptions | None
) -> tuple[dict[int, Any], dict[int, tuple[str, str]]]:
    """Return data by number of the usable messages, and reason and detail of the unusable ones."""
    schema = StructType.fromDDL(DDL)
    assert isinstance(schema, StructType)
    marked = mark(messages(spark, payloads), schema, options, REFUSE, EXPIRES_AT)
    good = usable(marked)
    assert good.columns == ["offset", "payload", "data"]
    bad = unusable(marked).collect()
    return (
        {row.offset: row.data for row in good.collect()},
        {row.offset: (row.reason, row.detail) for row in bad},
    )


def test_json_is_decoded_or_has_a_reason(spark: SparkSession) -> None:
    """No payload fails the query, whatever it holds, or leaves without being counted."""
    good = {"host": "a", "value": 1, "at": LATER, "more": {"a": 1}, "other": "ignored"}
    payloads = [
        json.dumps(good).encode(),
        b"\xff\xfe",
        b"",
        b"3",
        json.dumps([good, good]).encode(),
        json.dumps(good | {"value": "high"}).encode(),
        b'{"host": "a"}',
        b'{"host": "a", "value": 1e999}',
        b'{"host": "a", "value": 1, "at": -1}',
        b'{"host": "a", "value": 1, "at": 1000}',
        b'{"host": "a", "value": 1}',
    ]
    data, reasons = decode(spark, payloads, None)
    malformed = ("malformed", "not the JSON object of the schema")
    assert reasons == {
        **dict.fromkeys(range(1, 6), malformed),
        6: ("incomplete", "no value for value"),
        7: ("infinite", REFUSE["infinite"]),
        8: ("early", REFUSE["early"]),
    }
    # The tenth is beyond its lifetime: dropped, and no case for the quarantine.
    assert set(data) == {0, 10}
    assert (data[0].host, data[0].value, data[0].more.a) == ("a", 1.0, 1)
    assert data[10].at is None


def test_more_than_one_json_value_is_quarantined(spark: SparkSession) -> None:
    """Spark reads the first value alone; a line's end behind it is nothing."""
    one = json.dumps({"host": "a", "value": 1}).encode()
    whole = [one + b"\n", b" " + one, one[:-1] + b', "at": NaN}', one.replace(b'"', b"'")]
    left_over = [
        *(one + b"\n" + one, one + one, one + b" trailing", one + b"," + one),
        *(one + b', "at": 1', one + b"}", one + b"]", one + b"} x", one + b"] x", one + b', "x"]'),
        *(one + b"\x00", one + b"// " + one, one + b"\n{", b"[" + one + b"]", one + b" 1"),
    ]
    data, reasons = decode(spark, [*whole, *left_over], None)
    assert set(data) == set(range(len(whole)))
    assert {reason for reason, _ in reasons.values()} == {"malformed"}
    assert set(reasons) == set(range(len(whole), len(whole) + len(left_over)))


def test_an_array_of_objects_is_a_row_for_each(spark: SparkSession) -> None:
    """One that does not fit takes none of the others with it; nothing behind the array is lost."""
    schema = StructType.fromDDL("a INT NOT NULL, s STRING")
    assert isinstance(schema, StructType)
    one = b'{"a": 1, "s": "x, {y}"}'
    payloads = [
        b" [" + one + b', {"a": "2"}, {"a": 3}]\n',
        one,
        *(b"[]", b"[" + one + b"] x", b"[" + one + b"][" + one + b"]", b"[" + one + b"}", b"[1]"),
    ]
    marked = mark(messages(spark, payloads), schema, None, {}, None, arrays=True)
    good = [(row.offset, row.data.a, row.data.s) for row in usable(marked).collect()]
    assert good == [(0, 1, "x, {y}"), (0, 3, None), (1, 1, "x, {y}")]
    bad = [(row.offset, bytes(row.payload), row.reason) for row in unusable(marked).collect()]
    assert bad == [(n, payloads[n], "malformed") for n in (0, 2, 3, 4, 5, 6)]


def test_fields_that_the_schema_does_not_name_are_rescued(spark: SparkSession) -> None:
    """As texts; null where there are none."""
    schema = StructType.fromDDL("a INT, b STRUCT<c: INT>")
    assert isinstance(schema, StructType)
    more = {"a": 1, "b": {"c": 2}, "new": 1.5, "text": "t", "list": [1, {"x": None}]}
    payloads = [json.dumps(more).encode(), b'{"a": 1}', b"noise"]
    marked = mark(messages(spark, payloads), schema, None, {}, None, rescue=True)
    assert [row.rescued for row in usable(marked).collect()] == [
        {"new": "1.5", "text": "t", "list": '[1,{"x":null}]'},
        None,
    ]
    assert unusable(marked).columns == ["offset", "payload", "reason", "detail"]


def test_other_formats_take_the_same_way(spark: SparkSession) -> None:
    """With the decoder's own reason as detail."""
    payloads = [
        cbor2.dumps({"host": "a", "value": 1.5, "at": LATER, "more": {"a": 1}}),
        b"\xa1",
        cbor2.dumps([1]),
        cbor2.dumps({"host": "a", "value": "high"}),
        cbor2.dumps({"host": "a"}),
        cbor2.dumps({"host": "a", "value": float("-inf")}),
    ]
    data, reasons = decode(spark, payloads, DecoderOptions("cbor"))
    assert {number: row.value for number, row in data.items()} == {0: 1.5}
    assert reasons[1][0] == "malformed"
    assert reasons[1][1].startswith("CBORDecodeEOF: premature end")
    assert reasons[2] == ("malformed", "read list; allowed: a map of names to values")
    assert reasons[3] == ("malformed", "not the JSON object of the schema")
    assert (reasons[4][0], reasons[5][0]) == ("incomplete", "infinite")


def test_a_schema_is_inferred_from_what_waits_in_the_queue(
    spark: SparkSession, gateway: QueueClient
) -> None:
    """The sample stays there; what cannot be decoded has no columns."""
    options = read_options({"url": gateway.url, "queue": "telemetry"})
    with pytest.raises(SampleError, match="queue 'telemetry' is empty; allowed: columns as DDL"):
        sample_texts(options, None, 10)
    payloads = [b'{"a": 1}', b'{"a": 1.5, "b": ["x"]}', b"\xff", b"noise", b"3"]
    gateway.enqueue("telemetry", [("telemetry/x", payload) for payload in payloads])
    texts = sample_texts(options, None, 10)
    assert sorted(texts) == sorted(payload.decode() for payload in payloads if payload != b"\xff")
    assert infer_schema(spark, texts) == "a DOUBLE,b ARRAY<STRING>"
    with pytest.raises(SampleError, match="none of 1 messages in the queue is an object"):
        infer_schema(spark, ["3"])
    assert len(sample_texts(options, None, 1)) == 2
    assert sample_texts(options, DecoderOptions("cbor"), 10) == []
