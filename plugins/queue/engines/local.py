"""The engine of one process: a store, a thread that writes, leases in memory.

    engine = LocalEngine(
        SqliteStore("queue.db", "full"),    # or MemoryStore()
        clock=time.monotonic,               # as in Message.arrived_at
        commit_max_messages=2_000,
        read_ahead_bytes=64 * 1024 * 1024,
        logger=logging.getLogger("penstock.queue"),
    )
    await engine.open()

Theory of operation. The state (queues, groups, what is settled) is in memory and changes on the
loop's thread alone, when the transaction that changes it is in the store. The thread of
`GroupCommit` builds each transaction from the state that the last one has left. Messages are in the
store; reads run on threads of their own and fill a cache of decoded segments, which all groups
share. What was just stored is put there as well, for groups that keep up.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from logging import Logger
from typing import Any, Final, TypeVar

from penstock.plugins.queue.batch_format import cut_frame
from penstock.plugins.queue.client import ReceivedMessage
from penstock.plugins.queue.engines.clock import Clocks, EngineClock
from penstock.plugins.queue.engines.contract import (
    Action,
    AppendResult,
    ExistsError,
    GroupKindError,
    GroupSnapshot,
    GroupSpec,
    IncarnationError,
    NewMessage,
    OffsetError,
    Position,
    QueueSnapshot,
    QueueSpec,
    RangeGoneError,
    Start,
    StorageError,
    UnknownQueueError,
    Usage,
)
from penstock.plugins.queue.engines.group_commit import GroupCommit
from penstock.plugins.queue.engines.leases import Group, Place, Take
from penstock.plugins.queue.engines.letters import letter_row, redriven
from penstock.plugins.queue.engines.physical import PhysicalQueue, bits_below, each_bit
from penstock.plugins.queue.engines.planning import plan_end
from penstock.plugins.queue.engines.queues import (
    LogicalQueue,
    Stored,
    group_spec,
    queue_spec,
    spec_text,
)
from penstock.plugins.queue.engines.receipts import Receipts
from penstock.plugins.queue.engines.requests import (
    Append,
    Bury,
    Change,
    Cut,
    Forget,
    Marks,
    Move,
    Redrive,
    Request,
    Run,
    Seek,
    Settle,
    Trim,
)
from penstock.plugins.queue.engines.segments import Decoded, SegmentCache, decode
from penstock.plugins.queue.engines.store import (
    DELAYED,
    BrokenSegmentError,
    GroupRow,
    PhysicalRow,
    QueueRow,
    Rows,
    Segment,
    Store,
)
from penstock.plugins.queue.engines.transaction import Surroundings, Transaction, count_waiting
from penstock.plugins.queue.engines.waiting import Arrivals

T = TypeVar("T")

RANGE_BYTES: Final = 4 * 1024 * 1024
"""Size at which the answer to a range is cut."""
COUNTS_SECONDS: Final = 0.05
"""Receive counts are stored with the next commit, and after this time at the latest."""
REDRIVE_MESSAGES: Final = 1_000
"""Dead letters that one transaction moves at most."""


class LocalEngine:
    """See `contract` for the contract of its methods.

    Args:
        store: keeps the messages; opened and closed by the engine.
        clock: returns monotonic seconds.
        clocks: all clocks of the machine, in place of `clock`.
        commit_max_messages: messages of one commit at most.
        read_ahead_bytes: of decoded segments in memory, over all queues and groups.
        logger: gets faults.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.monotonic,
        clocks: Clocks | None = None,
        commit_max_messages: int,
        logger: Logger,
        read_ahead_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._store = store
        self._clocks = clocks or Clocks(clock)
        self._commit_max_messages = commit_max_messages
        self._logger = logger
        self._cache = SegmentCache(read_ahead_bytes)
        self._queues: dict[str, LogicalQueue] = {}
        self._now = EngineClock(self._clocks)
        self._commits: GroupCommit | None = None
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="penstock-queue-reader")
        self._arrivals = Arrivals(self._engine_time)
        self._read_failures: dict[int, str] = {}
        self._locks: dict[Place, asyncio.Lock] = {}
        self._uncounted: dict[Place, LogicalQueue] = {}
        self._counts_timer: asyncio.TimerHandle | None = None
        self._ids = {"queue": 1, "physical": 1, "group": 1}
        self._secret = b""
        self._nonce = secrets.randbelow(65_536)
        self._must_sweep = True

    # Opening and closing.

    async def open(self) -> None:
        """Open the store and restore the state."""
        rows = await asyncio.to_thread(self._store.open)
        if self._store.tightened:
            self._logger.warning(
                "queue: other users could read %s; only its owner can from now on",
                ", ".join(self._store.tightened),
            )
        newest = [one[-1].newest_clock for one in rows.segments.values() if one]
        self._now = EngineClock(self._clocks, rows.meta.get("clock", ""), max(newest, default=0.0))
        self._secret = bytes.fromhex(rows.meta.get("secret", "")) or secrets.token_bytes(32)
        around = Surroundings(
            self._store,
            self._cache,
            self._now.shift,
            lambda: self._now.epoch,
            self._engine_time,
            self._logger,
            self._arrivals.stored,
        )
        self._restore(rows)
        self._commits = GroupCommit(
            around,
            asyncio.get_running_loop(),
            self._clocks.monotonic,
            self._commit_max_messages,
            self._logger,
        )
        try:
            await self._change(self._start_rows, lambda: None)
        except BaseException:
            await self.close()
            raise

    def _start_rows(self, transaction: Transaction) -> None:
        changes = transaction.changes
        changes.meta["secret"] = self._secret.hex()
        changes.meta["clock"] = self._now.stored_text()

    def _restore(self, rows: Rows) -> None:
        queues: dict[int, LogicalQueue] = {}
        for row in rows.queues:
            queue = queues[row.row_id] = LogicalQueue(row, queue_spec(row.spec))
            self._queues[row.name] = queue
        parts: dict[int, PhysicalQueue] = {}
        for physical_row in rows.physical:
            queue = queues[physical_row.queue_id]
            physical = PhysicalQueue(physical_row)
            parts[physical.row_id] = physical
            queue.physical[physical.number] = physical
            queue.messages += physical.messages
            queue.payload_bytes += physical.payload_bytes
            queue.stored_bytes += physical.stored_bytes
            for segment in rows.segments.get(physical.row_id, ()):
                physical.index.append(segment)
                if segment.flags & DELAYED:
                    physical.last_own_delay = segment.first_offset
            physical.aside = rows.aside.get(physical.row_id, 0)
            if physical.aside:
                self._logger.warning(
                    "queue %s: %d messages of physical queue %d could not be read and are set "
                    "aside",
                    queue.name,
                    physical.aside,
                    physical.number,
                )
        for (physical_id, first), gone in rows.gone.items():
            if physical_id in parts:
                parts[physical_id].gone[first] = gone
        groups: dict[int, Group] = {}
        for group_row in rows.groups:
            queue = queues[group_row.queue_id]
            group = groups[group_row.row_id] = self._group_of(
                queue, group_row, group_spec(group_row.spec)
            )
            queue.groups[group.name] = group
            for number, physical in queue.physical.items():
                floor = rows.floors.get((group.row_id, physical.row_id), physical.earliest)
                group.places[number] = Place(group, physical, max(floor, physical.earliest))
        self._restore_settled(rows, parts, groups)
        for one in rows.deduplication:
            if one.queue_id in queues:
                stored = Stored(one.stored_at, one.number, one.offset)
                queues[one.queue_id].stored[one.identifier] = stored
        self._ids = {
            "queue": max(queues, default=0) + 1,
            "physical": int(rows.meta.get("physical", 0)) + 1,
            "group": int(rows.meta.get("group", 0)) + 1,
        }
        self._ids["physical"] = max(self._ids["physical"], max(parts, default=0) + 1)
        self._ids["group"] = max(self._ids["group"], max(groups, default=0) + 1)

    @staticmethod
    def _restore_settled(
        rows: Rows, parts: Mapping[int, PhysicalQueue], groups: Mapping[int, Group]
    ) -> None:
        for (physical_id, first, group_id), bits in rows.settled.items():
            if physical_id in parts and group_id in groups:
                number = parts[physical_id].number
                groups[group_id].places[number].settled[first] = bits
        for (physical_id, first, group_id), stored_counts in rows.receives.items():
            if physical_id in parts and group_id in groups:
                place = groups[group_id].places[parts[physical_id].number]
                place.restore_counts(first, stored_counts)
        for group in groups.values():
            for place in group.places.values():
                place.waiting = count_waiting(place)

    async def close(self) -> None:
        """Write what was submitted and close the store."""
        self._arrivals.close()
        if self._counts_timer is not None:
            self._counts_timer.cancel()
            self._counts_timer = None
        if self._commits is not None:
            commits, self._commits = self._commits, None
            commits.submit(Change(self._last_rows, lambda: None, None))
            await commits.close()
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._store.close)

    def _last_rows(self, transaction: Transaction) -> None:
        transaction.changes.meta["clock"] = self._now.stored_text()
        for place in list(self._uncounted):
            add_counts(transaction, place, place.take_counts())

    # Logical queues.

    async def create_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Create a queue with its groups."""
        found = self._queues.get(queue)
        if found is not None:
            if found.spec != spec:
                raise ExistsError(f"queue {queue}: it exists with other settings")
            return self.snapshot(queue)
        row = QueueRow(self._new_id("queue"), queue, str(uuid.uuid4()), spec_text(spec))
        made = LogicalQueue(row, spec)
        self._add_parts(made, spec.physical_queues)
        for name, group in spec.groups.items():
            made.groups[name] = self._new_group(made, name, group)

        def build(transaction: Transaction) -> None:
            if queue in self._queues:
                raise ExistsError(f"queue {queue}: it was created at the same moment")
            changes = transaction.changes
            changes.must_flush = True
            changes.queues.append(row)
            changes.physical += map(physical_row, made.physical.values())
            for group in made.groups.values():
                self._add_group_rows(transaction, group)
            self._add_ids(transaction)

        def then() -> None:
            self._queues[queue] = made

        await self._change(build, then, is_for_readers=False)
        return self.snapshot(queue)

    async def change_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Give a queue other settings."""
        found = self._find(queue)
        new_parts = {
            number: self._new_part(found, number)
            for number in range(spec.physical_queues)
            if number not in found.physical
        }
        new_groups = {
            name: self._new_group(
                found, name, group, [*found.physical.values(), *new_parts.values()]
            )
            for name, group in spec.groups.items()
            if name not in found.groups
        }

        def build(transaction: Transaction) -> None:
            self._check(found)
            changes = transaction.changes
            changes.must_flush = True
            changes.queues.append(found.row(spec))
            changes.physical += map(physical_row, new_parts.values())
            for group in new_groups.values():
                self._place_at_start(found, group)
                self._add_group_rows(transaction, group)
            for group in found.groups.values():
                for part in new_parts.values():
                    changes.floors[group.row_id, part.row_id] = part.earliest
            self._add_ids(transaction)

        def then() -> None:
            found.physical.update(new_parts)
            found.physical = dict(sorted(found.physical.items()))
            for group in found.groups.values():
                for number, part in new_parts.items():
                    group.places[number] = Place(group, part, part.earliest)
            for name, group in new_groups.items():
                for place in group.places.values():
                    place.waiting = count_waiting(place)
                found.groups[name] = group
            found.change(spec)
            for group in found.groups.values():
                group.arrived()

        await self._change(build, then, is_for_readers=False)
        return self.snapshot(queue)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue."""
        found = self._find(queue)

        def build(transaction: Transaction) -> None:
            self._check(found)
            transaction.changes.must_flush = True
            transaction.changes.deleted_queues.append(found.row_id)

        def then() -> None:
            found.is_deleted = True
            del self._queues[queue]
            for part in found.physical.values():
                for segment in part.index:
                    self._cache.drop(part.row_id, segment.first_offset)
            for group in found.groups.values():
                self._forget_group(group)
            self._arrivals.wake(found)
            self._must_sweep = True

        await self._change(build, then)
        await self._sweep()

    def queues(self) -> Sequence[str]:
        """Return the names of all queues."""
        return list(self._queues)

    def snapshot(self, queue: str) -> QueueSnapshot:
        """Return what a queue holds."""
        found = self._find(queue)
        now = self._now()
        for group in found.groups.values():
            group.expire(now)
        oldest = min(
            (
                segment.newest_clock
                for part in found.physical.values()
                if (segment := part.index.following(part.earliest)) is not None
            ),
            default=None,
        )
        return QueueSnapshot(
            incarnation=found.incarnation,
            spec=found.spec,
            usage={
                number: Usage(part.earliest, part.next, part.messages, part.stored_bytes)
                for number, part in found.physical.items()
            },
            messages=found.messages,
            payload_bytes=found.payload_bytes,
            stored_bytes=found.stored_bytes,
            reserved=found.reserved_messages,
            removed=dict(found.removed),
            set_aside=sum(part.aside for part in found.physical.values()),
            oldest_seconds=None if oldest is None else max(0.0, now - oldest),
            groups={name: self._group_snapshot(one, now) for name, one in found.groups.items()},
        )

    @staticmethod
    def _group_snapshot(group: Group, now: float) -> GroupSnapshot:
        places = group.places
        delayed = sum(place.n_delayed(now) for place in places.values())
        return GroupSnapshot(
            spec=group.spec,
            position={number: place.floor for number, place in places.items()},
            waiting=sum(place.waiting for place in places.values()),
            leased=group.n_leased,
            delayed=delayed,
            received=group.received,
            settled=dict(group.settled),
            idle_seconds=max(0.0, now - group.used_at),
        )

    def reserve(self, queue: str, n_messages: int, n_bytes: int) -> bool:
        """Hold room for messages."""
        found = self._find(queue)
        if not found.has_room(n_messages, n_bytes):
            return False
        found.reserved_messages += n_messages
        found.reserved_bytes += n_bytes
        return True

    def release(self, queue: str, n_messages: int, n_bytes: int) -> None:
        """Give back room."""
        found = self._queues.get(queue)
        if found is not None:
            found.reserved_messages -= n_messages
            found.reserved_bytes -= n_bytes

    def append(
        self, queue: str, physical_queue: int, messages: Sequence[NewMessage]
    ) -> asyncio.Future[AppendResult]:
        """Store messages at the end of a physical queue."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._submit(Append(self._find(queue), physical_queue, messages, future))
        return future

    def forget(self, queue: str, deduplication_ids: Sequence[bytes]) -> asyncio.Future[None]:
        """End the windows of deduplication identifiers."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._submit(Forget(self._find(queue), deduplication_ids, future))
        return future

    # Groups.

    async def create_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Create a group."""
        found = self._find(queue)
        there = found.groups.get(group)
        if there is not None:
            if there.spec != spec:
                raise ExistsError(f"group {group} of queue {queue}: it exists with other settings")
            return self._group_snapshot(there, self._now())
        starts = await self._locate(found, spec.start)
        made = self._new_group(found, group, spec)

        def build(transaction: Transaction) -> None:
            self._check(found)
            if group in found.groups:
                raise ExistsError(f"group {group} of {queue}: it was created at the same moment")
            self._place_at(made, starts if isinstance(spec.start, float | int) else None, found)
            self._add_group_rows(transaction, made)
            transaction.changes.must_flush = True
            self._add_ids(transaction)

        def then() -> None:
            for place in made.places.values():
                place.waiting = count_waiting(place)
            found.groups[group] = made

        await self._change(build, then, is_for_readers=False)
        return self._group_snapshot(made, self._now())

    async def change_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Give a group other settings."""
        found = self._find(queue)
        changed = found.group(group)
        if changed.spec.kind != spec.kind:
            raise GroupKindError(
                f"group {group} of queue {queue}: kind: read {spec.kind}; allowed: "
                f"{changed.spec.kind}, which it was created with"
            )

        def build(transaction: Transaction) -> None:
            self._check(found, changed)
            transaction.changes.must_flush = True
            transaction.changes.groups.append(group_row(changed, changed.epoch, spec))

        await self._change(build, lambda: changed.change(spec), is_for_readers=False)
        return self._group_snapshot(changed, self._now())

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group."""
        found = self._find(queue)
        await self._delete_group(found, found.group(group))

    async def _delete_group(self, queue: LogicalQueue, group: Group) -> None:
        def build(transaction: Transaction) -> None:
            self._check(queue, group)
            transaction.changes.must_flush = True
            transaction.changes.deleted_groups.append(group.row_id)
            transaction.drop_group(queue, group)

        def then() -> None:
            del queue.groups[group.name]
            self._forget_group(group)
            self._arrivals.wake(queue)
            for part in queue.physical.values():
                self._submit(Trim(queue, part))

        await self._change(build, then)

    def _forget_group(self, group: Group) -> None:
        self._arrivals.forget(group)
        for place in group.places.values():
            self._locks.pop(place, None)
            self._uncounted.pop(place, None)

    # Receiving and settling.

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
        found = self._find(queue)
        receivers = self._lease_group(found, group)
        found.part(physical_queue)
        place = receivers.places[physical_queue]
        now = self._now()
        receivers.used_at = now
        receivers.expire(now)
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        async with lock:
            room = receivers.spec.max_leased_messages - receivers.n_leased
            max_messages = min(max_messages, room)
            if max_messages <= 0:
                return []
            seconds = receivers.spec.visibility_timeout
            if visibility_timeout is not None:
                seconds = visibility_timeout
            self._nonce = (self._nonce + 1) % 65_536
            take = Take(now, now + seconds, max_messages, max_bytes, self._nonce)
            await self._fill(place, take)
        receivers.received += len(take.received)
        try:
            if take.settled or take.dead:
                await self._settle_unseen(found, receivers, place, take)
            if place.dirty:
                await self._store_receives(found, receivers, place)
        except BaseException:  # the receiver has left
            for one in take.received:
                place.undo(one.offset, take.nonce)
            receivers.arrived()
            raise
        return take.received

    async def _fill(self, place: Place, take: Take) -> None:
        held: dict[int, Decoded] = {}

        def find(physical: PhysicalQueue, first: int) -> Decoded | None:
            return held.get(first) or self._cache.get(physical.row_id, first)

        try:
            while missing := place.take(take, find):
                held = await self._load(place.physical, missing)
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
        self, queue: LogicalQueue, group: Group, place: Place, take: Take
    ) -> None:
        """Settle what expired or is filtered out, and bury what was received too often."""
        futures: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()
        for reason, bits in take.settled.items():
            marks = Marks(place, bits, take.sizes)
            marks.offsets += [first + index for first in bits for index in each_bit(bits[first])]
            futures.append(loop.create_future())
            self._submit(Settle(queue, group, reason, [marks], futures[-1]))
        if take.dead:
            marks = Marks(place)
            letters = []
            for decoded, index in take.dead:
                marks.add(decoded.first_offset, index, None)
                marks.sizes[decoded.first_offset] = decoded.sizes
                letters.append(self._letter(queue, group, place, decoded, index, "max_receives"))
            futures.append(loop.create_future())
            self._bury(queue, group, [marks], letters, futures[-1])
        # What cannot be settled is visible again; what was received is received all the same.
        await asyncio.gather(*map(asyncio.shield, futures), return_exceptions=True)

    def _bury(
        self,
        queue: LogicalQueue,
        group: Group,
        marks: Sequence[Marks],
        letters: Sequence[tuple[int, tuple[Any, ...]]],
        future: asyncio.Future[None] | None,
    ) -> None:
        name = group.spec.dead_letter_queue
        target = None if name is None else self._queues.get(name)
        if name is not None and target is None:
            request = Bury(queue, group, marks, letters, None, future)
            request.failed()
            self._logger.error(
                "queue %s, group %s: its dead letter queue %s does not exist; %d dead letters stay",
                queue.name,
                group.name,
                name,
                len(letters),
            )
            if future is not None:
                future.set_exception(StorageError(f"dead letter queue {name}: it does not exist"))
            return
        self._submit(Bury(queue, group, marks, letters, target, future))

    @staticmethod
    def _letter(
        queue: LogicalQueue, group: Group, place: Place, decoded: Decoded, index: int, reason: str
    ) -> tuple[int, tuple[Any, ...]]:
        counts = place.counts.get(decoded.first_offset)
        return place.physical.number, letter_row(
            decoded,
            index,
            {
                "queue": queue.name,
                "group": group.name,
                "reason": reason,
                "receives": "0" if counts is None else str(counts[index]),
                "physical-queue": str(place.physical.number),
            },
        )

    def give_back(self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Make messages visible whose receiver has left."""
        found = self._queues.get(queue)
        receivers = None if found is None else found.groups.get(group)
        if found is None or receivers is None or receivers.spec.kind != "lease":
            return
        for delivery in deliveries:
            receive = receivers.receipts.read(delivery.receipt_handle)
            if receive is None or receive.epoch != receivers.epoch:
                continue
            place = receivers.places.get(receive.number)
            if place is not None:
                place.undo(receive.offset, receive.nonce)
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
        found = self._find(queue)
        receivers = self._lease_group(found, group)
        now = self._now()
        receivers.used_at = now
        receivers.expire(now)
        failed: dict[int, str] = {}
        if action == "nack":
            self._nack(receivers, receipt_handles, failed, now, seconds)
        elif action == "extend":
            for index, handle in enumerate(receipt_handles):
                current = self._current(receivers, handle, failed, index)
                if current is not None and not current[0].extend(current[3], now + seconds):
                    failed[index] = "stale"
        else:
            await self._settle_for_good(found, receivers, action, receipt_handles, failed)
        return failed

    def _nack(
        self,
        group: Group,
        handles: Sequence[str],
        failed: dict[int, str],
        now: float,
        seconds: float,
    ) -> None:
        n_settled = 0
        for index, handle in enumerate(handles):
            current = self._current(group, handle, failed, index)
            if current is not None:
                n_settled += 1
                current[0].nack(current[3], now + seconds if seconds > 0 else None)
        group.count("nack", n_settled)
        if n_settled:
            group.arrived()

    async def _settle_for_good(
        self,
        queue: LogicalQueue,
        group: Group,
        action: Action,
        handles: Sequence[str],
        failed: dict[int, str],
    ) -> None:
        marks: dict[Place, Marks] = {}
        wanted: dict[Place, dict[int, list[int]]] = {}
        for index, handle in enumerate(handles):
            current = self._current(group, handle, failed, index)
            if current is None:
                continue
            place, first, bit, offset = current
            lease = place.begin_settling(offset)
            mark = marks.get(place)
            if mark is None:
                mark = marks[place] = Marks(place)
            mark.add(first, bit, lease)
            if action == "dead":
                wanted.setdefault(place, {}).setdefault(first, []).append(bit)
        if not marks:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if action == "dead":
            letters = []
            try:
                for place, firsts in wanted.items():
                    letters += await self._letters(queue, group, place, firsts)
            except BaseException:
                Settle(queue, group, "dead", list(marks.values())).failed()
                raise
            self._bury(queue, group, list(marks.values()), letters, future)
        else:
            self._submit(Settle(queue, group, "ack", list(marks.values()), future))
        # The caller may be cancelled; the settling is under way and must be recorded.
        await asyncio.shield(future)

    async def _letters(
        self, queue: LogicalQueue, group: Group, place: Place, firsts: Mapping[int, Iterable[int]]
    ) -> list[tuple[int, tuple[Any, ...]]]:
        letters = []
        decoded = await self._decoded(place.physical, sorted(firsts))
        for first, indexes in firsts.items():
            segment = decoded.get(first)
            if segment is not None:
                letters += [
                    self._letter(queue, group, place, segment, index, "dead") for index in indexes
                ]
        return letters

    def _current(
        self, group: Group, handle: str, failed: dict[int, str], index: int
    ) -> tuple[Place, int, int, int] | None:
        """Return place, first offset of the segment, index and offset of a handle's message."""
        receive = group.receipts.read(handle)
        place = None if receive is None else group.places.get(receive.number)
        if receive is None or place is None:
            failed[index] = "unknown"
            return None
        if receive.epoch == group.epoch:
            first, bit = place.is_current(receive.offset, receive.receive_count, receive.nonce)
            if first >= 0:
                return place, first, bit, receive.offset
        failed[index] = "stale"
        return None

    # Ranges.

    async def read(
        self, queue: str, physical_queue: int, start: int, end: int, max_messages: int
    ) -> list[bytes]:
        """Return the frames of a range."""
        physical = self._find(queue).part(physical_queue)
        check_range(physical, start, end)
        frames: list[bytes] = []
        n_bytes = 0
        at = start
        while at < end and max_messages > 0 and n_bytes < RANGE_BYTES:
            page: list[tuple[Segment, int]] = []
            for segment in physical.index.since(at):
                first, n = segment.first_offset, segment.n_messages
                if first >= end:
                    at = end
                    break
                at = first + n
                bits = bits_below(first, n, end) & ~bits_below(first, n, start)
                bits &= ~physical.gone_bits(first)
                if bits:
                    page.append((segment, bits))
                    max_messages -= bits.bit_count()
                    n_bytes += segment.stored_bytes
                if max_messages <= 0 or n_bytes >= RANGE_BYTES:
                    break
            else:
                at = end
            if page:
                surplus = min(0, max_messages)
                frames += await self._read_frames(physical, page, surplus)
                if not frames:
                    max_messages += sum(bits.bit_count() for _, bits in page)
                    n_bytes = 0
        check_range(physical, start, end)  # it may have been committed meanwhile
        return frames

    async def _read_frames(
        self, physical: PhysicalQueue, page: Sequence[tuple[Segment, int]], surplus: int
    ) -> list[bytes]:
        """Return the frames of segments without what is not wanted.

        Args:
            physical: of the segments.
            page: segments, and bit maps of what is wanted.
            surplus: by how many messages the last one has too many, as a negative number.
        """
        firsts = [segment.first_offset for segment, _ in page]

        def read() -> list[bytes]:
            found = self._store.read(physical.row_id, firsts)
            frames: list[bytes] = []
            for segment, bits in page:
                frame = found.get(segment.first_offset)
                if frame is None:
                    continue
                decode(physical.row_id, segment, frame)  # its reader could not go on behind it
                n = bits.bit_count()
                if segment is page[-1][0]:
                    n += surplus
                if n == segment.n_messages:
                    frames.append(frame)
                else:
                    frames.append(cut_frame(frame, bits, n))
            return frames

        try:
            return await self._read(physical, read)
        except BrokenSegmentError as broken:
            await self._set_aside(physical, broken)
            left = [
                (segment, bits)
                for segment, bits in page
                if segment.first_offset != broken.first_offset
            ]
            return await self._read_frames(physical, left, surplus) if left else []

    async def plan(
        self, queue: str, start: Position, max_messages: int | None, max_bytes: int | None
    ) -> Position:
        """Return the end of the next range."""
        found = self._find(queue)
        offsets = self._checked(found, start)
        ends = plan_end(found.physical, offsets, max_messages, max_bytes)
        return Position(found.incarnation, ends)

    async def locate(self, queue: str, start: Start) -> Position:
        """Return the position that a `Start` means."""
        found = self._find(queue)
        return Position(found.incarnation, await self._locate(found, start))

    async def _locate(self, queue: LogicalQueue, start: Start) -> dict[int, int]:
        parts = queue.physical.items()
        if start == "earliest":
            return {number: part.earliest for number, part in parts}
        if start == "latest":
            return {number: part.next for number, part in parts}
        return {number: await self._since(part, float(start)) for number, part in list(parts)}

    async def _since(self, physical: PhysicalQueue, at: float) -> int:
        """Return the offset of the first message that arrived at or after a time."""
        segments = (one for one in physical.index if one.newest_at >= at)
        for segment in segments:
            first = segment.first_offset
            decoded = (await self._decoded(physical, [first])).get(first)
            if decoded is None:
                return await self._since(physical, at)
            for index, enqueued_at in enumerate(decoded.batch.enqueued_at):
                if enqueued_at >= at:
                    return max(first + index, physical.earliest)
        return physical.next

    async def commit(self, queue: str, group: str, position: Position) -> None:
        """Move an offsets group up to a position."""
        found = self._find(queue)
        readers = found.group(group)
        if readers.spec.kind != "offsets":
            raise GroupKindError(
                f"group {group} of queue {queue}: it settles single messages; allowed: a group of "
                "kind offsets"
            )
        readers.used_at = self._now()
        offsets = self._checked(found, position)
        await self._ask(lambda future: Move(found, readers, offsets, future))

    async def seek(self, queue: str, group: str, start: Start) -> Position:
        """Move a group to another place."""
        found = self._find(queue)
        moved = found.group(group)
        moved.used_at = self._now()
        offsets = await self._locate(found, start)
        await self._ask(
            lambda future: Seek(
                found, moved, offsets, lambda one, epoch: group_row(one, epoch, one.spec), future
            )
        )
        for part in found.physical.values():
            self._submit(Trim(found, part))
        floors = {number: place.floor for number, place in moved.places.items()}
        return Position(found.incarnation, floors)

    def visible(self, queue: str, group: str) -> Mapping[int, int]:
        """Return how many messages a lease group could receive."""
        receivers = self._lease_group(self._find(queue), group)
        now = self._now()
        receivers.expire(now)
        counts = ((number, place.n_visible(now)) for number, place in receivers.places.items())
        return {number: n for number, n in counts if n > 0}

    async def wait_for_arrival(self, queue: str, group: str | None, seen: int, wait: float) -> int:
        """Wait until something may have become visible."""
        found = self._find(queue)
        waiter = found if group is None else found.group(group)
        if isinstance(waiter, Group):
            waiter.used_at = self._now()
        arrivals = await self._arrivals.wait(waiter, seen, wait)
        self._find(queue)
        if group is not None:
            found.group(group)
        return arrivals

    async def purge(self, queue: str) -> int:
        """Remove all messages."""
        found = self._find(queue)
        n_removed = 0
        for part in list(found.physical.values()):
            n_removed += await self._cut(found, part, part.next, "purge")
        return n_removed

    async def redrive(self, queue: str, target: str | None, max_messages: int | None) -> int:
        """Move dead letters back."""
        source = self._find(queue)
        to = None if target is None else self._find(target)
        n_moved = 0
        for part in list(source.physical.values()):
            for segment in list(part.index):
                if max_messages is not None and n_moved >= max_messages:
                    return n_moved
                left = None if max_messages is None else max_messages - n_moved
                n_moved += await self._redrive_segment(source, part, segment, to, left)
        return n_moved

    async def _redrive_segment(
        self,
        source: LogicalQueue,
        part: PhysicalQueue,
        segment: Segment,
        target: LogicalQueue | None,
        max_messages: int | None,
    ) -> int:
        first = segment.first_offset
        decoded = (await self._decoded(part, [first])).get(first)
        if decoded is None:
            return 0
        bits = 0
        letters: list[tuple[LogicalQueue, int, tuple[Any, ...]]] = []
        unknown: UnknownQueueError | None = None
        for index in each_bit(~part.gone_bits(first) & (1 << segment.n_messages) - 1):
            if max_messages is not None and len(letters) >= max_messages:
                break
            origin, number, row = redriven(decoded, index)
            if target is None and origin is None:
                continue
            try:
                to = target if target is not None else self._find(origin or "")
            except UnknownQueueError as error:
                unknown = error
                break
            numbers = [one for one in to.physical if one < to.spec.physical_queues]
            number = part.number if number is None else number
            letters.append((to, numbers[number % len(numbers)], row))
            bits |= 1 << index
        n_moved = 0
        if letters:
            n_moved = await self._ask(
                lambda future: Redrive(source, part, {first: bits}, letters, future)
            )
        if unknown is not None:
            raise unknown
        return n_moved

    # Maintenance.

    async def maintain(self) -> None:
        """Do what time asks for."""
        now = self._now()
        failed: StorageError | None = None
        for queue in list(self._queues.values()):
            for group in queue.groups.values():
                group.expire(now)
            for part in queue.physical.values():
                part.forget_delays(now)
            try:
                await self._maintain_queue(queue, now)
            except StorageError as error:
                failed = error
        await self._change(self._clock_row, lambda: None)
        if self._must_sweep:
            await self._sweep()
        await self._ask(lambda future: Run(self._store.trim, None, future))
        if failed is not None:
            raise failed

    def _clock_row(self, transaction: Transaction) -> None:
        transaction.changes.meta["clock"] = self._now.stored_text()
        for queue in self._queues.values():
            for group in queue.groups.values():
                if group.spec.group_expiry_seconds is not None:
                    transaction.changes.groups.append(group_row(group, group.epoch, group.spec))

    async def _maintain_queue(self, queue: LogicalQueue, now: float) -> None:
        for group in list(queue.groups.values()):
            expiry = group.spec.group_expiry_seconds
            if expiry is not None and now - group.used_at >= expiry:
                self._logger.warning(
                    "queue %s: group %s is deleted: no request for %.0f s",
                    queue.name,
                    group.name,
                    now - group.used_at,
                )
                await self._delete_group(queue, group)
        retention = queue.spec.retention_seconds
        if retention is not None:
            for part in list(queue.physical.values()):
                below = older_than(part, now - retention)
                if below > part.earliest:
                    await self._cut(queue, part, below, "retention")
        before = now - queue.spec.deduplication_seconds
        old = []
        for identifier, stored in queue.stored.items():
            if stored.stored_at > before:
                break
            old.append(identifier)
        if old:

            def build(transaction: Transaction) -> None:
                for one in old:
                    transaction.changes.deduplication[queue.row_id, one] = None

            def then() -> None:
                for identifier in old:
                    found = queue.stored.get(identifier)
                    if found is not None and found.stored_at <= before:
                        del queue.stored[identifier]

            await self._change(build, then)

    async def _sweep(self) -> None:
        while await self._ask(lambda future: Run(self._store.sweep, None, future)):
            pass
        self._must_sweep = False

    async def compact(self) -> int:
        """Give all unused space back."""
        freed: int = await self._ask(lambda future: Run(self._store.compact, None, future))
        return freed

    async def backup(self, path: str) -> int:
        """Write a copy of the storage."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._store.backup, path)

    def failure(self) -> str | None:
        """Return why the last write failed, or the last read of any physical queue."""
        lost = self._store.why_lost()
        if lost or self._commits is None:
            return lost or None
        return self._commits.failure or next(iter(self._read_failures.values()), None)

    def figures(self) -> Mapping[str, Any]:
        """Return the store's figures and the engine's memory."""
        return {**self._store.figures(), "read_ahead_bytes": self._cache.n_bytes}

    # Inside.

    def _engine_time(self) -> float:
        return self._now()

    def _find(self, name: str) -> LogicalQueue:
        found = self._queues.get(name)
        if found is None:
            known = ", ".join(sorted(self._queues)) or "none"
            raise UnknownQueueError(f"queue: read {name!r}; allowed: {known}")
        return found

    def _lease_group(self, queue: LogicalQueue, name: str) -> Group:
        found = queue.groups.get(name)
        if found is None:
            found = queue.group(name)
        if found.spec.kind != "lease":
            raise GroupKindError(
                f"group {name} of queue {queue.name}: it reads ranges; allowed: a group of kind "
                "lease"
            )
        return found

    @staticmethod
    def _check(queue: LogicalQueue, group: Group | None = None) -> None:
        """Raise where a queue or group was deleted meanwhile."""
        if queue.is_deleted:
            raise UnknownQueueError(f"queue {queue.name}: it was deleted")
        if group is not None and queue.group(group.name) is not group:
            raise ExistsError(f"group {group.name}: it was deleted and created again")

    def _checked(self, queue: LogicalQueue, position: Position) -> dict[int, int]:
        """Return the offsets of a position.

        Raises:
            IncarnationError: it is of another queue.
            OffsetError: no such physical queue, or an offset above the next one.
        """
        if position.incarnation != queue.incarnation:
            raise IncarnationError(queue.name, position.incarnation, queue.incarnation)
        for number, offset in position.offsets.items():
            check_offset(queue.part(number), offset)
        return dict(position.offsets)

    def _new_id(self, kind: str) -> int:
        new = self._ids[kind]
        self._ids[kind] += 1
        return new

    def _add_ids(self, transaction: Transaction) -> None:
        """Store which row numbers were used: those of deleted rows are not used again."""
        for kind in ("physical", "group"):
            transaction.changes.meta[kind] = str(self._ids[kind] - 1)

    def _new_part(self, queue: LogicalQueue, number: int) -> PhysicalQueue:
        row_id = self._new_id("physical")
        return PhysicalQueue(PhysicalRow(row_id, queue.row_id, number, 0, 0, 0, 0, 0))

    def _add_parts(self, queue: LogicalQueue, n: int) -> None:
        for number in range(n):
            queue.physical[number] = self._new_part(queue, number)

    def _new_group(
        self,
        queue: LogicalQueue,
        name: str,
        spec: GroupSpec,
        parts: Iterable[PhysicalQueue] | None = None,
    ) -> Group:
        row = GroupRow(self._new_id("group"), queue.row_id, name, spec_text(spec), 0, self._now())
        group = self._group_of(queue, row, spec)
        for part in queue.physical.values() if parts is None else parts:
            group.places[part.number] = Place(group, part, part.earliest)
        return group

    def _group_of(self, queue: LogicalQueue, row: GroupRow, spec: GroupSpec) -> Group:
        receipts = Receipts(self._secret, queue.incarnation, row.row_id)
        group = Group(row, spec, receipts, queue.key_of)
        group.delay_seconds = queue.spec.delay_seconds
        group.on_arrival = self._arrivals.arrived
        group.on_deadline = self._arrivals.deadline_changed
        return group

    def _place_at_start(self, queue: LogicalQueue, group: Group) -> None:
        self._place_at(group, None, queue)

    @staticmethod
    def _place_at(group: Group, starts: Mapping[int, int] | None, queue: LogicalQueue) -> None:
        """Put a new group where it begins, at the moment at which it is created."""
        del queue
        for number, place in group.places.items():
            part = place.physical
            if starts is not None:
                place.move(max(part.earliest, min(starts.get(number, part.next), part.next)))
            else:
                is_latest = group.spec.start == "latest"
                place.move(part.next if is_latest else part.earliest)

    @staticmethod
    def _add_group_rows(transaction: Transaction, group: Group) -> None:
        changes = transaction.changes
        changes.groups.append(group_row(group, group.epoch, group.spec))
        for place in group.places.values():
            changes.floors[group.row_id, place.physical.row_id] = place.floor

    # Requests.

    def _submit(self, request: Request) -> None:
        if self._commits is None:
            raise StorageError("the queue is closed")
        self._commits.submit(request)

    async def _ask(self, make: Callable[[asyncio.Future[Any]], Request]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._submit(make(future))
        # The caller may be cancelled; the request is under way.
        return await asyncio.shield(future)

    async def _change(
        self,
        build: Callable[[Transaction], None],
        then: Callable[[], None],
        *,
        is_for_readers: bool = True,
    ) -> None:
        await self._ask(lambda future: Change(build, then, future, is_for_readers=is_for_readers))

    async def _cut(
        self, queue: LogicalQueue, physical: PhysicalQueue, below: int, reason: str
    ) -> int:
        n: int = await self._ask(lambda future: Cut(queue, physical, below, reason, future))
        return n

    async def _store_receives(self, queue: LogicalQueue, group: Group, place: Place) -> None:
        """Store receive counts: before the messages are given away where they are limited."""
        if group.spec.max_receives is None:
            self._note_uncounted(queue, place)
            return
        counts = place.take_counts()

        def build(transaction: Transaction) -> None:
            if not queue.is_deleted and queue.groups.get(group.name) is group:
                add_counts(transaction, place, counts)

        with suppress(StorageError):  # rather receive than wait for the storage
            await self._change(build, lambda: None)

    def _note_uncounted(self, queue: LogicalQueue, place: Place) -> None:
        """See that receive counts are stored."""
        self._uncounted[place] = queue
        if self._counts_timer is None:
            loop = asyncio.get_running_loop()
            self._counts_timer = loop.call_later(COUNTS_SECONDS, self._store_counts)

    def _store_counts(self) -> None:
        self._counts_timer = None
        places, self._uncounted = self._uncounted, {}
        taken = {place: place.take_counts() for place in places}

        def build(transaction: Transaction) -> None:
            for place, counts in taken.items():
                queue = places[place]
                if not queue.is_deleted and queue.groups.get(place.group.name) is place.group:
                    add_counts(transaction, place, counts)

        if self._commits is not None:
            self._submit(Change(build, lambda: None, None))

    # Reading.

    async def _load(self, physical: PhysicalQueue, firsts: Sequence[int]) -> dict[int, Decoded]:
        """Read segments into the cache; those that are gone or broken are passed over."""
        return await self._decoded(physical, firsts)

    async def _decoded(self, physical: PhysicalQueue, firsts: Sequence[int]) -> dict[int, Decoded]:
        found: dict[int, Decoded] = {}
        wanted: dict[int, Segment] = {}
        for first in firsts:
            held = self._cache.get(physical.row_id, first)
            segment = physical.index.holding(first)
            if held is not None:
                found[first] = held
            elif segment is not None:
                wanted[first] = segment

        def read() -> list[Decoded]:
            frames = self._store.read(physical.row_id, list(wanted))
            return [
                decode(physical.row_id, wanted[first], frame) for first, frame in frames.items()
            ]

        while wanted:
            try:
                decoded = await self._read(physical, read)
            except BrokenSegmentError as broken:
                await self._set_aside(physical, broken)
                wanted.pop(broken.first_offset, None)
                continue
            for one in decoded:
                if physical.index.first_of(one.first_offset) >= 0:
                    self._cache.put(physical.row_id, one)
                found[one.first_offset] = one
                wanted.pop(one.first_offset, None)
            await self._check_missing(physical, list(wanted))
            break
        return found

    async def _check_missing(self, physical: PhysicalQueue, firsts: Sequence[int]) -> None:
        """Set segments aside that are not in the store, though they should be."""
        if not firsts:
            return
        # What is being deleted at this moment is gone after the next transaction.
        await self._ask(lambda future: Run(lambda: None, None, future))
        for first in firsts:
            if physical.index.first_of(first) >= 0:
                broken = BrokenSegmentError(physical.row_id, first, "it is missing")
                await self._set_aside(physical, broken)

    async def _read(self, physical: PhysicalQueue, read: Callable[[], T]) -> T:
        """Run a read of a physical queue on a thread.

        Raises:
            StorageError: it failed.
        """
        if self._commits is None:
            raise StorageError("the queue is closed")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._readers, read)
        except BrokenSegmentError:
            raise
        except StorageError as error:
            self._read_failures[physical.row_id] = str(error)
            raise
        self._read_failures.pop(physical.row_id, None)
        return found

    async def _set_aside(self, physical: PhysicalQueue, broken: BrokenSegmentError) -> None:
        """Take a broken segment out, so that those after it can be read.

        Raises:
            StorageError: it could not be removed.
        """
        queue = next(
            (one for one in self._queues.values() if one.row_id == physical.queue_id), None
        )
        if queue is None:
            return
        n_missing = 0

        def build(transaction: Transaction) -> None:
            nonlocal n_missing
            segment = physical.index.holding(broken.first_offset)
            if segment is not None and not queue.is_deleted:
                everything = (1 << segment.n_messages) - 1
                n_missing = transaction.remove(queue, physical, segment, everything, "")
                transaction.changes.aside.append((physical.row_id, segment, n_missing))
                transaction.changes.must_flush = True

        def then() -> None:
            physical.aside += n_missing

        await self._change(build, then)
        if n_missing:
            self._logger.error(
                "queue %s, physical queue %d: %s; its %d messages are set aside",
                queue.name,
                physical.number,
                broken,
                n_missing,
            )


def physical_row(physical: PhysicalQueue) -> PhysicalRow:
    """Return the row of a physical queue."""
    return PhysicalRow(
        physical.row_id,
        physical.queue_id,
        physical.number,
        physical.earliest,
        physical.next,
        physical.messages,
        physical.payload_bytes,
        physical.stored_bytes,
    )


def group_row(group: Group, epoch: int, spec: GroupSpec) -> GroupRow:
    """Return the row of a group."""
    return GroupRow(group.row_id, group.queue_id, group.name, spec_text(spec), epoch, group.used_at)


def add_counts(transaction: Transaction, place: Place, counts: Mapping[int, bytes]) -> None:
    """Add receive counts to a transaction, of segments that exist."""
    for first, stored in counts.items():
        if place.physical.index.first_of(first) == first:
            key = (place.physical.row_id, first, place.group.row_id)
            transaction.changes.receives[key] = stored


def older_than(physical: PhysicalQueue, clock: float) -> int:
    """Return the offset below which every segment is older."""
    offset = physical.earliest
    for segment in physical.index.since(physical.earliest):
        if segment.newest_clock >= clock:
            return max(offset, physical.earliest)
        offset = segment.first_offset + segment.n_messages
    return offset


def check_offset(physical: PhysicalQueue, offset: int) -> None:
    """Raise `OffsetError` for an offset that no message has or will get next."""
    if not 0 <= offset <= physical.next:
        raise OffsetError(
            f"offset of physical queue {physical.number}: read {offset}; allowed: 0 to "
            f"{physical.next}, the offset that its next message will get"
        )


def check_range(physical: PhysicalQueue, start: int, end: int) -> None:
    """Raise for a range that is none, or that begins below the earliest offset."""
    check_offset(physical, end)
    if not 0 <= start <= end:
        raise OffsetError(f"start: read {start}; allowed: 0 to the range's end, {end}")
    if start < end and start < physical.earliest:
        raise RangeGoneError(start, physical.earliest)
