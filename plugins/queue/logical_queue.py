"""A logical queue as its publishers and readers use it.

Theory of operation. The requests of a group are answered by its `GroupReceiver`, which drives the
dequeue controller with the real clock. A request is a coroutine of its caller. While it is held, it
waits for a future. A group has one timer for all held requests and, with `rds+wake`, one task that
waits for arrivals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.append_buffer import AppendBuffer
from penstock.plugins.queue.engines.contract import (
    Engine,
    GroupSnapshot,
    QueueSpec,
    StorageError,
    UnknownGroupError,
)
from penstock.plugins.queue.strategies.dequeue import (
    DequeueController,
    DequeueCounts,
    DequeueRequest,
    make_strategy,
)
from penstock.plugins.queue.strategies.local_first import LocalFirst
from penstock.plugins.queue.wire.frames import ReceivedMessage

ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The most payload bytes of one answer, unless a single message is longer. It bounds the time for
which writing an answer blocks the loop."""

LEASE_MESSAGES: Final = 256
"""The most messages of one call of the engine, which blocks the loop for some 2 ms. More calls
follow."""

LATE_SECONDS: Final = 1.0
"""A try that fails after so long has waited for a server, and another try would wait as long."""

_PAYLOAD: Final = attrgetter("payload")

_WATCH_SECONDS: Final = 3600.0
"""How long one wait for arrivals lasts. Another wait follows."""


class BusyError(PenstockError):
    """Too much is running to begin the request; it may be repeated later."""


class ReceiveRequest(NamedTuple):
    """What a receiver asks for.

    Attributes:
        max_messages: the most messages, 1 or more.
        wait_seconds: how long the receiver waits for messages.
        visibility_timeout: seconds for which they are invisible to others; None for the group's.
        min_messages: with `rds+wake`, the request is held until so many can be received, or the
            wait ends; with `pms`, until one physical queue has so many.
        min_bytes: with `rds+wake`, the request is held until so many payload bytes can be received.
    """

    max_messages: int
    wait_seconds: float = 0.0
    visibility_timeout: float | None = None
    min_messages: int = 1
    min_bytes: int = 0


