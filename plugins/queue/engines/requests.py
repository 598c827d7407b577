"""Requests to the storage: each adds its changes to a transaction.

`build` runs on the writing thread and must not change the state; where it raises, it has added
nothing. `done` and `failed` run on the loop's thread, after the transaction.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from penstock.plugins.queue.engines.contract import (
    AppendResult,
    NewMessage,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.leases import Lease, LocalGroup, LocalPlace
from penstock.plugins.queue.engines.partition import PhysicalQueue
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.transaction import Transaction


class Request:
    """One request.

    Attributes:
        future: is completed with `result`; None where nothing waits for it.
        is_for_readers: whether it makes room, and so is done where nothing can be stored.
        is_repeated: whether it must be built again, in a later transaction.
    """

    future: asyncio.Future[Any] | None = None
    result: Any = None
    n_messages = 0
    is_for_readers = True
    is_repeated = False
    is_alone = False

    def build(self, transaction: Transaction) -> None:
        """Add to a transaction."""

    def done(self) -> None:
        """Take note of the success."""

    def failed(self) -> None:
        """Take note of the failure."""


@dataclass(eq=False)
class Append(Request):
    """Store messages; the result is an `AppendResult`."""

    queue: LocalQueue
    number: int
    messages: Sequence[NewMessage]
    future: asyncio.Future[AppendResult] | None

    is_for_readers = False

    def __post_init__(self) -> None:
        """Count the messages."""
        self.n_messages = len(self.messages)

    def build(self, transaction: Transaction) -> None:
        """Add the messages that were not stored before and can be."""
        queue = self.queue
        check_exists(queue)
        incoming = transaction.incoming(queue, self.number)
        offsets: list[int] = []
        duplicates: list[int] = []
        refused: dict[int, str] = {}
        epoch = transaction.epoch
        plain = incoming.add_plain(self.messages, epoch)
        if plain is not None:
            self.result = AppendResult(plain, duplicates, refused)
            return
        for index, new in enumerate(self.messages):
            identifier = new.deduplication_id
            if identifier and new.is_repeat:
                stored = transaction.stored(queue, identifier)
                if stored is not None:
                    duplicates.append(index)
                    offsets.append(stored.offset if stored.number == self.number else -1)
                    continue
            try:
                offset = incoming.add(new, epoch)
            except (OSError, TypeError, ValueError) as error:
                transaction.around.logger.error(  # noqa: TRY400 (the trace tells nothing more)
                    "queue %s: %r cannot be stored: %s", queue.name, new.message, error
                )
                refused[index] = "unreadable"
                offset = -1
            else:
                if identifier:
                    transaction.note_stored(queue, identifier, self.number, offset)
            offsets.append(offset)
        self.result = AppendResult(offsets, duplicates, refused)

    def done(self) -> None:
        """Give the room back."""
        self.queue.reserved_messages -= len(self.messages)
        self.queue.reserved_bytes -= sum([len(new.message.payload) for new in self.messages])

    failed = done


@dataclass(eq=False)
class Forget(Request):
    """End the windows of deduplication identifiers."""

    queue: LocalQueue
    identifiers: Sequence[bytes]
    future: asyncio.Future[None] | None

    def build(self, transaction: Transaction) -> None:
        """Forget them from here on."""
        for identifier in self.identifiers:
            transaction.forget(self.queue, identifier)


@dataclass(slots=True)
class Marks:
    """Messages of one place that are to be settled.

    Attributes:
        place: the group and the physical queue of the messages.
        bits: bit map by first offset of a segment.
        sizes: payload bytes of the messages of these segments, where they are known.
        offsets: the offsets of the messages.
        leases: the leases that they have, by offset.
        retry_at: the engine's time at which those without a lease become visible again where
            settling fails; None for at once.
        epoch: the epoch of the group when they were chosen: a seek since then has them replayed.
    """

    place: LocalPlace
    bits: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, array[int]] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    retry_at: float | None = None
    epoch: int = field(init=False)

    def __post_init__(self) -> None:
        """Note the epoch."""
        self.epoch = self.place.group.epoch

    @property
    def are_replayed(self) -> bool:
        """Whether a seek has come first: they are not to be settled."""
        return self.epoch != self.place.group.epoch

    def add(self, first: int, index: int) -> None:
        """Add a message that is not leased."""
        self.bits[first] = self.bits.get(first, 0) | 1 << index
        self.offsets.append(first + index)

    def add_leased(self, leases: Mapping[int, Lease]) -> None:
        """Add messages that have leases."""
        for lease, run in groupby(leases, leases.__getitem__):
            _, _, sizes, first = lease
            offsets = list(run)
            least, end = min(offsets), max(offsets) + 1
            bits = self.bits.get(first, 0)
            if end - least == len(offsets):  # each is there once: they follow each other
                bits |= (1 << end - first) - (1 << least - first)
            else:
                for offset in offsets:
                    bits |= 1 << offset - first
            self.bits[first] = bits
            if sizes is not None:
                self.sizes[first] = sizes
        self.offsets += leases
        self.leases.update(leases)


@dataclass(eq=False)
class Settle(Request):
    """Settle messages of a group."""

    queue: LocalQueue
    group: LocalGroup
    reason: str
    marks: Sequence[Marks]
    future: asyncio.Future[None] | None = None
    _settled: dict[tuple[LocalPlace, int], int] = field(default_factory=dict, init=False)

    def build(self, transaction: Transaction) -> None:
        """Settle them."""
        self._settled = {}
        if self.queue.is_deleted or self.queue.groups.get(self.group.name) is not self.group:
            return
        for marks in self.marks:
            if marks.are_replayed:
                continue
            for first, bits in marks.bits.items():
                self._settled[marks.place, first] = transaction.settle(
                    self.queue, marks.place, first, bits, marks.sizes.get(first)
                )

    def done(self) -> None:
        """Let the messages go."""
        self.group.count(self.reason, sum(map(int.bit_count, self._settled.values())))
        for marks in self.marks:
            if marks.are_replayed:
                marks.place.not_settled(marks.offsets, {})
            else:
                marks.place.settled_now(marks.offsets)
        if self.group.was_full:
            self.group.was_full = False
            self.group.arrived()

    def failed(self) -> None:
        """Let the leases go on."""
        for marks in self.marks:
            leases = {} if marks.are_replayed else marks.leases
            marks.place.not_settled(marks.offsets, leases, marks.retry_at)
        self.group.arrived()


class DeadLetter(NamedTuple):
    """A message that dies.

    Attributes:
        first_offset: the first offset of its segment.
    """

    place: LocalPlace
    first_offset: int
    bit: int
    row: tuple[Any, ...]


class Bury(Settle):
    """Settle messages of a group, and store them in its dead letter queue in the same transaction.

    Without a dead letter queue they are settled alone. What has left the queue before, such as by
    its retention, is no dead letter.
    """

    is_for_readers = False

    def __init__(
        self,
        queue: LocalQueue,
        group: LocalGroup,
        marks: Sequence[Marks],
        letters: Sequence[DeadLetter],
        target: LocalQueue | None,
        future: asyncio.Future[None] | None = None,
    ) -> None:
        super().__init__(queue, group, "dead", marks, future)
        self.letters = letters
        self.target = target
        self.n_messages = len(letters)

    def build(self, transaction: Transaction) -> None:
        """Settle them and store them."""
        target = self.target
        if target is not None:
            check_exists(target)
        super().build(transaction)
        if target is None:
            return
        for place, first, bit, row in self.letters:
            if self._settled.get((place, first), 0) >> bit & 1:
                topic, _, _, publisher, _, properties = row
                number = target.place_of(place.physical.number, topic, publisher, properties)
                transaction.incoming(target, number).add_row(*row)


class Letter(NamedTuple):
    """A dead letter that is moved.

    Attributes:
        first_offset: the first offset of the segment in which it is.
    """

    first_offset: int
    bit: int
    target: LocalQueue
    number: int
    row: tuple[Any, ...]


@dataclass(eq=False)
class Redrive(Request):
    """Move dead letters of one physical queue to other queues; the result is their number."""

    source: LocalQueue
    physical: PhysicalQueue
    letters: Sequence[Letter]
    future: asyncio.Future[int] | None

    is_for_readers = False

    def __post_init__(self) -> None:
        """Count the messages."""
        self.n_messages = len(self.letters)

    def build(self, transaction: Transaction) -> None:
        """Remove them here and store them there; those that left meanwhile are passed over."""
        for queue in {self.source, *(letter.target for letter in self.letters)}:
            check_exists(queue)
        self.result = 0
        for first, bit, target, number, row in self.letters:
            segment = self.physical.index.holding(first)
            if segment is not None and transaction.remove(
                self.source, self.physical, segment, 1 << bit, ""
            ):
                transaction.incoming(target, number).add_row(*row)
                self.result += 1


@dataclass(eq=False)
class Shrink(Request):
    """Store a segment without the contents of the messages that left it."""

    queue: LocalQueue
    physical: PhysicalQueue
    first_offset: int
    future: asyncio.Future[None] | None

    def build(self, transaction: Transaction) -> None:
        """Store it anew."""
        if not self.queue.is_deleted:
            transaction.shrink(self.queue, self.physical, self.first_offset)


@dataclass(eq=False)
class Move(Request):
    """Move an offsets group forward."""

    queue: LocalQueue
    group: LocalGroup
    offsets: Mapping[int, int]
    future: asyncio.Future[None] | None

    def build(self, transaction: Transaction) -> None:
        """Move it."""
        check_group(self.queue, self.group)
        for number, offset in self.offsets.items():
            transaction.move(self.queue, self.group.places[number], offset)


class Seek(Move):
    """Put a group at any offsets; its leases end."""

    def __init__(
        self,
        queue: LocalQueue,
        group: LocalGroup,
        offsets: Mapping[int, int],
        row: Callable[[LocalGroup, int], Any],
        future: asyncio.Future[None],
    ) -> None:
        super().__init__(queue, group, offsets, future)
        self._row = row
        self._epoch = (group.epoch + 1) % 65_536

    def build(self, transaction: Transaction) -> None:
        """Move it, and forget what it has settled and received."""
        check_group(self.queue, self.group)
        for number, offset in self.offsets.items():
            place = self.group.places[number]
            transaction.seek(self.queue, place, max(offset, place.physical.earliest))
        changes = transaction.changes
        changes.must_flush = True
        # Rows of before the seek would be written after the reset.
        for rows in (changes.settled, changes.receives):
            for key in [key for key in rows if key[2] == self.group.row_id]:
                del rows[key]
        changes.reset_groups.append(self.group.row_id)
        changes.groups.append(self._row(self.group, self._epoch))

    def done(self) -> None:
        """End the receipt handles that were given; the group belongs to no reader."""
        self.group.epoch = self._epoch
        self.group.reader = ""
        self.group.arrived()


@dataclass(eq=False)
class Cut(Request):
    """Remove everything below an offset; the result is the number of messages."""

    queue: LocalQueue
    physical: PhysicalQueue
    below: int
    reason: str
    future: asyncio.Future[int] | None

    result = 0
    _n_removed = 0

    def build(self, transaction: Transaction) -> None:
        """Remove a part of it."""
        self._n_removed = 0
        self.is_repeated = False
        if not self.queue.is_deleted:
            self._n_removed, is_all = transaction.cut(
                self.queue, self.physical, self.below, self.reason
            )
            self.is_repeated = not is_all

    def done(self) -> None:
        """Count what was removed."""
        self.result += self._n_removed


@dataclass(eq=False)
class Trim(Request):
    """Go on cutting what all groups have settled."""

    queue: LocalQueue
    physical: PhysicalQueue

    def build(self, transaction: Transaction) -> None:
        """Cut a part of it."""
        if not self.queue.is_deleted:
            transaction.trim(self.queue, self.physical)


class Change(Request):
    """Write rows that the caller makes; `then` is called when they are written."""

    def __init__(
        self,
        build: Callable[[Transaction], None],
        then: Callable[[], Any],
        future: asyncio.Future[Any] | None,
        *,
        is_for_readers: bool = True,
        is_alone: bool = False,
    ) -> None:
        self._build = build
        self._then = then
        self.future = future
        self.is_for_readers = is_for_readers
        self.is_alone = is_alone

    def build(self, transaction: Transaction) -> None:
        """Add the rows."""
        self._build(transaction)

    def done(self) -> None:
        """Tell the caller."""
        self.result = self._then()


class Run(Request):
    """Call the store between two transactions; the result is what it returns."""

    def __init__(
        self, call: Callable[[], Any], then: Callable[[], None] | None, future: Any
    ) -> None:
        self.call = call
        self._then = then
        self.future = future

    def done(self) -> None:
        """Tell the caller."""
        if self._then is not None:
            self._then()


def check_exists(queue: LocalQueue) -> None:
    """Raise `UnknownQueueError` for a queue that was deleted meanwhile."""
    if queue.is_deleted:
        raise UnknownQueueError(f"queue {queue.name}: it was deleted")


def check_group(queue: LocalQueue, group: LocalGroup) -> None:
    """Raise `UnknownGroupError` for a group that was deleted meanwhile."""
    check_exists(queue)
    if queue.groups.get(group.name) is not group:
        raise UnknownGroupError(f"group {group.name} of queue {queue.name}: it was deleted")
