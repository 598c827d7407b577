from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.plugins.queue.batch_format import Selection, write_batch
from penstock.plugins.queue.wire.frames import Batch
from penstock.spark_bridge.rows import Frames, RowOrigin, arrow_schema, to_record_batch
from penstock.spark_bridge.schema import BY_NAME, wire_columns

PLACE = RowOrigin("telemetry", 3, None, 10)

PROPERTIES = {
    "content_type": "text/plain",
    "response_topic": "answers/1",
    "correlation_data": "AP8=",
    "message_expiry_interval": 4_294_967_295,
    "user_property": [
        ["site", "north"],
        ["hop", "1"],
        ["hop", "2"],
        ["penstock-published-at", "1700000000.25"],
    ],
    "retain": True,
}


def frame(first: int = 41, **columns: list[Any]) -> bytes:
    """Return a frame of two messages."""
    values: dict[str, list[Any]] = {
        "offset": [first, first + 1],
        "topic": ["telemetry/a/cpu", "größe"],
        "payload": [b"\x00\xff" * 6, b""],
        "qos": [0, 2],
        "publisher": ["probe", ""],
        "enqueued_at": [1_700_000_000.123456, 0.0],
        "properties": [json.dumps(PROPERTIES), ""],
    }
    return write_batch(Batch(**(values | columns)))


def test_every_field_arrives_in_its_column() -> None:
    """A message is the same in Spark as in the queue."""
    rows = to_record_batch(Frames(frame()), list(BY_NAME), PLACE)
    assert rows.schema.equals(arrow_schema(list(BY_NAME)))
    assert rows.to_pylist() == [
        {
            "queue": "telemetry",
            "physical_queue": 3,
            "offset": 41,
            "topic": "telemetry/a/cpu",
            "payload": b"\x00\xff" * 6,
            "qos": 0,
            "retain": True,
            "publish_time": datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC),
            "arrival_time": datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC),
            "publisher": "probe",
            "content_type": "text/plain",
            "response_topic": "answers/1",
            "correlation_data": b"\x00\xff",
            "expiry_seconds": 4_294_967_295,
            "user_properties": [
                ("site", ["north"]),
                ("hop", ["1", "2"]),
                ("penstock-published-at", ["1700000000.25"]),
            ],
            "key": None,
            "size_class": "large",
            "properties": json.dumps(PROPERTIES),
        },
        {
            "queue": "telemetry",
            "physical_queue": 3,
            "offset": 42,
            "topic": "größe",
            "payload": b"",
            "qos": 2,
            "retain": False,
            "publish_time": None,
            "arrival_time": datetime(1970, 1, 1, tzinfo=UTC),
            "publisher": None,
            "content_type": None,
            "response_topic": None,
            "correlation_data": None,
            "expiry_seconds": None,
            "user_properties": None,
            "key": None,
            "size_class": "small",
            "properties": None,
        },
    ]


def test_frames_are_joined_in_their_order() -> None:
    """Each has a dictionary of its own."""
    frames = frame() + frame(43, topic=["x", "telemetry/a/cpu"], properties=["", ""])
    rows = to_record_batch(Frames(frames), list(BY_NAME), PLACE)
    assert rows.column("offset").to_pylist() == [41, 42, 43, 44]
    assert rows.column("topic").to_pylist() == ["telemetry/a/cpu", "größe", "x", "telemetry/a/cpu"]
    assert rows.column("payload").to_pylist() == [b"\x00\xff" * 6, b""] * 2
    assert rows.column("content_type").to_pylist() == ["text/plain", None, None, None]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_column_needs_no_more_of_the_wire_than_it_says(name: str) -> None:
    """It is the same as among all others."""
    whole = frame()
    cut = b"".join(Selection(frozenset(wire_columns([name]))).cut(whole))
    alone = to_record_batch(Frames(cut * 2), [name], PLACE)
    assert alone.schema.equals(arrow_schema([name]))
    expected = to_record_batch(Frames(whole), list(BY_NAME), PLACE).column(name).to_pylist()
    assert alone.column(name).to_pylist() == expected * 2


@pytest.mark.parametrize(
    ("setting", "keys"),
    [
        (None, ["own", None]),
        ("topic", ["own", "b/2"]),
        ("topic:1", ["own", "2"]),
        ("publisher", ["own", "second"]),
        ("property:site", ["own", "north"]),
        ("property:other", ["own", None]),
    ],
)
def test_a_key_is_the_messages_own_or_what_the_queue_says(
    setting: str | None, keys: list[str | None]
) -> None:
    """By the queue's own rule."""
    properties = [
        json.dumps({"user_property": [["site", "south"], ["penstock-key", "own"]]}),
        json.dumps({"user_property": [["site", "north"]]}),
    ]
    body = frame(topic=["a/1", "b/2"], publisher=["first", "second"], properties=properties)
    rows = to_record_batch(Frames(body), ["key"], PLACE._replace(key=setting))
    assert rows.column("key").to_pylist() == keys


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", "1e30"])
def test_a_publish_time_that_is_none_is_null(text: str) -> None:
    """A publisher may write anything."""
    properties = json.dumps({"user_property": [["penstock-published-at", text]]})
    rows = to_record_batch(Frames(frame(properties=[properties, ""])), ["publish_time"], PLACE)
    assert rows.column("publish_time").null_count == 2


def test_what_is_no_row_of_frames_is_an_error() -> None:
    """Nothing is taken for messages that is none."""
    for body in (b"x" * 30, frame()[:-1], frame() + b"PQB2" + bytes(16)):
        with pytest.raises(ValueError, match="no whole frame of records"):
            to_record_batch(Frames(body), ["topic"], PLACE)
