"""Messages to commits: bounded and in groups; each message's outcome is reported once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from logging import Logger
from typing import Final

from penstock.broker.extensions import Receipt, SinkCounts
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.queue.engine import AppendResult, Engine, StorageFullError
from penstock.plugins.queue.logical_queue import LogicalQueue

DROP_REASONS: Final = {
    "closing": "it came while the program was ending",
    "pending_full": "too many messages or bytes were waiting for their commit",
    "queue_full": "the queue held as much as its max_messages or max_bytes allow",
    "storage_full": "the storage had no space left",
    "storage_error": "the storage refused to write",
    "unreadable": "its payload store could not read it back, or its properties are no JSON",
}
"""Every reason for which a message may not be stored, and its meaning."""

_REASON_CODES: Final = {
    "closing": ReasonCode.SERVER_SHUTTING_DOWN,
    "pending_full": ReasonCode.QUOTA_EXCEEDED,
    "queue_full": ReasonCode.QUOTA_EXCEEDED,
    "storage_full": ReasonCode.QUOTA_EXCEEDED,
    "storage_error": ReasonCode.UNSPECIFIED_ERROR,
    "unreadable": ReasonCode.UNSPECIFIED_ERROR,
}


class PendingBudget:
    """Limits of messages that wait for their commit, over all queues.

    Args:
        max_messages: messages at most.
        max_bytes: payload bytes at most, unless one message alone is longer.

    Attributes:
        n_messages: messages that wait.
        n_bytes: their payload bytes.
    """

    __slots__ = ("_max_bytes", "_max_messages", "n_bytes", "n_messages")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.n_messages = 0
        self.n_bytes = 0

    def take(self, n_bytes: int) -> bool:
        """Take room for one message; return False where there is none."""
        has_room = self.n_messages < self._max_messages and (
            self.n_bytes + n_bytes <= self._max_bytes or not self.n_messages
        )
        if has_room:
            self.n_messages += 1
            self.n_bytes += n_bytes
        return has_room

    def give_back(self, n_messages: int, n_bytes: int) -> None:
        """Free the room of messages that are stored or refused."""
        self.n_messages -= n_messages
        self.n_bytes -= n_bytes


class Intake:
    """Takes messages for one logical queue and passes them to the engine in groups.

    Args:
        queue: the logical queue.
        engine: its engine.
        budget: shared by all intakes of the program.
        commit_wait_seconds: how long the first message of a group waits for others.
        commit_max_messages: size at which a group waits no longer.
        logger: gets refusals.

    Attributes:
        counts: the sink's ledger.
    """

    def __init__(
        self,
        queue: LogicalQueue,
        engine: Engine,
        budget: PendingBudget,
        *,
        commit_wait_seconds: float,
        commit_max_messages: int,
        logger: Logger,
    ) -> None:
        self.counts = SinkCounts()
        self._queue = queue
        self._engine = engine
        self._budget = budget
        self._commit_wait_seconds = commit_wait_seconds
        self._commit_max_messages = commit_max_messages
        self._logger = logger
        self._group: list[tuple[Message, Receipt | None]] = []
        self._flush_handle: asyncio.Handle | None = None
        self._commits: set[asyncio.Future[AppendResult]] = set()
        self._is_closing = False

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message without waiting.

        Args:
            message: to be stored.
            receipt: settled on the loop's thread after this call has returned; None for no report.
        """
        counts = self.counts
        counts.matched += 1
        reason = self._refusal(message.payload_bytes)
        if reason is not None:
            self._drop(reason)
            if receipt is not None:
                asyncio.get_running_loop().call_soon(receipt.settle, _REASON_CODES[reason])
            return
        counts.queued += 1
        self._queue.pending_messages += 1
        self._queue.pending_bytes += message.payload_bytes
        self._group.append((message, receipt))
        if len(self._group) >= self._commit_max_messages:
            self._flush()
        elif self._flush_handle is None:
            self._flush_handle = self._call_later(self._flush)

    async def close(self) -> None:
        """Refuse further messages, and wait until all earlier ones are stored or refused."""
        self._is_closing = True
        self._flush()
        if self._commits:
            await asyncio.wait(self._commits)

    def _call_later(self, call: Callable[[], None]) -> asyncio.Handle:
        loop = asyncio.get_running_loop()
        if self._commit_wait_seconds:
            return loop.call_later(self._commit_wait_seconds, call)
        return loop.call_soon(call)

    def _refusal(self, n_bytes: int) -> str | None:
        """Return why a message cannot be taken; "" after its room was taken."""
        if self._is_closing:
            return "closing"
        if self._queue.is_full(n_bytes):
            return "queue_full"
        if not self._budget.take(n_bytes):
            return "pending_full"
        return None

    def _flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        group, self._group = self._group, []
        for number, dealt in self._queue.enqueue_controller.deal(group).items():
            messages = [message for message, _ in dealt]
            future = self._engine.append(self._queue.name, number, messages)
            self._commits.add(future)
            future.add_done_callback(partial(self._settled, dealt))

    def _settled(
        self,
        dealt: Sequence[tuple[Message, Receipt | None]],
        future: asyncio.Future[AppendResult],
    ) -> None:
        """Record the outcome of one physical queue's part of a group."""
        self._commits.discard(future)
        n_bytes = sum(message.payload_bytes for message, _ in dealt)
        self._budget.give_back(len(dealt), n_bytes)
        self._queue.pending_messages -= len(dealt)
        self._queue.pending_bytes -= n_bytes
        self.counts.queued -= len(dealt)
        error = future.exception()
        reasons: dict[int, str] = {}
        if error is None:
            reasons = dict.fromkeys(future.result().unreadable, "unreadable")
        else:
            reason = "storage_full" if isinstance(error, StorageFullError) else "storage_error"
            reasons = dict.fromkeys(range(len(dealt)), reason)
        self.counts.stored += len(dealt) - len(reasons)
        for reason in reasons.values():
            self._drop(reason)
        for index, (_, receipt) in enumerate(dealt):
            if receipt is not None:
                reason = reasons.get(index, "")
                self._settle(receipt, _REASON_CODES[reason] if reason else ReasonCode.SUCCESS)

    def _settle(self, receipt: Receipt, reason_code: int) -> None:
        try:
            receipt.settle(reason_code)
        except Exception:
            # An error in one publisher's receipt must not stop the others.
            self._logger.exception("queue %s: a receipt failed", self._queue.name)

    def _drop(self, reason: str) -> None:
        """Count a message that is not stored; log the 1st, 10th, 100th and so on."""
        n_dropped = self.counts.dropped.get(reason, 0) + 1
        self.counts.dropped[reason] = n_dropped
        if n_dropped == 10 ** (len(str(n_dropped)) - 1):
            self._logger.warning(
                "queue %s: %d messages not stored so far, because %s",
                self._queue.name,
                n_dropped,
                DROP_REASONS[reason],
            )
