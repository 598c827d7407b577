"""The catalogue of queues and groups, which all programs on one server share.

Theory of operation. The catalogue is one hash; each queue is an entry of it, JSON that is replaced
only where it still is what the program has read. A physical queue knows its groups by identifiers
of their own: a group is put there before its entry names it, and leaves behind it. What a program
that died in between has left is found by `Engine.maintain`.

The entry of a queue that is deleted becomes a tombstone in one step. From then on there is no such
queue, and its name is free. The tombstone says which keys are to be deleted. It stays until they
are: a node may be away, or the program that deletes may die. `Engine.maintain` of any program goes
on with it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from penstock.plugins.queue.engines.contract import (
    ExistsError,
    GroupSnapshot,
    GroupSpec,
    QueueSnapshot,
    QueueSpec,
    StorageError,
)
from penstock.plugins.queue.engines.logical import find_queue
from penstock.plugins.queue.engines.queues import group_spec, queue_spec
from penstock.plugins.queue.engines.receipts import Receipts
from penstock.plugins.queue.engines.redis.cached_state import RedisGroup, RedisPart, RedisQueue
from penstock.plugins.queue.engines.redis.functions import Functions
from penstock.plugins.queue.engines.redis.messages import root_of

_MOST_ID_SHARDS: Final = 16
"""The most shards of deduplication identifiers. Most clusters have fewer masters, and each shard is
one call more for messages with identifiers."""


class Catalogue:
    """Creates, changes and deletes queues and groups."""

    def __init__(self, functions: Functions) -> None:
        self.queues = functions.queues
        self._functions = functions
        self._secret = b""
        self._lock = asyncio.Lock()

    def find(self, name: str) -> RedisQueue:
        """Return a queue.

        Raises:
            UnknownQueueError: there is none of this name.
        """
        return find_queue(self.queues, name)

    async def open(self) -> None:
        """Read all queues."""
        self._secret = await self._functions.begin()
        await self.refresh()

    async def refresh(self) -> None:
        """Take what other programs have changed."""
        async with self._lock:
            await self._refresh()

    async def _refresh(self) -> None:
        entries = await self._functions.entries()
        for name in [name for name in self.queues if name not in entries]:
            self._forget(self.queues.pop(name))
        for name in sorted(entries):
            self._take(name, entries[name])
        await self._functions.look_at_reached(self.queues.values())

    def _take(self, name: str, raw: bytes) -> RedisQueue:
        """Take an entry of the catalogue."""
        held = self.queues.get(name)
        if held is not None and held.raw == raw:
            return held
        entry = json.loads(raw)
        spec = queue_spec(entry["spec"])
        if held is None or root_of(held.incarnation) != entry["incarnation"]:
            if held is not None:
                self._forget(held)
            held = self.queues[name] = RedisQueue(name, entry["incarnation"], spec)
        self._take_life(held, entry)
        held.raw = raw
        held.id_shards = entry["id_shards"]
        held.change(spec)
        for number in entry["parts"]:
            self._functions.part_of(held, number)
        for group_name in [one for one in held.groups if one not in entry["groups"]]:
            self._forget_group(held, group_name)
        for group_name, values in entry["groups"].items():
            group = held.groups.get(group_name)
            settings = group_spec(values["spec"])
            if group is None or group.id != values["id"]:
                group = RedisGroup(values["id"], group_name, settings, values["epoch"])
                group.receipts = self._receipts(held, group.id)
                held.groups[group_name] = group
                self._functions.watch(group)
            group.spec, group.epoch = settings, values["epoch"]
            group.reader = values["reader"]
            for number in held.physical:
                group.place(number)
        return held

    def _take_life(self, queue: RedisQueue, entry: Mapping[str, Any]) -> None:
        """Take the name of a queue's life: positions and handles of another one are refused."""
        life = entry["life"]
        incarnation = f"{entry['incarnation']}.{life}" if life else entry["incarnation"]
        if queue.incarnation != incarnation:
            queue.incarnation = incarnation
            queue.has_lost = False
            for group in queue.groups.values():
                group.receipts = self._receipts(queue, group.id)

    def _receipts(self, queue: RedisQueue, group_id: str) -> Receipts:
        return Receipts(self._secret, queue.incarnation, int(group_id, 16))

    async def renew(self, name: str) -> None:
        """Give a queue another life: its server's data is of an earlier moment."""
        async with self._lock:
            incarnation = self.find(name).incarnation
            while (queue := self.find(name)).incarnation == incarnation:
                entry = json.loads(queue.raw)
                entry["life"] = secrets.token_hex(4)
                if not await self._put(name, queue.raw, entry):
                    await self._refresh()

    def _forget(self, queue: RedisQueue) -> None:
        self._functions.arrivals.wake(queue, queue.groups.values())

    def _forget_group(self, queue: RedisQueue, name: str) -> None:
        group = queue.groups.pop(name)
        self._functions.arrivals.wake(queue, [*queue.groups.values(), group])

    async def create_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Create a queue with its groups.

        Raises:
            ExistsError: it exists with other settings.
        """
        async with self._lock:
            if queue not in self.queues:
                await self._refresh()
            found = self.queues.get(queue)
            if found is None:
                most_shards = _MOST_ID_SHARDS if self._functions.is_cluster else 0
                entry: dict[str, Any] = {
                    "incarnation": str(uuid.uuid4()),
                    "life": "",
                    "id_shards": min(spec.physical_queues, most_shards),
                    "spec": asdict(spec),
                    "parts": list(range(spec.physical_queues)),
                    "groups": {one: _new_group(each) for one, each in spec.groups.items()},
                }
                try:
                    await self._place(entry, entry["parts"], entry["groups"], {})
                except StorageError:
                    await self._discard(entry)
                    raise
                if await self._put(queue, b"", entry):
                    return self._snapshot(self.queues[queue])
                await self._refresh()
                found = self.find(queue)
                # A repeated call may have been carried out, and another program have changed it.
                if root_of(found.incarnation) != entry["incarnation"]:
                    await self._discard(entry)
            if found.spec != spec:
                raise ExistsError(f"queue {queue}: it exists with other settings")
            return self._snapshot(found)

    async def change_queue(self, queue: str, spec: QueueSpec) -> QueueSnapshot:
        """Give a queue other settings; create what it lacks."""
        async with self._lock:
            while True:
                found = self.find(queue)
                found.check_keys(
                    spec,
                    "with which it was created, as another program may store in it at any moment: "
                    "create another queue",
                )
                entry = json.loads(found.raw)
                old_parts, old_groups = entry["parts"], entry["groups"]
                new_parts = [one for one in range(spec.physical_queues) if one not in old_parts]
                new_groups = {
                    one: _new_group(each)
                    for one, each in spec.groups.items()
                    if one not in old_groups
                }
                starts = {}
                for one in new_groups.values():
                    start = one["spec"]["start"]
                    if isinstance(start, float | int):
                        starts[one["id"]] = await self._functions.locate(found, start)
                entry["spec"] = asdict(spec)
                entry["parts"] = sorted([*old_parts, *new_parts])
                entry["groups"] = {**old_groups, **new_groups}
                await self._place(entry, new_parts, entry["groups"], starts)
                if new_groups:
                    await self._place(entry, old_parts, new_groups, starts, is_new=False)
                if await self._put(queue, found.raw, entry):
                    found = self.queues[queue]
                    for group in found.groups.values():
                        group.arrived()
                    return self._snapshot(found)
                await self._refresh()

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue; what nodes that are away have of it is left to `delete_left`."""
        async with self._lock:
            while True:
                found = self.find(queue)
                tombstone = _tombstone(json.loads(found.raw))
                root = root_of(found.incarnation)
                taken, raw = await self._functions.delete_entry(queue, found.raw, root, tombstone)
                if taken:
                    break
                self._take_or_forget(queue, raw)
            del self.queues[queue]
            self._forget(found)
        with suppress(StorageError):  # the queue is gone all the same
            await self._delete_left(root, tombstone)

    async def delete_left(self) -> None:
        """Delete what is left of deleted queues, but for what is on nodes that are away.

        Raises:
            StorageError: a node could not be asked, or refused; the others were asked.
        """
        failed: StorageError | None = None
        for incarnation, tombstone in (await self._functions.tombstones()).items():
            try:
                await self._delete_left(incarnation, tombstone)
            except StorageError as error:
                failed = error
        if failed is not None:
            raise failed

    async def _discard(self, entry: Mapping[str, Any]) -> None:
        """Delete the keys of a queue that did not get into the catalogue, as far as possible."""
        incarnation, tombstone = entry["incarnation"], _tombstone(entry)
        with suppress(StorageError):
            await self._functions.delete_entry("", b"", incarnation, tombstone)
            await self._delete_left(incarnation, tombstone)

    async def _delete_left(self, incarnation: str, tombstone: bytes) -> None:
        """Delete the keys that a tombstone tells of; drop it when none is left."""
        told = json.loads(tombstone)
        if await self._functions.delete_parts(incarnation, told["parts"], told["id_shards"]):
            await self._functions.drop_tombstone(incarnation)

    def _take_or_forget(self, name: str, raw: bytes) -> None:
        if raw:
            self._take(name, raw)
        else:
            self._forget(self.queues.pop(name))

    async def create_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Create a group.

        Raises:
            ExistsError: it exists with other settings.
        """
        async with self._lock:
            while True:
                found = self.find(queue)
                there = found.same_group(group, spec)
                if there is not None:
                    return there.snapshot(self._functions.now())
                made = _new_group(spec)
                starts = {}
                if isinstance(spec.start, float | int):
                    starts[made["id"]] = await self._functions.locate(found, spec.start)
                entry = json.loads(found.raw)
                entry["groups"][group] = made
                await self._place(entry, entry["parts"], {group: made}, starts, is_new=False)
                if await self._put(queue, found.raw, entry):
                    return self.queues[queue].groups[group].snapshot(self._functions.now())
                await self._refresh()
                if made["id"] not in {one.id for one in self.find(queue).groups.values()}:
                    await self._drop(found, made["id"])

    async def change_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Give a group other settings.

        Raises:
            GroupKindError: the kind would change.
        """
        async with self._lock:
            while True:
                found = self.find(queue)
                changed = found.group(group, spec.kind)
                entry = json.loads(found.raw)
                entry["groups"][group]["spec"] = asdict(spec)
                if await self._put(queue, found.raw, entry):
                    break
                await self._refresh()
            ordered = _flag(is_set=spec.order == "key")
            for part in found.physical.values():
                await self._functions.ask(found, part, "order_group", changed.id, ordered)
            return changed.snapshot(self._functions.now())

    async def claim_group(self, queue: str, name: str, reader: str) -> None:
        """Give a group to a reader.

        Raises:
            ReaderError: it belongs to another one.
        """
        async with self._lock:
            while True:
                found = self.find(queue)
                group = found.group(name)
                found.check_reader(group, reader)
                if group.reader == reader:
                    return
                entry = json.loads(found.raw)
                entry["groups"][name]["reader"] = reader
                if await self._put(queue, found.raw, entry):
                    return
                await self._refresh()

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group; it holds no messages any more."""
        async with self._lock:
            while True:
                found = self.find(queue)
                deleted = found.group(group)
                entry = json.loads(found.raw)
                del entry["groups"][group]
                taken, raw = await self._functions.put(queue, found.raw, _raw(entry))
                if taken:
                    break
                self._take_or_forget(queue, raw)
            self._take(queue, raw)
            await self._drop(found, deleted.id)

    async def seek(
        self, queue: str, group: str, locate: Callable[[RedisQueue], Awaitable[Mapping[int, int]]]
    ) -> tuple[RedisQueue, RedisGroup]:
        """Put a group at other offsets; its leases end."""
        async with self._lock:
            while True:
                found = self.find(queue)
                moved = found.group(group)
                offsets = await locate(found)
                entry = json.loads(found.raw)
                epoch = (moved.epoch + 1) % 65_536
                entry["groups"][moved.name]["epoch"] = epoch
                entry["groups"][moved.name]["reader"] = ""
                if await self._put(found.name, found.raw, entry):
                    break
                await self._refresh()
            for number, offset in offsets.items():
                part = found.part(number)
                await self._functions.swept(found, part, "seek", moved.id, offset, epoch)
            moved.arrived()
            return found, moved

    async def drop_unknown(self, queue: RedisQueue, part: RedisPart, group_id: str) -> None:
        """Drop a group that a program which died has left in a physical queue."""
        async with self._lock:
            if all(group.id != group_id for group in queue.groups.values()):
                await self._functions.swept(queue, part, "drop_group", group_id)

    async def _drop(self, queue: RedisQueue, group_id: str) -> None:
        for part in queue.physical.values():
            await self._functions.swept(queue, part, "drop_group", group_id)

    async def _place(
        self,
        entry: Mapping[str, Any],
        parts: list[int],
        groups: Mapping[str, Any],
        starts: Mapping[str, Mapping[int, int]],
        *,
        is_new: bool = True,
    ) -> None:
        """Put groups into physical queues, and create these where they are new."""
        for number in parts:
            args: list[Any] = []
            for one in groups.values():
                spec = one["spec"]
                start = spec["start"]
                if isinstance(start, float | int):
                    start = starts.get(one["id"], {}).get(number, "earliest")
                kind = "l" if spec["kind"] == "lease" else "o"
                ordered = _flag(is_set=kind == "l" and spec["order"] == "key")
                args += [one["id"], kind, ordered, start, one["epoch"]]
            part = RedisPart(self._functions.part_key(entry["incarnation"], number), number)
            if is_new:
                await self._functions.create_part(part)
            if args:
                queue = RedisQueue("", entry["incarnation"], QueueSpec())
                await self._functions.swept(queue, part, "add_groups", *args)

    def _snapshot(self, queue: RedisQueue) -> QueueSnapshot:
        return queue.snapshot(self._functions.now())

    async def _put(self, name: str, expected: bytes, entry: Mapping[str, Any]) -> bool:
        """Replace an entry of the catalogue where it is still the same; take it then."""
        taken, raw = await self._functions.put(name, expected, _raw(entry))
        if taken:
            queue = self._take(name, raw)
            await self._functions.look([queue])
        return taken


def _new_group(spec: GroupSpec) -> dict[str, Any]:
    return {"id": secrets.token_hex(8), "spec": asdict(spec), "epoch": 0, "reader": ""}


def _tombstone(entry: Mapping[str, Any]) -> bytes:
    """Return what is kept of a queue that is deleted, by this delete alone."""
    kept = {key: entry[key] for key in ("parts", "id_shards")}
    return _raw({**kept, "by": secrets.token_hex(8)})


def _raw(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True).encode()


def _flag(*, is_set: bool) -> str:
    return "1" if is_set else "0"
