from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark_bridge.rows import arrow_schema
from penstock.spark_bridge.schema import (
    BY_NAME,
    COLUMNS,
    DEFAULT_COLUMNS,
    USER_PROPERTIES,
    spark_ddl,
    wire_columns,
)

SPARK_TYPES = {
    "BIGINT": LongType(),
    "BINARY": BinaryType(),
    "BOOLEAN": BooleanType(),
    "INT": IntegerType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampType(),
    "TINYINT": ByteType(),
    USER_PROPERTIES: MapType(StringType(), ArrayType(StringType())),
}


def test_arrow_and_spark_agree_on_every_column() -> None:
    """Spark refuses a record batch whose schema is not its own translation of the columns."""
    fields = [StructField(one.name, SPARK_TYPES[one.spark_type], one.nullable) for one in COLUMNS]
    spark_schema = to_arrow_schema(StructType(fields), timezone="UTC")
    assert spark_schema.equals(arrow_schema(list(BY_NAME)))


def test_columns_come_in_the_order_in_which_they_are_named() -> None:
    """As a select would do it."""
    assert spark_ddl(["topic", "offset"]) == "`topic` STRING NOT NULL, `offset` BIGINT NOT NULL"
    assert arrow_schema(["topic", "offset"]).names == ["topic", "offset"]


def test_only_what_the_columns_need_crosses_the_wire() -> None:
    """Payloads above all; each once."""
    assert wire_columns(["offset", "queue"]) == ()
    assert wire_columns(["size_class", "qos"]) == ("payload_bytes", "qos")
    assert wire_columns(["retain", "content_type"]) == ("properties",)


def test_the_documentation_lists_the_columns() -> None:
    """A user reads the table, not the source."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text()
    table = text.partition("| column | type |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert names == [one.name for one in COLUMNS]
    assert [*DEFAULT_COLUMNS, "properties"] == names
