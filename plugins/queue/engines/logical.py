"""The base classes of the queues and groups of all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from penstock.plugins.queue.engines.contract import (
    ExistsError,
    GroupKindError,
    GroupOutline,
    GroupSnapshot,
    GroupSpec,
    IncarnationError,
    KeyOrderError,
    OffsetError,
    Position,
    QueueOutline,
    QueueSnapshot,
    QueueSpec,
    RangeGoneError,
    ReaderError,
    UnknownGroupError,
    UnknownQueueError,
    Usage,
)
from penstock.plugins.queue.strategies.enqueue import physical_queue_of
from penstock.plugins.queue.strategies.message_key import stored_key_reader


class Waitable:
    """A queue, or a group.

    Attributes:
        arrivals: how often something may have become visible.
        used_at: the engine's time of its newest request.
    """

    def __init__(self) -> None:
        self.arrivals = 0
        self.on_arrival: Callable[[Waitable], None] = _ignore
        self.used_at = 0.0

    def arrived(self) -> None:
        """Note that something may have become visible."""
        self.arrivals += 1
        self.on_arrival(self)

    def expire(self, _now: float) -> None:
        """Make messages visible whose lease or delay has ended; call `arrived` if there are any."""

    def next_deadline(self) -> float | None:
        """Return the engine's time at which `expire` has something to do; None for never."""
        return None


class Extent(Protocol):
    """What is known of a physical queue.

    Attributes:
        earliest: the first offset that may still exist.
        messages: how many exist.
        stored_bytes: the bytes that they take in the storage.
    """

    number: int
    earliest: int
    next: int
    messages: int
    stored_bytes: int


class _Place(Protocol):
    @property
    def floor(self) -> int: ...

    @property
    def waiting(self) -> int: ...


PartT = TypeVar("PartT", bound=Extent)
PlaceT = TypeVar("PlaceT", bound=_Place)
QueueT = TypeVar("QueueT")


class StoredGroup(Waitable, ABC, Generic[PlaceT]):
    """A group, as every engine has it.

    Attributes:
        epoch: the number of its seeks, modulo 65,536.
        reader: the reader that it belongs to; "" for none.
        places: what the group has settled in each physical queue, by its number.
        received: messages given to receivers in this run.
        settled: messages that were settled in this run, by action or reason.
    """

    def __init__(self, name: str, spec: GroupSpec, epoch: int) -> None:
        super().__init__()
        self.name = name
        self.spec = spec
        self.epoch = epoch
        self.reader = ""
        self.places: dict[int, PlaceT] = {}
        self.received = 0
        self.settled: dict[str, int] = {}

    @property
    @abstractmethod
    def n_leased(self) -> int:
        """Messages that are leased."""

    @abstractmethod
    def n_delayed(self, now: float) -> int:
        """Return how many messages wait for their delay."""

    def count(self, reason: str, n_messages: int) -> None:
        """Count settled messages."""
        if n_messages:
            self.settled[reason] = self.settled.get(reason, 0) + n_messages

    def snapshot(self, now: float) -> GroupSnapshot:
        """Return the group as it is."""
        return GroupSnapshot(
            spec=self.spec,
            position={number: place.floor for number, place in self.places.items()},
            waiting=sum(place.waiting for place in self.places.values()),
            leased=self.n_leased,
            delayed=self.n_delayed(now),
            received=self.received,
            settled=dict(self.settled),
            idle_seconds=max(0.0, now - self.used_at),
            reader=self.reader,
        )


GroupT = TypeVar("GroupT", bound=StoredGroup[Any])


