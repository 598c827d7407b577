"""Decodes payloads into columns: JSON by Spark, other formats by decoders in Spark's workers.

No payload fails a query. One that cannot be used has a `reason`, for counts and filters, and a
`detail` for people:

* ``malformed``: not of the format, or a field of another type;
* ``incomplete``: no value for a column that is NOT NULL;
* a name under `decode.refuse`: its condition is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, StringType, StructType

from penstock.spark_bridge.decoders.contract import DecodeError
from penstock.spark_bridge.decoders.formats import DecoderOptions, load_decoder
from penstock.spark_bridge.errors import BridgeError
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.progress_totals import EXPIRED, MESSAGES, OBSERVATION
from penstock.spark_bridge.queue_reader import QueueReader

PAYLOAD: Final = "payload"
DATA: Final = "data"
REASON: Final = "reason"
DETAIL: Final = "detail"
RESCUED: Final = "rescued"

MALFORMED: Final = "malformed"
INCOMPLETE: Final = "incomplete"
_CORRUPT: Final = "_corrupt"
_JSON: Final = "_json"
_PARSED: Final = "_parsed"
_ITEM: Final = "_item"
_LONGEST_DETAIL: Final = 200


class SampleError(BridgeError):
    """No schema can be inferred."""

    status = 2


def mark(
    messages: DataFrame,
    schema: StructType,
    options: DecoderOptions | None,
    refuse: dict[str, str],
    expires_at: str | None,
    *,
    arrays: bool = False,
    rescue: bool = False,
) -> DataFrame:
    """Return all messages with `data`, `reason`, `detail` and `expired`, and count them.

    Args:
        messages: rows of the source.
        schema: columns of the payload.
        options: options of the decoder; None for JSON.
        refuse: conditions in SQL by reason.
        expires_at: timestamp in SQL; None for never.
        arrays: whether an array of objects becomes a row for each of them.
        rescue: whether to add the column `rescued`.
    """
    text = f.col(PAYLOAD).cast("string")
    decoded = messages
    error: Column = f.lit(None).cast("string")
    if options is not None:
        decoded = messages.withColumn(_JSON, _json_column(options)(PAYLOAD))
        text, error = f.col(f"{_JSON}.json"), f.col(f"{_JSON}.error")
    elif arrays:
        decoded = decoded.withColumn(_ITEM, f.explode_outer(_items(text)))
        text = f.col(_ITEM)
    decoded = decoded.withColumn(_PARSED, _within(text, schema))
    decoded = decoded.withColumn(DATA, f.col(f"{_PARSED}.{DATA}"))
    is_whole = f.col(f"{_PARSED}.{_CORRUPT}").isNull() & f.col(DATA).isNotNull()
    if options is None:
        is_whole &= _is_one(text)
    if rescue:
        named = f.array(*[f.lit(field.name) for field in schema])
        others = f.map_filter(
            f.from_json(text, "MAP<STRING, STRING>"), lambda name, _: ~f.array_contains(named, name)
        )
        decoded = decoded.withColumn(RESCUED, f.when(is_whole & (f.size(others) > 0), others))
    missing = [
        f.when(f.col(f"{DATA}.{_quoted(field.name)}").isNull(), field.name)
        for field in schema
        if not field.nullable
    ]
    lacking = f.concat_ws(", ", *missing) if missing else f.lit("")
    decoded = decoded.withColumn(
        REASON, f.when(~is_whole, MALFORMED).when(lacking != "", INCOMPLETE)
    ).withColumn(
        DETAIL,
        f.when(~is_whole, f.coalesce(error, f.lit("not the JSON object of the schema"))).when(
            lacking != "", f.concat(f.lit("no value for "), lacking)
        ),
    )
    decoded = decoded.drop(_PARSED, _ITEM)
    if options is not None:
        decoded = decoded.drop(_JSON)
    for reason, condition in refuse.items():
        is_refused = f.col(REASON).isNull() & f.coalesce(f.expr(condition), f.lit(False))
        decoded = decoded.withColumn(
            DETAIL, f.when(is_refused, f.lit(condition)).otherwise(f.col(DETAIL))
        ).withColumn(REASON, f.when(is_refused, f.lit(reason)).otherwise(f.col(REASON)))
    # Its time is in the checkpoint, so that a repeated micro-batch drops the same messages.
    is_over = f.lit(False) if expires_at is None else f.expr(expires_at) < f.current_timestamp()
    decoded = decoded.withColumn(
        EXPIRED, f.col(REASON).isNull() & f.coalesce(is_over, f.lit(False))
    )
    reasons = (MALFORMED, INCOMPLETE, *refuse)
    counts = [f.count(f.lit(1)).alias(MESSAGES), f.count_if(f.col(EXPIRED)).alias(EXPIRED)]
    counts += [f.count_if(f.col(REASON) == reason).alias(reason) for reason in reasons]
    return decoded.observe(OBSERVATION, *counts)


def undecoded(marked: DataFrame) -> DataFrame:
    """Return the messages as they came."""
    return marked.drop(DATA, RESCUED, REASON, DETAIL, EXPIRED)


def usable(marked: DataFrame) -> DataFrame:
    """Return the messages that have data and are not expired."""
    kept = marked.where(f.col(REASON).isNull() & ~f.col(EXPIRED))
    return kept.drop(REASON, DETAIL, EXPIRED)


def unusable(marked: DataFrame) -> DataFrame:
    """Return the messages that have a reason, with their payload as it came."""
    return marked.where(f.col(REASON).isNotNull()).drop(DATA, RESCUED, EXPIRED)


def _within(text: Column, kind: DataType) -> Column:
    """Parse a text as JSON of a type into `data`; `_corrupt` has a text that is not of the type.

    Spark reads the first value of a text and ignores what follows, such as another object on the
    next line. So the text is parsed within an object, and within an array (`_is_one`).
    """
    told = StructType().add(DATA, kind).add(_CORRUPT, "string")
    within = f.concat(f.lit(f'{{"{DATA}":'), text, f.lit("}"))
    return f.from_json(within, told.toDDL(), {"columnNameOfCorruptRecord": _CORRUPT})


def _is_one(text: Column) -> Column:
    listed = f.concat(f.lit("["), text, f.lit("]"))
    values = f.from_json(listed, f"ARRAY<STRUCT<{_PARSED}: INT>>")
    return f.coalesce(f.size(values) == 1, f.lit(False))


def _items(text: Column) -> Column:
    """Return the texts of the objects of a JSON array; the text itself where it is no array."""
    parsed = _within(text, ArrayType(StringType()))
    listed = f.from_json(f.concat(f.lit("["), text, f.lit("]")), "ARRAY<ARRAY<STRING>>")
    is_list = f.ltrim(text).startswith("[") & (f.size(listed) == 1)
    is_list &= parsed[_CORRUPT].isNull()
    return f.when(f.coalesce(is_list, f.lit(False)), parsed[DATA]).otherwise(f.array(text))


def _json_column(options: DecoderOptions) -> Any:
    """Return a function of Spark from payloads to (JSON text, error), one of them null."""

    def decode(payloads: pa.Array) -> pa.Array:
        to_json = load_decoder(options).to_json
        texts: list[str | None] = []
        errors: list[str | None] = []
        for payload in payloads.to_pylist():
            text = error = None
            try:
                text = to_json(payload)
            except DecodeError as failure:
                error = str(failure)[:_LONGEST_DETAIL]
            texts.append(text)
            errors.append(error)
        columns = [pa.array(texts, pa.string()), pa.array(errors, pa.string())]
        return pa.StructArray.from_arrays(columns, names=["json", "error"])

    # Spark reads the annotations, and does not understand texts.
    decode.__annotations__ = {"payloads": pa.Array, "return": pa.Array}
    return arrow_udf(decode, "json STRING, error STRING")  # type: ignore[call-overload]


def infer_schema(spark: SparkSession, texts: Sequence[str]) -> str:
    """Return the columns of JSON objects as DDL.

    Raises:
        SampleError: none of the texts is a JSON object with a field.
    """
    rows = spark.createDataFrame([(text,) for text in texts], "text STRING")
    found = spark.read.option("mode", "DROPMALFORMED").json(rows).schema
    if not found.fields:
        raise SampleError(
            f"decode.schema: read infer, and none of {len(texts)} messages in the queue is an "
            "object with fields; allowed: columns as DDL"
        )
    return found.toDDL()


def sample_texts(options: SourceOptions, decoder: DecoderOptions | None, limit: int) -> list[str]:
    """Return some of the queue's payloads as JSON texts; they stay in the queue.

    Raises:
        SampleError: the queue is empty.
        QueueUnavailableError: it does not answer.
    """
    reader = QueueReader(options)
    payloads: list[bytes] = []
    try:
        start, end = reader.located("earliest"), reader.located("latest")
        for wanted in reader.ranges(start, end):
            part = replace(wanted, end=min(wanted.end, wanted.start + limit))
            for batch in reader.read(part):
                payloads += batch.column(PAYLOAD).to_pylist()
    finally:
        reader.close()
    if not payloads:
        raise SampleError(
            f"decode.schema: read infer, and queue {options.shown_queues} is empty; allowed: "
            "columns as DDL, or a queue with messages when the pipeline is first run"
        )
    texts = []
    for payload in payloads:
        try:
            text = payload.decode() if decoder is None else load_decoder(decoder).to_json(payload)
        except (UnicodeDecodeError, DecodeError):
            continue  # a payload that cannot be decoded has no columns
        texts.append(text)
    return texts


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
