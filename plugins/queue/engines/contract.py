"""The contract that every engine of the queue keeps.

An engine keeps *logical queues*. Each is made of *physical queues*, numbered from 0, and has any
number of *groups*: each group gets all messages, independent of the others.

* **Offsets.** A message stored in a physical queue gets the next offset there. Offsets only grow,
  without gaps, and are never reused, not even after a restart.
* **Incarnation.** A queue that is deleted and created again is another queue: its incarnation, a
  text that begins with a UUID, is part of every position and receipt handle, so one of the old
  queue is refused. A copy of the storage that is opened, and a server that has lost what it had
  stored, give their queues other incarnations: they give offsets again to other messages.
* **Storing.** The future of `append` completes when its messages are as safe as the engine
  promises; before that nobody can read them. It tells the outcome of each message. Messages of one
  call keep their order. A message with a deduplication identifier that was stored within the
  queue's window is not stored again, unless it is known to be no repeat. `append` and `forget` take
  effect in the order of their calls.
* **Room.** `reserve` says at once whether a message fits into the limits of a queue, and holds its
  place until `append` or `release`. What was reserved is never refused for a limit.
* **Leases.** A group of kind `lease` gives each visible message to one caller, the oldest first,
  and makes it invisible for the visibility timeout. What is not acknowledged in that time becomes
  visible again: delivery is at least once. How often a message was received survives a restart, if
  not a crash within the next moment; a lease need not: after a restart, what was not acknowledged
  is visible. With `order: key`, a message waits for the earlier ones of its key until they are
  settled; one call may receive several messages of a key, in their order.
* **Receipt handles** cannot be guessed, and name one receive of one message in one group. A handle
  settles its message until the message is received again.
* **Offsets groups.** A group of kind `offsets` reads ranges and commits what it is done with.
  Reading changes nothing: the same range holds the same messages until `commit`.
* **Cutting.** What every group has settled or committed leaves the queue; so does what is older
  than the retention, whoever waits for it. A queue without groups keeps its messages until then. A
  group that nobody has used for `group_expiry_seconds` no longer holds messages: it is deleted.
  One that has leased messages is in use.
* **Time.** Delays, leases, expiry and retention count seconds of the engine's own clock, which
  never steps: it goes on while the program runs, and while the machine does. Wall time is told to
  readers, and decides nothing. The expiry of groups and the windows of deduplication identifiers
  do not count the time for which no program had the storage open.
* **Failing.** A method that raises has changed nothing that other callers can see. When the cause
  is gone, the next call works; nothing needs to be reopened.
* **Servers.** An engine may keep its queues on a server that other programs use at the same time.
  Where the connection is lost, the outcome of the calls under way is unknown, and they raise
  `StorageError`. Methods that do not wait answer what the engine has heard last, from its own calls
  and from `maintain`: they may not know what another program has done since, and limits may be
  exceeded by that. The engine's clock is then the server's. It goes on where the server's clock is
  set back; the server's operator must not set it forward.

All methods are called on one event loop's thread, and none blocks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from penstock.broker.errors import PenstockError
from penstock.broker.message import Message, SizeClass
from penstock.plugins.queue import client
from penstock.plugins.queue.wire.frames import ReceivedMessage
from penstock.plugins.redis import errors

Action: TypeAlias = client.Action
EngineStartError: TypeAlias = errors.EngineStartError
StorageError: TypeAlias = errors.StorageError
StorageFullError: TypeAlias = errors.StorageFullError
Position: TypeAlias = client.Position
Start: TypeAlias = Literal["earliest", "latest"] | float
"""Where a group begins: at the first message, behind the last, or at the first that arrived at or
after a time in seconds since the Unix epoch."""

DROP_REASONS = {
    "queue_full": "the queue held as much as its max_messages or max_bytes allow",
    "storage_full": "the storage had no space left",
    "storage_error": "the storage refused to write",
    "unreadable": "its payload store could not read it back, or its properties are no JSON",
}
"""Every reason for which an engine does not store a message, and its meaning."""


class BackupExistsError(StorageError):
    """There is a file where a new one was to be written."""


class BackupFolderError(StorageError):
    """No new file can be written where a backup was to be."""


class UnknownQueueError(PenstockError):
    """No logical queue of this name."""


class UnknownGroupError(PenstockError):
    """The queue has no group of this name."""


class ExistsError(PenstockError):
    """A queue or group of this name exists, with other settings."""


class KeyOrderError(PenstockError):
    """A change after which the messages of a key could be in two physical queues."""


class GroupKindError(PenstockError):
    """A call that is only for groups of the other kind."""


class ReaderError(PenstockError):
    """A commit by a reader that the group does not belong to."""

    def __init__(self, queue: str, group: str, read: str, reader: str) -> None:
        super().__init__(
            f"reader of group {group} of queue {queue}: read {read or 'none'}; allowed: {reader}, "
            "to which the group belongs until it is deleted, or put elsewhere by a seek"
        )
        self.reader = reader


class IncarnationError(PenstockError):
    """A position of a queue that was deleted, or of what a storage held that was rolled back."""

    def __init__(self, queue: str, read: str, incarnation: str) -> None:
        super().__init__(
            f"incarnation of queue {queue}: read {read}; allowed: {incarnation}. The queue was "
            "deleted and created again, or its storage is of an earlier moment: positions of "
            "before mean nothing"
        )
        self.queue = queue
        self.incarnation = incarnation


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


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Settings of a group, as `penstock.plugins.queue.config.GroupConfig` describes them."""

    kind: Literal["lease", "offsets"] = "lease"
    start: Start = "earliest"
    topics: tuple[str, ...] | None = None
    group_expiry_seconds: float | None = None
    visibility_timeout: float = 30.0
    order: Literal["any", "key"] = "any"
    max_receives: int | None = None
    dead_letter_queue: str | None = None
    max_leased_messages: int = 100_000


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """Settings of a logical queue.

    `penstock.plugins.queue.config.LogicalQueueConfig` describes them. From `topics` on they mean
    nothing to an engine, but for `groups`; nor does `drop_newest`, which is `refuse` to it.

    Attributes:
        tags: texts by name.
        groups: declared groups by name, which the engine creates.
    """

    physical_queues: int = 4
    key: str | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    retention_seconds: float | None = None
    delay_seconds: float = 0.0
    deduplication_seconds: float = 300.0
    keeps_last: bool = False
    when_full: Literal["refuse", "drop_newest", "drop_oldest"] = "refuse"
    topics: tuple[str, ...] = ()
    sizes: SizeClass | None = None
    sqs_body: Literal["text", "base64"] = "text"
    dequeue: Literal["conventional", "pms", "rds", "rds+wake"] = "rds+wake"
    sleep_time: float = 0.1
    max_queues_per_dequeue: int = 3
    n_max: int = 100
    max_wait_seconds: float = 60.0
    max_waiting_requests: int = 10_000
    tags: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, GroupSpec] = field(default_factory=dict)


