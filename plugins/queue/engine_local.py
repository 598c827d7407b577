"""The engine of one process: a store, a thread that writes, leases in memory.

Reads run on threads of their own, writes on that of `GroupCommit`; everything else runs on the
event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging import Logger
from typing import TypeVar

from penstock.broker.message import Message
from penstock.plugins.queue.batch_format import cut_frame
from penstock.plugins.queue.client import Batch, ReceivedMessage, read_batch
from penstock.plugins.queue.engine import (
    AppendResult,
    BrokenSegmentError,
    OffsetError,
    QueueLayout,
    RangeGoneError,
    StorageError,
    Usage,
)
from penstock.plugins.queue.group_commit import Append, Delete, GroupCommit, SetAside, Truncate
from penstock.plugins.queue.leases import Lease
from penstock.plugins.queue.physical_queue import PhysicalQueue, ReadMessage
from penstock.plugins.queue.store import Key, Mark, Store, StoredSegment, wanted_bits

T = TypeVar("T")

PAGE_BYTES = 1024 * 1024
"""Bytes of a physical queue that are read ahead at a time."""
PAGE_MESSAGES = 1024
RANGE_BYTES = 4 * 1024 * 1024
"""Size at which the answer to a range is cut."""


class LocalEngine:
    """See `plugins.queue.engine` for the contract of its methods.

    Args:
        store: keeps the messages; opened and closed by the engine.
        clock: returns monotonic seconds.
        commit_max_messages: messages of one commit at most.
        logger: gets faults.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        commit_max_messages: int,
        logger: Logger,
    ) -> None:
        self._store = store
        self._clock = clock
        self._commit_max_messages = commit_max_messages
        self._logger = logger
        self._queues: dict[Key, PhysicalQueue] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._numbers: dict[str, list[int]] = {}
        # Unique also across restarts: an old handle must not name a new receive.
        self._lease_ids = itertools.count(time.time_ns())
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="penstock-queue-reader")
        self._commits: GroupCommit | None = None
        self._read_failures: dict[Key, str] = {}

    async def open(self, queues: Mapping[str, QueueLayout]) -> None:
        """Open the store and prepare the queues."""
        numbers = {name: layout.physical_queues for name, layout in queues.items()}
        await asyncio.to_thread(self._store.open, numbers)
        if self._store.tightened:
            self._logger.warning(
                "queue: other users could read %s; only its owner can from now on",
                ", ".join(self._store.tightened),
            )
        for (name, number), n_messages in self._store.aside.items():
            self._logger.warning(
                "queue %s: %d messages of physical queue %d could not be read and are set aside",
                name,
                n_messages,
                number,
            )
        for key, usage in self._store.usage.items():
            name, number = key
            if name in queues:
                timeout = queues[name].visibility_timeout
                self._queues[key] = PhysicalQueue(usage.earliest, timeout)
                self._locks[key] = asyncio.Lock()
                self._numbers.setdefault(name, []).append(number)
            elif usage.messages:
                self._logger.warning(
                    "queue %s is not in the policy file; its %d messages in physical queue %d stay",
                    name,
                    usage.messages,
                    number,
                )
        loop = asyncio.get_running_loop()
        self._commits = GroupCommit(
            self._store, loop, self._clock, self._commit_max_messages, self._logger
        )

    async def close(self) -> None:
        """Write what was submitted and close the store."""
        if self._commits is not None:
            await self._commits.close()
            self._commits = None
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._store.close)

    def append(
        self, queue: str, physical_queue: int, messages: Sequence[Message]
    ) -> asyncio.Future[AppendResult]:
        """Store messages at the end of a physical queue."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._writer().submit(Append((queue, physical_queue), messages, future))
        return future

    async def take(
        self, queue: str, physical_queue: int, n_max: int, max_bytes: int
    ) -> list[ReceivedMessage]:
        """Receive messages: first those that have become visible again, then the oldest others."""
        key = (queue, physical_queue)
        waiting = self._queues[key]
        async with self._locks[key]:
            waiting.leases.expire(self._clock())
            again = waiting.leases.visible_again(n_max)
            taken: list[tuple[ReadMessage, Lease]] = []
            if again:
                taken = await self._take_again(key, again, max_bytes)
            missing = n_max - len(taken)
            if missing and waiting.must_read(missing, self._store.usage[key].next):
                try:
                    await self._read_ahead(key, waiting)
                except BaseException:
                    for _, lease in taken:
                        waiting.leases.release(lease.offset, lease.lease_id)
                    raise
            now, lease_id = self._clock(), next(self._lease_ids)
            left = max_bytes - sum(len(message.payload) for message, _ in taken)
            for message in waiting.take_ready(missing, left):
                taken.append((message, waiting.lease(message, lease_id, now)))
        return [_delivery(physical_queue, message, lease) for message, lease in taken]

    def give_back(self, queue: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Make messages visible again whose receiver has left."""
        for delivery in deliveries:
            number, offset, lease_id = _parse_handle(delivery.receipt_handle)
            self._queues[queue, number].leases.release(offset, lease_id)

    async def delete(self, queue: str, receipt_handles: Sequence[str]) -> list[str]:
        """Remove received messages; return the handles that name no message."""
        unknown: list[str] = []
        leases: list[tuple[Key, Lease]] = []
        for handle in receipt_handles:
            number, offset, lease_id = _parse_handle(handle)
            held = self._queues.get((queue, number))
            lease = held.leases.delete(offset, lease_id) if held is not None else None
            if lease is None:
                unknown.append(handle)
            else:
                leases.append(((queue, number), lease))
        if leases:
            await self._delete(leases)
        return unknown

    async def read_range(
        self, queue: str, physical_queue: int, start: int, end: int, max_messages: int
    ) -> list[bytes]:
        """Return the frames of a range."""
        key = (queue, physical_queue)
        self._check_range(key, start, end)

        def read() -> list[bytes]:
            segments = self._store.read(key, start, end, max_messages, RANGE_BYTES)
            return _cut_to_range(key, segments, start, end, max_messages)

        frames = await self._read(key, read)
        # A commit during the read may have removed some of its messages.
        self._check_range(key, start, end)
        return frames

    async def commit(self, queue: str, offsets: Mapping[int, int]) -> int:
        """Remove everything below an offset of each physical queue; return how many that was."""
        for number, offset in offsets.items():
            self._check_offset((queue, number), offset)
        n_removed = 0
        for number, offset in offsets.items():
            n_removed += await self._truncate((queue, number), offset)
        return n_removed

    async def expire(self, queue: str, enqueued_before: float) -> int:
        """Remove older messages."""
        n_expired = 0
        for number in self._numbers[queue]:
            key = (queue, number)
            below = await self._read(key, partial(self._store.older_than, key, enqueued_before))
            n_expired += await self._truncate(key, below)
        return n_expired

    def usage(self, queue: str) -> dict[int, Usage]:
        """Return what each physical queue holds, by number."""
        return {number: self._store.usage[queue, number] for number in self._numbers[queue]}

    def leased(self, queue: str) -> int:
        """Return how many messages are received and not deleted."""
        return sum(len(self._queues[queue, number].leases) for number in self._numbers[queue])

    def failure(self) -> str | None:
        """Return why the last write failed, or the last read of any physical queue."""
        lost = self._store.why_lost()
        if lost or self._commits is None:
            return lost or None
        return self._commits.failure or next(iter(self._read_failures.values()), None)

    def set_aside(self, queue: str) -> int:
        """Return how many messages could not be read and are kept out of the queue."""
        return sum(self._store.aside.get((queue, number), 0) for number in self._numbers[queue])

    def _writer(self) -> GroupCommit:
        if self._commits is None:
            raise StorageError("the queue is closed")
        return self._commits

    async def _read(self, key: Key, read: Callable[[], T]) -> T:
        """Run a read of a physical queue on a thread; set aside any broken segment that it meets.

        Raises:
            StorageError: it failed.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    found = await loop.run_in_executor(self._readers, read)
                except BrokenSegmentError as error:
                    await self._set_aside(error)
                else:
                    self._read_failures.pop(key, None)
                    return found
        except StorageError as error:
            self._read_failures[key] = str(error)
            raise

    async def _set_aside(self, broken: BrokenSegmentError) -> None:
        """Remove a broken segment, so that those after it can be read.

        Raises:
            StorageError: it could not be removed.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._writer().submit(SetAside(broken.key, broken.first_offset, future))
        n_messages = await asyncio.shield(future)
        self._queues[broken.key].drop_segment(broken.first_offset)
        if n_messages:
            self._logger.error("%s; its %d messages are set aside", broken, n_messages)

    async def _read_ahead(self, key: Key, waiting: PhysicalQueue) -> None:
        start, end = waiting.cursor, self._store.usage[key].next

        def read() -> tuple[list[ReadMessage], int]:
            segments = self._store.read(key, start, end, PAGE_MESSAGES, PAGE_BYTES)
            if not segments:
                return [], end
            last = segments[-1]
            messages = _read_messages(key, segments, start, end)
            return messages, last.first_offset + last.n_messages

        waiting.feed(*await self._read(key, read))

    async def _take_again(
        self, key: Key, again: Sequence[Lease], max_bytes: int
    ) -> list[tuple[ReadMessage, Lease]]:
        """Read messages that have become visible again, and lease them."""
        leases = self._queues[key].leases
        wanted = {lease.offset: lease for lease in again}

        def read() -> list[ReadMessage]:
            found: list[ReadMessage] = []
            for lease in {lease.segment: lease for lease in again}.values():
                segments = self._store.read(key, lease.offset, lease.offset + 1, 1, 1)
                behind = lease.segment + lease.segment_count
                messages = _read_messages(key, segments, lease.segment, behind)
                found += [message for message in messages if message.offset in wanted]
            return found

        try:
            messages = await self._read(key, read)
        except BaseException:
            for lease in again:
                if leases.is_current(lease):
                    leases.put_back(lease)
            raise
        now, lease_id = self._clock(), next(self._lease_ids)
        taken: list[tuple[ReadMessage, Lease]] = []
        for message in messages:
            lease = wanted[message.offset]
            if not leases.is_current(lease):
                continue
            if max_bytes <= 0 and taken:
                leases.put_back(lease)
                continue
            max_bytes -= len(message.payload)
            leases.lease(lease, lease_id, now)
            taken.append((message, lease))
        return taken

    async def _delete(self, leases: Sequence[tuple[Key, Lease]]) -> None:
        """Delete messages; make them visible again where that fails."""
        bits: dict[tuple[Key, int, int], int] = {}
        for key, lease in leases:
            segment = (key, lease.segment, lease.segment_count)
            bits[segment] = bits.get(segment, 0) | 1 << (lease.offset - lease.segment)
        marks = [Mark(key, first, n, map_) for (key, first, n), map_ in bits.items()]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled(done: asyncio.Future[None]) -> None:
            if done.exception() is not None:
                for key, lease in leases:
                    self._queues[key].leases.put_back(lease)

        future.add_done_callback(settled)
        self._writer().submit(Delete(marks, future))
        # The caller may be cancelled; the delete is running and must be recorded.
        await asyncio.shield(future)

    async def _truncate(self, key: Key, below: int) -> int:
        if below <= self._store.usage[key].earliest:
            return 0
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._queues[key]
        future.add_done_callback(
            lambda done: waiting.drop_below(below) if done.exception() is None else None
        )
        self._writer().submit(Truncate(key, below, future))
        return await asyncio.shield(future)

    def _check_range(self, key: Key, start: int, end: int) -> None:
        self._check_offset(key, end)
        if not 0 <= start <= end:
            raise OffsetError(f"start: read {start}; allowed: 0 to the range's end, {end}")
        if start < end and start < self._store.usage[key].earliest:
            raise RangeGoneError(start, self._store.usage[key].earliest)

    def _check_offset(self, key: Key, offset: int) -> None:
        queue, number = key
        if key not in self._queues:
            known = ", ".join(map(str, self._numbers[queue]))
            raise OffsetError(f"physical queue of {queue}: read {number}; allowed: {known}")
        behind = self._store.usage[key].next
        if not 0 <= offset <= behind:
            raise OffsetError(
                f"offset of physical queue {number}: read {offset}; allowed: 0 to {behind}, "
                "the offset that its next message will get"
            )


