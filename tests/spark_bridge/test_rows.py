from __future__ import annotations

from datetime import UTC, datetime

from penstock.plugins.queue.client import Batch
from penstock.spark_bridge.rows import to_record_batch
from penstock.spark_bridge.schema import ARROW_SCHEMA


def test_every_field_arrives_in_its_column() -> None:
    """A message is the same in Spark as in the queue."""
    batch = Batch(
        offset=[41, 42],
        topic=["telemetry/a/cpu", "größe"],
        payload=[b"\x00\xff", b""],
        qos=[0, 2],
        publisher=["probe", ""],
        enqueued_at=[1_700_000_000.123456, 0.0],
        properties=['{"user_property": [["k", "v"]]}', ""],
    )
    rows = to_record_batch(3, batch)
    assert rows.schema.equals(ARROW_SCHEMA)
    assert rows.to_pylist() == [
        {
            "physical_queue": 3,
            "offset": 41,
            "topic": "telemetry/a/cpu",
            "payload": b"\x00\xff",
            "qos": 0,
            "publisher": "probe",
            "enqueued_at": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC),
            "properties": '{"user_property": [["k", "v"]]}',
        },
        {
            "physical_queue": 3,
            "offset": 42,
            "topic": "größe",
            "payload": b"",
            "qos": 2,
            "publisher": "",
            "enqueued_at": datetime(1970, 1, 1, tzinfo=UTC),
            "properties": None,
        },
    ]


def test_an_empty_batch_is_an_empty_record_batch() -> None:
    """No message, no row, the same columns."""
    rows = to_record_batch(0, Batch([], [], [], [], [], [], []))
    assert rows.num_rows == 0
    assert rows.schema.equals(ARROW_SCHEMA)