class StoredQueue(Waitable, ABC, Generic[PartT, GroupT]):
    """A logical queue, as every engine has it.

    Attributes:
        messages: the number of messages.
        payload_bytes: the bytes of their payloads.
        stored_bytes: the bytes that they take in the storage.
        reserved_messages: messages whose room is reserved and that are not stored yet.
        reserved_bytes: the payload bytes of these.
        removed: messages that left unread, by reason.
    """

    def __init__(self, name: str, incarnation: str, spec: QueueSpec) -> None:
        super().__init__()
        self.name = name
        self.incarnation = incarnation
        self.physical: dict[int, PartT] = {}
        self.groups: dict[str, GroupT] = {}
        self.messages = 0
        self.payload_bytes = 0
        self.stored_bytes = 0
        self.reserved_messages = 0
        self.reserved_bytes = 0
        self.removed: dict[str, int] = {}
        self.change(spec)

    def change(self, spec: QueueSpec) -> None:
        """Take other settings."""
        self.spec = spec
        self.key_of = stored_key_reader(spec.key)
        self.is_limited = spec.max_messages is not None or spec.max_bytes is not None

    def check_keys(self, spec: QueueSpec, allowed: str) -> None:
        """Refuse settings by which the messages of a key would go to another physical queue.

        Raises:
            KeyOrderError: they are others than before.
        """
        if spec.key is None:
            return
        for name in ("physical_queues", "key"):
            before, after = getattr(self.spec, name), getattr(spec, name)
            if before != after:
                raise KeyOrderError(
                    f"queue {self.name}: {name}: read {after}; allowed: {before}, {allowed}. Later "
                    "messages of a key would be in another physical queue than those that are "
                    "there, and could be received before them"
                )

    def place_of(self, number: int, topic: str, publisher: str, properties: str) -> int:
        """Return the physical queue for a message that comes from another one."""
        n_parts = self.spec.physical_queues
        key = None if self.spec.key is None else self.key_of(topic, publisher, properties)
        return number % n_parts if key is None else physical_queue_of(key, n_parts)

    def part(self, number: int) -> PartT:
        """Return a physical queue.

        Raises:
            OffsetError: there is none of this number.
        """
        found = self.physical.get(number)
        if found is None:
            raise OffsetError(
                f"physical queue of {self.name}: read {number}; allowed: "
                f"{', '.join(map(str, self.physical))}"
            )
        return found

    def group(self, name: str, kind: str | None = None) -> GroupT:
        """Return a group.

        Raises:
            UnknownGroupError: there is none of this name.
            GroupKindError: it is of the other kind.
        """
        found = self.groups.get(name)
        if found is None:
            known = ", ".join(sorted(self.groups)) or "none"
            raise UnknownGroupError(f"group of queue {self.name}: read {name!r}; allowed: {known}")
        if kind not in (None, found.spec.kind):
            raise GroupKindError(
                f"group {name} of queue {self.name}: asked as one of kind {kind}; allowed: "
                f"{found.spec.kind}, which it was created with"
            )
        return found

    def same_group(self, name: str, spec: GroupSpec) -> GroupT | None:
        """Return a group that is to be created; None where there is none yet.

        Raises:
            ExistsError: it exists with other settings.
        """
        found = self.groups.get(name)
        if found is not None and found.spec != spec:
            raise ExistsError(f"group {name} of queue {self.name}: it exists with other settings")
        return found

    def check_reader(self, group: GroupT, reader: str) -> None:
        """Raise `ReaderError` where the group belongs to another reader."""
        if group.reader not in ("", reader):
            raise ReaderError(self.name, group.name, reader, group.reader)

    def checked(self, position: Position) -> dict[int, int]:
        """Return the offsets of a position.

        Raises:
            IncarnationError: it is of another queue.
            OffsetError: no such physical queue, or an offset above the next one.
        """
        if position.incarnation != self.incarnation:
            raise IncarnationError(self.name, position.incarnation, self.incarnation)
        for number, offset in position.offsets.items():
            check_offset(self.part(number), offset)
        return dict(position.offsets)

    def position_of(self, group: GroupT) -> Position:
        """Return where a group is."""
        floors = {number: place.floor for number, place in group.places.items()}
        return Position(self.incarnation, floors)

    def has_room(self, n_messages: int, n_bytes: int) -> bool:
        """Say whether messages fit, in addition to those whose room is reserved."""
        spec = self.spec
        if spec.when_full == "drop_oldest":
            messages = held_bytes = 0
        else:
            messages = self.messages + self.reserved_messages
            held_bytes = self.payload_bytes + self.reserved_bytes
        if spec.max_messages is not None and messages + n_messages > spec.max_messages:
            return False
        return spec.max_bytes is None or held_bytes + n_bytes <= spec.max_bytes

    def reserve(self, n_messages: int, n_bytes: int) -> bool:
        """Hold room for messages; say whether there is any."""
        if self.is_limited and not self.has_room(n_messages, n_bytes):
            return False
        self.reserved_messages += n_messages
        self.reserved_bytes += n_bytes
        return True

    def release(self, n_messages: int, n_bytes: int) -> None:
        """Give back room."""
        self.reserved_messages -= n_messages
        self.reserved_bytes -= n_bytes

    @property
    def set_aside(self) -> int:
        """Messages that could not be read and are kept out of the queue."""
        return 0

    @abstractmethod
    def arrival_of_oldest(self) -> float | None:
        """Return the engine's time at which the oldest message arrived; None for no message."""

    def outline(self, now: float) -> QueueOutline:
        """Return what requests need to know of the queue."""
        for group in self.groups.values():
            group.expire(now)
        return QueueOutline(
            self.incarnation,
            self.spec,
            self.messages,
            list(self.physical),
            {name: GroupOutline(one.spec, one.n_leased) for name, one in self.groups.items()},
        )

    def snapshot(self, now: float) -> QueueSnapshot:
        """Return the queue as it is."""
        for group in self.groups.values():
            group.expire(now)
        oldest = self.arrival_of_oldest()
        return QueueSnapshot(
            incarnation=self.incarnation,
            spec=self.spec,
            usage={
                number: Usage(part.earliest, part.next, part.messages, part.stored_bytes)
                for number, part in self.physical.items()
            },
            messages=self.messages,
            payload_bytes=self.payload_bytes,
            stored_bytes=self.stored_bytes,
            reserved=self.reserved_messages,
            removed=dict(self.removed),
            set_aside=self.set_aside,
            oldest_seconds=None if oldest is None else max(0.0, now - oldest),
            groups={name: group.snapshot(now) for name, group in self.groups.items()},
        )


def find_queue(queues: Mapping[str, QueueT], name: str) -> QueueT:
    """Return a queue.

    Raises:
        UnknownQueueError: there is none of this name.
    """
    found = queues.get(name)
    if found is None:
        known = ", ".join(sorted(queues)) or "none"
        raise UnknownQueueError(f"queue: read {name!r}; allowed: {known}")
    return found


def check_offset(physical: Extent, offset: int) -> None:
    """Raise `OffsetError` for an offset that no message has or will get next."""
    if not 0 <= offset <= physical.next:
        raise OffsetError(
            f"offset of physical queue {physical.number}: read {offset}; allowed: 0 to "
            f"{physical.next}, the offset that its next message will get"
        )


def check_range(physical: Extent, start: int, end: int) -> None:
    """Raise for a range that is none, or that begins below the earliest offset."""
    check_offset(physical, end)
    if not 0 <= start <= end:
        raise OffsetError(f"start: read {start}; allowed: 0 to the range's end, {end}")
    if start < end and start < physical.earliest:
        raise RangeGoneError(start, physical.earliest)


def _ignore(_source: Waitable) -> None:
    """Do nothing."""