def _parse_handle(handle: str) -> tuple[int, int, int]:
    """Return (physical queue, offset, lease id); (-1, -1, -1) for a text that is no handle."""
    try:
        number, offset, lease_id = handle.split(".")
        return int(number), int(offset), int(lease_id, 16)
    except ValueError:
        return -1, -1, -1


def _delivery(physical_queue: int, message: ReadMessage, lease: Lease) -> ReceivedMessage:
    offset, topic, payload, qos, publisher, enqueued_at, properties, _, _ = message
    return ReceivedMessage(
        f"{physical_queue}.{offset}.{lease.lease_id:x}",
        lease.receive_count,
        physical_queue,
        offset,
        topic,
        payload,
        qos,
        publisher,
        enqueued_at,
        properties,
    )


def _read_messages(
    key: Key, segments: Sequence[StoredSegment], start: int, end: int
) -> list[ReadMessage]:
    """Return the messages of segments that lie in ``[start, end)`` and are not deleted.

    Raises:
        BrokenSegmentError: a segment's frame does not hold its messages.
    """
    messages: list[ReadMessage] = []
    for first, n_messages, gone, frame in segments:
        wanted = wanted_bits(first, n_messages, gone, start, end)
        columns = zip(*_batch(key, first, n_messages, frame), strict=True)
        messages += [
            ReadMessage(
                offset, topic, payload, qos, publisher, enqueued_at, properties, first, n_messages
            )
            for offset, topic, payload, qos, publisher, enqueued_at, properties in columns
            if wanted >> (offset - first) & 1
        ]
    return messages


