"""Converts rows of a DataFrame to rows of the broker's API; importable without Spark."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.spark_bridge.errors import OptionError, RowError

_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")
_PAIRS: Final = "map<string,string> or array<struct<name:string,value:string>>"

COLUMN_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "qos": _NUMBERS,
    "retain": ("boolean",),
    "expiry": _NUMBERS,
    "content_type": ("string",),
    "response_topic": ("string",),
    "correlation_data": ("binary", "string"),
    "user_properties": (_PAIRS,),
}
"""Spark's types of each column, in the order of the documentation."""

_PROPERTIES: Final = {
    "expiry": "message_expiry_interval",
    "content_type": "content_type",
    "response_topic": "response_topic",
    "correlation_data": "correlation_data",
    "user_properties": "user_property",
}
"""The MQTT 5 property of each column."""


def check_columns(types: Mapping[str, str], defaults: Mapping[str, Any]) -> None:
    """Check the columns of a DataFrame.

    Args:
        types: Spark's short name of the type, by column; "void" for a column of nulls alone.
        defaults: the columns for which there is an option.

    Raises:
        OptionError: a column is missing, unknown or of another type.
    """
    for name, kind in types.items():
        if name not in COLUMN_TYPES:
            raise OptionError(
                f"column {name!r}: read an unknown name; allowed: {', '.join(COLUMN_TYPES)}: "
                "select these before writing"
            )
        allowed = COLUMN_TYPES[name]
        is_pairs = name == "user_properties" and (
            kind == "map<string,string>"
            or (kind.startswith("array<struct<") and kind.count(":string") == 2)
        )
        if kind not in (*allowed, "void") and not is_pairs:
            raise OptionError(f"column {name!r}: read type {kind}; allowed: {' or '.join(allowed)}")
    if "payload" not in types:
        raise OptionError("column 'payload': read none; allowed: binary or string")
    if "topic" not in types and "topic" not in defaults:
        raise OptionError("column 'topic': read none; allowed: the column or the option 'topic'")


def to_row(
    names: Sequence[str], values: Iterable[Any], defaults: Mapping[str, Any], place: str
) -> tuple[dict[str, Any], int]:
    """Return (a row as the API takes it, bytes of its payload).

    Raises:
        RowError: a value is missing or of a wrong kind.
    """
    given = {**defaults, **{k: v for k, v in zip(names, values, strict=True) if v is not None}}
    for name in ("topic", "payload"):
        if name not in given:
            allowed = COLUMN_TYPES[name]
            raise RowError(f"{place}: {name}: read null; allowed: {' or '.join(allowed)}")
    payload = _bytes(given["payload"])
    row: dict[str, Any] = {"topic": given["topic"], "payload": base64.b64encode(payload).decode()}
    for name in ("qos", "retain"):
        if name in given:
            row[name] = given[name]
    properties = {
        known: _property(name, given[name], place)
        for name, known in _PROPERTIES.items()
        if name in given
    }
    if properties:
        row["properties"] = properties
    return row, len(payload)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _property(name: str, value: Any, place: str) -> Any:
    if name == "correlation_data":
        return base64.b64encode(_bytes(value)).decode()
    if name != "user_properties":
        return value
    pairs = [list(pair) for pair in (value.items() if isinstance(value, dict) else value)]
    for pair in pairs:
        if None in pair:
            raise RowError(f"{place}: {name}: read null in {pair}; allowed: texts")
    return pairs
