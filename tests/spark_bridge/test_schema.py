from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark_bridge.schema import ARROW_SCHEMA, COLUMNS, SPARK_DDL

SPARK_TYPES = {
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "TINYINT": ByteType(),
    "TIMESTAMP": TimestampType(),
}


def test_arrow_and_spark_agree_on_every_column() -> None:
    """Spark refuses a record batch whose schema is not its own translation of the columns."""
    spark_schema = StructType(
        [
            StructField(name, SPARK_TYPES[spark_type], nullable)
            for name, spark_type, _, nullable in COLUMNS
        ]
    )
    assert to_arrow_schema(spark_schema, timezone="UTC").equals(ARROW_SCHEMA)


def test_the_ddl_lists_the_columns_in_order() -> None:
    """The text for Spark is the table's."""
    assert SPARK_DDL.startswith("physical_queue INT NOT NULL, offset BIGINT NOT NULL, topic STRING")
    assert SPARK_DDL.endswith("properties STRING")
    assert isinstance(ARROW_SCHEMA, pa.Schema)


def test_the_documentation_lists_the_columns() -> None:
    """A user reads the table, not the source."""
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    table = text.partition("| column | type |")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row)]
    assert names == [name for name, *_ in COLUMNS]
