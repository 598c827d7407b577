"""Segments are read on threads: for ranges, and for receives of what is not in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.plugins.queue.batch_format import cut_frame
from penstock.plugins.queue.engines.contract import Start, StorageError
from penstock.plugins.queue.engines.engine_context import EngineContext
from penstock.plugins.queue.engines.logical import check_range
from penstock.plugins.queue.engines.partition import PhysicalQueue, bits_below
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.requests import Run
from penstock.plugins.queue.engines.segments import Decoded, check, decode
from penstock.plugins.queue.engines.store import BrokenSegmentError, Segment
from penstock.plugins.queue.engines.transaction import Transaction

T = TypeVar("T")


RANGE_BYTES: Final = 4 * 1024 * 1024
"""The size at which the answer to a range is cut."""


class SegmentReader:
    """Reads segments on threads of its own; sets aside those that are broken.

    Attributes:
        failures: why a physical queue could not be read when that was last tried, by row number.
    """

    def __init__(self, state: EngineContext) -> None:
        self._state = state
        self.failures: dict[int, str] = {}
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="penstock-queue-reader")

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown()

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def frames(
        self, physical: PhysicalQueue, start: int, end: int, max_messages: int
    ) -> list[bytes]:
        """Return the frames of a range; see `Engine.read`."""
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
            physical: the physical queue of the segments.
            page: segments, and bit maps of what is wanted.
            surplus: by how many messages the last one has too many, as a negative number.
        """
        firsts = [segment.first_offset for segment, _ in page]

        def read() -> list[bytes]:
            found = self._state.store.read(physical.row_id, firsts)
            frames: list[bytes] = []
            for segment, bits in page:
                frame = found.get(segment.first_offset)
                if frame is None:
                    continue
                check(physical.row_id, segment, frame)  # its reader could not go on behind it
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

    async def locate(self, queue: LocalQueue, start: Start) -> dict[int, int]:
        """Return the offsets that a `Start` means.

        Raises:
            StorageError: the storage cannot be read.
        """
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
            decoded = (await self.decoded(physical, [first])).get(first)
            if decoded is None:
                return await self._since(physical, at)
            for index, enqueued_at in enumerate(decoded.batch.enqueued_at):
                if enqueued_at >= at:
                    return max(first + index, physical.earliest)
        return physical.next

    async def decoded(self, physical: PhysicalQueue, firsts: Sequence[int]) -> dict[int, Decoded]:
        """Return segments by first offset, without those that are gone or broken.

        Raises:
            StorageError: the storage cannot be read.
        """
        found: dict[int, Decoded] = {}
        wanted: dict[int, Segment] = {}
        for first in firsts:
            held = self._state.cache.get(physical.row_id, first)
            segment = physical.index.holding(first)
            if held is not None:
                found[first] = held
            elif segment is not None:
                wanted[first] = segment

        def read() -> list[Decoded]:
            frames = self._state.store.read(physical.row_id, list(wanted))
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
                    self._state.cache.put(physical.row_id, one)
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
        await self._state.ask(lambda future: Run(lambda: None, None, future))
        for first in firsts:
            if physical.index.first_of(first) >= 0:
                broken = BrokenSegmentError(physical.row_id, first, "it is missing")
                await self._set_aside(physical, broken)

    async def _read(self, physical: PhysicalQueue, read: Callable[[], T]) -> T:
        """Run a read of a physical queue on a thread.

        Raises:
            StorageError: it failed.
        """
        if self._state.commits is None:
            raise StorageError("the queue is closed")
        try:
            found = await self.run(read)
        except BrokenSegmentError:
            raise
        except StorageError as error:
            self.failures[physical.row_id] = str(error)
            raise
        self.failures.pop(physical.row_id, None)
        return found

    async def _set_aside(self, physical: PhysicalQueue, broken: BrokenSegmentError) -> None:
        """Take a broken segment out, so that those after it can be read.

        Raises:
            StorageError: it could not be removed.
        """
        queue = next(
            (one for one in self._state.queues.values() if one.row_id == physical.queue_id), None
        )
        if queue is None:
            return
        n_missing = 0
        segment: Segment | None = None

        def build(transaction: Transaction) -> None:
            nonlocal n_missing, segment
            segment = physical.index.holding(broken.first_offset)
            if segment is not None and not queue.is_deleted:
                everything = (1 << segment.n_messages) - 1
                n_missing = transaction.remove(queue, physical, segment, everything, "")
                transaction.changes.aside.append((physical.row_id, segment, n_missing))
                transaction.changes.must_flush = True

        def then() -> None:
            physical.aside += n_missing

        await self._state.change(build, then)
        if n_missing and segment is not None:
            self._state.logger.error(
                "queue %s, physical queue %d: %s: %s; %d messages, of offsets %d to %d, are set "
                "aside",
                queue.name,
                physical.number,
                self._state.store.name,
                broken,
                n_missing,
                segment.first_offset,
                segment.first_offset + segment.n_messages - 1,
            )
