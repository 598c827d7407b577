"""Storing sends new messages to physical queues, and removes what they leave no room for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from redis.exceptions import ResponseError

from penstock.broker.durable.storage_clock import Clocks
from penstock.plugins.queue.engines.contract import (
    AppendResult,
    NewMessage,
    Sent,
    StorageError,
    drop_reason,
)
from penstock.plugins.queue.engines.redis.cached_state import RedisPart, RedisQueue, Told
from penstock.plugins.queue.engines.redis.catalogue import Catalogue
from penstock.plugins.queue.engines.redis.cluster_deduplication import (
    Claimed,
    ClusterDeduplication,
    has_order,
)
from penstock.plugins.queue.engines.redis.functions import Functions, refusal
from penstock.plugins.queue.engines.redis.messages import Stamp, written

_SAME_AGE_SECONDS: Final = 1.0
"""Messages of different physical queues count as equally old if their ages differ by less. The ages
of others are as of their last answers, and many answers are under way."""


class Storing:
    """Stores messages, and removes what they leave no room for."""

    def __init__(self, functions: Functions, catalogue: Catalogue, clocks: Clocks) -> None:
        self._functions = functions
        self._catalogue = catalogue
        self._clocks = clocks
        self._logger = functions.logger
        self._deduplication = ClusterDeduplication(functions, self._send)
        self._tasks: set[asyncio.Task[None]] = set()
        self._cutting: set[RedisPart] = set()
        """Physical queues whose oldest messages are being dropped."""

    async def close(self) -> None:
        """Wait for what is done behind answers."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def held_up(self, queue: str, messages: Sequence[NewMessage]) -> Collection[int]:
        """Return which messages would wait for the node of their deduplication identifiers."""
        found = self._catalogue.queues.get(queue)
        if found is None or has_order(found):
            return ()
        return self._functions.held_up(found, [new.deduplication_id for new in messages])

    def append(
        self,
        queue: str,
        physical_queue: int,
        messages: Sequence[NewMessage],
        sent: Sent | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Store messages at the end of a physical queue, and give their room back."""
        found = self._catalogue.find(queue)
        if self._functions.lost:
            found.release(len(messages), sum(len(new.message.payload) for new in messages))
            raise StorageError(self._functions.lost)
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        now, wall = self._clocks.monotonic(), self._clocks.wall()
        args: list[bytes] = []
        refused: dict[int, str] = {}
        for index, new in enumerate(messages):
            age = now - new.message.arrived_at
            try:
                args += written(new, Stamp(age, wall - age), found.key_of)
            except (OSError, TypeError, ValueError) as error:
                self._logger.error(  # noqa: TRY400 (the trace tells nothing more)
                    "queue %s: %r cannot be stored: %s", found.name, new.message, error
                )
                refused[index] = "unreadable"
        n_bytes = sum(len(new.message.payload) for new in messages)

        def done(call: asyncio.Future[Any]) -> None:
            found.release(len(messages), n_bytes)
            if future.done():
                return
            error = call.exception()
            if error is None:
                future.set_result(_result(call.result(), len(messages), refused))
            elif isinstance(error, ResponseError):
                future.set_exception(refusal(error, found))
            else:
                future.set_exception(error)

        try:
            part = found.part(physical_queue)
            if self._functions.is_cluster:
                call = self._deduplication.append(found, part, args, sent)
            else:
                call = self._send(found, part, args, sent)
        except BaseException:
            found.release(len(messages), n_bytes)
            raise
        call.add_done_callback(done)
        return future

    def _send(
        self, queue: RedisQueue, part: RedisPart, args: Sequence[bytes], sent: Sent | None
    ) -> asyncio.Future[Any]:
        """Store messages as `submit` does, and tell `sent`."""
        call = self.submit(queue, part, args)
        if sent is not None:
            answered = asyncio.get_running_loop().create_future()
            call.add_done_callback(partial(_tell, answered, queue))
            sent(part.number, answered)
        return call

    def submit(
        self, queue: RedisQueue, part: RedisPart, args: Sequence[bytes]
    ) -> asyncio.Future[Any]:
        """Store messages by their arguments; the future has the function's answer."""
        spec = queue.spec
        n_new, new_bytes = len(args) // 5, sum(map(len, args[4::5]))
        part.coming_messages += n_new
        part.coming_bytes += new_bytes
        max_messages, max_bytes, least_age = "", "", ""
        if spec.when_full == "drop_oldest":
            least_age = self._least_age(queue, part)
            # Messages under way must not drop each other: other physical queues have older ones.
            if spec.max_messages is not None:
                others = queue.messages - part.messages
                least = min(part.coming_messages, spec.max_messages)
                max_messages = str(max(spec.max_messages - others, least))
            if spec.max_bytes is not None:
                other_bytes = queue.payload_bytes - part.payload_bytes
                least = min(part.coming_bytes, spec.max_bytes)
                max_bytes = str(max(spec.max_bytes - other_bytes, least))
        call = self._functions.submit(
            queue,
            part,
            "append",
            part.number,
            repr(spec.deduplication_seconds),
            repr(spec.delay_seconds),
            "1" if spec.keeps_last else "0",
            max_messages,
            max_bytes,
            least_age,
            *args,
            keys=[self._functions.stored_ids_key(queue, part)],
        )

        def done(call: asyncio.Future[Any]) -> None:
            part.coming_messages -= n_new
            part.coming_bytes -= new_bytes
            if not call.cancelled() and call.exception() is None:
                self._appended(queue, part, call.result())

        call.add_done_callback(done)
        return call

    def _least_age(self, queue: RedisQueue, part: RedisPart) -> str:
        """Return of what age a message must be to leave a full physical queue for new ones.

        Where another one has older messages, these leave; see `_drop_oldest`. "" is any age.
        """
        others = [
            other.oldest
            for other in self._functions.reached(queue)
            if other is not part and other.oldest is not None
        ]
        return repr(self._functions.now() - min(others) - _SAME_AGE_SECONDS) if others else ""

    def _appended(self, queue: RedisQueue, part: RedisPart, answer: Sequence[Any]) -> None:
        """Take note of what was stored."""
        told, offsets, duplicates, n_kept, n_dropped = answer
        n_stored = len(offsets) - len(duplicates)
        queue.count_removed("keeps_last", n_kept)
        queue.count_removed("drop_oldest", n_dropped)
        if not Told._make(told).is_all:
            for group in queue.groups.values():
                group.place(part.number).waiting += n_stored
        if n_stored:
            queue.arrived()
            self._functions.arrivals.arrived(queue)
            for group in queue.groups.values():
                group.arrived()
        if n_stored and _n_surplus(queue):
            self._run(self._drop_oldest(queue))

    async def _drop_oldest(self, queue: RedisQueue) -> None:
        """Remove the oldest messages of a queue that has too many, in whichever physical queue.

        A node that is away has no part in this. More leave at a time as long as one physical queue
        has the oldest, so that many messages which come together cost few calls.
        """
        n_most, last = 1, None
        while n_surplus := _n_surplus(queue):
            parts = [part for part in self._functions.reached(queue) if part.oldest is not None]
            part = min(parts, key=lambda one: one.oldest or 0.0, default=None)
            if part is None or part in self._cutting:  # who cuts there looks again afterwards
                return
            n_most = 4 * n_most if part is last else 1
            last = part
            self._cutting.add(part)
            try:
                below = part.earliest + min(n_surplus, n_most)
                await self.cut(queue, part, "drop_oldest", below)
            finally:
                self._cutting.discard(part)

    def _run(self, work: Any) -> None:
        """Do something behind the answer."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._note_failure)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("queue: %s", task.exception())

    async def cut(
        self, queue: RedisQueue, part: RedisPart, reason: str, below: int | str, age: float = 0.0
    ) -> tuple[int, bool]:
        """Remove the oldest messages of a physical queue.

        Args:
            queue: the queue.
            part: its physical queue.
            reason: the reason that is counted.
            below: offset below which all leave; "" for those of an age.
            age: the age in seconds.

        Returns:
            How many have left, and whether that was all.
        """
        answer = await self._functions.ask(queue, part, "cut_below", below, repr(age))
        queue.count_removed(reason, answer[1])
        return answer[1], bool(answer[2])


def _n_surplus(queue: RedisQueue) -> int:
    """Return how many messages a queue with `drop_oldest` has too many, by their mean size."""
    spec = queue.spec
    if spec.when_full != "drop_oldest" or len(queue.physical) == 1:  # the server sees to that
        return 0
    n_surplus = 0
    if spec.max_messages is not None:
        n_surplus = max(0, queue.messages - spec.max_messages)
    if spec.max_bytes is not None and queue.payload_bytes > spec.max_bytes:
        n_bytes = queue.payload_bytes - spec.max_bytes
        n_surplus = max(n_surplus, 1, n_bytes * queue.messages // queue.payload_bytes)
    return n_surplus


def _tell(answered: asyncio.Future[None], queue: RedisQueue, call: asyncio.Future[Any]) -> None:
    """End what an `append` has told of a call that has ended."""
    error = call.exception()
    if answered.done():
        return
    if error is None:
        answered.set_result(None)
    else:
        answered.set_exception(refusal(error, queue) if isinstance(error, ResponseError) else error)


def _result(answer: Any, n_messages: int, refused: Mapping[int, str]) -> AppendResult:
    """Return the outcome of an append, in which refused messages have their places again."""
    claimed = answer if isinstance(answer, Claimed) else Claimed(answer[1], answer[2], {})
    offsets = claimed.offsets
    lost = {at: drop_reason(error) for at, error in claimed.errors.items()}
    if not refused:
        return AppendResult(offsets, list(claimed.duplicates), lost)
    sent = [index for index in range(n_messages) if index not in refused]
    all_offsets = [-1] * n_messages
    for index, offset in zip(sent, offsets, strict=True):
        all_offsets[index] = offset
    duplicates = [sent[one] for one in claimed.duplicates]
    lost = {sent[at]: reason for at, reason in lost.items()}
    return AppendResult(all_offsets, duplicates, {**refused, **lost})
