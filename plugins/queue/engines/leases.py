"""Groups, and the leases of their receivers (paper 004's visibility timeout).

Theory of operation. A group has a *place* in each physical queue. Everything below its floor is
settled; behind the floor, bit maps say what is. These are in the storage. What follows is in memory
alone, for groups of kind `lease`:

Every message below the *cursor* was looked at in this run. If it is not settled, it is exactly one
of: leased, delayed, visible again, or about to be settled. So after a restart, with the cursor at
the floor, all that is not settled is visible. The messages of one call and one segment share a
`LeaseBatch` with one deadline, and offsets are all that is kept of a message.

`RedeliveryIndex` has those that became visible again, and keeps the order of keys.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any, Final, NamedTuple

from penstock.broker.mqtt.topics import matches
from penstock.plugins.queue.engines.contract import GroupSpec
from penstock.plugins.queue.engines.logical import StoredGroup
from penstock.plugins.queue.engines.partition import PhysicalQueue, bits_below, each_bit, repeats_in
from penstock.plugins.queue.engines.receipts import Receipts, Receive
from penstock.plugins.queue.engines.redelivery_index import RedeliveryIndex
from penstock.plugins.queue.engines.segments import Decoded, count_down
from penstock.plugins.queue.engines.store import GroupRow, Segment
from penstock.plugins.queue.strategies.message_key import StoredKeyReader
from penstock.plugins.queue.wire.frames import ReceivedMessage, received_messages

MAX_WAITING_IN_LANES: Final = 100_000
"""The most messages of a physical queue that wait for earlier ones of their key; the cursor stops
there. It bounds the memory of a key that no receiver settles, 0.3 KB a message."""
MAX_RECEIVE_COUNT: Final = 65_535
NOT_RECEIVED: Final = -1
"""Stands for the nonce of a message that no receive has."""
_MAX_TOPICS: Final = 10_000
PAGE_BYTES: Final = 1024 * 1024
"""How many stored bytes of a physical queue are read ahead at a time."""
_PAGE_SEGMENTS: Final = 64
_CLEAN_ABOVE: Final = 64
MAX_LOOKED: Final = 512
"""How many messages one step looks at singly, which takes the loop some milliseconds."""

Find = Callable[[PhysicalQueue, int], Decoded | None]
"""A function that returns the decoded segment with a first offset, or None if it must be read."""


@dataclass(slots=True, eq=False)
class LeaseBatch:
    """Messages of one segment that become visible at one time, unless they are settled before.

    Attributes:
        place: the group and the physical queue of the messages.
        deadline: the engine's time at which they become visible.
        left: the number of messages that still wait for the deadline.
        counts: the receive counts of their segment.
        first_offset: the first offset of their segment.
        sizes: the payload bytes of the segment's messages.
    """

    place: LocalPlace
    deadline: float
    offsets: Sequence[int]
    counts: array[int] | None
    first_offset: int
    sizes: array[int] | None
    nonce: int
    is_delay: bool = field(default=False, kw_only=True)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the messages."""
        self.left = len(self.offsets)

    def __lt__(self, other: LeaseBatch) -> bool:
        """Let a heap order batches of one deadline in any way."""
        return self.deadline < other.deadline


class Lease(NamedTuple):
    """A lease that ends where its message is settled.

    Attributes:
        deadline: the engine's time at which the lease would have ended.
        sizes: payload bytes of the messages of its segment.
        first_offset: the first offset of its segment.
    """

    deadline: float
    nonce: int
    sizes: array[int] | None
    first_offset: int


