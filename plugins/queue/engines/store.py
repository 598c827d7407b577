"""The interface of a store, and the rows that it keeps for the local engine.

Messages are stored in *segments*: runs of up to a few hundred messages of one physical queue,
encoded as one frame of the batch format. Writing a segment costs about as much as writing a single
message, and a range is read without decoding its messages. What left a segment in its middle is
kept as a bit map until the whole segment can be deleted; what one group has settled, as another.

A store knows nothing of queues and groups but rows, which the engine makes and reads. It writes the
rows of one transaction all or none. Physical queues and groups are named by row numbers, which are
never reused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from penstock.plugins.queue.engines.contract import StorageError

EXPIRES = 1
"""The flag of a segment in which a message has a Message Expiry Interval."""
DELAYED = 2
"""The flag of a segment in which a message has a delay of its own."""


class BrokenSegmentError(StorageError):
    """A segment cannot be read; those after it can, once it is set aside.

    Attributes:
        first_offset: the first offset of the segment.
    """

    def __init__(self, physical_id: int, first_offset: int, why: str) -> None:
        super().__init__(f"the segment at offset {first_offset} cannot be read: {why}")
        self.physical_id = physical_id
        self.first_offset = first_offset
        self.why = why


class Segment(NamedTuple):
    """What is known of a segment without reading it.

    Attributes:
        first_offset: offset of its first message.
        n_messages: messages in it when it was stored.
        payload_bytes: the payload bytes of these messages.
        stored_bytes: the bytes of its frame.
        newest_at: arrival of its last message, seconds since the Unix epoch.
        newest_clock: the arrival of its last message in seconds of the engine's clock.
    """

    first_offset: int
    n_messages: int
    payload_bytes: int
    stored_bytes: int
    newest_at: float
    newest_clock: float
    flags: int


class QueueRow(NamedTuple):
    """A logical queue; its settings are JSON."""

    row_id: int
    name: str
    incarnation: str
    spec: str


class PhysicalRow(NamedTuple):
    """A physical queue; `queue_id` is the row number of its logical queue."""

    row_id: int
    queue_id: int
    number: int
    earliest: int
    next: int
    messages: int
    payload_bytes: int
    stored_bytes: int


COPIED: Final = "copied"
"""The name of the row of `Rows.meta` that marks a copy of the storage which no engine has opened
yet."""


class GroupRow(NamedTuple):
    """A group; `used_at` of its newest request is the engine's time less `StorageClock.away`."""

    row_id: int
    queue_id: int
    name: str
    spec: str
    epoch: int
    used_at: float


class DeduplicationRow(NamedTuple):
    """A deduplication identifier and its message; `stored_at` is as `used_at` of groups."""

    queue_id: int
    identifier: bytes
    stored_at: float
    number: int
    offset: int


