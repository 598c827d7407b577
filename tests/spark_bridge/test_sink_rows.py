from __future__ import annotations

from typing import Any

import pytest

from penstock.spark_bridge.errors import OptionError, RowError
from penstock.spark_bridge.sink_rows import COLUMN_TYPES, check_columns, to_row

ALL: dict[str, Any] = {
    "topic": "a",
    "payload": bytearray(b"\0\xff"),
    "qos": 2,
    "retain": True,
    "expiry": 60,
    "content_type": "x",
    "response_topic": "r",
    "correlation_data": "c",
    "user_properties": {"a": "b"},
}


def test_each_column_becomes_what_the_api_takes() -> None:
    """Bytes in base64; the rest as MQTT 5 properties."""
    assert set(ALL) == set(COLUMN_TYPES)
    assert to_row(list(ALL), ALL.values(), {}, "row") == (
        {
            "topic": "a",
            "payload": "AP8=",
            "qos": 2,
            "retain": True,
            "properties": {
                "message_expiry_interval": 60,
                "content_type": "x",
                "response_topic": "r",
                "correlation_data": "Yw==",
                "user_property": [["a", "b"]],
            },
        },
        2,
    )


def test_an_option_stands_where_a_column_is_null_or_missing() -> None:
    """Any other value of the row counts. A text is a payload in UTF-8."""
    defaults = {"topic": "d", "qos": 0, "user_properties": [("a", "b")]}
    row, n_bytes = to_row(["topic", "payload", "qos"], [None, "ü", 1], defaults, "row")
    assert (row["topic"], row["qos"], n_bytes) == ("d", 1, 2)
    assert row["properties"] == {"user_property": [["a", "b"]]}
    assert to_row(["topic", "payload"], ["t", ""], {}, "row")[0] == {"topic": "t", "payload": ""}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"topic": None}, "partition 2, row 7: topic: read null; allowed: string"),
        ({"payload": None}, "partition 2, row 7: payload: read null; allowed: binary or string"),
        ({"user_properties": {"a": None}}, "partition 2, row 7: user_properties: read null"),
    ],
)
def test_a_missing_value_is_named(changed: dict[str, Any], told: str) -> None:
    """By partition, row and column."""
    with pytest.raises(RowError) as raised:
        to_row(list(ALL), (ALL | changed).values(), {}, "partition 2, row 7")
    assert told in raised.value.text


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ({"topic": "string"}, "column 'payload': read none"),
        ({"payload": "string"}, "column 'topic': read none; allowed: the column or the option"),
        ({"topic": "string", "payload": "string", "key": "string"}, "column 'key': read an unknow"),
        ({"topic": "int", "payload": "string"}, "column 'topic': read type int; allowed: string"),
        (
            {"topic": "string", "payload": "binary", "user_properties": "map<string,int>"},
            "column 'user_properties': read type map<string,int>; allowed: map<string,string> or",
        ),
    ],
)
def test_a_wrong_column_is_named(types: dict[str, str], told: str) -> None:
    """Before a task runs."""
    with pytest.raises(OptionError) as raised:
        check_columns(types, {})
    assert told in raised.value.text


def test_columns_may_be_of_several_types() -> None:
    """Any whole number, bytes or texts, maps or pairs; and nulls alone."""
    check_columns(
        {
            "topic": "string",
            "payload": "binary",
            "qos": "tinyint",
            "expiry": "bigint",
            "content_type": "void",
            "user_properties": "array<struct<name:string,value:string>>",
        },
        {},
    )
    check_columns({"payload": "string"}, {"topic": "a"})
