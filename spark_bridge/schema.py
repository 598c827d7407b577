"""The columns of a message in Spark, and the parts of a message that each needs.

It is importable without pyarrow, for `penstock spark --help`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

USER_PROPERTIES: Final = "MAP<STRING, ARRAY<STRING>>"
"""Spark's type of User Properties: a name may come several times, with its values in order."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the source.

    Attributes:
        needs: the columns of a range that must be transferred for it.
    """

    name: str
    spark_type: str
    nullable: bool
    needs: tuple[str, ...]


COLUMNS: Final = (
    Column("queue", "STRING", False, ()),
    Column("physical_queue", "INT", False, ()),
    Column("offset", "BIGINT", False, ()),
    Column("topic", "STRING", False, ("topic",)),
    Column("payload", "BINARY", False, ("payload",)),
    Column("qos", "TINYINT", False, ("qos",)),
    Column("retain", "BOOLEAN", False, ("properties",)),
    Column("publish_time", "TIMESTAMP", True, ("properties",)),
    Column("arrival_time", "TIMESTAMP", False, ("enqueued_at",)),
    Column("publisher", "STRING", True, ("publisher",)),
    Column("content_type", "STRING", True, ("properties",)),
    Column("response_topic", "STRING", True, ("properties",)),
    Column("correlation_data", "BINARY", True, ("properties",)),
    Column("expiry_seconds", "BIGINT", True, ("properties",)),
    Column("user_properties", USER_PROPERTIES, True, ("properties",)),
    Column("key", "STRING", True, ("topic", "publisher", "properties")),
    Column("size_class", "STRING", False, ("payload_bytes",)),
    Column("properties", "STRING", True, ("properties",)),
)
"""The columns in the order of a row.

``queue``, ``physical_queue`` and ``offset`` together identify a message.
``docs/reference/spark.md`` says what each holds.
"""

BY_NAME: Final = {column.name: column for column in COLUMNS}

DEFAULT_COLUMNS: Final = tuple(one.name for one in COLUMNS if one.name != "properties")
"""The default columns: all but `properties`, whose content other columns have."""


def spark_ddl(names: Sequence[str]) -> str:
    """Return columns as Spark's DDL."""
    columns = [BY_NAME[name] for name in names]
    return ", ".join(
        f"`{one.name}` {one.spark_type}{'' if one.nullable else ' NOT NULL'}" for one in columns
    )


def wire_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a range that the named ones need, each once."""
    return tuple(dict.fromkeys(need for name in names for need in BY_NAME[name].needs))
