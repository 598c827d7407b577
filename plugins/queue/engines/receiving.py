"""Receiving leases messages to receivers, takes them back and settles them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from penstock.plugins.queue.engines.contract import Action, StorageError
from penstock.plugins.queue.engines.dead_letters import letter_row
from penstock.plugins.queue.engines.engine_context import EngineContext
from penstock.plugins.queue.engines.leases import LeaseRequest, LocalGroup, LocalPlace
from penstock.plugins.queue.engines.partition import PhysicalQueue, each_bit
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.reading import SegmentReader
from penstock.plugins.queue.engines.receipts import N_NONCES, Received
from penstock.plugins.queue.engines.requests import Bury, Change, DeadLetter, Marks, Settle
from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.engines.transaction import Transaction
from penstock.plugins.queue.wire.frames import ReceivedMessage

COUNTS_SECONDS: Final = 0.05
"""Receive counts that limit nothing are stored after this time."""
RETRY_SECONDS: Final = 1.0
"""The time after which a message that could not be settled unseen is looked at again. Without a
pause, a held request would loop: each failure wakes it, and its next round fails again."""


class Receiving:
    """Gives messages to receivers, and settles them."""

    def __init__(self, state: EngineContext, reader: SegmentReader) -> None:
        self._state = state
        self._reader = reader
        self._locks: WeakKeyDictionary[LocalPlace, asyncio.Lock] = WeakKeyDictionary()
        self._uncounted: dict[LocalPlace, LocalQueue] = {}
        self._counts_timer: asyncio.TimerHandle | None = None
        self._nonce = secrets.randbelow(N_NONCES)

    def close(self) -> None:
        """Have the receive counts stored."""
        if self._counts_timer is not None:
            self._counts_timer.cancel()
            self._store_counts()

    async def lease(
        self,
        queue: str,
        group: str,
        physical_queue: int,
        max_messages: int,
        max_bytes: int,
        visibility_timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Receive messages of one physical queue."""
        found = self._state.find(queue)
        receivers = found.group(group, "lease")
        found.part(physical_queue)
        place = receivers.places[physical_queue]
        receivers.used_at = self._state.now()
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        async with lock:
            now = self._state.now()
            receivers.expire(now)
            if max_messages <= 0 or receivers.room() <= 0:
                return []
            seconds = receivers.spec.visibility_timeout
            if visibility_timeout is not None:
                seconds = visibility_timeout
            self._nonce = (self._nonce + 1) % N_NONCES
            take = LeaseRequest(now, now + seconds, max_messages, max_bytes, self._nonce)
            await self._fill(found, receivers, place, take)
        receivers.received += len(take.received)
        try:
            if take.settled or take.dead:
                await self._settle_unseen(found, receivers, place, take)
            if place.dirty:
                await self._store_receives(found, receivers, place)
        except BaseException:  # the receiver has left
            for one in take.received:
                place.undo(one.offset, take.nonce)
            self._note_uncounted(found, place)
            receivers.arrived()
            raise
        return take.received

    async def _fill(
        self, queue: LocalQueue, group: LocalGroup, place: LocalPlace, take: LeaseRequest
    ) -> None:
        """Receive messages, in steps between which the loop goes on."""
        held: dict[int, Decoded] = {}

        def find(physical: PhysicalQueue, first: int) -> Decoded | None:
            return held.get(first) or self._state.cache.get(physical.row_id, first)

        most = take.max_messages
        try:
            while True:
                # What is received behind a slow read is invisible for the whole timeout, too.
                now = self._state.now()
                take.now, take.deadline = now, take.deadline + now - take.now
                # Meanwhile, calls on other physical queues may have leased.
                take.max_messages = min(most, len(take.received) + place.group.room())
                missing = place.take(take, find)
                if take.is_interrupted:
                    take.n_looked = 0
                    await asyncio.sleep(0)
                    if take.settled or take.dead:
                        await self._settle_unseen(queue, group, place, take)
                    continue
                if not missing:
                    break
                held = await self._reader.decoded(place.physical, missing)
        except BaseException:
            for received in take.received:
                place.undo(received.offset, take.nonce)
            for reasons in take.settled.values():
                for first, bits in reasons.items():
                    place.not_settled([first + index for index in each_bit(bits)], {})
            dead = [decoded.first_offset + index for decoded, index in take.dead]
            place.not_settled(dead, {})
            raise

    async def _settle_unseen(
        self, queue: LocalQueue, group: LocalGroup, place: LocalPlace, take: LeaseRequest
    ) -> None:
        """Settle what expired or is filtered out, and bury what was received too often.

        From the call on, `take` knows nothing of these messages.
        """
        futures: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()
        retry_at = take.now + RETRY_SECONDS
        for reason, bits in take.settled.items():
            marks = Marks(place, bits, take.sizes, retry_at=retry_at)
            marks.offsets += [first + index for first in bits for index in each_bit(bits[first])]
            futures.append(loop.create_future())
            self._state.submit(Settle(queue, group, reason, [marks], futures[-1]))
        if take.dead:
            marks = Marks(place, retry_at=retry_at)
            letters = []
            for decoded, index in take.dead:
                marks.add(decoded.first_offset, index)
                marks.sizes[decoded.first_offset] = decoded.sizes
                letters.append(self._letter(queue, group, place, decoded, index, "max_receives"))
            futures.append(loop.create_future())
            self._bury(queue, group, [marks], letters, futures[-1])
        take.settled, take.sizes, take.dead = {}, {}, []
        # What cannot be settled is looked at again; what was received is received all the same.
        await asyncio.gather(*map(asyncio.shield, futures), return_exceptions=True)

    def _bury(
        self,
        queue: LocalQueue,
        group: LocalGroup,
        marks: Sequence[Marks],
        letters: Sequence[DeadLetter],
        future: asyncio.Future[None] | None,
    ) -> None:
        name = group.spec.dead_letter_queue
        target = None if name is None else self._state.queues.get(name)
        if name is not None and target is None:
            request = Bury(queue, group, marks, letters, None, future)
            request.failed()
            self._state.logger.error(
                "queue %s, group %s: its dead letter queue %s does not exist; %d dead letters stay",
                queue.name,
                group.name,
                name,
                len(letters),
            )
            if future is not None:
                future.set_exception(StorageError(f"dead letter queue {name}: it does not exist"))
            return
        self._state.submit(Bury(queue, group, marks, letters, target, future))

    @staticmethod
    def _letter(
        queue: LocalQueue,
        group: LocalGroup,
        place: LocalPlace,
        decoded: Decoded,
        index: int,
        reason: str,
    ) -> DeadLetter:
        counts = place.counts.get(decoded.first_offset)
        row = letter_row(
            decoded,
            index,
            queue=queue.name,
            physical_queue=place.physical.number,
            group=group.name,
            reason=reason,
            receives=0 if counts is None else counts[index],
        )
        return DeadLetter(place, decoded.first_offset, index, row)

    def give_back(self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Make messages visible whose receiver has left."""
        if not deliveries:
            return  # to tell of arrivals where there are none has those who wait look without end
        found = self._state.queues.get(queue)
        receivers = None if found is None else found.groups.get(group)
        if found is None or receivers is None or receivers.spec.kind != "lease":
            return
        receives, _ = receivers.receipts.read([one.receipt_handle for one in deliveries])
        for one in receives:
            place = receivers.places.get(one.receive.number)
            if place is not None and one.receive.epoch == receivers.epoch:
                for offset in one.offsets:
                    place.undo(offset, one.receive.nonce)
                self._note_uncounted(found, place)
        receivers.arrived()

    async def settle(
        self,
        queue: str,
        group: str,
        action: Action,
        receipt_handles: Sequence[str],
        seconds: float = 0.0,
    ) -> Mapping[int, str]:
        """Settle receives."""
        found = self._state.find(queue)
        receivers = found.group(group, "lease")
        now = self._state.now()
        receivers.used_at = now
        receivers.expire(now)
        failed: dict[int, str] = {}
        receives = _receives_of(receivers, receipt_handles, failed)
        if action == "nack":
            self._nack(receivers, receives, failed, now + seconds if seconds > 0 else None)
        elif action == "extend":
            for place, one in receives:
                for index, offset in zip(one.indexes, one.offsets, strict=True):
                    first, _ = place.is_current(
                        offset, one.receive.receive_count, one.receive.nonce
                    )
                    if first < 0 or not place.extend(offset, now + seconds):
                        failed[index] = "stale"
        else:
            await self._settle_for_good(found, receivers, action, receives, failed)
        return failed

    @staticmethod
    def _nack(
        group: LocalGroup,
        receives: Sequence[tuple[LocalPlace, Received]],
        failed: dict[int, str],
        due_at: float | None,
    ) -> None:
        n_settled = 0
        for place, one in receives:
            for index, offset in zip(one.indexes, one.offsets, strict=True):
                if place.is_current(offset, one.receive.receive_count, one.receive.nonce)[0] < 0:
                    failed[index] = "stale"
                else:
                    n_settled += 1
                    place.nack(offset, due_at)
        group.count("nack", n_settled)
        if n_settled:
            group.arrived()

    async def _settle_for_good(
        self,
        queue: LocalQueue,
        group: LocalGroup,
        action: Action,
        receives: Sequence[tuple[LocalPlace, Received]],
        failed: dict[int, str],
    ) -> None:
        marks: dict[LocalPlace, Marks] = {}
        for place, one in receives:
            mark = marks.get(place) or Marks(place)
            _begin_settling(mark, one, failed)
            if mark.offsets:
                marks[place] = mark
        if not marks:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if action == "dead":
            letters = []
            try:
                for place, mark in marks.items():
                    letters += await self._letters(queue, group, place, mark.bits)
            except BaseException:
                Settle(queue, group, "dead", list(marks.values())).failed()
                raise
            self._bury(queue, group, list(marks.values()), letters, future)
        else:
            self._state.submit(Settle(queue, group, "ack", list(marks.values()), future))
        # The caller may be cancelled, and the future with it: the settling goes on all the same.
        await future

    async def _letters(
        self, queue: LocalQueue, group: LocalGroup, place: LocalPlace, bits: Mapping[int, int]
    ) -> list[DeadLetter]:
        letters = []
        decoded = await self._reader.decoded(place.physical, sorted(bits))
        for first, wanted in bits.items():
            segment = decoded.get(first)
            if segment is not None:
                letters += [
                    self._letter(queue, group, place, segment, index, "dead")
                    for index in each_bit(wanted)
                ]
        return letters

    async def _store_receives(
        self, queue: LocalQueue, group: LocalGroup, place: LocalPlace
    ) -> None:
        """Store receive counts: before the messages are given away where they are limited."""
        if group.spec.max_receives is None:
            self._note_uncounted(queue, place)
            return
        counts, epoch = place.take_counts(), group.epoch

        def build(transaction: Transaction) -> None:
            is_known = not queue.is_deleted and queue.groups.get(group.name) is group
            if is_known and group.epoch == epoch:  # a seek forgets them
                add_counts(transaction, place, counts)

        try:
            await self._state.change(build, lambda: None)
        except StorageError:  # rather receive than wait for the storage
            not_stored(place, counts)
            self._note_uncounted(queue, place)

    def _note_uncounted(self, queue: LocalQueue, place: LocalPlace) -> None:
        """See that receive counts are stored."""
        self._uncounted[place] = queue
        if self._counts_timer is None:
            loop = asyncio.get_running_loop()
            self._counts_timer = loop.call_later(COUNTS_SECONDS, self._store_counts)

    def _store_counts(self) -> None:
        self._counts_timer = None
        places, self._uncounted = self._uncounted, {}
        taken = {place: place.take_counts() for place in places}
        epochs = {place: place.group.epoch for place in places}

        def build(transaction: Transaction) -> None:
            for place, counts in taken.items():
                queue, group = places[place], place.group
                is_known = not queue.is_deleted and queue.groups.get(group.name) is group
                if is_known and group.epoch == epochs[place]:  # a seek forgets them
                    add_counts(transaction, place, counts)

        def done(future: asyncio.Future[None]) -> None:
            if future.cancelled() or future.exception() is not None:
                for place, counts in taken.items():
                    not_stored(place, counts)

        if self._state.commits is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.add_done_callback(done)
            self._state.submit(Change(build, lambda: None, future))


def _receives_of(
    group: LocalGroup, handles: Sequence[str], failed: dict[int, str]
) -> list[tuple[LocalPlace, Received]]:
    """Return what handles of this epoch name, with its place; note the others in `failed`."""
    receives, unknown = group.receipts.read(handles)
    failed.update(dict.fromkeys(unknown, "unknown"))
    found: list[tuple[LocalPlace, Received]] = []
    for one in receives:
        place = group.places.get(one.receive.number)
        if place is None:
            failed.update(dict.fromkeys(one.indexes, "unknown"))
        elif one.receive.epoch != group.epoch:
            failed.update(dict.fromkeys(one.indexes, "stale"))
        else:
            found.append((place, one))
    return found


def _begin_settling(mark: Marks, received: Received, failed: dict[int, str]) -> None:
    """Take messages out until their settling is done; note those of stale receives."""
    place, receive = mark.place, received.receive
    others, leases = place.begin_settling_leased(received.offsets, receive.nonce)
    if leases:
        mark.add_leased(leases)
    for at in others:
        offset = received.offsets[at]
        first, bit = place.is_current(offset, receive.receive_count, receive.nonce)
        if first < 0:
            failed[received.indexes[at]] = "stale"
        else:
            place.begin_settling(offset)
            mark.add(first, bit)


def not_stored(place: LocalPlace, counts: Mapping[int, bytes]) -> None:
    """Have the next receive store receive counts that the storage refused."""
    place.dirty.update(first for first in counts if first in place.counts)


def add_counts(transaction: Transaction, place: LocalPlace, counts: Mapping[int, bytes]) -> None:
    """Add receive counts to a transaction, of segments that the group has not passed."""
    floor = transaction.floor(place)
    for first, stored in counts.items():
        segment = place.physical.index.holding(first)
        if segment is not None and first + segment.n_messages > floor:
            key = (place.physical.row_id, first, place.group.row_id)
            transaction.changes.receives[key] = stored