class NewMessage(NamedTuple):
    """A message to be stored.

    Attributes:
        message: the message as it was published. User property ``penstock-key`` may hold its key.
        deduplication_id: b"" for none.
        delay_seconds: the time until it can be received; None for the queue's.
        is_repeat: False where the message is known to be no duplicate: it is stored whatever is
            stored under its deduplication identifier, which then stands for this message.
    """

    message: Message
    deduplication_id: bytes = b""
    delay_seconds: float | None = None
    is_repeat: bool = True


class AppendResult(NamedTuple):
    """The outcome of each message of one `append`.

    Attributes:
        offsets: the offset of each message; -1 where it is not stored. That of a duplicate is that
            of the message that was stored before, or -1 where that is not known any more.
        duplicates: indexes of messages that were stored before.
        refused: reason, one of `DROP_REASONS`, by index of those that are not stored.
    """

    offsets: Sequence[int]
    duplicates: Sequence[int]
    refused: Mapping[int, str]


Sent: TypeAlias = Callable[[int, "asyncio.Future[Any]"], None]
"""A callback that gets the number of a physical queue when messages are sent to it, and a future
that ends with its answer, or with the error of `Engine.append`. Earlier steps, such as a search for
deduplication identifiers, do not count for the physical queue."""


def drop_reason(error: BaseException) -> str:
    """Return why a message was not stored, one of `DROP_REASONS`."""
    return "storage_full" if isinstance(error, StorageFullError) else "storage_error"


