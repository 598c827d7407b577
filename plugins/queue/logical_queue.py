"""One logical queue as its readers see it: the controllers, driven with the real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.client import ReceivedMessage
from penstock.plugins.queue.config import LogicalQueueConfig
from penstock.plugins.queue.dequeue import (
    Conventional,
    DequeueController,
    DequeueRequest,
    DequeueStrategy,
    RetryDequeueRequest,
)
from penstock.plugins.queue.engine import Engine, QueueLayout, StorageError
from penstock.plugins.queue.enqueue import EnqueueController

ANSWER_BYTES = 4 * 1024 * 1024
"""Payload bytes of one dequeue's answer, unless one message alone is longer. Bounds the time for
which writing an answer blocks the loop."""


class WrongReaderError(PenstockError):
    """A call that is only for the queue's other kind of readers."""


class BusyError(PenstockError):
    """Too much is running to begin the request; it may be repeated later."""


class LogicalQueue:
    """A logical queue; `start` must be called first, once the engine is open.

    Args:
        name: its name.
        config: its keys in the policy file.
        engine: holds its messages.
        clock: returns monotonic seconds.

    Attributes:
        name: its name.
        config: its keys in the policy file.
        enqueue_controller: distributes messages over the physical queues.
        pending_messages: messages that wait for their commit, from any source.
        pending_bytes: their payload bytes.
        deleted: messages that readers deleted or committed.
        expired: messages that were removed for their age.
    """

    def __init__(
        self,
        name: str,
        config: LogicalQueueConfig,
        engine: Engine,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.config = config
        self.enqueue_controller = EnqueueController(config.physical_queues)
        self.pending_messages = 0
        self.pending_bytes = 0
        self.deleted = 0
        self.expired = 0
        self._engine = engine
        self._clock = clock
        self._closing = asyncio.Event()
        self._dequeue_controller: DequeueController | None = None

    @property
    def layout(self) -> QueueLayout:
        """What the engine needs to know of this queue."""
        return QueueLayout(self.config.physical_queues, self.config.visibility_timeout)

    def start(self) -> None:
        """Take over the physical queues that the engine has for this queue."""
        config = self.config
        strategy: DequeueStrategy = Conventional()
        if config.dequeue == "rds":
            strategy = RetryDequeueRequest(config.sleep_time)
        numbers = sorted(self._engine.usage(self.name))
        self._dequeue_controller = DequeueController(
            numbers, strategy, config.max_queues_per_dequeue
        )

    def close(self) -> None:
        """Answer waiting requests now."""
        self._closing.set()

    def is_full(self, n_bytes: int) -> bool:
        """Say whether there is no room for one more message with this payload size."""
        max_messages, max_bytes = self.config.max_messages, self.config.max_bytes
        if max_messages is None and max_bytes is None:
            return False
        usage = self._engine.usage(self.name).values()
        if max_messages is not None:
            held = sum(physical.messages for physical in usage)
            if held + self.pending_messages >= max_messages:
                return True
        held_bytes = sum(physical.stored_bytes for physical in usage)
        return max_bytes is not None and held_bytes + self.pending_bytes + n_bytes > max_bytes

    async def dequeue(self, n_max: int, wait_seconds: float) -> list[ReceivedMessage]:
        """Receive messages by the queue's strategy.

        If the caller is cancelled, the messages found become visible again at once.

        Args:
            n_max: most messages.
            wait_seconds: how long the client waits for a first message.

        Raises:
            WrongReaderError: the queue is for readers that commit offsets.
            BusyError: too many requests wait, or too many messages are leased.
            StorageError: nothing could be read.
        """
        self._check_readers("dequeue")
        controller = self._controller()
        room = self.config.max_leased_messages - self._engine.leased(self.name)
        if room <= 0:
            raise BusyError(
                f"queue {self.name}: {self.config.max_leased_messages} messages are received and "
                "not deleted; delete some or wait for their visibility timeout"
            )
        if controller.waiting >= self.config.max_waiting_requests:
            raise BusyError(
                f"queue {self.name}: {controller.waiting} requests wait; allowed: "
                f"{self.config.max_waiting_requests}"
            )
        request = controller.begin(min(n_max, room), self._clock(), wait_seconds)
        found: list[ReceivedMessage] = []
        try:
            while True:
                await self._try_round(request, found)
                retry_at = request.decide(self._clock())
                if retry_at is None or self._closing.is_set():
                    return found
                with suppress(TimeoutError):
                    async with asyncio.timeout(retry_at - self._clock()):
                        await self._closing.wait()
        except BaseException:
            self._engine.give_back(self.name, found)
            raise
        finally:
            request.end()

    async def _try_round(self, request: DequeueRequest, found: list[ReceivedMessage]) -> None:
        """Make one round of tries.

        Raises:
            StorageError: a physical queue cannot be read, and no other had a message.
        """
        failed: StorageError | None = None
        room = ANSWER_BYTES
        while (number := request.next_try()) is not None:
            taken: list[ReceivedMessage] = []
            try:
                taken = await self._engine.take(self.name, number, request.missing, room)
            except StorageError as error:
                failed = error
            found += taken
            room -= sum(len(delivery.payload) for delivery in taken)
            request.tried(len(taken), is_full=room <= 0)
        if failed is not None and not found:
            try:
                raise failed
            finally:
                failed = None  # breaks the cycle of the error and this frame

    async def delete(self, receipt_handles: Sequence[str]) -> list[str]:
        """Delete received messages; return the handles that name no message.

        Raises:
            WrongReaderError: the queue is for readers that commit offsets.
            StorageError: nothing was deleted.
        """
        self._check_readers("dequeue")
        unknown = await self._engine.delete(self.name, receipt_handles)
        self.deleted += len(receipt_handles) - len(unknown)
        return unknown

    def offsets(self) -> dict[int, tuple[int, int]]:
        """Return (earliest, next) for each physical queue.

        Raises:
            WrongReaderError: the queue is for readers that dequeue.
        """
        self._check_readers("offsets")
        usage = self._engine.usage(self.name)
        return {number: (held.earliest, held.next) for number, held in usage.items()}

    async def read_range(
        self, physical_queue: int, start: int, end: int, max_messages: int
    ) -> list[bytes]:
        """Return a range as frames; see `Engine.read_range`.

        Raises:
            WrongReaderError: the queue is for readers that dequeue.
        """
        self._check_readers("offsets")
        return await self._engine.read_range(self.name, physical_queue, start, end, max_messages)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Delete everything below the offsets; see `Engine.commit`.

        Raises:
            WrongReaderError: the queue is for readers that dequeue.
        """
        self._check_readers("offsets")
        self.deleted += await self._engine.commit(self.name, offsets)

    async def expire_old(self) -> None:
        """Remove messages older than the queue's retention.

        Raises:
            StorageError: the storage cannot be written.
        """
        if self.config.retention_seconds is not None:
            before = time.time() - self.config.retention_seconds
            self.expired += await self._engine.expire(self.name, before)

    def figures(self) -> dict[str, Any]:
        """Return what the queue holds and what its readers did, as ``GET /queues`` answers."""
        usage = self._engine.usage(self.name)
        controller = self._controller()
        return {
            "name": self.name,
            "topics": list(self.config.topics),
            "readers": self.config.readers,
            "dequeue": self.config.dequeue if self.config.readers == "dequeue" else None,
            "messages": sum(held.messages for held in usage.values()),
            "leased": self._engine.leased(self.name),
            "stored_bytes": sum(held.stored_bytes for held in usage.values()),
            "deleted": self.deleted,
            "expired": self.expired,
            "set_aside": self._engine.set_aside(self.name),
            "requests": controller.requests,
            "waiting": controller.waiting,
            "retries": controller.retries,
            "hit_dequeues": controller.hit_dequeues,
            "missed_dequeues": controller.missed_dequeues,
            "received": controller.messages,
            "physical_queues": {str(number): held._asdict() for number, held in usage.items()},
        }

    def _controller(self) -> DequeueController:
        if self._dequeue_controller is None:
            raise BusyError(f"queue {self.name}: not started")
        return self._dequeue_controller

    def _check_readers(self, kind: str) -> None:
        if self.config.readers != kind:
            allowed = {
                "dequeue": "dequeue and delete",
                "offsets": "offsets, range and commit",
            }[self.config.readers]
            raise WrongReaderError(
                f"queue {self.name} is configured for `readers: {self.config.readers}`; allowed: "
                f"{allowed}. Both at once would lose messages to one of them."
            )
