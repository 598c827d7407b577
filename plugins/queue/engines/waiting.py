"""What every engine answers alike; requests wait here for messages to become visible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from penstock.plugins.queue.engines.contract import QueueOutline, QueueSnapshot
from penstock.plugins.queue.engines.logical import StoredQueue, Waitable, find_queue

QueueT = TypeVar("QueueT", bound=StoredQueue[Any, Any])


class Arrivals:
    """Wakes those who wait: by an event for each group, and a timer for all."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiters: dict[Waitable, set[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    async def wait(self, source: Waitable, seen: int, wait: float) -> int:
        """Wait until the arrivals of a group or queue are others than seen; return them."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait
        while True:
            source.expire(self._now())
            left = give_up_at - loop.time()
            if source.arrivals != seen or left <= 0:
                return source.arrivals
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.setdefault(source, set()).add(waiter)
            self._set_timer(source)
            handle = loop.call_later(left, _complete, waiter)
            try:
                await waiter
            finally:
                handle.cancel()
                waiters = self._waiters.get(source)
                if waiters is not None:
                    waiters.discard(waiter)
                    if not waiters:
                        del self._waiters[source]

    def arrived(self, source: Waitable) -> None:
        """Wake those who wait for a group or queue."""
        for waiter in self._waiters.get(source, ()):
            _complete(waiter)

    def note_uses(self, now: float) -> None:
        """Note that the groups are in use for whose messages somebody waits."""
        for source in self._waiters:
            source.used_at = now

    def wake(self, queue: Waitable, groups: Iterable[Waitable]) -> None:
        """Wake all who wait for a queue or its groups, as something has changed."""
        queue.arrivals += 1
        self.arrived(queue)
        for group in groups:
            group.arrived()

    def deadline_changed(self, group: Waitable) -> None:
        """Take note of a group's new first deadline."""
        if group in self._waiters:
            self._set_timer(group)

    def close(self) -> None:
        """Wake all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for source in list(self._waiters):
            source.arrivals += 1
            for waiter in self._waiters.get(source, ()):
                _complete(waiter)

    def _set_timer(self, source: Waitable) -> None:
        deadline = source.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        seconds = max(0.0, deadline - self._now())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self._now()
        sources = list(self._waiters)
        for source in sources:
            source.expire(now)
        for source in sources:
            if source in self._waiters:
                self._set_timer(source)


class StoredQueues(Generic[QueueT]):
    """What every engine answers by its queues; see `contract` for the contract of its methods.

    Args:
        queues: by name.
        now: returns the engine's time.
        arrivals: wakes those who wait.

    Attributes:
        awaited: returns what is entered while somebody waits for a queue.
    """

    def __init__(
        self, queues: Mapping[str, QueueT], now: Callable[[], float], arrivals: Arrivals
    ) -> None:
        self._queues = queues
        self._now = now
        self._arrivals = arrivals
        self.awaited: Callable[[QueueT], AbstractContextManager[None]] = lambda _: nullcontext()

    def queues(self) -> Sequence[str]:
        """Return the names of all queues."""
        return list(self._queues)

    def snapshot(self, queue: str) -> QueueSnapshot:
        """Return what a queue holds."""
        return find_queue(self._queues, queue).snapshot(self._now())

    def outline(self, queue: str) -> QueueOutline:
        """Return a part of the snapshot."""
        return find_queue(self._queues, queue).outline(self._now())

    def reserve(self, queue: str, n_messages: int, n_bytes: int) -> bool:
        """Hold room for messages."""
        found = self._queues.get(queue) or find_queue(self._queues, queue)
        return found.reserve(n_messages, n_bytes)

    def release(self, queue: str, n_messages: int, n_bytes: int) -> None:
        """Give back room."""
        found = self._queues.get(queue)
        if found is not None:
            found.release(n_messages, n_bytes)

    async def wait_for_arrival(self, queue: str, group: str | None, seen: int, wait: float) -> int:
        """Wait until something may have become visible."""
        found = find_queue(self._queues, queue)
        waiter: Waitable = found if group is None else found.group(group)
        if group is not None:
            waiter.used_at = self._now()
        is_waiting = wait > 0 and waiter.arrivals == seen
        with self.awaited(found) if is_waiting else nullcontext():
            arrivals = await self._arrivals.wait(waiter, seen, wait)
        find_queue(self._queues, queue)
        if group is not None:
            found.group(group)
        return arrivals


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
