"""A batch of the queue's client as an Arrow record batch, a column at a time."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.plugins.queue.client import Batch
from penstock.spark_bridge.schema import ARROW_SCHEMA

_NO_PROPERTIES: Final = pa.scalar(None, pa.string())
_MICROSECONDS: Final = 1_000_000.0


def to_record_batch(physical_queue: int, batch: Batch) -> pa.RecordBatch:
    """Convert a batch column by column, without a Python step for each message.

    Args:
        physical_queue: of the messages.
        batch: parallel lists of one length.

    Returns:
        A record batch of ``ARROW_SCHEMA`` with the messages in the order of the batch.
    """
    properties = pa.array(batch.properties, pa.string())
    seconds = pa.array(batch.enqueued_at, pa.float64())
    microseconds = pc.round(pc.multiply(seconds, _MICROSECONDS)).cast(pa.int64())
    columns = [
        pa.repeat(pa.scalar(physical_queue, pa.int32()), len(batch.offset)),
        pa.array(batch.offset, pa.int64()),
        pa.array(batch.topic, pa.string()),
        pa.array(batch.payload, pa.binary()),
        pa.array(batch.qos, pa.int8()),
        pa.array(batch.publisher, pa.string()),
        microseconds.cast(pa.timestamp("us", tz="UTC")),
        pc.if_else(pc.equal(properties, ""), _NO_PROPERTIES, properties),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