class GroupReceiver:
    """Answers the requests of a group.

    Raises:
        UnknownQueueError: there is no such queue.
        UnknownGroupError: there is no such group.
        GroupKindError: the group is of kind `offsets`.
    """

    def __init__(
        self,
        queue: str,
        group: str,
        spec: QueueSpec,
        engine: Engine,
        clock: Callable[[], float],
        stored_bytes: Callable[[], int],
    ) -> None:
        lengths = partial(engine.visible, queue, group)
        lengths()  # it raises where there is no such group
        self._name = f"queue {queue}, group {group}"
        self._queue = queue
        self._group = group
        self._spec = spec
        self._engine = engine
        self._clock = clock
        is_local = engine.locality(queue)
        self._controller = DequeueController(
            engine.outline(queue).physical_queues,
            make_strategy(spec.dequeue, spec.sleep_time),
            lengths,
            spec.max_queues_per_dequeue,
            stored_bytes,
            None if is_local is None else LocalFirst(is_local),
        )
        self._held: dict[DequeueRequest, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._seen = -1
        # A request that makes a round while this grows must not be held before another round.
        self._signals = 0
        self._is_closing = False

    @property
    def waiting(self) -> int:
        """Requests that have begun and not ended."""
        return self._controller.waiting

    @property
    def counts(self) -> Mapping[str, DequeueCounts]:
        """What became of the requests, by the name of the strategy."""
        return self._controller.counts_by_strategy

    def set_up(self, spec: QueueSpec) -> None:
        """Go by other settings of the queue, which the engine has; held requests do, too."""
        controller, before = self._controller, self._spec
        self._spec = spec
        controller.physical_queues = self._engine.outline(self._queue).physical_queues
        controller.max_queues_per_dequeue = spec.max_queues_per_dequeue
        if (spec.dequeue, spec.sleep_time) != (before.dequeue, before.sleep_time):
            self._wake(controller.change_strategy(make_strategy(spec.dequeue, spec.sleep_time)))

    async def receive(self, request: ReceiveRequest) -> list[ReceivedMessage]:
        """Receive messages; see `LogicalQueue.receive`."""
        controller = self._controller
        max_waiting = self._spec.max_waiting_requests
        if controller.waiting >= max_waiting:
            raise BusyError(
                f"{self._name}: {controller.waiting} requests wait; allowed: {max_waiting}"
            )
        taken = controller.begin(
            request.max_messages,
            self._clock(),
            request.wait_seconds,
            min_messages=request.min_messages,
            min_bytes=request.min_bytes,
        )
        found: list[ReceivedMessage] = []
        try:
            while True:
                signals = self._signals
                await self._try_round(taken, found, request.visibility_timeout)
                if not found and (taken.visible or not controller.strategy.wakes_on_arrival):
                    self._check_leased()
                if taken.decide(self._clock()) or self._is_closing:
                    return found
                self._engine.give_back(self._queue, self._group, found)
                found.clear()
                if signals != self._signals:
                    controller.let_go(taken)
                else:
                    await self._hold(taken)
        except BaseException:
            self._engine.give_back(self._queue, self._group, found)
            raise
        finally:
            taken.end()
            # Messages that this request was woken for, and has not taken, are for another one.
            self.look()

    def close(self) -> None:
        """Answer held requests, and every further one at once."""
        self._is_closing = True
        if self._watching is not None:
            self._watching.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._wake(list(self._held))

    def fail(self, error: Exception) -> None:
        """Have held requests fail: the queue or the group is gone."""
        for future in self._held.values():
            if not future.done():
                future.set_exception(error)

    def look(self) -> None:
        """Wake the requests for which there are messages."""
        if not self._controller.counts.held:
            return
        try:
            woken: Sequence[DequeueRequest] = self._controller.arrived()
        except PenstockError as error:
            self.fail(error)
        else:
            self._wake(woken)

    async def _try_round(
        self, taken: DequeueRequest, found: list[ReceivedMessage], visibility: float | None
    ) -> None:
        """Make one round of tries.

        Raises:
            StorageError: a physical queue cannot be read, and no other had a message.
        """
        failed: StorageError | None = None
        room = ANSWER_BYTES
        now = asyncio.get_running_loop().time
        is_late = False
        while not is_late and (number := taken.next_try(self._clock())) is not None:
            n_messages = n_bytes = 0
            began = now()
            try:
                while True:
                    asked = min(taken.missing - n_messages, LEASE_MESSAGES)
                    leased = await self._engine.lease(
                        self._queue, self._group, number, asked, room, visibility
                    )
                    found += leased
                    some_bytes = sum(map(len, map(_PAYLOAD, leased)))
                    n_messages += len(leased)
                    n_bytes += some_bytes
                    room -= some_bytes
                    if len(leased) < asked or n_messages == taken.missing or room <= 0:
                        break
                    await asyncio.sleep(0)
            except StorageError as error:
                failed = error
                is_late = now() - began >= LATE_SECONDS
            taken.tried(n_messages, n_bytes, is_full=room <= 0)
        if failed is not None and not found:
            try:
                raise failed
            finally:
                failed = None  # breaks the cycle of the error and this frame

    def _check_leased(self) -> None:
        """Check that the group may lease messages, where it has visible ones.

        Raises:
            BusyError: it may not, until some are settled.
        """
        if not self._controller.lengths():
            return
        group = self._engine.outline(self._queue).groups[self._group]
        if group.leased >= group.spec.max_leased_messages:
            raise BusyError(
                f"{self._name}: {group.leased} messages are received and not settled; allowed: "
                f"{group.spec.max_leased_messages}. Settle some, or wait for their visibility "
                "timeout"
            )

    async def _hold(self, taken: DequeueRequest) -> None:
        """Wait until a request is to make another round."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._held[taken] = future
        self._set_timer()
        if self._controller.strategy.wakes_on_arrival and self._watching is None:
            name = f"arrivals {self._queue}/{self._group}"
            self._watching = loop.create_task(self._watch(), name=name)
        try:
            await future
        finally:
            del self._held[taken]
            if not self._held and self._watching is not None:
                # To wait for arrivals is a use of the group, which must not outlast its requests.
                self._watching.cancel()
                self._watching = None

    def _wake(self, requests: Iterable[DequeueRequest]) -> None:
        for request in requests:
            future = self._held.get(request)
            if future is not None and not future.done():
                future.set_result(None)

    def _set_timer(self) -> None:
        """Wait for the next request's time, where that is earlier than what is waited for."""
        at = self._controller.next_at
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(at - self._clock(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._wake(self._controller.due(self._clock()))
        self._set_timer()

    async def _watch(self) -> None:
        """Wake requests on arrivals, while any is held."""
        try:
            while self._held:
                seen = await self._engine.wait_for_arrival(
                    self._queue, self._group, self._seen, _WATCH_SECONDS
                )
                if seen != self._seen:
                    self._seen = seen
                    self._signals += 1
                    self.look()
        except Exception as error:  # noqa: BLE001 (whoever waits is told of any error)
            self.fail(error)
        finally:
            if self._watching is asyncio.current_task():  # it is not where another one has begun
                self._watching = None


class LogicalQueue:
    """A logical queue of the engine.

    Attributes:
        incarnation: the incarnation of the engine's queue; "" until it is known.
        is_closing: whether waiting requests are to be answered at once.
    """

    def __init__(
        self,
        name: str,
        spec: QueueSpec,
        engine: Engine,
        buffer: AppendBuffer,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.incarnation = ""
        self.spec = spec
        self.buffer = buffer
        self._engine = engine
        self._clock = clock
        self.receivers: dict[str, GroupReceiver] = {}
        self._plans: set[asyncio.Future[int]] = set()
        self.is_closing = False
        buffer.on_stored = self._look

    def set_up(self, spec: QueueSpec) -> None:
        """Go by these settings, which the engine has, from now on."""
        self.spec = spec
        self.buffer.set_up(spec)
        for receiver in self.receivers.values():
            receiver.set_up(spec)

    def close(self) -> None:
        """Answer waiting requests now."""
        self.is_closing = True
        for receiver in self.receivers.values():
            receiver.close()
        for waiting in self._plans:
            waiting.cancel()

    def group_is_gone(self, group: str, error: Exception) -> None:
        """Have the held requests of a group fail that was deleted."""
        receiver = self.receivers.pop(group, None)
        if receiver is not None:
            receiver.fail(error)
            receiver.close()

    def is_gone(self, error: Exception) -> None:
        """Have all held requests fail: the queue was deleted."""
        for group in list(self.receivers):
            self.group_is_gone(group, error)
        self.close()

    async def receive(self, group: str, request: ReceiveRequest) -> list[ReceivedMessage]:
        """Receive messages by the queue's dequeue strategy.

        If the caller is cancelled, what was found becomes visible again at once.

        Raises:
            UnknownQueueError: the queue was deleted.
            UnknownGroupError: there is no such group, or it was deleted.
            GroupKindError: the group is of kind `offsets`.
            BusyError: too many requests wait, or too many messages are leased.
            StorageError: nothing could be read.
        """
        receiver = self.receivers.get(group)
        if receiver is None:
            receiver = GroupReceiver(
                self.name,
                group,
                self.spec,
                self._engine,
                self._clock,
                lambda: self.buffer.stored_bytes,
            )
            self.receivers[group] = receiver
        try:
            return await receiver.receive(request)
        except UnknownGroupError as error:
            # It has expired; one that is created again is another one.
            self.group_is_gone(group, error)
            raise

    def _look(self) -> None:
        """Wake requests that wait for bytes, which have been stored."""
        for receiver in self.receivers.values():
            receiver.look()

    @contextmanager
    def arrival(self, seen: int, wait_seconds: float) -> Iterator[asyncio.Future[int]]:
        """Have the block wait for the next message that is stored.

        Yields:
            A future as of `Engine.wait_for_arrival`; `close` cancels it.
        """
        arrival = self._engine.wait_for_arrival(self.name, None, seen, wait_seconds)
        waiting = asyncio.ensure_future(arrival)
        self._plans.add(waiting)
        try:
            yield waiting
        finally:
            self._plans.discard(waiting)
            waiting.cancel()

    def figures(self) -> dict[str, Any]:
        """Return what the queue holds and what its requests did, as JSON has it."""
        snapshot = self._engine.snapshot(self.name)
        settings = asdict(snapshot.spec)
        del settings["groups"]
        slow = self.buffer.slow_appends
        return {
            "name": self.name,
            "incarnation": snapshot.incarnation,
            "settings": settings,
            "messages": snapshot.messages,
            "payload_bytes": snapshot.payload_bytes,
            "stored_bytes": snapshot.stored_bytes,
            "reserved": snapshot.reserved,
            "removed": dict(snapshot.removed),
            "set_aside": snapshot.set_aside,
            "oldest_seconds": snapshot.oldest_seconds,
            "enqueued": {
                "published": asdict(self.buffer.counts),
                "requested": asdict(self.buffer.requested),
                "excluded": slow.excluded if slow else [],
                "exclusions": slow.counts.exclusions if slow else 0,
            },
            "physical_queues": {
                str(number): held._asdict() for number, held in snapshot.usage.items()
            },
            "groups": {
                name: self._group_figures(name, group) for name, group in snapshot.groups.items()
            },
        }

    def _group_figures(self, name: str, group: GroupSnapshot) -> dict[str, Any]:
        figures = asdict(group)
        figures["settings"] = figures.pop("spec")
        figures["position"] = {str(number): offset for number, offset in group.position.items()}
        receiver = self.receivers.get(name)
        if receiver is not None:
            figures["requests"] = _requests(receiver)
        return figures


def _requests(receiver: GroupReceiver) -> dict[str, Any]:
    """Return what became of the requests of a group: in all, and by strategy."""
    by_strategy = {name: asdict(counts) for name, counts in receiver.counts.items()}
    total = {
        counter.name: sum(counts[counter.name] for counts in by_strategy.values())
        for counter in fields(DequeueCounts)
    }
    return {**total, "waiting": receiver.waiting, "by_strategy": by_strategy}
