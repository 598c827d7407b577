"""One thread that writes: everything that comes during one commit goes into the next.

A commit costs one flush of the disk however many messages it holds. Under load the groups grow by
themselves; a single message waits only for its sink's `commit_wait_seconds`.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import Logger
from typing import Any, TypeAlias

from penstock.broker.message import Message
from penstock.plugins.queue.batch_format import properties_json, split_for_segments, write_segment
from penstock.plugins.queue.engine import AppendResult, StorageError
from penstock.plugins.queue.store import Key, Mark, NewSegment, Store

LOG_PERIOD_SECONDS = 10.0
"""Time between two log lines while the storage refuses, at times or permanently."""


@dataclass(eq=False, slots=True)
class Append:
    """Store messages; the future's result is an `AppendResult`."""

    key: Key
    messages: Sequence[Message]
    future: asyncio.Future[AppendResult]


@dataclass(eq=False, slots=True)
class Delete:
    """Delete messages; the future's result is None."""

    marks: Sequence[Mark]
    future: asyncio.Future[None]


@dataclass(eq=False, slots=True)
class Truncate:
    """Delete all messages below an offset; the future's result is the number of messages."""

    key: Key
    below: int
    future: asyncio.Future[int]
    n_removed: int = 0


@dataclass(eq=False, slots=True)
class SetAside:
    """Set a segment aside; the future's result is the number of messages."""

    key: Key
    first_offset: int
    future: asyncio.Future[int]


Request: TypeAlias = Append | Delete | Truncate | SetAside
Outcome: TypeAlias = tuple[asyncio.Future[Any], Any, StorageError | None]
"""A request's future, its result, and an error in place of the result."""


