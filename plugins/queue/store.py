"""The storage of an engine of one process: what `engine_local` needs of it.

Messages are stored in *segments*: runs of up to a few hundred messages of one physical queue,
encoded as one frame of the batch format. Writing a segment costs about as much as writing a single
message, and a range is read without decoding its messages. Deletes in the middle of a segment are
kept as a bit map until the whole segment can be deleted.
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
        n_messages: messages in the segment when it was stored.
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
        n_messages: messages in it when it was stored.
        gone: bit map of those that were deleted, as in `Mark`.
        frame: its messages, deleted ones included.
    """

    first_offset: int
    n_messages: int
    gone: int
    frame: bytes


def wanted_bits(first_offset: int, n_messages: int, gone: int, start: int, end: int) -> int:
    """Return the bit map of a segment's existing messages in ``[start, end)``."""
    below = max(0, min(start - first_offset, n_messages))
    behind = max(0, min(end - first_offset, n_messages))
    in_range = (1 << behind) - (1 << below) if behind > below else 0
    return in_range & ~gone


class Store(Protocol):
    """Segments of all physical queues.

    `write`, `truncate` and `set_aside` are called by one thread at a time, `read` by any.

    Attributes:
        usage: what each physical queue holds; an entry is replaced when a change is safe.
        aside: messages of each physical queue that are set aside, where there are any.
        tightened: names of its files that other users could read until now.
    """

    usage: dict[Key, Usage]
    aside: dict[Key, int]
    tightened: Sequence[str]

    def open(self, queues: Mapping[str, int]) -> None:
        """Open the storage and create missing physical queues.

        Args:
            queues: logical queue to its number of physical queues.

        Raises:
            EngineStartError: says why the storage cannot be opened.
        """

    def close(self) -> None:
        """Free everything; may be called again."""

    def write(self, segments: Sequence[NewSegment], marks: Sequence[Mark]) -> None:
        """Store segments and delete messages, all or nothing; safe when it returns.

        Segments of one physical queue come in the order of their offsets. A mark on a missing
        segment does nothing.

        Raises:
            StorageError: nothing has changed.
        """

    def truncate(self, key: Key, below: int) -> int:
        """Delete messages of a physical queue below an offset; return how many.

        It may stop early; ``usage[key].earliest`` then says how far it came, and is at least
        `below` when it is done.

        Raises:
            StorageError: nothing has changed.
        """

    def set_aside(self, key: Key, first_offset: int) -> int:
        """Take a segment that cannot be read out of its physical queue, and keep its bytes.

        Returns:
            Messages that were set aside; 0 where the segment no longer exists.

        Raises:
            StorageError: nothing has changed.
        """

    def why_lost(self) -> str:
        """Name the file that was deleted or replaced while the store was open; "" for none."""

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
