"""The state of queues on a server, as one program knows it from the server's answers.

Theory of operation. Methods of the engine that do not wait are answered from here. Each answer of
the server tells what has become of the physical queue and of the group that were asked; what other
programs change is known at the next call, or when `Engine.maintain` has looked. Ends of leases and
delays are known beforehand, eight different ones of each kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.plugins.queue.engines.contract import GroupSpec, QueueSpec
from penstock.plugins.queue.engines.logical import StoredGroup, StoredQueue
from penstock.plugins.queue.engines.receipts import Receipts

_SPARE_HELD: Final = 1024


class Told(NamedTuple):
    """What each answer tells of a physical queue, in the order of the library's `told`.

    Attributes:
        earliest: first offset that may still exist.
        messages: the number of messages.
        payload_bytes: the bytes of their payloads.
        stored_bytes: the bytes that they take.
        oldest: the server's time at which the oldest message arrived, as text; b"" for none.
        delay_ends: the first ends of delays, each followed by its number of messages.
        is_all: 1 where all groups are told of.
    """

    now: bytes
    next: int
    earliest: int
    messages: int
    payload_bytes: int
    stored_bytes: int
    oldest: bytes
    delay_ends: Sequence[Any]
    is_all: int
    places: Sequence[Sequence[Any]]


class ToldPlace(NamedTuple):
    """What each answer tells of a group in a physical queue, in the order of `group_told`.

    Attributes:
        floor: everything below is settled or committed.
        waiting: messages that are not.
        leased: those of the waiting messages that receivers have.
        delayed: those of the waiting messages whose delay is not over.
        unseen: further ones with a delay, which no receive has looked at.
        used: the server's time of the group's newest request, as text.
        lease_ends: the first ends of leases, each followed by its number of messages.
        delay_ends: the first ends of delays, each followed by its number of messages.
    """

    group: bytes
    floor: int
    waiting: int
    leased: int
    delayed: int
    unseen: int
    used: bytes
    lease_ends: Sequence[Any]
    delay_ends: Sequence[Any]


class RedisPart:
    """A physical queue.

    Attributes:
        earliest: first offset that may still exist.
        messages: the number of messages.
        payload_bytes: the bytes of their payloads.
        stored_bytes: the bytes that they take, without what the server needs for itself.
        oldest: the engine's time at which the oldest message arrived; None for an empty queue.
        coming_messages: messages that were sent there and of which no answer has come.
        coming_bytes: the bytes of these.
    """

    def __init__(self, base: str, number: int) -> None:
        self.base = base
        self.number = number
        self.earliest = 0
        self.next = 0
        self.messages = 0
        self.payload_bytes = 0
        self.stored_bytes = 0
        self.oldest: float | None = None
        self.coming_messages = 0
        self.coming_bytes = 0


class RedisPlace:
    """A group in one physical queue.

    Attributes:
        floor: everything below is settled or committed.
        waiting: messages that are not.
        leased: those of the waiting messages that receivers have.
        delayed: those of the waiting messages whose delay is not over.
        lease_ends: the first ends of leases, each with its number of messages.
        delay_ends: the first ends of delays, each with its number of messages.
        held: the nonce of each message that this program has received, by offset.
    """

    def __init__(self) -> None:
        self.floor = 0
        self.waiting = 0
        self.leased = 0
        self.delayed = 0
        self.lease_ends: list[tuple[float, int]] = []
        self.delay_ends: list[tuple[float, int]] = []
        self.held: dict[int, int] = {}

    def update(self, told: ToldPlace, unseen_ends: list[tuple[float, int]], behind: float) -> None:
        """Take what the server tells, whose clock is behind the engine's by so many seconds."""
        self.floor, self.waiting, self.leased = told.floor, told.waiting, told.leased
        self.lease_ends = _ends(told.lease_ends, behind)
        self.delayed = told.delayed + told.unseen
        self.delay_ends = _ends(told.delay_ends, behind)
        if told.unseen:
            self.delay_ends = sorted(self.delay_ends + unseen_ends)
        if len(self.held) > 2 * self.leased + _SPARE_HELD:  # others were settled elsewhere
            self.held = {at: nonce for at, nonce in self.held.items() if at >= self.floor}

    def expire(self, now: float) -> bool:
        """Let leases and delays end; say whether any has."""
        has_ended = False
        while self.lease_ends and self.lease_ends[0][0] <= now:
            self.leased = max(0, self.leased - self.lease_ends.pop(0)[1])
            has_ended = True
        while self.delay_ends and self.delay_ends[0][0] <= now:
            self.delayed = max(0, self.delayed - self.delay_ends.pop(0)[1])
            has_ended = True
        return has_ended

    def n_visible(self) -> int:
        """Return how many messages could be received, apart from filters, expiry and order."""
        return max(0, self.waiting - self.leased - self.delayed)