class Usage(NamedTuple):
    """What a physical queue holds.

    Attributes:
        earliest: first offset that may still exist; everything below is gone.
        messages: existing messages, invisible ones included.
        stored_bytes: bytes that they take in the storage.
    """

    earliest: int
    next: int
    messages: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as it is.

    Attributes:
        position: below it everything is settled or committed, by physical queue.
        waiting: messages that the group has not settled or committed, leased ones included.
        leased: those of the waiting messages that are invisible to its receivers now.
        delayed: those of the waiting messages whose delay is not over.
        received: messages given to receivers since the engine was opened, repeated ones included.
        settled: messages by action, and `expired` (message expiry), `filtered` (topic filters) and
            `dead`.
        idle_seconds: since the newest request of the group.
        reader: the reader that the group belongs to, by its first commit that named one; "" for
            none.
    """

    spec: GroupSpec
    position: Mapping[int, int]
    waiting: int
    leased: int
    delayed: int
    received: int
    settled: Mapping[str, int]
    idle_seconds: float
    reader: str = ""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A logical queue as it is; made without a look at the storage.

    Attributes:
        messages: the messages of all physical queues.
        payload_bytes: the payload bytes of these messages.
        stored_bytes: the bytes that they take in the storage.
        reserved: messages whose room is reserved and that are not stored yet.
        removed: messages that left unread by a group or more, by reason: `retention`, `keeps_last`,
            `purge`, `drop_oldest`.
        set_aside: messages that could not be read and are kept out of the queue.
        oldest_seconds: age of the oldest message; None for an empty queue.
    """

    incarnation: str
    spec: QueueSpec
    usage: Mapping[int, Usage]
    messages: int
    payload_bytes: int
    stored_bytes: int
    reserved: int
    removed: Mapping[str, int]
    set_aside: int
    oldest_seconds: float | None
    groups: Mapping[str, GroupSnapshot]


class GroupOutline(NamedTuple):
    """What requests need to know of a group.

    Attributes:
        leased: messages that are invisible to its receivers now.
    """

    spec: GroupSpec
    leased: int


class Health(NamedTuple):
    """Whether a message would be stored.

    Attributes:
        problem: why it would not; None where it would.
        is_partial: whether each queue has other physical queues, in which it would.
    """

    problem: str | None
    is_partial: bool = False


class QueueOutline(NamedTuple):
    """What requests need to know of a logical queue."""

    incarnation: str
    spec: QueueSpec
    messages: int
    physical_queues: Sequence[int]
    groups: Mapping[str, GroupOutline]