@dataclass(slots=True)
class Rows:
    """All rows except the frames of segments, as read at the start.

    Attributes:
        floors: offset below which a group has settled everything, by group and physical queue.
        segments: the segments by physical queue, in ascending order of offsets.
        gone: bit map and payload bytes of messages that left a segment, by physical queue and first
            offset; bit 0 is the first message.
        settled: bit map by physical queue, first offset and group.
        receives: receive counts of each message, u16, with the same keys.
        deduplication: the identifiers in the order in which they were stored.
        aside: messages that are set aside, by physical queue.
    """

    queues: list[QueueRow] = field(default_factory=list)
    physical: list[PhysicalRow] = field(default_factory=list)
    groups: list[GroupRow] = field(default_factory=list)
    floors: dict[tuple[int, int], int] = field(default_factory=dict)
    segments: dict[int, list[Segment]] = field(default_factory=dict)
    gone: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    settled: dict[tuple[int, int, int], int] = field(default_factory=dict)
    receives: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    deduplication: list[DeduplicationRow] = field(default_factory=list)
    aside: dict[int, int] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Changes:
    """The rows of one transaction; see `Rows` for their keys.

    Attributes:
        must_flush: whether they survive a power cut when the transaction is done.
        queues: rows to be inserted or replaced.
        deleted_queues: logical queues to be deleted, with all that belongs to them; the segments
            are left to `Store.sweep`.
        group_uses: `used_at` of groups, and the group, to be set.
        deleted_groups: groups to be deleted, with all that belongs to them.
        reset_groups: groups whose settled and received messages are forgotten.
        segments: frames to be stored, each with its physical queue.
        replaced_segments: other frames of segments that are there, with other sizes.
        deleted_segments: physical queue and first offset, with all that belongs to them.
        aside: of these, those that cannot be read, whose bytes are kept: physical queue, segment,
            and messages that the queue then lacks.
        passed: by group and physical queue, `settled` and `receives` from an offset up to another
            leave.
        deduplication: rows to be inserted or replaced, or None for those to be deleted, by queue
            and identifier.
    """

    must_flush: bool = False
    queues: list[QueueRow] = field(default_factory=list)
    deleted_queues: list[int] = field(default_factory=list)
    physical: list[PhysicalRow] = field(default_factory=list)
    groups: list[GroupRow] = field(default_factory=list)
    group_uses: list[tuple[float, int]] = field(default_factory=list)
    deleted_groups: list[int] = field(default_factory=list)
    reset_groups: list[int] = field(default_factory=list)
    floors: dict[tuple[int, int], int] = field(default_factory=dict)
    segments: list[tuple[int, Segment, bytes]] = field(default_factory=list)
    replaced_segments: list[tuple[int, Segment, bytes]] = field(default_factory=list)
    deleted_segments: list[tuple[int, int]] = field(default_factory=list)
    aside: list[tuple[int, Segment, int]] = field(default_factory=list)
    gone: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    settled: dict[tuple[int, int, int], int] = field(default_factory=dict)
    receives: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    passed: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    deduplication: dict[tuple[int, bytes], DeduplicationRow | None] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def any(self) -> bool:
        """Say whether there is anything to be written."""
        return self != _NOTHING


_NOTHING = Changes()


class Store(Protocol):
    """Rows and frames.

    `write`, `probe`, `sweep`, `compact` and `trim` are called by one thread at a time, `read`
    and `backup` by any.

    Attributes:
        name: what messages call it.
        tightened: names of its files that other users could read until it was opened.
    """

    name: str
    tightened: Sequence[str]

    def open(self) -> Rows:
        """Open the storage and return what is in it.

        Raises:
            EngineStartError: says why the storage cannot be opened.
        """

    def close(self) -> None:
        """Free everything; may be called again."""

    def write(self, changes: Changes) -> None:
        """Write the rows of one transaction, all or nothing; safe when it returns.

        Raises:
            StorageError: nothing has changed.
        """

    def probe(self, *, is_failing: bool) -> None:
        """See whether a message would be stored.

        Args:
            is_failing: whether the last one was not, so that it is worth a write.

        Raises:
            StorageError: says why it would not.
        """

    def read(self, physical_id: int, first_offsets: Sequence[int]) -> dict[int, bytes]:
        """Return the frames of segments by first offset, without those that do not exist.

        Raises:
            BrokenSegmentError: one of them cannot be read.
            StorageError: the storage cannot be read.
        """

    def sweep(self) -> bool:
        """Delete some segments of deleted queues; say whether there may be more.

        Raises:
            StorageError: nothing has changed.
        """

    def trim(self) -> bool:
        """Give some unused space back, as much as takes about as long as a commit.

        Returns:
            Whether there was any to give back; there may be more.

        Raises:
            StorageError: nothing has changed.
        """

    def compact(self) -> int:
        """Give all unused space back; return by how many bytes the storage is smaller.

        Raises:
            StorageError: nothing has changed.
        """

    def backup(self, path: str) -> int:
        """Write a copy, as of one moment, to a new file; return its bytes.

        Raises:
            BackupExistsError: there is a file of this name, which stays.
            BackupFolderError: its folder is not there, or the program may not write to it.
            StorageError: there is no such copy.
        """

    def why_lost(self) -> str:
        """Name the file that was deleted or replaced while the store was open; "" for none."""

    def figures(self) -> Mapping[str, Any]:
        """Return figures for operators."""
