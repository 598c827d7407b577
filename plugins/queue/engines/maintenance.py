"""Maintenance removes what has expired, gives space back, and moves dead letters back."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.plugins.queue.engines.catalogue import Catalogue
from penstock.plugins.queue.engines.contract import StorageError, UnknownQueueError
from penstock.plugins.queue.engines.dead_letters import redriven
from penstock.plugins.queue.engines.engine_context import EngineContext
from penstock.plugins.queue.engines.partition import PhysicalQueue, each_bit
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.reading import SegmentReader
from penstock.plugins.queue.engines.requests import Cut, Letter, Redrive, Run, Shrink
from penstock.plugins.queue.engines.store import DELAYED, Segment
from penstock.plugins.queue.engines.transaction import Transaction

SHRINK_BYTES: Final = 8_192
"""How many bytes must have left a segment before it is stored anew: a page of the file."""
SHRINK_SEGMENTS: Final = 64
"""How many segments of a queue are stored anew in one call, some 16 MiB at most."""
LETTERS_IN_A_STEP: Final = 64
"""How many dead letters are read before other tasks of the loop run."""
DELAYS_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of messages one call reads for their delays after a restart."""
TRIM_STEPS: Final = 32
"""How often one call gives space back, 16 MB in SQLite. Other requests are written in between."""