class LocalGroup(StoredGroup["LocalPlace"]):
    """A group in the memory of one process.

    Attributes:
        row_id: its row number.
        used_at: the engine's time of its newest request; `Arrivals.note_uses` has those that wait.
        waiting_in: numbers of the physical queues in which messages wait.
        was_full: whether `max_leased_messages` were leased when a message was settled.
    """

    n_leased = 0

    def __init__(
        self, row: GroupRow, spec: GroupSpec, receipts: Receipts, key_of: StoredKeyReader
    ) -> None:
        super().__init__(row.name, spec, row.epoch)
        self.row_id = row.row_id
        self.queue_id = row.queue_id
        self.used_at = self.stored_used_at = row.used_at
        self.waiting_in: set[int] = set()
        self.was_full = False
        self.delay_seconds = 0.0
        self.key_of = key_of
        self.receipts = receipts
        self.on_deadline: Callable[[LocalGroup], None] = _ignore
        self._deadlines: list[LeaseBatch] = []
        self._n_ended = 0
        self._takes: dict[str, bool] = {}

    def change(self, spec: GroupSpec) -> None:
        """Take other settings."""
        self.spec = spec
        self._takes.clear()
        is_ordered = spec.kind == "lease" and spec.order == "key"
        for place in self.places.values():
            if place.is_ordered != is_ordered:
                place.end_leases()
                place.is_ordered = is_ordered

    def room(self) -> int:
        """Return how many more messages may be leased; 0 or less for none."""
        return self.spec.max_leased_messages - self.n_leased

    def takes(self, topic: str) -> bool:
        """Say whether a topic matches the group's filters."""
        topics = self.spec.topics
        if topics is None:
            return True
        found = self._takes.get(topic)
        if found is None:
            if len(self._takes) >= _MAX_TOPICS:
                self._takes.clear()
            found = self._takes[topic] = any(matches(one, topic) for one in topics)
        return found

    def wait_until(self, batch: LeaseBatch) -> None:
        """Note the deadline of a batch."""
        heapq.heappush(self._deadlines, batch)
        if self._deadlines[0] is batch:
            self.on_deadline(self)

    def due(self, place: LocalPlace, due_at: float) -> None:
        """Note that a message may become visible at a time."""
        mark = LeaseBatch(place, due_at, (), None, 0, None, NOT_RECEIVED, is_delay=True)
        mark.left = -1  # it is not ended before its time
        self.wait_until(mark)

    def ended(self, batch: LeaseBatch) -> None:
        """Note that none of a batch's messages waits for its deadline."""
        batch.offsets = ()
        batch.sizes = batch.counts = None
        self._n_ended += 1
        if self._n_ended > _CLEAN_ABOVE and self._n_ended * 2 > len(self._deadlines):
            self._deadlines = [one for one in self._deadlines if one.left]
            heapq.heapify(self._deadlines)
            self._n_ended = 0

    def next_deadline(self) -> float | None:
        """Return the engine's time at which something may become visible; None for never."""
        return self._deadlines[0].deadline if self._deadlines else None

    def expire(self, now: float) -> None:
        """Make messages visible whose lease or delay is over."""
        deadlines = self._deadlines
        has_arrived = False
        while deadlines and deadlines[0].deadline <= now:
            batch = heapq.heappop(deadlines)
            if batch.left:
                batch.place.expire(batch)
                has_arrived = True
            else:
                self._n_ended -= 1
        if has_arrived:
            self.arrived()

    def n_delayed(self, now: float) -> int:
        """Return how many messages wait for their delay."""
        return sum(place.n_delayed(now) for place in self.places.values())


@dataclass(slots=True)
class LeaseRequest:
    """One call of `lease` on one physical queue.

    Attributes:
        max_messages: the most messages.
        max_bytes: the most payload bytes after the first message.
        received: what it has got so far.
        n_bytes: the payload bytes of these.
        is_full: whether no more messages or bytes fit.
        settled: bits to be settled unseen, by reason and first offset.
        sizes: payload bytes of the messages of these segments.
        dead: messages that were received too often: first offset and index.
        last_of_key: offset of the newest message of each key in this call.
    """

    now: float
    deadline: float
    max_messages: int
    max_bytes: int
    nonce: int
    received: list[ReceivedMessage] = field(default_factory=list)
    n_bytes: int = 0
    is_full: bool = False
    n_looked: int = 0
    settled: dict[str, dict[int, int]] = field(default_factory=dict)
    sizes: dict[int, array[int]] = field(default_factory=dict)
    dead: list[tuple[Decoded, int]] = field(default_factory=list)
    last_of_key: dict[str, int] = field(default_factory=dict)

    @property
    def is_interrupted(self) -> bool:
        """Whether the step has looked at so many messages that another one must follow."""
        return self.n_looked >= MAX_LOOKED

    def wants(self) -> bool:
        """Say whether this step may take another message."""
        has_room = not self.is_full and len(self.received) < self.max_messages
        return has_room and not self.is_interrupted

    def settle(self, reason: str, decoded: Decoded, index: int) -> None:
        """Note a message that is settled unseen."""
        bits = self.settled.setdefault(reason, {})
        first = decoded.first_offset
        bits[first] = bits.get(first, 0) | 1 << index
        self.sizes[first] = decoded.sizes


