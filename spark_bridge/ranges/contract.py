"""What reads the messages of a range."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.spark_bridge.offsets import Range
from penstock.spark_bridge.rows import Place


class Piece(NamedTuple):
    """Some messages of a range.

    Attributes:
        batch: the source's columns; None where no message matches.
        next_offset: where to read on; the range's end where all of it was read.
        looked_at: messages of the range below that, with those that match no topic filter.
    """

    batch: pa.RecordBatch | None
    next_offset: int
    looked_at: int


class RangeReader(Protocol):
    """Reads ranges, a piece at a time; a range is always read the same way."""

    def read(self, wanted: Range, start: int, place: Place) -> Piece:
        """Return the messages of a range from an offset on, or some of them.

        Raises:
            QueueError: a refusal as of the HTTP API, or no answer. It may be asked again.
            BridgeError: asking again is of no use.
        """

    def close(self) -> None:
        """Close connections; the reader may be used again."""
