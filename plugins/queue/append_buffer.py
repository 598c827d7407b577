"""The route target of a queue gathers its new messages into appends, and reports their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from logging import Logger
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.broker.counters import count
from penstock.broker.errors import PenstockError
from penstock.broker.extensions import NEVER_FITS, MessageSink, Receipt, SinkCounts
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import SUCCESS, ReasonCode
from penstock.broker.plugin_guard import is_logged
from penstock.plugins.queue.engines.contract import DROP_REASONS as ENGINE_DROP_REASONS
from penstock.plugins.queue.engines.contract import (
    AppendResult,
    Engine,
    NewMessage,
    QueueSpec,
    UnknownQueueError,
    drop_reason,
)
from penstock.plugins.queue.slow_appends import SlowAppends
from penstock.plugins.queue.strategies.enqueue import EnqueueController
from penstock.plugins.queue.strategies.message_key import key_reader
from penstock.plugins.queue.strategies.slowdown_exclusion import SlowdownExclusion

DROP_REASONS: Final = ENGINE_DROP_REASONS | {
    "closing": "it came while the program was ending, or its queue was deleted",
    NEVER_FITS: "it was larger than the max_bytes of the queue",
    "pending_full": "too many messages or bytes were waiting for their commit",
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

GATHER_MESSAGES: Final = 256
"""If more messages than this wait for the disk, new ones are gathered for `GATHER_SECONDS`: each
append costs the loop some time, and they would wait for the disk anyway."""
GATHER_SECONDS: Final = 0.002

Entry: TypeAlias = tuple[NewMessage, Any]
"""A message, and the callback that gets its outcome."""

Report: TypeAlias = Callable[[AppendResult], None]


class Stored(NamedTuple):
    """What became of one message of a request.

    Attributes:
        physical_queue: the physical queue in which it is stored; -1 where it is not.
        offset: its offset there; -1 where it is not stored, or not known. That of a duplicate is
            that of the message that was stored before.
        reason: "" where the message is done with: it is stored, or a queue with `drop_newest` was
            full and has dropped it; ``duplicate`` where it was stored before; else a key of
            `DROP_REASONS`.
    """

    physical_queue: int
    offset: int
    reason: str


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


class StoredEvents:
    """Tells of the messages that are stored, in all queues of a program.

    Attributes:
        callback: gets the name of a queue and the messages of one commit; it must not raise. None:
            nobody is told.
    """

    __slots__ = ("callback",)

    def __init__(self) -> None:
        self.callback: Callable[[str, Sequence[Message]], None] | None = None


class AppendBuffer(MessageSink):
    """Takes messages for one logical queue and passes them to the engine in groups.

    Room for a message is that of the budget and that of the queue. A queue with `drop_newest` looks
    for the second when the message is accepted, and drops the message where there is none.

    Args:
        name: of the logical queue.
        spec: its settings.
        engine: its engine.
        budget: shared by all intakes of the program.
        commit_wait_seconds: how long the first published message of a group waits for others.
        commit_max_messages: size at which a group waits no longer.
        slowdown_detection_time: seconds after which a physical queue that has not stored what it
            got is left out until it is quick again; None to leave none out.
        logger: gets refusals, and which physical queues are slow.
        stored: tells of what is stored; None to tell nobody.

    Attributes:
        name: unique among the broker's sinks.
        topic_filters: of the topics that feed it.
        sizes: the size class of their messages; None for both.
        counts: what was published.
        requested: what requests have brought.
        stored_bytes: payload bytes that were stored, since the program began.
        on_stored: called when they have grown.
        slow_appends: knows which physical queues are left out; None where none ever is.
    """

    def __init__(
        self,
        name: str,
        spec: QueueSpec,
        engine: Engine,
        budget: PendingBudget,
        *,
        commit_wait_seconds: float,
        commit_max_messages: int,
        slowdown_detection_time: float | None = None,
        logger: Logger,
        stored: StoredEvents | None = None,
    ) -> None:
        self._stored = stored or StoredEvents()
        self.name = f"queue.{name}"
        self.be_fed_by(spec)
        self.counts = SinkCounts()
        self.requested = SinkCounts()
        self.stored_bytes = 0
        self.on_stored: Callable[[], None] = lambda: None
        self._name = name
        self._engine = engine
        self._budget = budget
        self._commit_wait_seconds = commit_wait_seconds
        self._commit_max_messages = commit_max_messages
        self._slowdown_detection_time = slowdown_detection_time
        self._logger = logger
        self.slow_appends: SlowAppends | None = None
        self._exclusion: SlowdownExclusion[int] | None = None
        self._group: list[Entry] = []
        self._flush_handle: asyncio.Handle | None = None
        self._commits: set[asyncio.Future[AppendResult]] = set()
        self._is_closing = False
        self._held: asyncio.Future[None] | None = None
        self._least_refused: int | None = None
        self._drops_newest = spec.when_full == "drop_newest"
        self._n_awaited = 0
        self._awaited_bytes = 0
        self.set_up(spec)

    def set_up(self, spec: QueueSpec) -> None:
        """Go by these settings from now on."""
        self._flush()
        drops_newest = spec.when_full == "drop_newest"
        if drops_newest != self._drops_newest:
            self._drops_newest = drops_newest
            # As `reserve` would have held room, or none, for what the broker still has.
            sign = 1 if drops_newest else -1
            self._engine.release(self._name, sign * self._n_awaited, sign * self._awaited_bytes)
        self._max_bytes = spec.max_bytes
        seconds = self._slowdown_detection_time
        if self.slow_appends is not None:
            self.slow_appends.change_physical_queues(spec.physical_queues)
        elif seconds is not None:
            self._exclusion = SlowdownExclusion(range(spec.physical_queues), seconds)
            self.slow_appends = SlowAppends(self._name, self._exclusion, seconds, self._logger)
        self._controller = EnqueueController[Entry](
            spec.physical_queues, _key_of(spec.key), self._exclusion
        )

    def _deal(self, entries: Sequence[Entry]) -> dict[int, Sequence[Entry]]:
        if self.slow_appends is not None:
            self.slow_appends.note_away(self._engine.away(self._name))
        return self._controller.deal(entries, asyncio.get_running_loop().time())

    def be_fed_by(self, spec: QueueSpec) -> None:
        """Have the topics of these settings; to be called while the broker does not know it."""
        self.topic_filters, self.sizes = spec.topics, spec.sizes

    def is_fed_by(self, spec: QueueSpec) -> bool:
        """Say whether these settings have the same topics."""
        return (self.topic_filters, self.sizes) == (spec.topics, spec.sizes)

    def reserve(self, message: Message) -> str:
        """Hold room for a message until `accept` or `release`; see `MessageSink`."""
        n_bytes = len(message.payload)
        reason = self._reserve(n_bytes)
        if reason == "queue_full" and self._max_bytes is not None and n_bytes > self._max_bytes:
            return NEVER_FITS
        if reason:
            least = self._least_refused
            self._least_refused = n_bytes if least is None else min(least, n_bytes)
        elif message.retain:
            self._await(1, n_bytes)
        return reason

    def _await(self, n_messages: int, n_bytes: int) -> None:
        """Count retained messages with reserved room: the broker asks hooks before it goes on."""
        self._n_awaited += n_messages
        self._awaited_bytes += n_bytes

    def release(self, message: Message) -> None:
        """Give back the room that `reserve` has held."""
        n_bytes = len(message.payload)
        if message.retain:
            self._await(-1, -n_bytes)
        self._budget.give_back(1, n_bytes)
        if not self._drops_newest:
            self._engine.release(self._name, 1, n_bytes)

    def refuse(self, message: Message, reason: str) -> None:  # noqa: ARG002 (MessageSink's form)
        """Count a published message that the queue does not get."""
        self.counts.matched += 1
        self._drop(self.counts, reason)

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a published message for which there is room, without waiting.

        Args:
            message: the message to be stored.
            receipt: settled on the loop's thread after this call has returned; None for no report.
        """
        counts = self.counts
        counts.matched += 1
        if self._is_closing:
            self.release(message)
            self._drop(counts, "closing")
            self._settle_soon(receipt, ReasonCode.SERVER_SHUTTING_DOWN)
            return
        if message.retain:
            self._await(-1, -len(message.payload))
        if self._drops_newest and not self._has_room_for_newest(len(message.payload), counts):
            self._settle_soon(receipt, ReasonCode.SUCCESS)
            return
        counts.queued += 1
        new = (
            NewMessage(message)
            if receipt is None
            else NewMessage(message, receipt.deduplication_id, None, receipt.is_repeat)
        )
        self._group.append((new, receipt))
        if len(self._group) >= self._commit_max_messages:
            self._flush()
        elif self._flush_handle is None:
            self._flush_handle = self._call_later(self._flush)

    def forget(self, deduplication_id: bytes, done: Callable[[bool], None]) -> None:
        """Forget a deduplication identifier; see `MessageSink`."""
        try:
            future = self._engine.forget(self._name, [deduplication_id])
        except UnknownQueueError:  # it was deleted, with all that it knew
            done(True)
        else:
            future.add_done_callback(lambda future: done(_has_forgotten(future)))

    async def store(self, messages: Sequence[NewMessage]) -> list[Stored]:
        """Store the messages of a request; return what became of each, in their order.

        If the caller is cancelled, they are stored all the same, where that has begun.
        """
        while self._held is not None:
            await asyncio.shield(self._held)
        counts = self.requested
        counts.matched += len(messages)
        outcomes = [Stored(-1, -1, "")] * len(messages)
        taken: list[Entry] = []
        commits: list[asyncio.Future[AppendResult]] = []
        identifiers: set[bytes] = set()
        for index, new in enumerate(messages):
            n_bytes = len(new.message.payload)
            reason = self._reserve(n_bytes)
            if reason:
                outcomes[index] = Stored(-1, -1, reason)
                self._drop(counts, reason)
            elif not self._drops_newest or self._has_room_for_newest(n_bytes, counts):
                identifier = new.deduplication_id
                if identifier:
                    if identifier in identifiers:
                        # The engine goes by the order of appends: in one deal, the later of two
                        # could come first, in another physical queue.
                        commits += self._store_taken(taken, outcomes)
                        taken = []
                        identifiers.clear()
                    identifiers.add(identifier)
                taken.append((new, index))
        commits += self._store_taken(taken, outcomes)
        if commits:
            await asyncio.wait(commits)
        return outcomes

    def _store_taken(
        self, taken: Sequence[Entry], outcomes: list[Stored]
    ) -> list[asyncio.Future[AppendResult]]:
        """Append messages of a request for which there is room, without waiting."""
        counts = self.requested
        counts.queued += len(taken)
        return [
            self._append(number, dealt, counts, partial(self._note, outcomes, number, dealt))
            for number, dealt in self._deal(taken).items()
        ]

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Have messages wait while a block changes where they belong.

        The block begins when all earlier ones are stored or refused.
        """
        self._flush()
        self._held = asyncio.get_running_loop().create_future()
        try:
            if self._commits:
                await asyncio.wait(self._commits)
            yield
        finally:
            self._held.set_result(None)
            self._held = None
            self._flush()

    async def close(self) -> None:
        """Refuse further messages, and wait until all earlier ones are stored or refused."""
        self._is_closing = True
        if self._held is not None:
            await asyncio.shield(self._held)
        self._flush()
        if self._commits:
            await asyncio.wait(self._commits)
        if self.slow_appends is not None:
            self.slow_appends.close()

    def has_room_again(self) -> None:
        """Tell publishers that wait, if any was refused: messages have left the queue."""
        if self._least_refused is not None:
            self._least_refused = None
            self.on_room()

    def look_for_room(self) -> None:
        """Tell publishers that wait if there is room for one of the messages that were refused.

        Whatever has made it, such as retention.
        """
        n_bytes = self._least_refused
        if n_bytes is not None and self._engine.reserve(self._name, 1, n_bytes):
            self._engine.release(self._name, 1, n_bytes)
            self.has_room_again()

    def _call_later(self, call: Callable[[], None]) -> asyncio.Handle:
        loop = asyncio.get_running_loop()
        wait = self._commit_wait_seconds
        if self.counts.queued > GATHER_MESSAGES:
            wait = max(wait, GATHER_SECONDS)
        return loop.call_later(wait, call) if wait else loop.call_soon(call)

    @staticmethod
    def _settle_soon(receipt: Receipt | None, reason_code: int) -> None:
        if receipt is not None:
            asyncio.get_running_loop().call_soon(receipt.settle, reason_code)

    def _reserve(self, n_bytes: int) -> str:
        if self._is_closing:
            return "closing"
        if self._drops_newest:
            return "" if self._budget.take(n_bytes) else "pending_full"
        lack = self._lack(n_bytes)
        if not lack and not self._budget.take(n_bytes):
            self._engine.release(self._name, 1, n_bytes)
            return "pending_full"
        return lack

    def _lack(self, n_bytes: int) -> str:
        """Hold the queue's room for a message; return why there is none, or ""."""
        try:
            return "" if self._engine.reserve(self._name, 1, n_bytes) else "queue_full"
        except UnknownQueueError:  # another program has just deleted it
            return "closing"

    def _has_room_for_newest(self, n_bytes: int, counts: SinkCounts) -> bool:
        """Hold the queue's room for a message; drop it where there is none."""
        lack = self._lack(n_bytes)
        if lack:
            self._budget.give_back(1, n_bytes)
            self._drop(counts, lack)
        return not lack

    def _flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._held is not None:
            return
        group, self._group = self._group, []
        for number, dealt in self._deal(group).items() if group else ():
            for some in self._apart(dealt):
                self._append(number, some, self.counts, partial(self._settle_receipts, some))

    def _apart(self, dealt: Sequence[Entry]) -> list[Sequence[Entry]]:
        """Return entries that wait for a server which is away apart from the others."""
        held_up = frozenset(self._engine.held_up(self._name, [new for new, _ in dealt]))
        if not held_up or len(held_up) == len(dealt):
            return [dealt]
        others = [entry for at, entry in enumerate(dealt) if at not in held_up]
        return [others, [dealt[at] for at in sorted(held_up)]]

    def _append(
        self, number: int, dealt: Sequence[Entry], counts: SinkCounts, report: Report
    ) -> asyncio.Future[AppendResult]:
        """Store one physical queue's part of a group."""
        sent = None if self.slow_appends is None else self.slow_appends.sent
        try:
            future = self._engine.append(self._name, number, [new for new, _ in dealt], sent)
        except PenstockError as error:  # the queue was deleted after its room was reserved
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        self._commits.add(future)
        future.add_done_callback(partial(self._committed, dealt, counts, report))
        return future

    def _committed(
        self,
        dealt: Sequence[Entry],
        counts: SinkCounts,
        report: Report,
        future: asyncio.Future[AppendResult],
    ) -> None:
        """Record the outcome of one physical queue's part of a group."""
        self._commits.discard(future)
        n_bytes = sum([len(new.message.payload) for new, _ in dealt])
        self._budget.give_back(len(dealt), n_bytes)
        error = future.exception()
        if error is None:
            result = future.result()
            lost = sum([len(dealt[index][0].message.payload) for index in result.refused])
            self.stored_bytes += n_bytes - lost
            self.on_stored()
            if self._stored.callback is not None:
                refused = result.refused
                new = [one.message for at, (one, _) in enumerate(dealt) if at not in refused]
                self._stored.callback(self._name, new)
        else:
            reason = _reason_of(error)
            result = AppendResult([-1] * len(dealt), (), dict.fromkeys(range(len(dealt)), reason))
        counts.queued -= len(dealt)
        counts.stored += len(dealt) - len(result.refused)
        for reason in result.refused.values():
            self._drop(counts, reason)
        report(result)
        self.has_room_again()

    def _settle_receipts(self, dealt: Sequence[Entry], result: AppendResult) -> None:
        refused = result.refused
        codes: Iterable[int] = repeat(SUCCESS)
        if refused:
            codes = [
                _REASON_CODES[refused[index]] if index in refused else SUCCESS
                for index in range(len(dealt))
            ]
        for (_, receipt), code in zip(dealt, codes, strict=False):
            if receipt is None:
                continue
            try:
                receipt.settle(code)
            except Exception:
                # An error in one publisher's receipt must not stop the others.
                self._logger.exception("queue %s: a receipt failed", self._name)

    @staticmethod
    def _note(
        outcomes: list[Stored], number: int, dealt: Sequence[Entry], result: AppendResult
    ) -> None:
        """Note the outcome of messages of a request, each at the index beside it."""
        for place, ((_, index), offset) in enumerate(zip(dealt, result.offsets, strict=True)):
            reason = result.refused.get(place, "")
            outcomes[index] = Stored(-1 if reason else number, offset, reason)
        for place in result.duplicates:
            index = dealt[place][1]
            outcomes[index] = outcomes[index]._replace(reason="duplicate")

    def _drop(self, counts: SinkCounts, reason: str) -> None:
        """Count a message that is not stored, and log it at growing intervals."""
        count(counts.dropped, reason)
        if is_logged(n_dropped := counts.dropped[reason]):
            self._logger.warning(
                "queue %s: %d messages not stored so far, because %s",
                self._name,
                n_dropped,
                DROP_REASONS.get(reason, reason),
            )


def _key_of(key: str | None) -> Callable[[Entry], str | None] | None:
    """Return what reads the keys of a queue's messages; None for a queue without keys."""
    if key is None:
        return None
    read = key_reader(key)

    def key_of(entry: Entry) -> str | None:
        message = entry[0].message
        return read(message.topic, message.publisher, message.properties.get("user_property", ()))

    return key_of


def _reason_of(error: BaseException) -> str:
    """Return why an append stored nothing."""
    if isinstance(error, UnknownQueueError):
        return "closing"
    return drop_reason(error)


def _has_forgotten(future: asyncio.Future[None]) -> bool:
    """Say whether identifiers are gone for good, with their queue or without."""
    if future.cancelled():
        return False
    error = future.exception()
    return error is None or isinstance(error, UnknownQueueError)