class LocalPlace:
    """A group in one physical queue; see the module for the theory of operation.

    Attributes:
        settled: bit maps of settled messages in segments behind the floor, by first offset.
        waiting: messages that are not settled; `note_waiting` changes it.
        cursor: every message below it was looked at in this run.
        counts: receive counts of the messages of a segment, by first offset.
        dirty: first offsets of segments whose counts are not stored.
        settling: offsets of messages whose settling is under way.
    """

    def __init__(self, group: LocalGroup, physical: PhysicalQueue, floor: int) -> None:
        self.group = group
        self.physical = physical
        self.floor = floor
        self.settled: dict[int, int] = {}
        self.waiting = 0
        self.cursor = floor
        self.counts: dict[int, array[int]] = {}
        self.dirty: set[int] = set()
        self.leased: dict[int, LeaseBatch] = {}
        self.delayed: dict[int, LeaseBatch] = {}
        self.settling: set[int] = set()
        self.is_ordered = group.spec.kind == "lease" and group.spec.order == "key"
        self._settling_ahead: set[int] = set()
        self._visible = RedeliveryIndex()
        self._due_at = -1.0

    def note_waiting(self, n_messages: int) -> None:
        """Take note of how many messages are not settled."""
        self.waiting = n_messages
        numbers = self.group.waiting_in
        (numbers.add if n_messages > 0 else numbers.discard)(self.physical.number)

    def settled_bits(self, first_offset: int, n_messages: int) -> int:
        """Return the bit map of a segment's messages that the group has settled, or that left."""
        return (
            self.settled.get(first_offset, 0)
            | self.physical.gone_bits(first_offset)
            | bits_below(first_offset, n_messages, self.floor)
        )

    def count_waiting(self) -> int:
        """Count the messages that the group has not settled."""
        return sum(
            segment.n_messages
            - self.settled_bits(segment.first_offset, segment.n_messages).bit_count()
            for segment in self.physical.index.since(self.floor)
        )

    def raise_floor(self, floor: int) -> None:
        """Take note that everything below an offset is settled."""
        self.floor = floor
        for first in [one for one in self.settled if one < floor]:
            segment = self.physical.index.holding(first)
            if segment is None or first + segment.n_messages <= floor:
                del self.settled[first]
        for first in [one for one in self.counts if one < floor]:
            segment = self.physical.index.holding(first)
            if segment is None or first + segment.n_messages <= floor:
                del self.counts[first]
                self.dirty.discard(first)
        if self.group.spec.kind == "offsets":
            self.cursor = max(self.cursor, floor)

    def n_visible(self, now: float) -> int:
        """Return how many messages could be received, apart from filters, expiry and order."""
        n = self.waiting - len(self.leased) - len(self.settling)
        return max(0, n - self.n_delayed(now)) if n > 0 else 0

    def n_delayed(self, now: float) -> int:
        """Return how many messages wait for their delay."""
        physical, cursor = self.physical, self.cursor
        delay = self.group.delay_seconds
        if not self.delayed and not delay and not physical.delays:
            return 0
        n = len(self.delayed)
        first_waiting = physical.index.not_before(now - delay) if delay else -1
        if first_waiting >= 0:
            n += physical.next - max(first_waiting, cursor)
        for first, delays in physical.delays.items():
            behind = first + len(delays.due)
            if behind > cursor:
                n += delays.n_waiting(now, max(0, cursor - first))
                if 0 <= first_waiting < behind:  # they were counted above
                    n -= behind - max(first, first_waiting, cursor)
        return max(0, min(n, self.waiting))

    def take_counts(self) -> dict[int, bytes]:
        """Return receive counts that are to be stored, by first offset."""
        taken = {
            first: self.counts[first].tobytes() for first in self.dirty if first in self.counts
        }
        self.dirty.clear()
        return taken

    def restore_counts(self, first_offset: int, stored: bytes) -> None:
        """Take receive counts from the storage."""
        self.counts[first_offset] = array("H", stored)

    # Receiving.

    def take(self, take: LeaseRequest, find: Find) -> list[int]:
        """Receive messages.

        Returns:
            First offsets of segments that must be read before the call is repeated; none when all
            is done, or the step of `take` is interrupted.
        """
        missing = self._take_again(take, find)
        if missing:
            return missing
        while take.wants():
            segment = self.physical.index.following(self.cursor)
            if segment is None:
                self.cursor = max(self.cursor, self.physical.next)
                break
            first = segment.first_offset
            self.cursor = max(self.cursor, first)
            if self._is_settled_whole(segment):
                self.cursor = first + segment.n_messages
                continue
            decoded = find(self.physical, first)
            if decoded is None:
                return self._page(first)
            if not self._take_segment(decoded, take):
                break
        return []

    def _is_settled_whole(self, segment: Segment) -> bool:
        first, n = segment.first_offset, segment.n_messages
        if first not in self.settled and first not in self.physical.gone:
            return False
        return self.settled_bits(first, n) == (1 << n) - 1

    def _page(self, first: int) -> list[int]:
        """Return the segments to be read from the cursor on."""
        page: list[int] = []
        n_bytes = 0
        for segment in self.physical.index.since(first):
            page.append(segment.first_offset)
            n_bytes += segment.stored_bytes
            if n_bytes >= PAGE_BYTES or len(page) >= _PAGE_SEGMENTS:
                break
        return page

    def _take_again(self, take: LeaseRequest, find: Find) -> list[int]:
        """Receive what became visible again, the oldest first."""
        visible = self._visible
        first_of = self.physical.index.first_of
        while take.wants() and (offset := visible.candidate(take.last_of_key)) >= 0:
            first = first_of(offset)
            if first < 0:
                visible.drop_candidate()
                continue
            decoded = find(self.physical, first)
            if decoded is None:
                wanted = visible.candidates(take.max_messages - len(take.received))
                return sorted({first_of(one) for one in wanted} - {-1})
            if not self._consider(decoded, offset - first, take):
                break
            if offset in self.leased:
                visible.took(offset)
            else:
                visible.drop_candidate()
        return []

    def _take_segment(self, decoded: Decoded, take: LeaseRequest) -> bool:
        """Receive messages of a segment from the cursor on; say whether to go on behind it."""
        first, n = decoded.first_offset, decoded.n_messages
        if self._is_plain_rest(decoded):
            self._take_run(decoded, take)
            return self.cursor == first + n
        while self.cursor < first + n:
            is_over = not take.wants() or len(self._visible.keys) >= MAX_WAITING_IN_LANES
            if is_over or not self._consider(decoded, self.cursor - first, take):
                return False
            self.cursor += 1
        return True

    def _is_plain_rest(self, decoded: Decoded) -> bool:
        """Say whether the rest of a segment holds nothing that must be looked at singly."""
        first = decoded.first_offset
        group = self.group
        if decoded.flags or self.is_ordered or group.spec.topics is not None:
            return False
        if group.delay_seconds or self._settling_ahead or self.floor > self.cursor:
            return False
        index = self.cursor - first
        if (self.settled.get(first, 0) | self.physical.gone_bits(first)) >> index:
            return False
        counts = self.counts.get(first)
        return counts is None or not any(counts[index:])

    def _take_run(self, decoded: Decoded, take: LeaseRequest) -> None:
        """Receive a run of messages of which none was received before."""
        first = decoded.first_offset
        start = self.cursor - first
        stop = min(decoded.n_messages, start + take.max_messages - len(take.received))
        room = take.max_bytes - take.n_bytes
        n_bytes = sum(decoded.sizes[start:stop])
        if n_bytes > room:
            stop, n_bytes = self._fitting(decoded, start, stop, room, take)
            take.is_full = True
        if stop <= start:
            return
        take.n_bytes += n_bytes
        counts = self._counts(first, decoded.n_messages)
        counts[start:stop] = array("H", [1]) * (stop - start)
        offsets = range(first + start, first + stop)
        group = self.group
        number, nonce = self.physical.number, take.nonce
        rows = zip(
            group.receipts.handles(Receive(number, 1, nonce, group.epoch), offsets),
            repeat(1, len(offsets)),
            repeat(number, len(offsets)),
            *(column[start:stop] for column in decoded.batch),
            strict=True,
        )
        take.received += received_messages(rows)
        lease = LeaseBatch(self, take.deadline, offsets, counts, first, decoded.sizes, nonce)
        self.leased.update(zip(offsets, repeat(lease)))
        group.n_leased += len(offsets)
        group.wait_until(lease)
        self.cursor = first + stop

    @staticmethod
    def _fitting(
        decoded: Decoded, start: int, stop: int, room: int, take: LeaseRequest
    ) -> tuple[int, int]:
        """Return the end of the run that fits into the room, and its bytes."""
        n_bytes = 0
        for index in range(start, stop):
            size = decoded.sizes[index]
            if n_bytes + size > room and (index > start or take.received):
                return index, n_bytes
            n_bytes += size
        return stop, n_bytes

    def _consider(self, decoded: Decoded, index: int, take: LeaseRequest) -> bool:
        """Look at one message: receive it, or do whatever is due.

        Returns:
            Whether the message was dealt with; False where it must be looked at again later.
        """
        take.n_looked += 1
        first = decoded.first_offset
        offset = first + index
        group, batch = self.group, decoded.batch
        if offset in self.settling:
            return True
        if self.settled_bits(first, decoded.n_messages) >> index & 1:
            self._forget(offset)
            return True
        if not group.takes(batch.topic[index]):
            self._leave(take, "filtered", decoded, index)
            return True
        expires_at = decoded.expires_at(index)
        if expires_at is not None and take.now >= expires_at:
            self._leave(take, "expired", decoded, index)
            return True
        if offset not in self._visible and not self._is_due(decoded, index, take.now):
            return offset in self.delayed
        counts = self._counts(first, decoded.n_messages)
        if group.spec.max_receives is not None and counts[index] >= group.spec.max_receives:
            self._forget(offset)
            self.settling.add(offset)
            take.dead.append((decoded, index))
            return True
        size = decoded.sizes[index]
        if take.received and take.n_bytes + size > take.max_bytes:
            take.is_full = True
            return False
        if self.is_ordered and not self._joins_lane(decoded, index, take):
            return True
        take.n_bytes += size
        counts[index] = min(counts[index] + 1, MAX_RECEIVE_COUNT)
        self.dirty.add(first)
        take.received.append(self._delivery(decoded, index, counts[index], take, expires_at))
        self._visible.hide(offset)
        self._lease(offset, take.deadline, counts, first, decoded.sizes, take.nonce)
        return True

    def _delivery(
        self, decoded: Decoded, index: int, count: int, take: LeaseRequest, expires_at: float | None
    ) -> ReceivedMessage:
        row: tuple[Any, ...] = decoded.row(index)
        properties = row[-1]
        if expires_at is not None:
            properties = count_down(properties, expires_at, take.now)
        group, number = self.group, self.physical.number
        receive = Receive(number, count, take.nonce, group.epoch)
        offset = decoded.first_offset + index
        (handle,) = group.receipts.handles(receive, range(offset, offset + 1))
        return ReceivedMessage._make((handle, count, number, *row[:-1], properties))

    def _lease(
        self,
        offset: int,
        deadline: float,
        counts: array[int],
        first: int,
        sizes: array[int] | None,
        nonce: int,
    ) -> None:
        batch = LeaseBatch(self, deadline, (offset,), counts, first, sizes, nonce)
        self.leased[offset] = batch
        self.group.n_leased += 1
        self.group.wait_until(batch)

    def _leave(self, take: LeaseRequest, reason: str, decoded: Decoded, index: int) -> None:
        """Have a message settled unseen."""
        offset = decoded.first_offset + index
        self._forget(offset)
        self.settling.add(offset)
        take.settle(reason, decoded, index)

    def _is_due(self, decoded: Decoded, index: int, now: float) -> bool:
        """Say whether a message's delay is over; if not, see that it is looked at again."""
        own = decoded.delay(index)
        delay = self.group.delay_seconds if own is None else own
        due_at = decoded.stored_clock(index) + delay
        if not delay or due_at <= now:
            return True
        offset = decoded.first_offset + index
        if self.is_ordered or self.physical.last_own_delay >= decoded.first_offset:
            self._delay(offset, due_at, decoded.first_offset, NOT_RECEIVED)
            key = self._key(decoded, index) if self.is_ordered else None
            if key is not None:
                self._visible.enter_lane(offset, key)
        elif due_at != self._due_at:
            # All that follows is due later: the cursor waits here.
            self._due_at = due_at
            self.group.due(self, due_at)
        return False

    def _delay(self, offset: int, due_at: float, first: int, nonce: int) -> None:
        counts = self.counts.get(first)
        batch = LeaseBatch(self, due_at, (offset,), counts, first, None, nonce, is_delay=True)
        self.delayed[offset] = batch
        self.group.wait_until(batch)

    # Order by key.

    def _joins_lane(self, decoded: Decoded, index: int, take: LeaseRequest) -> bool:
        """Say whether a message may be received, as to its key; else it waits in its lane."""
        offset = decoded.first_offset + index
        visible = self._visible
        key = visible.keys.get(offset)
        if key is None:
            key = self._key(decoded, index)
            if key is None:
                return True
            before = visible.enter_lane(offset, key)
            if before not in (-1, take.last_of_key.get(key)):
                visible.block(offset, NOT_RECEIVED)
                return False
        take.last_of_key[key] = offset
        return True

    def _key(self, decoded: Decoded, index: int) -> str | None:
        batch = decoded.batch
        return self.group.key_of(
            batch.topic[index], batch.publisher[index], batch.properties[index]
        )

    # What becomes of received messages.

    def expire(self, batch: LeaseBatch) -> None:
        """Make the messages of a batch visible: their lease or delay is over."""
        waiting = self.delayed if batch.is_delay else self.leased
        for offset in batch.offsets:
            if waiting.get(offset) is batch:
                del waiting[offset]
                if not batch.is_delay:
                    self.group.n_leased -= 1
                self._visible.show(offset, batch.nonce)
        batch.left = 0

    def end_lease(self, offset: int) -> LeaseBatch | None:
        """Take a message out of its lease or delay; return its batch if there was one."""
        batch = self.leased.pop(offset, None)
        if batch is not None:
            self.group.n_leased -= 1
        else:
            batch = self.delayed.pop(offset, None)
            if batch is None:
                return None
        batch.left -= 1
        if not batch.left:
            self.group.ended(batch)
        return batch

    def nack(self, offset: int, due_at: float | None) -> None:
        """Make a message visible, now or at a time; one that the cursor has not met stays."""
        batch = self.end_lease(offset)
        nonce = self._visible.hide(offset) if batch is None else batch.nonce
        if nonce is None:
            return
        if due_at is None:
            self._visible.show(offset, nonce)
        else:
            self._delay(offset, due_at, self.physical.index.first_of(offset), nonce)

    def extend(self, offset: int, deadline: float) -> bool:
        """Let a lease end at another time; say whether there is one."""
        batch = self.leased.get(offset)
        if batch is None or batch.counts is None:
            return False
        counts, first, sizes = batch.counts, batch.first_offset, batch.sizes
        self.end_lease(offset)
        self._lease(offset, deadline, counts, first, sizes, batch.nonce)
        return True

    def undo(self, offset: int, nonce: int) -> None:
        """Take back a receive of which nobody has got the message."""
        batch = self.leased.get(offset)
        if batch is None or batch.counts is None or batch.nonce != nonce:
            return
        batch.counts[offset - batch.first_offset] -= 1
        self.dirty.add(batch.first_offset)
        self.end_lease(offset)
        self._visible.show(offset, NOT_RECEIVED)

    def is_current(self, offset: int, count: int, nonce: int) -> tuple[int, int]:
        """Say whether a receive is the newest one of an unsettled message.

        Returns:
            First offset of the segment, and index of the message; (-1, -1) where it is not.
        """
        batch = self.leased.get(offset)
        if batch is not None:
            if batch.nonce == nonce:
                return batch.first_offset, offset - batch.first_offset
            return -1, -1
        segment = self.physical.index.holding(offset)
        if segment is None or offset in self.settling:
            return -1, -1
        first, n = segment.first_offset, segment.n_messages
        index = offset - first
        if self.settled_bits(first, n) >> index & 1:
            return -1, -1
        batch = self.delayed.get(offset)
        if batch is not None or offset in self._visible:
            known = self._visible.nonces[offset] if batch is None else batch.nonce
            return (first, index) if known == nonce else (-1, -1)
        # Of an earlier run: the newest receives may not have been stored.
        counts = self.counts.get(first)
        is_newest = counts is None or count >= counts[index]
        return (first, index) if offset >= self.cursor and is_newest else (-1, -1)

    def begin_settling(self, offset: int) -> None:
        """Take a message that is not leased out until its settling is done."""
        self.end_lease(offset)
        self._visible.hide(offset)
        self.settling.add(offset)
        if offset >= self.cursor:
            self._settling_ahead.add(offset)

    def begin_settling_leased(
        self, offsets: Sequence[int], nonce: int
    ) -> tuple[list[int], dict[int, Lease]]:
        """Take the messages of one receive out until their settling is done.

        Returns:
            Where in `offsets` those are that the receive does not lease, which stay; the leases
            of the others, by offset.
        """
        group, leased = self.group, self.leased
        others: list[int] = []
        leases: dict[int, Lease] = {}
        at = 0
        # Messages that were received together have one batch.
        for batch, run in groupby(map(leased.get, offsets)):
            some = offsets[at : at + len(list(run))]
            if batch is None or batch.nonce != nonce:
                others += range(at, at + len(some))
            else:
                lease = Lease(batch.deadline, nonce, batch.sizes, batch.first_offset)
                taken = dict.fromkeys(some, lease)
                if len(taken) < len(some):
                    others += repeats_in(some, at)
                leases |= taken
                for offset in taken:
                    del leased[offset]
                batch.left -= len(taken)
                if not batch.left:
                    group.ended(batch)
            at += len(some)
        if leases and group.n_leased >= group.spec.max_leased_messages:
            group.was_full = True
        group.n_leased -= len(leases)
        self.settling.update(leases)
        return others, leases

    def settled_now(self, offsets: Sequence[int]) -> None:
        """End the settling of messages: they are settled."""
        self.settling.difference_update(offsets)
        if self._settling_ahead:
            self._settling_ahead.difference_update(offsets)
        if self.is_ordered:
            for offset in offsets:
                self._forget(offset)
            self.group.arrived()

    def not_settled(
        self, offsets: Sequence[int], leases: Mapping[int, Lease], retry_at: float | None = None
    ) -> None:
        """End the settling of messages: it has failed.

        Args:
            offsets: the offsets of the messages.
            leases: what they had; they go on. Others become visible.
            retry_at: the engine's time at which they do; None for at once.
        """
        for offset in offsets:
            self.settling.discard(offset)
            self._settling_ahead.discard(offset)
            first = self.physical.index.first_of(offset)
            lease = leases.get(offset)
            if first < 0 or offset >= self.cursor:
                continue
            if lease is not None and first in self.counts:
                counts = self.counts[first]
                self._lease(offset, lease.deadline, counts, first, lease.sizes, lease.nonce)
            elif retry_at is not None:
                self._delay(offset, retry_at, first, NOT_RECEIVED)
            else:
                self._visible.show(offset, NOT_RECEIVED)

    def drop(self, first_offset: int, bits: int) -> None:
        """Forget messages of a segment that left the queue."""
        if self.leased or self.delayed or self._visible.nonces or self._visible.keys:
            for index in each_bit(bits):
                self.end_lease(first_offset + index)
                self._forget(first_offset + index)

    def end_leases(self) -> None:
        """Forget all receives: what is not settled is visible."""
        for offset in [*self.leased, *self.delayed]:
            self.end_lease(offset)
        self._visible.clear()
        self._due_at = -1.0
        self.cursor = self.floor

    def move(self, floor: int) -> None:
        """Put the group at another offset, with nothing settled behind it."""
        self.floor = floor
        self.settled.clear()
        self.counts.clear()
        self.dirty.clear()
        self.end_leases()

    def _forget(self, offset: int) -> None:
        """Forget a message that is or will be settled; the next of its key may come."""
        if self._visible.forget(offset):
            self.group.arrived()

    def _counts(self, first: int, n_messages: int) -> array[int]:
        counts = self.counts.get(first)
        if counts is None:
            counts = self.counts[first] = array("H", bytes(2 * n_messages))
        self.dirty.add(first)
        return counts


def _ignore(_group: LocalGroup) -> None:
    """Do nothing."""
