"""Ranges out of the queue's HTTP API."""

from __future__ import annotations

from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.errors import QueueUnavailableError
from penstock.spark_bridge.offsets import Range
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.ranges.contract import Piece
from penstock.spark_bridge.rows import Frames, Place, to_record_batch
from penstock.spark_bridge.schema import wire_columns


class GatewayRanges:
    """Reads ranges; a piece is one answer, of some MiB.

    Args:
        options: checked options.
        client: of the queues.
    """

    def __init__(self, options: SourceOptions, client: QueueClient) -> None:
        self._options = options
        self._client = client

    def read(self, wanted: Range, start: int, place: Place) -> Piece:
        """Return one answer."""
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
                batch = to_record_batch(Frames(answer.frames), options.columns, place)
            except ValueError as error:
                raise QueueUnavailableError(
                    f"queue {wanted.queue!r} at {options.url}: answer to a range: {error}"
                ) from error
        return Piece(batch, answer.next_offset, answer.looked_at)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
