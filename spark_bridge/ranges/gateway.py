"""Reads ranges of messages from the queue's HTTP API."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.errors import QueueUnavailableError
from penstock.spark_bridge.offsets import Range
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.rows import Frames, RowOrigin, to_record_batch
from penstock.spark_bridge.schema import wire_columns


class Piece(NamedTuple):
    """Some messages of a range.

    Attributes:
        batch: the messages as the source's columns; None where none matches.
        next_offset: the offset at which to read on; the range's end where all of it was read.
        looked_at: the number of messages of the range below that offset, including those that match
            no topic filter.
    """

    batch: pa.RecordBatch | None
    next_offset: int
    looked_at: int


class GatewayRanges:
    """Reads ranges, of which a piece is one answer of some MiB."""

    def __init__(self, options: SourceOptions, client: QueueClient) -> None:
        self._options = options
        self._client = client

    def read(self, wanted: Range, start: int, origin: RowOrigin) -> Piece:
        """Return the messages of a range from an offset on, or the first of them.

        Raises:
            QueueError: a refusal of the HTTP API, or no answer. The request may be repeated.
            BridgeError: repeating the request is of no use.
        """
        options = self._options
        answer = self._client.read_columns(
            wanted.queue,
            wanted.physical_queue,
            start,
            wanted.end,
            wire_columns(options.columns),
            topic_filters=options.topic_filters,
            incarnation=wanted.incarnation,
        )
        batch = None
        if answer.frames:
            try:
                batch = to_record_batch(Frames(answer.frames), options.columns, origin)
            except ValueError as error:
                raise QueueUnavailableError(
                    f"queue {wanted.queue!r} at {options.url}: answer to a range: {error}"
                ) from error
        return Piece(batch, answer.next_offset, answer.looked_at)

    def close(self) -> None:
        """Close the connection; the reader may be used again."""
        self._client.close()