def _batch(key: Key, first: int, n_messages: int, frame: bytes) -> Batch:
    """Decode a segment's frame.

    Raises:
        BrokenSegmentError: the frame does not hold the segment's messages.
    """
    try:
        batch = read_batch(frame)
    except ValueError as error:
        raise BrokenSegmentError(key, first, str(error)) from error
    if batch.offset != list(range(first, first + n_messages)):
        raise BrokenSegmentError(
            key, first, f"it does not hold offsets {first} to {first + n_messages - 1}"
        )
    return batch


def _cut_to_range(
    key: Key, segments: Sequence[StoredSegment], start: int, end: int, max_messages: int
) -> list[bytes]:
    """Return the frames of segments, without messages that are deleted or outside ``[start, end)``.

    Raises:
        BrokenSegmentError: a segment's frame does not hold its messages, so that its reader could
            not go on.
    """
    frames: list[bytes] = []
    for first, n_messages, gone, frame in segments:
        _batch(key, first, n_messages, frame)
        wanted = wanted_bits(first, n_messages, gone, start, end)
        n_wanted = wanted.bit_count()
        if n_wanted == n_messages <= max_messages:
            frames.append(frame)
        else:
            frames.append(cut_frame(frame, wanted, max_messages))
        max_messages -= n_wanted
    return frames
