"""The contract of a queue's engine, the same for every implementation.

An engine keeps the messages of logical queues, each made of physical queues numbered from 0.

* **Offsets.** A message stored in a physical queue gets the next offset there. Offsets only grow,
  without gaps, and are never reused, not even after deletes or a restart.
* **Storing.** The future of `append` completes when the messages are as safe as the engine makes
  them, or fails with a `StorageError` when none of them is kept. Messages of one call keep their
  order.
* **Receiving.** `take` gives each visible message to one caller, the oldest first, and makes it
  invisible for the visibility timeout. What is not deleted in that time becomes visible again:
  delivery is at least once. Leases need not survive a restart; after a restart, every message that
  was not deleted is visible.
* **Deleting.** When `delete` returns, the messages are permanently gone.
* **Reading.** `read_range` changes nothing: the same range holds the same messages until
  `commit` removes what is below an offset.
* **Failing.** A method that raises has changed nothing that other callers can see. When the cause
  is gone, the next call works; nothing needs to be reopened.

All methods are called on the event loop's thread and none blocks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.broker.errors import PenstockError
from penstock.broker.message import Message
from penstock.plugins.queue.client import ReceivedMessage


class EngineStartError(PenstockError):
    """An engine that cannot be opened; the program ends with status 2."""


class StorageError(PenstockError):
    """The engine's storage cannot be read or written; what was acknowledged before is safe."""


class StorageFullError(StorageError):
    """The storage has no space left."""


class BrokenSegmentError(StorageError):
    """A segment cannot be read; those after it can, once it is set aside.

    Attributes:
        key: logical queue and number of the physical queue.
        first_offset: of the segment.
    """

    def __init__(self, key: tuple[str, int], first_offset: int, why: str) -> None:
        queue, number = key
        super().__init__(
            f"queue {queue}, physical queue {number}: the segment at offset {first_offset} cannot "
            f"be read: {why}"
        )
        self.key = key
        self.first_offset = first_offset


class RangeGoneError(PenstockError):
    """A range begins below the earliest offset: it was committed, or its messages expired.

    Attributes:
        earliest: first offset that can be read.
    """

    def __init__(self, start: int, earliest: int) -> None:
        super().__init__(
            f"start: read {start}; allowed: {earliest} or more, what lies below has left the queue"
        )
        self.earliest = earliest


class OffsetError(PenstockError):
    """An offset or a physical queue that does not exist."""


class QueueLayout(NamedTuple):
    """What an engine needs to know of a logical queue.

    Attributes:
        physical_queues: number of physical queues for new messages.
        visibility_timeout: seconds.
    """

    physical_queues: int
    visibility_timeout: float


class Usage(NamedTuple):
    """What a physical queue holds.

    Attributes:
        earliest: first offset that may still exist; everything below is gone.
        next: offset of the next message.
        messages: existing messages, invisible ones included.
        stored_bytes: bytes that they take in the storage.
    """

    earliest: int
    next: int
    messages: int
    stored_bytes: int


class AppendResult(NamedTuple):
    """The result of one `append`.

    Attributes:
        stored: how many messages are safe.
        unreadable: indexes of those that are not stored: their payload could not be read back from
            its `PayloadStore`, or their properties are not JSON.
    """

    stored: int
    unreadable: Sequence[int]


class Engine(Protocol):
    """See the module's docstring for the contract."""

    async def open(self, queues: Mapping[str, QueueLayout]) -> None:
        """Prepare the queues; must be called first.

        Existing physical queues beyond a layout's number are kept and can be read.

        Raises:
            EngineStartError: says why the engine cannot be opened.
        """

    async def close(self) -> None:
        """Finish running work and free everything; may be called again."""

    def append(
        self, queue: str, physical_queue: int, messages: Sequence[Message]
    ) -> asyncio.Future[AppendResult]:
        """Store messages at the end of a physical queue; the module says when they are safe."""

    async def take(
        self, queue: str, physical_queue: int, n_max: int, max_bytes: int
    ) -> list[ReceivedMessage]:
        """Receive up to `n_max` visible messages, at most `max_bytes` of payload after the first.

        Raises:
            StorageError: they cannot be read.
        """

    def give_back(self, queue: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Make messages visible again whose receiver has left before it got them."""

    async def delete(self, queue: str, receipt_handles: Sequence[str]) -> list[str]:
        """Remove received messages; return the handles that name no message.

        Raises:
            StorageError: none of them is removed; they are visible again.
        """

    async def read_range(
        self, queue: str, physical_queue: int, start: int, end: int, max_messages: int
    ) -> list[bytes]:
        """Return messages with ``start <= offset < end`` as frames of the batch format.

        The answer may be shorter than the range (it is cut to some MiB) but never empty
        while the range holds a message.

        Raises:
            RangeGoneError: `start` is below the earliest offset.
            OffsetError: no such physical queue, `start` above `end`, or `end` above the next
                offset.
            StorageError: the storage cannot be read.
        """

    async def commit(self, queue: str, offsets: Mapping[int, int]) -> int:
        """Remove everything below an offset of each physical queue; lower ones do nothing.

        Returns:
            How many messages were removed.

        Raises:
            OffsetError: no such physical queue, or an offset above the next one.
            StorageError: the storage cannot be written; some may have been committed.
        """

    async def expire(self, queue: str, enqueued_before: float) -> int:
        """Remove older messages; return how many.

        Only whole segments are removed, and none after a younger one.

        Args:
            queue: name of the logical queue.
            enqueued_before: seconds since the Unix epoch.

        Raises:
            StorageError: the storage cannot be written.
        """

    def usage(self, queue: str) -> dict[int, Usage]:
        """Return what each physical queue holds, by number."""

    def leased(self, queue: str) -> int:
        """Return how many messages are received and not deleted."""

    def set_aside(self, queue: str) -> int:
        """Return how many messages could not be read and are kept out of the queue."""

    def failure(self) -> str | None:
        """Return why the storage cannot be written or read; None where it works."""