class Engine(Protocol):
    """See the module's docstring for the contract.

    A method that names a queue or a group raises `UnknownQueueError` or `UnknownGroupError` where
    there is none, and `GroupKindError` where the group is of the other kind.
    """

    async def open(self) -> None:
        """Open the storage; must be called first.

        Raises:
            EngineStartError: says why the engine cannot be opened.
        """

    async def close(self) -> None:
        """Finish running work and free everything; may be called again."""

    async def create_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Create a queue with the groups of its settings; a queue with the same settings is kept.

        Raises:
            ExistsError: it exists with other settings.
            StorageError: nothing has changed.
        """

    async def change_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Give a queue other settings; its groups are left as they are, missing ones are created.

        Raises:
            KeyOrderError: it is to have a key, and that or the number of its physical queues would
                be another one, while messages are in it or other programs may store in it.
            StorageError: nothing has changed.
        """

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages and groups.

        Raises:
            StorageError: nothing has changed.
        """

    def queues(self) -> Sequence[str]:
        """Return the names of all queues."""

    def snapshot(self, queue: str) -> QueueSnapshot:
        """Return what the queue holds; it looks at each physical queue, and not at messages."""

    def outline(self, queue: str) -> QueueOutline:
        """Return a part of the snapshot that costs microseconds, for each request."""

    def reserve(self, queue: str, n_messages: int, n_bytes: int) -> bool:
        """Hold room for messages that will be appended; say whether there is any.

        Args:
            queue: name of the logical queue.
            n_messages: the number of messages.
            n_bytes: the bytes of their payloads.
        """

    def release(self, queue: str, n_messages: int, n_bytes: int) -> None:
        """Give back room that was reserved and will not be used."""

    def append(
        self,
        queue: str,
        physical_queue: int,
        messages: Sequence[NewMessage],
        sent: Sent | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Store messages at the end of a physical queue; their room was reserved.

        The future fails with a `StorageError` where none of the messages is stored. Room is given
        back for each message that is not stored.

        Args:
            queue: name of the logical queue.
            physical_queue: number of the physical queue.
            messages: the messages in their order.
            sent: is told what each physical queue gets of them; None to tell nobody.
        """

    def held_up(self, queue: str, messages: Sequence[NewMessage]) -> Collection[int]:
        """Return indexes of messages that would wait for a server which is away at present.

        Such as the one that knows their deduplication identifiers. The caller appends them by
        themselves, so that the others do not wait with them. None where the order of messages
        counts more, or where the queue is gone.
        """

    def forget(self, queue: str, deduplication_ids: Sequence[bytes]) -> asyncio.Future[None]:
        """End the windows of deduplication identifiers: the next message with one is stored.

        The future completes when a crash cannot bring them back.
        """

    async def create_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Create a group; one with the same settings is kept.

        Raises:
            ExistsError: it exists with other settings.
            StorageError: nothing has changed.
        """

    async def change_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Give a group other settings; its position stays.

        Raises:
            GroupKindError: the kind would change.
            StorageError: nothing has changed.
        """

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group; it holds no messages any more.

        Raises:
            StorageError: nothing has changed.
        """

    async def lease(
        self,
        queue: str,
        group: str,
        physical_queue: int,
        max_messages: int,
        max_bytes: int,
        visibility_timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Receive visible messages of one physical queue, at most `max_bytes` after the first.

        Message expiry is counted down in their properties; what has expired is settled unseen. A
        message that was received `max_receives` times becomes a dead letter instead.

        Args:
            queue: name of the logical queue.
            group: a group of kind `lease`.
            physical_queue: the number of the physical queue.
            max_messages: the most messages.
            max_bytes: the most payload bytes.
            visibility_timeout: seconds; None for the group's.

        Raises:
            StorageError: they cannot be read.
        """

    def give_back(self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Make messages visible whose receiver left before it got them.

        Such a receive does not count. It does nothing for a queue or a group that is gone.
        """

    async def settle(
        self,
        queue: str,
        group: str,
        action: Action,
        receipt_handles: Sequence[str],
        seconds: float = 0.0,
    ) -> Mapping[int, str]:
        """Settle receives.

        Args:
            queue: name of the logical queue.
            group: a group of kind `lease`.
            action: `ack` when the message is done with; `nack` to make it visible after `seconds`;
                `extend` to keep it invisible for `seconds` from this moment; `dead` to make it a
                dead letter.
            receipt_handles: the handles of the receives.
            seconds: see `action`.

        Returns:
            By index what a handle is that settles nothing: ``stale`` where the message was settled
            or received again since, or its lease is over for `extend`; ``unknown`` where the engine
            has not made it for this queue and group.

        Raises:
            StorageError: nothing is settled; the leases go on.
        """

    async def read(
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

    async def plan(
        self,
        queue: str,
        start: Position,
        max_messages: int | None,
        max_bytes: int | None,
        until: Mapping[int, int] | None = None,
    ) -> Position:
        """Return the end of the next range for a reader, from a position on.

        Physical queues share the limits in proportion to what waits in them, so that a reader
        comes to about the same time in all; what one does not use is for the others. An offset of
        `start` below the earliest is taken as the earliest.

        Args:
            queue: name of the logical queue.
            start: physical queues that it lacks begin at their earliest offset.
            max_messages: the most messages of all physical queues; None for all.
            max_bytes: the most stored bytes, by segments; at least one message fits.
            until: offsets that the range does not exceed, by number of physical queue; those that
                it lacks are not read. None for the end of the queue.

        Raises:
            IncarnationError: `start` is of another queue.
            OffsetError: an offset above the next one.
            StorageError: the storage cannot be read.
        """

    async def locate(self, queue: str, start: Start) -> Position:
        """Return the position that a `Start` means.

        Raises:
            StorageError: the storage cannot be read.
        """

    async def commit(
        self, queue: str, group: str, position: Position, reader: str = ""
    ) -> Position:
        """Move an offsets group up to a position; offsets below its present one do nothing.

        Args:
            queue: name of the queue.
            group: name of the group.
            position: without offsets, nothing moves.
            reader: who commits. The group belongs to the first one from then on, until a `seek`;
                "" for somebody without a name.

        Returns:
            Where it is then.

        Raises:
            ReaderError: the group belongs to another reader.
            IncarnationError: the position is of another queue.
            OffsetError: no such physical queue, or an offset above the next one.
            StorageError: nothing has changed.
        """

    async def seek(self, queue: str, group: str, start: Start) -> Position:
        """Move a group to another place, back as far as messages exist; its leases end.

        Returns:
            Where it is then.

        Raises:
            StorageError: nothing has changed.
        """

    def visible(self, queue: str, group: str) -> Mapping[int, int]:
        """Return how many messages a lease group could receive at this moment.

        The answer is by number of physical queue, in ascending order and without those that have
        none. It may be too high for messages that the group will settle unseen, or that wait for an
        earlier one of their key. Those that cannot be reached at present may be left out. It costs
        microseconds.
        """

    def away(self, queue: str) -> Collection[int]:
        """Return numbers of physical queues whose server cannot be reached at present.

        None of them where no other one can be reached either, or where the queue is gone. It is
        asked for with each message: the same object says that nothing has changed.
        """

    def locality(self, queue: str) -> Callable[[int], bool] | None:
        """Return what says whether a physical queue is on this machine at that moment.

        None where none is nearer than others. It may be kept while the queue exists.
        """

    async def wait_for_arrival(self, queue: str, group: str | None, seen: int, wait: float) -> int:
        """Wait until something may have become visible to a group.

        That is a message that was stored or given back, or whose lease or delay is over.

        Args:
            queue: name of the logical queue.
            group: its name; None for messages that were stored, whatever the groups have.
            seen: what the last call returned; -1 at first, which returns at once.
            wait: seconds at most.

        Returns:
            A number that is another one each time when something may have become visible.
        """

    async def purge(self, queue: str) -> int:
        """Remove all messages; return how many.

        Raises:
            StorageError: some may have been removed.
        """

    async def redrive(self, queue: str, target: str | None, max_messages: int | None) -> int:
        """Move dead letters back to the queues they came from; return how many.

        Args:
            queue: the queue of the dead letters.
            target: queue for all of them; None for the one in which each died.
            max_messages: the most messages; None for all.

        Raises:
            UnknownQueueError: a queue in which one died is gone; those before it are moved.
            StorageError: those before are moved.
        """

    async def maintain(self) -> None:
        """Do what time asks for: retention, group expiry, windows; give space back.

        Called every few seconds.

        Raises:
            StorageError: some of it is left for the next call.
        """

    async def compact(self) -> int:
        """Give all unused space of the storage back; return the bytes that it takes less.

        Raises:
            StorageError: nothing has changed.
        """

    async def backup(self, path: str) -> int:
        """Write a copy of the storage, as of one moment, to a new file; return its bytes.

        Raises:
            BackupExistsError: there is a file of this name, which stays.
            BackupFolderError: its folder is not there, or the program may not write to it.
            StorageError: there is no such copy.
        """

    async def probe(self) -> Health:
        """See whether a message would be stored at this moment; it takes a few seconds at most."""

    def failure(self) -> str | None:
        """Return why the storage cannot be written or read, as far as known; None if it works."""

    def figures(self) -> Mapping[str, Any]:
        """Return the engine's own figures for operators, such as sizes of files."""