class Maintenance:
    """Maintenance, and what operators ask for."""

    def __init__(self, state: EngineContext, reader: SegmentReader, catalogue: Catalogue) -> None:
        self._state = state
        self._reader = reader
        self._catalogue = catalogue
        self._sparse: dict[tuple[PhysicalQueue, int], int] = {}
        self._unread: deque[tuple[LocalQueue, PhysicalQueue, int]] = deque()

    async def restored(self) -> None:
        """Read of which messages the delay is not over, as far as that is soon done."""
        self._unread.extend(
            (queue, part, segment.first_offset)
            for queue in self._state.queues.values()
            for part in queue.physical.values()
            for segment in part.index
            if segment.flags & DELAYED
        )
        with suppress(StorageError):  # the next call tells
            await self._read_delays()

    async def _read_delays(self) -> None:
        n_bytes = 0
        while self._unread and n_bytes < DELAYS_BYTES:
            queue, part, first = self._unread[0]
            if not queue.is_deleted and first not in part.delays:
                decoded = (await self._reader.decoded(part, [first])).get(first)
                if decoded is not None:
                    n_bytes += decoded.memory_bytes
                    queue.note_delays(part, decoded, self._state.now())
            self._unread.popleft()

    async def purge(self, queue: str) -> int:
        """Remove all messages."""
        found = self._state.find(queue)
        n_removed = 0
        for part in list(found.physical.values()):
            n_removed += await self._cut(found, part, part.next, "purge")
        return n_removed

    async def redrive(self, queue: str, target: str | None, max_messages: int | None) -> int:
        """Move dead letters back."""
        source = self._state.find(queue)
        to = None if target is None else self._state.find(target)
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
        source: LocalQueue,
        part: PhysicalQueue,
        segment: Segment,
        target: LocalQueue | None,
        max_messages: int | None,
    ) -> int:
        first = segment.first_offset
        decoded = (await self._reader.decoded(part, [first])).get(first)
        if decoded is None:
            return 0
        letters: list[Letter] = []
        unknown: UnknownQueueError | None = None
        for index in each_bit(~part.gone_bits(first) & (1 << segment.n_messages) - 1):
            if max_messages is not None and len(letters) >= max_messages:
                break
            origin, number, row = redriven(decoded, index)
            if target is None and origin is None:
                continue
            try:
                to = target if target is not None else self._state.find(origin or "")
            except UnknownQueueError as error:
                unknown = error
                break
            topic, _, _, publisher, _, properties = row
            from_number = part.number if number is None else number
            number = to.place_of(from_number, topic, publisher, properties)
            letters.append(Letter(first, index, to, number, row))
            if len(letters) % LETTERS_IN_A_STEP == 0:
                await asyncio.sleep(0)
        n_moved = 0
        if letters:
            n_moved = await self._state.ask(lambda future: Redrive(source, part, letters, future))
        if unknown is not None:
            raise unknown
        return n_moved

    async def maintain(self) -> None:
        """Do what time asks for."""
        now = self._state.now()
        self._state.arrivals.note_uses(now)
        failed: StorageError | None = None
        try:
            await self._read_delays()
        except StorageError as error:
            failed = error
        for queue in list(self._state.queues.values()):
            for group in queue.groups.values():
                group.expire(now)
            for part in queue.physical.values():
                part.forget_delays(now)
            try:
                await self._maintain_queue(queue, now)
                await self._shrink(queue)
            except StorageError as error:
                failed = error
        live = {part for one in self._state.queues.values() for part in one.physical.values()}
        for part, first in list(self._sparse):
            if part not in live or first not in part.gone:
                del self._sparse[part, first]
        await self._state.change(self._clock_row, lambda: None)
        with suppress(StorageError):  # it is told by `failure`
            await self.probe()
        await self._catalogue.sweep()
        for _ in range(TRIM_STEPS):
            if not await self._state.ask(lambda future: Run(self._state.store.trim, None, future)):
                break
        if failed is not None:
            raise failed

    async def probe(self) -> None:
        """See whether a message would be stored.

        Raises:
            StorageError: says why it would not.
        """
        commits = self._state.commits
        if commits is not None:
            await self._state.ask(lambda future: Run(commits.probe, None, future))

    async def _shrink(self, queue: LocalQueue) -> None:
        """Free the space of messages that left segments which others keep from leaving.

        A segment is stored anew when nothing has left it since the last call: others are about to
        leave by themselves. As half of it must be gone, it is stored a few times at most.
        """
        n_left = SHRINK_SEGMENTS
        for part in list(queue.physical.values()):
            for first, (bits, gone_bytes) in list(part.gone.items()):
                segment = part.index.holding(first)
                if segment is None or gone_bytes * 2 < max(segment.payload_bytes, 2 * SHRINK_BYTES):
                    self._sparse.pop((part, first), None)
                elif self._sparse.get((part, first)) != bits:
                    self._sparse[part, first] = bits
                elif n_left:
                    n_left -= 1
                    del self._sparse[part, first]
                    await self._state.ask(partial(Shrink, queue, part, first))

    async def compact(self) -> int:
        """Give all unused space back, that of messages in segments of others included."""
        await self._catalogue.sweep()
        for queue in list(self._state.queues.values()):
            for part in list(queue.physical.values()):
                sparse = [first for first, (_, gone_bytes) in part.gone.items() if gone_bytes]
                for first in sparse:
                    await self._state.ask(partial(Shrink, queue, part, first))
        store = self._state.store
        freed: int = await self._state.ask(lambda future: Run(store.compact, None, future))
        return freed

    def _clock_row(self, transaction: Transaction) -> None:
        transaction.changes.meta["clock"] = self._state.clock.stored_text()
        self._catalogue.add_last_uses(transaction)

    async def _maintain_queue(self, queue: LocalQueue, now: float) -> None:
        for group in list(queue.groups.values()):
            if group.n_leased:  # whoever works on the messages is there
                group.used_at = now
            expiry = group.spec.group_expiry_seconds
            if expiry is not None and now - group.used_at >= expiry:
                self._state.logger.warning(
                    "queue %s: group %s is deleted: no request for %.0f s",
                    queue.name,
                    group.name,
                    now - group.used_at,
                )
                await self._catalogue.delete_group(queue, group)
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
                    if transaction.stored(queue, one) is not None:  # it was stored again
                        continue
                    transaction.changes.deduplication[queue.row_id, one] = None

            def then() -> None:
                for identifier in old:
                    found = queue.stored.get(identifier)
                    if found is not None and found.stored_at <= before:
                        del queue.stored[identifier]

            await self._state.change(build, then)

    async def _cut(
        self, queue: LocalQueue, physical: PhysicalQueue, below: int, reason: str
    ) -> int:
        n: int = await self._state.ask(lambda future: Cut(queue, physical, below, reason, future))
        return n


def older_than(physical: PhysicalQueue, clock: float) -> int:
    """Return the offset below which every segment is older."""
    offset = physical.earliest
    for segment in physical.index.since(physical.earliest):
        if segment.newest_clock >= clock:
            return max(offset, physical.earliest)
        offset = segment.first_offset + segment.n_messages
    return offset