class RedisGroup(StoredGroup[RedisPlace]):
    """A group as a program knows it.

    Attributes:
        touched_at: the engine's time of its newest request, as far as the server knows.
        under_way: messages that receives under way may lease.
    """

    def __init__(self, group_id: str, name: str, spec: GroupSpec, epoch: int) -> None:
        super().__init__(name, spec, epoch)
        self.id = group_id
        self.touched_at = 0.0
        self.under_way = 0
        self.answered = asyncio.Event()
        self.receipts: Receipts | None = None

    @property
    def n_leased(self) -> int:
        """Messages that are leased."""
        return sum(place.leased for place in self.places.values())

    def place(self, number: int) -> RedisPlace:
        """Return the place in a physical queue."""
        found = self.places.get(number)
        if found is None:
            found = self.places[number] = RedisPlace()
            self.places = dict(sorted(self.places.items()))
        return found

    def expire(self, now: float) -> None:
        """Let leases and delays end."""
        has_ended = [place.expire(now) for place in self.places.values()]
        if any(has_ended):
            self.arrived()

    def next_deadline(self) -> float | None:
        """Return the engine's time at which something may become visible; None for never."""
        ends = [
            each[0][0]
            for place in self.places.values()
            for each in (place.lease_ends, place.delay_ends)
            if each
        ]
        return min(ends, default=None)

    def n_delayed(self, now: float) -> int:  # noqa: ARG002 (the form of every engine's)
        """Return how many messages wait for their delay."""
        return sum(place.delayed for place in self.places.values())


class RedisQueue(StoredQueue[RedisPart, RedisGroup]):
    """A logical queue.

    Attributes:
        has_lost: whether its server has lost messages, so that it is to have another life.
        id_shards: over how many slots its deduplication identifiers are spread, which are those of
            its first physical queues; 0 where all are in a slot of their own.
    """

    def __init__(self, name: str, incarnation: str, spec: QueueSpec) -> None:
        super().__init__(name, incarnation, spec)
        self.raw = b""
        self.has_lost = False
        self.id_shards = 0

    def count_removed(self, reason: str, n_messages: int) -> None:
        """Count messages that left unread."""
        if n_messages:
            self.removed[reason] = self.removed.get(reason, 0) + n_messages

    def update(self, part: RedisPart, told: Told, behind: float) -> set[str]:
        """Take what the server tells of a physical queue.

        Returns:
            Identifiers of groups that the server has and this queue has not.
        """
        self.messages += told.messages - part.messages
        self.payload_bytes += told.payload_bytes - part.payload_bytes
        self.stored_bytes += told.stored_bytes - part.stored_bytes
        part.next, part.earliest = told.next, told.earliest
        part.messages, part.payload_bytes = told.messages, told.payload_bytes
        part.stored_bytes = told.stored_bytes
        part.oldest = float(told.oldest) + behind if told.oldest else None
        if not told.places:
            return set()
        unseen_ends = _ends(told.delay_ends, behind)
        places = {one.group.decode(): one for one in map(ToldPlace._make, told.places)}
        for group in self.groups.values():
            one = places.pop(group.id, None)
            if one is not None:
                group.place(part.number).update(one, unseen_ends, behind)
                group.touched_at = max(group.touched_at, float(one.used) + behind)
                group.used_at = max(group.used_at, group.touched_at)
        return set(places)

    def arrival_of_oldest(self) -> float | None:
        """Return the engine's time at which the oldest message arrived; None for no message."""
        arrivals = (part.oldest for part in self.physical.values() if part.oldest is not None)
        return min(arrivals, default=None)


def _ends(told: Sequence[Any], behind: float) -> list[tuple[float, int]]:
    return [(float(told[at]) + behind, told[at + 1]) for at in range(0, len(told), 2)]
