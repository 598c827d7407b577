"""A transaction collects the changes of several requests, and applies them once they are stored.

The writing thread builds it, from the state as the last transaction has left it, and writes it.
Only when that is done, `apply` changes the state, on the loop's thread. A transaction that fails
has changed nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from logging import Logger
from typing import Final

from penstock.broker.durable.storage_clock import StorageClock
from penstock.plugins.queue.batch_format import SEGMENT_MAX_MESSAGES, write_batch
from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.engines.incoming import Incoming
from penstock.plugins.queue.engines.leases import LocalGroup, LocalPlace
from penstock.plugins.queue.engines.partition import (
    PhysicalQueue,
    bits_below,
    each_bit,
    sum_of,
    trailing_ones,
)
from penstock.plugins.queue.engines.queues import LocalQueue, Newest, StoredIdentifier
from penstock.plugins.queue.engines.segments import Decoded, SegmentCache, decode
from penstock.plugins.queue.engines.store import (
    DELAYED,
    Changes,
    DeduplicationRow,
    PhysicalRow,
    Segment,
    Store,
)
from penstock.plugins.queue.wire.frames import Batch

CUT_SEGMENTS: Final = 64
"""The most segments that one transaction cuts from a queue, some 16 MiB. A long cut would delay the
storing of messages and, when it is applied, the loop."""
_SPARE_KEYS: Final = 1_024
"""How many keys of messages that have left a queue with `keeps_last` may be known besides the
others."""
_KEPT_UP_MESSAGES: Final = 8_192
"""A group that is no further behind than this gets new messages from memory."""


class Surroundings:
    """What transactions are built from.

    Attributes:
        on_stored: is called with a queue that got messages.
    """

    def __init__(
        self,
        store: Store,
        cache: SegmentCache,
        clock: StorageClock,
        logger: Logger,
        on_stored: Callable[[LocalQueue], None],
    ) -> None:
        self.store = store
        self.cache = cache
        self.on_stored = on_stored
        self.clock = clock
        self.logger = logger


class Transaction:
    """What a group of requests changes.

    Attributes:
        more: physical queues of which more must be cut.
    """

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.now = around.clock()
        self.epoch = around.clock.epoch
        self.changes = Changes()
        self.more: list[tuple[LocalQueue, PhysicalQueue]] = []
        self._usage: dict[PhysicalQueue, list[int]] = {}
        self._gone: dict[tuple[PhysicalQueue, int], tuple[int, int]] = {}
        self._deleted: dict[PhysicalQueue, set[int]] = {}
        self._settled: dict[tuple[LocalPlace, int], int] = {}
        self._floors: dict[LocalPlace, int] = {}
        self._waiting: dict[LocalPlace, int] = {}
        self._touched: dict[LocalPlace, LocalQueue] = {}
        self._dropped: list[tuple[LocalQueue, PhysicalQueue, Segment, int]] = []
        self._removed: dict[tuple[LocalQueue, str], int] = {}
        self._incoming: dict[PhysicalQueue, Incoming] = {}
        self._stored: dict[tuple[LocalQueue, bytes], StoredIdentifier | None] = {}
        self._newest: dict[tuple[LocalQueue, str], Newest] = {}
        self._moved: dict[LocalPlace, int] = {}
        self._queues: dict[PhysicalQueue, LocalQueue] = {}
        self._shrunk: dict[tuple[PhysicalQueue, int], Segment] = {}

    # Messages that come.

    def incoming(self, queue: LocalQueue, number: int) -> Incoming:
        """Return what is appended to a physical queue.

        Raises:
            OffsetError: there is none of this number.
        """
        physical = queue.part(number)
        found = self._incoming.get(physical)
        if found is None:
            found = self._incoming[physical] = Incoming(queue, physical)
        return found

    def stored(self, queue: LocalQueue, identifier: bytes) -> StoredIdentifier | None:
        """Return the message that was stored with a deduplication identifier in its window."""
        found = self._stored.get((queue, identifier), queue.stored.get(identifier))
        if found is None or found.stored_at + queue.spec.deduplication_seconds <= self.now:
            return None
        return found

    def note_stored(self, queue: LocalQueue, identifier: bytes, number: int, offset: int) -> None:
        """Note the deduplication identifier of a message."""
        self._stored[queue, identifier] = StoredIdentifier(self.now, number, offset)
        self.changes.deduplication[queue.row_id, identifier] = DeduplicationRow(
            queue.row_id, identifier, self.now - self.around.clock.away, number, offset
        )

    def forget(self, queue: LocalQueue, identifier: bytes) -> None:
        """End the window of a deduplication identifier."""
        if self._stored.get((queue, identifier), queue.stored.get(identifier)) is not None:
            self._stored[queue, identifier] = None
            self.changes.deduplication[queue.row_id, identifier] = None
            self.changes.must_flush = True

    def encode(self) -> None:
        """Make segments of all that comes; make room for them where queues drop their oldest."""
        clock_offset = self.around.clock.shift - self.epoch
        for physical, incoming in self._incoming.items():
            queue = incoming.queue
            for segment, frame, decoded in incoming.encode(clock_offset):
                incoming.segments.append((segment, decoded))
                self.changes.segments.append((physical.row_id, segment, frame))
                self.changes.must_flush = True
                usage = self._of(queue, physical)
                usage[1] = segment.first_offset + segment.n_messages
                usage[2] += segment.n_messages
                usage[3] += segment.payload_bytes
                usage[4] += segment.stored_bytes
            if queue.spec.keeps_last:
                self._keep_last(queue, physical, incoming)
        for queue in {incoming.queue for incoming in self._incoming.values()}:
            if queue.spec.when_full == "drop_oldest":
                self._drop_oldest(queue)

    def _keep_last(self, queue: LocalQueue, physical: PhysicalQueue, incoming: Incoming) -> None:
        newest = queue.newest
        if newest is None:
            newest = queue.newest = self._read_newest(queue)
        elif len(newest) > 2 * queue.messages + _SPARE_KEYS:
            newest = queue.newest = {key: one for key, one in newest.items() if queue.holds(one)}
        superseded: dict[tuple[int, int], int] = {}
        for segment, decoded in incoming.segments:
            batch = decoded.batch
            for index in range(segment.n_messages):
                key = queue.key_of(
                    batch.topic[index], batch.publisher[index], batch.properties[index]
                )
                if key is None:
                    continue
                old = self._newest.get((queue, key)) or newest.get(key)
                if old is not None:
                    place = (old.number, old.first_offset)
                    superseded[place] = superseded.get(place, 0) | 1 << old.bit
                self._newest[queue, key] = Newest(physical.number, segment.first_offset, index)
        for (number, first), bits in superseded.items():
            part = queue.physical.get(number)
            found = None if part is None else self._segment(part, first)
            if part is not None and found is not None:
                self.remove(queue, part, found, bits, "keeps_last")

    def _read_newest(self, queue: LocalQueue) -> dict[str, Newest]:
        """Read which message of each key is the newest."""
        newest: dict[str, Newest] = {}
        for number, physical in queue.physical.items():
            for segment in physical.index:
                decoded = self._decoded(physical, segment)
                if decoded is None:
                    continue
                gone = physical.gone_bits(segment.first_offset)
                batch = decoded.batch
                for index in range(segment.n_messages):
                    key = queue.key_of(
                        batch.topic[index], batch.publisher[index], batch.properties[index]
                    )
                    if key is not None and not gone >> index & 1:
                        newest[key] = Newest(number, segment.first_offset, index)
        return newest

    def _drop_oldest(self, queue: LocalQueue) -> None:
        """Remove the oldest messages until the limits are kept."""
        spec = queue.spec
        while True:
            messages, n_bytes = queue.messages, queue.payload_bytes
            for physical in queue.physical.values():
                usage = self._usage.get(physical)
                if usage is not None:
                    messages += usage[2] - physical.messages
                    n_bytes += usage[3] - physical.payload_bytes
            surplus = 0 if spec.max_messages is None else messages - spec.max_messages
            surplus_bytes = 0 if spec.max_bytes is None else n_bytes - spec.max_bytes
            if surplus <= 0 and surplus_bytes <= 0:
                return
            oldest = min(
                (
                    (segment.newest_clock, number, segment)
                    for number, physical in queue.physical.items()
                    if (segment := self._oldest(physical)) is not None
                ),
                default=None,
            )
            if oldest is None:
                return
            _, number, segment = oldest
            physical = queue.physical[number]
            left = ~self.gone(physical, segment.first_offset)[0] & (1 << segment.n_messages) - 1
            sizes = self._sizes(physical, segment)
            bits = 0
            while left and (surplus > 0 or surplus_bytes > 0):
                low = left & -left
                bits |= low
                left ^= low
                surplus -= 1
                surplus_bytes -= sizes[low.bit_length() - 1]
            self.remove(queue, physical, segment, bits, "drop_oldest")
            self._begin_at(queue, physical, segment.first_offset + bits.bit_length())

    def _oldest(self, physical: PhysicalQueue) -> Segment | None:
        """Return the first segment that is left."""
        deleted = self._deleted.get(physical, ())
        usage = self._usage.get(physical)
        earliest = physical.earliest if usage is None else usage[0]
        incoming = self._incoming.get(physical)
        new = [segment for segment, _ in incoming.segments] if incoming is not None else []
        return next(
            (
                one
                for one in chain(physical.index.since(earliest), new)
                if one.first_offset not in deleted
            ),
            None,
        )

    # Messages that leave.

    def settle(
        self,
        queue: LocalQueue,
        place: LocalPlace,
        first_offset: int,
        bits: int,
        sizes: array[int] | None,
    ) -> int:
        """Settle messages of a segment for a group; return those that were not settled before."""
        physical = place.physical
        segment = self._segment(physical, first_offset)
        if segment is None or place in self._moved:  # a seek has ended what was received
            return 0
        n = segment.n_messages
        before = self.settled_bits(place, first_offset, n)
        new = bits & ~before & (1 << n) - 1
        if not new:
            return 0
        after = before | new
        self._waiting[place] = self._waiting.get(place, 0) - new.bit_count()
        self._touched[place] = queue
        everyone = after
        others = [other for other in queue.places(physical.number) if other is not place]
        for other in others:
            everyone &= self.settled_bits(other, first_offset, n)
            if not everyone:
                break
        gone = self.gone(physical, first_offset)[0]
        if others:
            self._settled[place, first_offset] = after
            if after != (everyone | gone):
                key = (physical.row_id, first_offset, place.group.row_id)
                self.changes.settled[key] = after
        newly = everyone & ~gone
        if newly:
            self._leave(queue, physical, segment, newly, sizes)
        return new

    def remove(
        self, queue: LocalQueue, physical: PhysicalQueue, segment: Segment, bits: int, reason: str
    ) -> int:
        """Remove messages of a segment for all groups; return how many."""
        if segment.first_offset in self._deleted.get(physical, ()):
            return 0
        bits &= ~self.gone(physical, segment.first_offset)[0] & (1 << segment.n_messages) - 1
        if not bits:
            return 0
        for place in queue.places(physical.number):
            unsettled = bits & ~self.settled_bits(place, segment.first_offset, segment.n_messages)
            self._waiting[place] = self._waiting.get(place, 0) - unsettled.bit_count()
            self._touched[place] = queue
        self._dropped.append((queue, physical, segment, bits))
        self._leave(queue, physical, segment, bits, None)
        n = bits.bit_count()
        if reason:
            self._removed[queue, reason] = self._removed.get((queue, reason), 0) + n
        return n

    def _leave(
        self,
        queue: LocalQueue,
        physical: PhysicalQueue,
        segment: Segment,
        bits: int,
        sizes: array[int] | None,
    ) -> None:
        """Take messages that are not gone out of a segment, and a segment without any out."""
        first, n = segment.first_offset, segment.n_messages
        segment = self._shrunk.get((physical, first), segment)
        gone, gone_bytes = self.gone(physical, first)
        gone |= bits
        usage = self._of(queue, physical)
        usage[2] -= bits.bit_count()
        if gone == (1 << n) - 1:
            usage[3] -= segment.payload_bytes - gone_bytes
            usage[4] -= segment.stored_bytes
            self._gone.pop((physical, first), None)
            self.changes.gone.pop((physical.row_id, first), None)
            self._deleted.setdefault(physical, set()).add(first)
            self.changes.deleted_segments.append((physical.row_id, first))
            return
        known = self._sizes(physical, segment) if sizes is None else sizes
        n_bytes = sum_of(known, bits)
        usage[3] -= n_bytes
        self._gone[physical, first] = gone, gone_bytes + n_bytes
        self.changes.gone[physical.row_id, first] = gone, gone_bytes + n_bytes

    def shrink(self, queue: LocalQueue, physical: PhysicalQueue, first_offset: int) -> None:
        """Store a segment without the contents of the messages that left it."""
        segment = self._segment(physical, first_offset)
        gone, gone_bytes = self.gone(physical, first_offset)
        decoded = None if segment is None else self._decoded(physical, segment)
        if segment is None or decoded is None or not gone_bytes:
            return
        rows = list(zip(*decoded.batch, strict=True))
        for index in each_bit(gone):
            offset, _, _, qos, _, enqueued_at, _ = rows[index]
            rows[index] = (offset, "", b"", qos, "", enqueued_at, "")
        frame = write_batch(Batch._make(map(list, zip(*rows, strict=True))))
        shrunk = segment._replace(
            payload_bytes=segment.payload_bytes - gone_bytes, stored_bytes=len(frame)
        )
        self._of(queue, physical)[4] += shrunk.stored_bytes - segment.stored_bytes
        self._shrunk[physical, first_offset] = shrunk
        self._gone[physical, first_offset] = gone, 0
        self.changes.gone[physical.row_id, first_offset] = gone, 0
        self.changes.replaced_segments.append((physical.row_id, shrunk, frame))

    def move(self, queue: LocalQueue, place: LocalPlace, offset: int) -> None:
        """Move a group forward: everything below the offset is settled."""
        floor = self.floor(place)
        if offset <= floor:
            return
        physical = place.physical
        n_settled = 0
        for segment in physical.index.since(floor):
            first, n = segment.first_offset, segment.n_messages
            if first >= offset:
                break
            if first not in self._deleted.get(physical, ()):
                unsettled = ~self.settled_bits(place, first, n) & bits_below(first, n, offset)
                n_settled += unsettled.bit_count()
        self._waiting[place] = self._waiting.get(place, 0) - n_settled
        self._floors[place] = offset
        self._touched[place] = queue
        self._settle_shared(queue, physical, floor, offset)

    def _settle_shared(
        self, queue: LocalQueue, physical: PhysicalQueue, start: int, end: int
    ) -> None:
        """Take out of the queue what all groups have settled in a range of offsets."""
        places = queue.places(physical.number)
        firsts = {one for one in self._partly_settled(places) if start - 256 < one < end}
        self._leave_settled(queue, physical, places, firsts)

    def _leave_settled(
        self,
        queue: LocalQueue,
        physical: PhysicalQueue,
        places: Sequence[LocalPlace],
        firsts: set[int],
    ) -> None:
        """Take out of segments what all of some groups have settled."""
        for first in sorted(firsts):
            segment = self._segment(physical, first)
            if segment is None:
                continue
            everyone = (1 << segment.n_messages) - 1
            for place in places:
                everyone &= self.settled_bits(place, first, segment.n_messages)
            newly = everyone & ~self.gone(physical, first)[0]
            if newly:
                self._leave(queue, physical, segment, newly, None)

    def _partly_settled(self, places: Sequence[LocalPlace]) -> set[int]:
        """Return the segments of which groups have settled messages behind their floors."""
        firsts = {first for place in places for first in place.settled}
        firsts.update(first for place, first in self._settled if place in places)
        return firsts

    def cut(
        self, queue: LocalQueue, physical: PhysicalQueue, below: int, reason: str
    ) -> tuple[int, bool]:
        """Remove everything below an offset; return how many messages, and whether that was all."""
        n_removed = 0
        for n_segments, segment in enumerate(list(self._cuttable(physical, below))):
            if n_segments == CUT_SEGMENTS:
                below = segment.first_offset
                break
            first, n = segment.first_offset, segment.n_messages
            n_removed += self.remove(queue, physical, segment, bits_below(first, n, below), reason)
        else:
            n_segments = -1
        self._begin_at(queue, physical, below)
        return n_removed, n_segments < CUT_SEGMENTS

    def _begin_at(self, queue: LocalQueue, physical: PhysicalQueue, offset: int) -> None:
        """Make an offset the earliest one for the queue and its groups; what lies below is gone."""
        for place in queue.places(physical.number):
            if self.floor(place) < offset:
                self._floors[place] = offset
                self._touched[place] = queue
        usage = self._of(queue, physical)
        usage[0] = max(usage[0], offset)

    def _cuttable(self, physical: PhysicalQueue, below: int) -> Iterator[Segment]:
        n_found = 0
        for segment in physical.index.since(physical.earliest):
            if segment.first_offset >= below or n_found > CUT_SEGMENTS:
                break
            if segment.first_offset not in self._deleted.get(physical, ()):
                n_found += 1
                yield segment

    def seek(self, queue: LocalQueue, place: LocalPlace, offset: int) -> None:
        """Put a group at any offset, with nothing settled behind it."""
        old = self.floor(place)
        self._settled = {key: bits for key, bits in self._settled.items() if key[0] is not place}
        self._moved[place] = offset
        self._floors[place] = offset
        self._touched[place] = queue
        if offset > old:
            self._settle_shared(queue, place.physical, old, offset)

    def drop_group(self, queue: LocalQueue, group: LocalGroup) -> None:
        """Take what only a group was holding out of the queue."""
        others = [one for one in queue.groups.values() if one is not group]
        if not others:
            return
        for number, physical in queue.physical.items():
            places = [one.places[number] for one in others]
            firsts = self._partly_settled(places)
            self._leave_settled(queue, physical, places, firsts)
            self._cut_settled(queue, physical, min(self.floor(place) for place in places))

    def add_groups(self, queue: LocalQueue, groups: Collection[LocalGroup]) -> None:
        """Take out of a queue that has no groups what lies before its first ones."""
        if queue.groups or not groups:
            return
        for number, physical in queue.physical.items():
            self._cut_settled(queue, physical, min(one.places[number].floor for one in groups))

    # Finishing.

    def finish(self) -> None:
        """Move floors, cut what all groups have settled, and make rows of the rest."""
        for place in list(self._touched):
            floor = self._advance(place)
            if floor > self.floor(place):
                self._floors[place] = floor
        for place, queue in self._touched.items():
            places = queue.places(place.physical.number)
            lowest = min((self.floor(one) for one in places), default=0)
            if lowest > self._of(queue, place.physical)[0]:
                self._cut_settled(queue, place.physical, lowest)
        changes = self.changes
        for place, floor in self._floors.items():
            key = (place.group.row_id, place.physical.row_id)
            changes.floors[key] = floor
            passed = place.physical.index.first_of(floor)
            # From the segment that the old floor was in: what lies below has left with that.
            lowest = max(0, place.floor - SEGMENT_MAX_MESSAGES)
            changes.passed[key] = lowest, floor if passed < 0 else passed
        for physical, usage in self._usage.items():
            changes.physical.append(
                PhysicalRow(physical.row_id, physical.queue_id, physical.number, *usage)
            )

    def trim(self, queue: LocalQueue, physical: PhysicalQueue) -> None:
        """Go on deleting what all groups have passed."""
        places = queue.places(physical.number)
        if places:
            self._cut_settled(queue, physical, min(self.floor(place) for place in places))

    def _cut_settled(self, queue: LocalQueue, physical: PhysicalQueue, below: int) -> None:
        """Delete segments below an offset that all groups have passed."""
        for n_segments, segment in enumerate(list(self._cuttable(physical, below))):
            if n_segments == CUT_SEGMENTS:
                self.more.append((queue, physical))
                below = segment.first_offset
                break
            first, n = segment.first_offset, segment.n_messages
            bits = bits_below(first, n, below) & ~self.gone(physical, first)[0]
            if bits:
                self._leave(queue, physical, segment, bits, None)
        usage = self._of(queue, physical)
        usage[0] = max(usage[0], below)

    def _advance(self, place: LocalPlace) -> int:
        """Return the offset below which a group has settled everything."""
        physical = place.physical
        floor = self.floor(place)
        if place.group.spec.kind == "offsets":
            return floor
        deleted = self._deleted.get(physical, ())
        for segment in physical.index.since(floor):
            first, n = segment.first_offset, segment.n_messages
            if first in deleted:
                continue
            settled = self.settled_bits(place, first, n)
            if settled != (1 << n) - 1:
                return max(floor, first + trailing_ones(settled))
        incoming = self._incoming.get(physical)
        return max(floor, physical.next if incoming is None else incoming.base)

    # What is so when this transaction is done.

    def floor(self, place: LocalPlace) -> int:
        """Return a group's floor."""
        return self._floors.get(place, place.floor)

    def gone(self, physical: PhysicalQueue, first_offset: int) -> tuple[int, int]:
        """Return bit map and payload bytes of the messages that left a segment."""
        found = self._gone.get((physical, first_offset))
        return found if found is not None else physical.gone.get(first_offset, (0, 0))

    def settled_bits(self, place: LocalPlace, first_offset: int, n_messages: int) -> int:
        """Return the bit map of a segment's messages that a group has settled, or that left."""
        own = self._settled.get((place, first_offset))
        if own is None:
            own = 0 if place in self._moved else place.settled.get(first_offset, 0)
        return (
            own
            | self.gone(place.physical, first_offset)[0]
            | bits_below(first_offset, n_messages, self.floor(place))
        )

    def _segment(self, physical: PhysicalQueue, first_offset: int) -> Segment | None:
        """Return a segment that is left."""
        if first_offset in self._deleted.get(physical, ()):
            return None
        found = physical.index.holding(first_offset)
        incoming = self._incoming.get(physical)
        if found is None and incoming is not None:
            new = (segment for segment, _ in incoming.segments)
            found = next((one for one in new if one.first_offset == first_offset), None)
        return found if found is not None and found.first_offset == first_offset else None

    def _of(self, queue: LocalQueue, physical: PhysicalQueue) -> list[int]:
        """Return earliest, next, messages, payload bytes and stored bytes, to be changed."""
        usage = self._usage.get(physical)
        if usage is None:
            usage = self._usage[physical] = [
                physical.earliest,
                physical.next,
                physical.messages,
                physical.payload_bytes,
                physical.stored_bytes,
            ]
            self._queues[physical] = queue
        return usage

    def _sizes(self, physical: PhysicalQueue, segment: Segment) -> Sequence[int]:
        """Return the payload bytes of a segment's messages; equal parts where it is unreadable."""
        decoded = self._decoded(physical, segment)
        if decoded is None:
            return [segment.payload_bytes // segment.n_messages] * segment.n_messages
        return decoded.sizes

    def _decoded(self, physical: PhysicalQueue, segment: Segment) -> Decoded | None:
        first = segment.first_offset
        incoming = self._incoming.get(physical)
        if incoming is not None:
            for new, decoded in incoming.segments:
                if new.first_offset == first:
                    return decoded
        held = self.around.cache.peek(physical.row_id, first)
        if held is not None:
            return held
        try:
            frame = self.around.store.read(physical.row_id, [first]).get(first)
            return None if frame is None else decode(physical.row_id, segment, frame)
        except StorageError:
            return None

    # On the loop's thread.

    def apply(self) -> None:
        """Change the state: the transaction is in the storage."""
        arrived: dict[LocalQueue, None] = {}
        for physical, incoming in self._incoming.items():
            if incoming.segments:
                self._take_in(physical, incoming)
                arrived[incoming.queue] = None
        for physical, usage in self._usage.items():
            queue = self._queues[physical]
            queue.messages += usage[2] - physical.messages
            queue.payload_bytes += usage[3] - physical.payload_bytes
            queue.stored_bytes += usage[4] - physical.stored_bytes
            (
                physical.earliest,
                physical.next,
                physical.messages,
                physical.payload_bytes,
                physical.stored_bytes,
            ) = usage
        for (physical, first), gone in self._gone.items():
            physical.gone[first] = gone
        for (physical, first), segment in self._shrunk.items():
            physical.index.replace(segment)
            self.around.cache.drop(physical.row_id, first)
        for (place, first), bits in self._settled.items():
            place.settled[first] = bits
        for place, offset in self._moved.items():
            place.move(offset)
        for queue, physical, segment, bits in self._dropped:
            for place in queue.places(physical.number):
                place.drop(segment.first_offset, bits)
        for place, change in self._waiting.items():
            place.note_waiting(place.waiting + change)
        for place, floor in self._floors.items():
            place.raise_floor(floor)
        for physical, firsts in self._deleted.items():
            self._take_out(physical, firsts)
        for place in self._moved:
            place.note_waiting(place.count_waiting())
        for (queue, identifier), stored in self._stored.items():
            queue.stored.pop(identifier, None)
            if stored is not None:
                queue.stored[identifier] = stored
        for (queue, key), newest in self._newest.items():
            if queue.newest is not None:
                queue.newest[key] = newest
        for (queue, reason), n in self._removed.items():
            queue.removed[reason] = queue.removed.get(reason, 0) + n
        for queue in arrived:
            queue.arrivals += 1
            self.around.on_stored(queue)
            for group in queue.groups.values():
                group.arrived()

    def _take_in(self, physical: PhysicalQueue, incoming: Incoming) -> None:
        places = incoming.queue.places(physical.number)
        n_new = sum(segment.n_messages for segment, _ in incoming.segments)
        has_readers = any(
            place.group.spec.kind == "lease" and incoming.base - place.cursor < _KEPT_UP_MESSAGES
            for place in places
        )
        for segment, decoded in incoming.segments:
            physical.index.append(segment)
            if has_readers:
                self.around.cache.put(physical.row_id, decoded)
            if segment.flags & DELAYED:
                physical.last_own_delay = segment.first_offset
                incoming.queue.note_delays(physical, decoded, self.now)
        for place in places:
            place.note_waiting(place.waiting + n_new)
            if place.group.delay_seconds:
                place.group.due(place, self.now + place.group.delay_seconds)

    def _take_out(self, physical: PhysicalQueue, firsts: set[int]) -> None:
        queue = self._queues[physical]
        places = queue.places(physical.number)
        for first in firsts:
            physical.index.remove(first)
            physical.gone.pop(first, None)
            physical.delays.pop(first, None)
            self.around.cache.drop(physical.row_id, first)
            for place in places:
                place.settled.pop(first, None)
                place.counts.pop(first, None)
                place.dirty.discard(first)
