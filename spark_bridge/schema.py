"""The columns of a message in Spark: one table, once as Arrow and once as Spark's DDL."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

COLUMNS: Final[tuple[tuple[str, str, pa.DataType, bool], ...]] = (
    ("physical_queue", "INT", pa.int32(), False),
    ("offset", "BIGINT", pa.int64(), False),
    ("topic", "STRING", pa.string(), False),
    ("payload", "BINARY", pa.binary(), False),
    ("qos", "TINYINT", pa.int8(), False),
    ("publisher", "STRING", pa.string(), False),
    ("enqueued_at", "TIMESTAMP", pa.timestamp("us", tz="UTC"), False),
    ("properties", "STRING", pa.string(), True),
)
"""Name, Spark's type, Arrow's type, and whether the column may be null, in the order of a row.

``physical_queue`` and ``offset`` together identify a message; ``publisher`` is the client id;
``properties`` are the MQTT 5 properties as a JSON text, null where there are none.
"""

ARROW_SCHEMA: Final = pa.schema(
    [pa.field(name, arrow_type, nullable=nullable) for name, _, arrow_type, nullable in COLUMNS]
)
"""Schema of every record batch of the source; Spark compares it with its own."""

SPARK_DDL: Final = ", ".join(
    f"{name} {spark_type}{'' if nullable else ' NOT NULL'}"
    for name, spark_type, _, nullable in COLUMNS
)
"""The same columns for Spark."""
