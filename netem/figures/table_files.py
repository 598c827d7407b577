"""Files of rows: Parquet or CSV, a file for each kind of row."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import csv, parquet

from penstock.netem.errors import NetemError
from penstock.netem.figures.table_rows import (
    DeliveryRow,
    ExpectedRow,
    LinkRow,
    MachineRow,
    MemoryRow,
    MessageRow,
    PacketsRow,
    RunRow,
    WithheldRow,
)

Row = TypeVar("Row", bound=tuple[Any, ...])


class Format(enum.StrEnum):
    """The format of the files of tables."""

    PARQUET = "parquet"
    CSV = "csv"


NAMES: Final[dict[type[tuple[Any, ...]], str]] = {
    MessageRow: "messages",
    DeliveryRow: "deliveries",
    ExpectedRow: "expected",
    MemoryRow: "memory",
    WithheldRow: "withheld",
    LinkRow: "links",
    PacketsRow: "packets",
    RunRow: "runs",
    MachineRow: "machine",
}
"""The name of the file of each kind of row, without its suffix, and of the attribute of
`penstock.netem.figures.table_rows.Tables`."""

_TYPES: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def write_table(
    folder: Path, kind: type[Row], rows: Iterable[Row], form: Format = Format.PARQUET
) -> Path:
    """Write rows of one kind.

    Returns:
        The file, ``folder/NAME.FORMAT``; what was there before is replaced.
    """
    schema = _schema(kind)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    table = pa.Table.from_arrays(
        [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)],
        schema=schema,
    )
    path = folder / f"{NAMES[kind]}.{form}"
    if form is Format.PARQUET:
        parquet.write_table(table, path)
    else:
        csv.write_csv(table, path)
    return path


def read_table(folder: Path, kind: type[Row]) -> list[Row]:
    """Read what `write_table` has written, in either format.

    Raises:
        NetemError: there is no such file, or it holds something else.
    """
    path = folder / f"{NAMES[kind]}.{Format.PARQUET}"
    schema = _schema(kind)
    try:
        if path.exists():
            table = parquet.read_table(path)
        else:
            path = path.with_suffix(f".{Format.CSV}")
            options = csv.ConvertOptions(
                column_types=schema, strings_can_be_null=False, null_values=[""]
            )
            table = csv.read_csv(path, convert_options=options)
    except (OSError, pa.ArrowException) as error:
        raise NetemError(f"{path}: {error}") from error
    # CSV knows no column that must have a value.
    if [(c.name, c.type) for c in table.schema] != [(c.name, c.type) for c in schema]:
        raise NetemError(f"{path}: read columns {table.schema.names}; allowed: {schema.names}")
    return [kind(*values) for values in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def _schema(kind: type[tuple[Any, ...]]) -> pa.Schema:
    fields = []
    for name, hint in typing.get_type_hints(kind).items():
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        (plain,) = (each for each in options if each is not types.NoneType)
        fields.append(pa.field(name, _TYPES[plain], nullable=plain is not hint))
    return pa.schema(fields)
