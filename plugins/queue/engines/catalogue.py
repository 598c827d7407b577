"""The catalogue creates, changes, deletes and restores the queues and groups of one process."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterable, Mapping

from penstock.plugins.queue.engines.contract import (
    ExistsError,
    GroupSnapshot,
    GroupSpec,
    QueueSnapshot,
    QueueSpec,
)
from penstock.plugins.queue.engines.engine_context import EngineContext
from penstock.plugins.queue.engines.leases import LocalGroup, LocalPlace
from penstock.plugins.queue.engines.partition import PhysicalQueue
from penstock.plugins.queue.engines.queues import (
    LocalQueue,
    StoredIdentifier,
    group_text,
    queue_spec,
    spec_text,
    stored_group,
)
from penstock.plugins.queue.engines.reading import SegmentReader
from penstock.plugins.queue.engines.receipts import Receipts
from penstock.plugins.queue.engines.requests import Run, Trim, check_exists, check_group
from penstock.plugins.queue.engines.store import (
    COPIED,
    DELAYED,
    GroupRow,
    PhysicalRow,
    QueueRow,
    Rows,
)
from penstock.plugins.queue.engines.transaction import Transaction


class Catalogue:
    """Creates, changes, deletes and restores queues and groups."""

    def __init__(self, state: EngineContext, reader: SegmentReader) -> None:
        self._state = state
        self._reader = reader
        self._secret = b""
        self._is_copy = False
        self._ids = {"queue": 1, "physical": 1, "group": 1}
        self._must_sweep = True

    def start_rows(self, transaction: Transaction) -> None:
        """Add what the next start needs."""
        transaction.changes.meta["secret"] = self._secret.hex()
        if self._is_copy:
            transaction.changes.meta[COPIED] = ""
            transaction.changes.queues += [one.row(one.spec) for one in self._state.queues.values()]
        transaction.changes.meta["clock"] = self._state.clock.stored_text()
        self.add_last_uses(transaction)

    def started(self) -> None:
        """Take note that the storage has these rows."""
        self._is_copy = False

    def add_last_uses(self, transaction: Transaction) -> None:
        """Store when groups were used last, of those that were used since."""
        for queue in self._state.queues.values():
            for group in queue.groups.values():
                if group.used_at != group.stored_used_at:
                    used_at = group.used_at - self._state.clock.away
                    transaction.changes.group_uses.append((used_at, group.row_id))
                    group.stored_used_at = group.used_at

    def restore(self, rows: Rows) -> None:
        """Make the queues and groups that are in the storage."""
        self._secret = bytes.fromhex(rows.meta.get("secret", "")) or secrets.token_bytes(32)
        self._is_copy = bool(rows.meta.get(COPIED))
        if self._is_copy:
            self._state.logger.warning(
                "queue: %s is a copy of an earlier moment: its queues have new incarnations, and "
                "refuse positions and receipt handles of before",
                self._state.store.name,
            )
        queues: dict[int, LocalQueue] = {}
        for row in rows.queues:
            incarnation = str(uuid.uuid4()) if self._is_copy else row.incarnation
            known = row._replace(incarnation=incarnation)
            queue = queues[row.row_id] = LocalQueue(known, queue_spec(json.loads(row.spec)))
            self._state.queues[row.name] = queue
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
                self._state.logger.warning(
                    "queue %s: %d messages of physical queue %d could not be read and are set "
                    "aside",
                    queue.name,
                    physical.aside,
                    physical.number,
                )
        for (physical_id, first), gone in rows.gone.items():
            if physical_id in parts:
                parts[physical_id].gone[first] = gone
        groups: dict[int, LocalGroup] = {}
        away = self._state.clock.away
        for group_row in rows.groups:
            queue = queues[group_row.queue_id]
            used = group_row._replace(used_at=group_row.used_at + away)
            spec, reader = stored_group(group_row.spec)
            group = groups[group_row.row_id] = self._group_of(queue, used, spec)
            group.reader = reader
            queue.groups[group.name] = group
            for number, physical in queue.physical.items():
                floor = rows.floors.get((group.row_id, physical.row_id), physical.earliest)
                group.places[number] = LocalPlace(group, physical, max(floor, physical.earliest))
        self._restore_settled(rows, parts, groups)
        for one in rows.deduplication:
            if one.queue_id in queues:
                stored = StoredIdentifier(one.stored_at + away, one.number, one.offset)
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
        rows: Rows, parts: Mapping[int, PhysicalQueue], groups: Mapping[int, LocalGroup]
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
                place.note_waiting(place.count_waiting())

    async def create_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Create a queue with its groups."""
        found = self._state.queues.get(queue)
        if found is not None:
            if found.spec != spec:
                raise ExistsError(f"queue {queue}: it exists with other settings")
            return self._state.find(queue).snapshot(self._state.now())
        row = QueueRow(self._new_id("queue"), queue, str(uuid.uuid4()), spec_text(spec))
        made = LocalQueue(row, spec)
        self._add_parts(made, spec.physical_queues)
        for name, group in spec.groups.items():
            made.groups[name] = self._new_group(made, name, group)

        def build(transaction: Transaction) -> None:
            if queue in self._state.queues:
                raise ExistsError(f"queue {queue}: it was created at the same moment")
            changes = transaction.changes
            changes.must_flush = True
            changes.queues.append(row)
            changes.physical += map(physical_row, made.physical.values())
            for group in made.groups.values():
                self._add_group_rows(transaction, group)
            self._add_ids(transaction)

        def then() -> None:
            self._state.queues[queue] = made

        try:
            await self._state.change(build, then, is_for_readers=False, is_alone=True)
        except ExistsError:  # perhaps with the same settings
            return await self.create_queue(queue, spec)
        return self._state.find(queue).snapshot(self._state.now())

    async def change_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Give a queue other settings."""
        found = self._state.find(queue)
        known_parts = set(found.physical)
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
            check_exists(found)
            if found.messages:
                found.check_keys(spec, f"while it holds messages ({found.messages})")
            if known_parts != set(found.physical) or new_groups.keys() & found.groups.keys():
                raise ExistsError(f"queue {queue}: it was changed at the same moment")
            changes = transaction.changes
            changes.must_flush = True
            changes.queues.append(found.row(spec))
            changes.physical += map(physical_row, new_parts.values())
            for group in new_groups.values():
                self._place_at(group, None)
                self._add_group_rows(transaction, group)
            transaction.add_groups(found, new_groups.values())
            for group in found.groups.values():
                for part in new_parts.values():
                    changes.floors[group.row_id, part.row_id] = part.earliest
            self._add_ids(transaction)

        def then() -> None:
            found.physical.update(new_parts)
            found.physical = dict(sorted(found.physical.items()))
            for group in found.groups.values():
                for number, part in new_parts.items():
                    group.places[number] = LocalPlace(group, part, part.earliest)
            for name, group in new_groups.items():
                for place in group.places.values():
                    place.note_waiting(place.count_waiting())
                found.groups[name] = group
            found.change(spec)
            for group in found.groups.values():
                group.arrived()

        try:
            await self._state.change(build, then, is_for_readers=False, is_alone=True)
        except ExistsError:
            return await self.change_queue(queue, spec)
        return self._state.find(queue).snapshot(self._state.now())

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue."""
        found = self._state.find(queue)

        def build(transaction: Transaction) -> None:
            check_exists(found)
            transaction.changes.must_flush = True
            transaction.changes.deleted_queues.append(found.row_id)

        def then() -> None:
            found.is_deleted = True
            del self._state.queues[queue]
            for part in found.physical.values():
                for segment in part.index:
                    self._state.cache.drop(part.row_id, segment.first_offset)
            self._state.arrivals.wake(found, found.groups.values())
            self._must_sweep = True

        await self._state.change(build, then, is_alone=True)

    async def create_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Create a group."""
        found = self._state.find(queue)
        there = found.same_group(group, spec)
        if there is not None:
            return there.snapshot(self._state.now())
        starts = await self._reader.locate(found, spec.start)
        made = self._new_group(found, group, spec)

        def build(transaction: Transaction) -> None:
            check_exists(found)
            if group in found.groups or set(made.places) != set(found.physical):
                raise ExistsError(f"queue {queue}: it was changed at the same moment")
            self._place_at(made, starts if isinstance(spec.start, float | int) else None)
            self._add_group_rows(transaction, made)
            transaction.add_groups(found, [made])
            transaction.changes.must_flush = True
            self._add_ids(transaction)

        def then() -> None:
            for place in made.places.values():
                place.note_waiting(place.count_waiting())
            found.groups[group] = made

        try:
            await self._state.change(build, then, is_for_readers=False, is_alone=True)
        except ExistsError:
            return await self.create_group(queue, group, spec)
        return made.snapshot(self._state.now())

    async def change_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Give a group other settings."""
        found = self._state.find(queue)
        changed = found.group(group, spec.kind)

        def build(transaction: Transaction) -> None:
            check_group(found, changed)
            transaction.changes.must_flush = True
            row = self.group_row(changed, changed.epoch, spec, changed.reader)
            transaction.changes.groups.append(row)

        await self._state.change(
            build, lambda: changed.change(spec), is_for_readers=False, is_alone=True
        )
        return changed.snapshot(self._state.now())

    async def claim_group(self, queue: LocalQueue, group: LocalGroup, reader: str) -> None:
        """Give a group to a reader.

        Raises:
            ReaderError: it belongs to another one.
        """

        def build(transaction: Transaction) -> None:
            check_group(queue, group)
            queue.check_reader(group, reader)
            transaction.changes.must_flush = True
            row = self.group_row(group, group.epoch, group.spec, reader)
            transaction.changes.groups.append(row)

        def then() -> None:
            group.reader = reader

        await self._state.change(build, then, is_alone=True)

    async def delete_group(self, queue: LocalQueue, group: LocalGroup) -> None:
        """Delete a group; it holds no messages any more."""

        def build(transaction: Transaction) -> None:
            check_group(queue, group)
            transaction.changes.must_flush = True
            transaction.changes.deleted_groups.append(group.row_id)
            transaction.drop_group(queue, group)

        def then() -> None:
            del queue.groups[group.name]
            self._state.arrivals.wake(queue, [*queue.groups.values(), group])
            for part in queue.physical.values():
                self._state.submit(Trim(queue, part))

        await self._state.change(build, then, is_alone=True)

    async def sweep(self) -> None:
        """Delete what deleted queues have left.

        Raises:
            StorageError: some of it is left.
        """
        if not self._must_sweep:
            return
        while await self._state.ask(lambda future: Run(self._state.store.sweep, None, future)):
            pass
        self._must_sweep = False

    def _new_id(self, kind: str) -> int:
        new = self._ids[kind]
        self._ids[kind] += 1
        return new

    def _add_ids(self, transaction: Transaction) -> None:
        """Store which row numbers were used: those of deleted rows are not used again."""
        for kind in ("physical", "group"):
            transaction.changes.meta[kind] = str(self._ids[kind] - 1)

    def _new_part(self, queue: LocalQueue, number: int) -> PhysicalQueue:
        row_id = self._new_id("physical")
        return PhysicalQueue(PhysicalRow(row_id, queue.row_id, number, 0, 0, 0, 0, 0))

    def _add_parts(self, queue: LocalQueue, n: int) -> None:
        for number in range(n):
            queue.physical[number] = self._new_part(queue, number)

    def _new_group(
        self,
        queue: LocalQueue,
        name: str,
        spec: GroupSpec,
        parts: Iterable[PhysicalQueue] | None = None,
    ) -> LocalGroup:
        row = GroupRow(
            self._new_id("group"), queue.row_id, name, spec_text(spec), 0, self._state.now()
        )
        group = self._group_of(queue, row, spec)
        for part in queue.physical.values() if parts is None else parts:
            group.places[part.number] = LocalPlace(group, part, part.earliest)
        return group

    def _group_of(self, queue: LocalQueue, row: GroupRow, spec: GroupSpec) -> LocalGroup:
        receipts = Receipts(self._secret, queue.incarnation, row.row_id)
        group = LocalGroup(row, spec, receipts, queue.key_of)
        group.delay_seconds = queue.spec.delay_seconds
        group.on_arrival = self._state.arrivals.arrived
        group.on_deadline = self._state.arrivals.deadline_changed
        return group

    @staticmethod
    def _place_at(group: LocalGroup, starts: Mapping[int, int] | None) -> None:
        """Put a new group where it begins, at the moment at which it is created."""
        for number, place in group.places.items():
            part = place.physical
            if starts is not None:
                place.move(max(part.earliest, min(starts.get(number, part.next), part.next)))
            else:
                is_latest = group.spec.start == "latest"
                place.move(part.next if is_latest else part.earliest)

    def group_row(self, group: LocalGroup, epoch: int, spec: GroupSpec, reader: str) -> GroupRow:
        """Return the row of a group."""
        used_at = group.used_at - self._state.clock.away
        text = group_text(spec, reader)
        return GroupRow(group.row_id, group.queue_id, group.name, text, epoch, used_at)

    def _add_group_rows(self, transaction: Transaction, group: LocalGroup) -> None:
        changes = transaction.changes
        row = self.group_row(group, group.epoch, group.spec, group.reader)
        changes.groups.append(row)
        for place in group.places.values():
            changes.floors[group.row_id, place.physical.row_id] = place.floor


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