class GroupCommit:
    """The writing thread of one store.

    Args:
        store: an open store.
        loop: its thread completes the futures, once for each commit.
        clock: returns monotonic seconds, as in `Message.arrived_at`.
        max_messages: messages of one commit; a request is never split.
        logger: gets lines when the storage begins and ceases to refuse.

    Attributes:
        failure: why messages, or else deletes, were last refused; None once they succeed.
    """

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        max_messages: int,
        logger: Logger,
    ) -> None:
        self.failure: str | None = None
        self._store = store
        self._loop = loop
        self._clock = clock
        self._max_messages = max_messages
        self._logger = logger
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._is_closing = False
        self._logged_at = -math.inf
        self._is_failure_logged = False
        self._n_refused = 0
        self._thread = threading.Thread(target=self._run, name="penstock-queue-writer", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; its future is completed on the loop's thread."""
        self._requests.put(request)

    async def close(self) -> None:
        """Write everything that was submitted, then end the thread; may be called again."""
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join)
        # The callback that completes the last futures is queued before this one.
        await asyncio.sleep(0)

    def _run(self) -> None:
        while self._commit():
            pass

    def _commit(self) -> bool:
        """Commit a group; return False when all is done. No reference to it is kept afterwards."""
        group = self._next_group()
        if not group:
            return False
        try:
            outcomes = self._write(group)
            outcomes += self._truncate(group)
            outcomes += self._set_aside(group)
        except Exception as error:
            self._logger.exception("queue storage failed")
            failed = StorageError(f"{type(error).__name__}: {error}")
            outcomes = [(request.future, None, failed) for request in group]
        self._loop.call_soon_threadsafe(_settle, outcomes)
        return True

    def _next_group(self) -> list[Request]:
        """Return what is to be committed together; nothing when all is done."""
        group: list[Request] = []
        n_messages = 0
        while n_messages < self._max_messages:
            try:
                request = self._requests.get(block=not group and not self._is_closing)
            except queue.Empty:
                break
            if request is None:
                self._is_closing = True
            else:
                group.append(request)
                n_messages += _size(request)
        return group

    def _truncate(self, group: Sequence[Request]) -> list[Outcome]:
        """Do one step of each truncation; the rest is queued after what waits now."""
        outcomes: list[Outcome] = []
        for request in group:
            if not isinstance(request, Truncate):
                continue
            try:
                request.n_removed += self._store.truncate(request.key, request.below)
                self._succeeded(is_storing=False)
            except StorageError as error:
                self._failed(error, 0)
                outcomes.append((request.future, None, _bare(error)))
                continue
            if self._store.usage[request.key].earliest < request.below:
                self._requests.put(request)
            else:
                outcomes.append((request.future, request.n_removed, None))
        return outcomes

    def _set_aside(self, group: Sequence[Request]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for request in group:
            if not isinstance(request, SetAside):
                continue
            try:
                n_messages = self._store.set_aside(request.key, request.first_offset)
                outcomes.append((request.future, n_messages, None))
            except StorageError as error:
                self._failed(error, 0)
                outcomes.append((request.future, None, _bare(error)))
        return outcomes

    def _write(self, group: Sequence[Request]) -> list[Outcome]:
        """Write the appends and deletes of a group in one transaction."""
        stored: list[Outcome] = []
        readable: dict[Key, _Readable] = {}
        for request in group:
            if isinstance(request, Append):
                unreadable = readable.setdefault(request.key, _Readable()).add(request.messages)
                for index in unreadable:
                    self._logger.error("%r cannot be read back", request.messages[index])
                result = AppendResult(len(request.messages) - len(unreadable), unreadable)
                stored.append((request.future, result, None))
        epoch = time.time() - self._clock()
        segments = [
            segment
            for key, messages in readable.items()
            for segment in messages.segments(key, self._store.usage[key].next, epoch)
        ]
        deletes = [request for request in group if isinstance(request, Delete)]
        marks = [mark for request in deletes for mark in request.marks]
        deleted: list[Outcome] = [(request.future, None, None) for request in deletes]
        try:
            if segments or marks:
                self._store.write(segments, marks)
                self._succeeded(is_storing=bool(segments))
        except StorageError as error:
            self._failed(error, sum(segment.n_messages for segment in segments))
            bare = _bare(error)
            stored = [(future, None, bare) for future, _, _ in stored]
            deleted = self._delete_alone(deleted, marks, bare if not segments else None)
        return stored + deleted

    def _delete_alone(
        self, deleted: list[Outcome], marks: Sequence[Mark], error: StorageError | None
    ) -> list[Outcome]:
        """Delete without the messages that could not be stored, as deletes make room."""
        if error is None and marks:
            try:
                self._store.write((), marks)
            except StorageError as failed:
                error = _bare(failed)
        return [(future, None, error) for future, _, _ in deleted]

    def _failed(self, error: StorageError, n_refused: int) -> None:
        self.failure = str(error)
        self._n_refused += n_refused
        now = self._clock()
        if now - self._logged_at >= LOG_PERIOD_SECONDS:
            self._logged_at = now
            self._is_failure_logged = True
            self._logger.error(
                "queue storage refuses to write: %s; %d messages refused so far",
                error,
                self._n_refused,
            )

    def _succeeded(self, *, is_storing: bool) -> None:
        # On a full disk deletes still succeed while messages are refused.
        if self.failure is None or (self._n_refused and not is_storing):
            return
        if self._is_failure_logged:
            self._logger.warning(
                "queue storage writes again; %d messages were refused", self._n_refused
            )
        self.failure = None
        self._n_refused = 0
        self._is_failure_logged = False


class _Readable:
    """What a group appends to one physical queue, without messages that cannot be read."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._payloads: list[bytes] = []
        self._properties: list[str] = []

    def add(self, messages: Sequence[Message]) -> list[int]:
        """Add messages; return the indexes of those that cannot be read."""
        unreadable: list[int] = []
        for index, message in enumerate(messages):
            try:
                payload = message.read_payload()
                properties = properties_json(message.properties) if message.properties else ""
            except (OSError, TypeError, ValueError):
                unreadable.append(index)
            else:
                self._messages.append(message)
                self._payloads.append(payload)
                self._properties.append(properties)
        return unreadable

    def segments(self, key: Key, offset: int, epoch: float) -> list[NewSegment]:
        """Return the messages as segments, with offsets from `offset` on."""
        segments: list[NewSegment] = []
        for run in split_for_segments(self._messages):
            part = self._messages[run]
            frame = write_segment(part, self._payloads[run], self._properties[run], offset, epoch)
            newest_at = part[-1].arrived_at + epoch
            segments.append(NewSegment(key, offset, len(part), newest_at, frame))
            offset += len(part)
        return segments


def _bare(error: StorageError) -> StorageError:
    """Return an error without its traceback, whose frames would hold a whole group.

    A frame and the error that it raised refer to each other. Only the cycle collector, which runs
    when the program is idle, would free them, while on a full disk each group is refused.
    """
    return error.with_traceback(None)


def _size(request: Request) -> int:
    return len(request.messages) if isinstance(request, Append) else 1


def _settle(outcomes: list[Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:  # a copy for each: the task that awaits it adds a traceback
            future.set_exception(type(error)(*error.args))
