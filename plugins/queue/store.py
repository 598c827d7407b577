"""Where an engine of one process keeps its segments: what `engine_local` asks of a storage.

Messages lie in *segments*: runs of up to a few hundred messages of one physical queue, encoded
as one frame of the batch format. One write of a segment costs about as much as one of a single
message, and a range is read without looking at its messages. What is deleted from the middle of
a segment is kept as a bit map until the whole segment can go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from penstock.plugins.queue.engine import Usage

Key: TypeAlias = tuple[str, int]
"""Logical queue and number of a physical queue."""


class NewSegment(NamedTuple):
    """A segment to be stored.

    Attributes:
        key: its physical queue.
        first_offset: offset of its first message; the physical queue's next one.
        n_messages: messages in it.
        newest_at: arrival of its last message, seconds since the Unix epoch.
        frame: its messages in the batch format.
    """

    key: Key
    first_offset: int
    n_messages: int
    newest_at: float
    frame: bytes


class Mark(NamedTuple):
    """Messages of one segment to be deleted.

    Attributes:
        key: its physical queue.
        first_offset: of the segment.
        n_messages: messages that the segment was stored with.
        bits: bit i stands for the message with offset ``first_offset + i``.
    """

    key: Key
    first_offset: int
    n_messages: int
    bits: int


class StoredSegment(NamedTuple):
    """A segment as read.

    Attributes:
        first_offset: offset of its first message.
        n_messages: messages it was stored with.
        gone: bit map of those that were deleted, as in `Mark`.
        frame: its messages, deleted ones included.
    """

    first_offset: int
    n_messages: int
    gone: int
    frame: bytes


def wanted_bits(first_offset: int, n_messages: int, gone: int, start: int, end: int) -> int:
    """Return the bit map of a segment's messages that lie in ``[start, end)`` and are there."""
    below = max(0, min(start - first_offset, n_messages))
    behind = max(0, min(end - first_offset, n_messages))
    in_range = (1 << behind) - (1 << below) if behind > below else 0
    return in_range & ~gone


class Store(Protocol):
    """Segments of all physical queues.

    `write`, `truncate` and `set_aside` are called by one thread at a time, `read` by any.

    Attributes:
        usage: what each physical queue holds; entries are replaced when a change is safe.
        aside: messages of each physical queue that are set aside, where there are any.
        tightened: names of its files that others could read, and no longer can.
    """

    usage: dict[Key, Usage]
    aside: dict[Key, int]
    tightened: Sequence[str]

    def open(self, queues: Mapping[str, int]) -> None:
        """Open the storage and make the physical queues that are missing.

        Args:
            queues: logical queue to its number of physical queues.

        Raises:
            EngineStartError: with what stands in the way.
        """

    def close(self) -> None:
        """Free everything; may be called again."""

    def write(self, segments: Sequence[NewSegment], marks: Sequence[Mark]) -> None:
        """Store segments and delete messages, all or nothing; safe when it returns.

        Segments of one physical queue come in the order of their offsets. A mark on a
        segment that is not there does nothing.

        Raises:
            StorageError: nothing has changed.
        """

    def truncate(self, key: Key, below: int) -> int:
        """Delete messages of a physical queue below an offset; return how many.

        It may stop on the way; ``usage[key].earliest`` then says how far it came, and is at
        least `below` when it is done.

        Raises:
            StorageError: nothing has changed.
        """

    def set_aside(self, key: Key, first_offset: int) -> int:
        """Take a segment that cannot be read out of its physical queue, and keep what it is.

        Returns:
            Messages that are set aside by this; 0 where the segment is not there any more.

        Raises:
            StorageError: nothing has changed.
        """

    def why_lost(self) -> str:
        """Say which file was deleted or replaced under the store; "" for none."""

    def older_than(self, key: Key, enqueued_before: float) -> int:
        """Return the offset below which every segment is older; the earliest where none is.

        Raises:
            StorageError: the storage cannot be read.
        """

    def read(
        self, key: Key, start: int, end: int, max_messages: int, max_bytes: int
    ) -> list[StoredSegment]:
        """Return the segments that hold messages with offsets in ``[start, end)``, in order.

        It stops after the segment with which `max_messages` or `max_bytes` is reached, and before
        one that cannot be read.

        Raises:
            BrokenSegmentError: the first one cannot be read.
            StorageError: the storage cannot be read.
        """
