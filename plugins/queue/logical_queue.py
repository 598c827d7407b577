"""One logical queue as its publishers and readers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

from penstock.plugins.queue.append_buffer import Intake
from penstock.plugins.queue.engines.contract import (
    Engine,
    GroupSnapshot,
    QueueSpec,
    UnknownGroupError,
)
from penstock.plugins.queue.group_receiver import BusyError, GroupReceiver, ReceiveRequest
from penstock.plugins.queue.strategies.dequeue import DequeueCounts
from penstock.plugins.queue.wire.frames import ReceivedMessage

__all__ = ["BusyError", "LogicalQueue"]


class LogicalQueue:
    """A logical queue of the engine.

    Args:
        name: its name.
        spec: its settings.
        engine: holds its messages.
        intake: takes new ones.
        clock: returns monotonic seconds.

    Attributes:
        name: its name.
        incarnation: of the engine's queue; "" until it is known.
        spec: its settings.
        intake: takes new messages.
        is_closing: whether waiting requests are to be answered at once.
    """

    def __init__(
        self,
        name: str,
        spec: QueueSpec,
        engine: Engine,
        intake: Intake,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.incarnation = ""
        self.spec = spec
        self.intake = intake
        self._engine = engine
        self._clock = clock
        self._receivers: dict[str, GroupReceiver] = {}
        self._plans: set[asyncio.Future[int]] = set()
        self.is_closing = False
        intake.on_stored = self._look

    def set_up(self, spec: QueueSpec) -> None:
        """Go by these settings, which the engine has, from now on."""
        self.spec = spec
        self.intake.set_up(spec)
        for receiver in self._receivers.values():
            receiver.set_up(spec)

    def close(self) -> None:
        """Answer waiting requests now."""
        self.is_closing = True
        for receiver in self._receivers.values():
            receiver.close()
        for waiting in self._plans:
            waiting.cancel()

    def group_is_gone(self, group: str, error: Exception) -> None:
        """Have the held requests of a group fail that was deleted."""
        receiver = self._receivers.pop(group, None)
        if receiver is not None:
            receiver.fail(error)
            receiver.close()

    def is_gone(self, error: Exception) -> None:
        """Have all held requests fail: the queue was deleted."""
        for group in list(self._receivers):
            self.group_is_gone(group, error)
        self.close()

    async def receive(self, group: str, request: ReceiveRequest) -> list[ReceivedMessage]:
        """Receive messages by the queue's strategy; see `QueueService.receive`."""
        receiver = self._receivers.get(group)
        if receiver is None:
            receiver = GroupReceiver(
                self.name,
                group,
                self.spec,
                self._engine,
                self._clock,
                lambda: self.intake.stored_bytes,
            )
            self._receivers[group] = receiver
        try:
            return await receiver.receive(request)
        except UnknownGroupError as error:
            # It has expired; one that is created again is another one.
            self.group_is_gone(group, error)
            raise

    def _look(self) -> None:
        """Wake requests that wait for bytes, which have been stored."""
        for receiver in self._receivers.values():
            receiver.look()

    @contextmanager
    def arrival(self, seen: int, wait_seconds: float) -> Iterator[asyncio.Future[int]]:
        """Have the block wait for the next message that is stored.

        Args:
            seen: what the last future returned; -1 at first, which returns at once.
            wait_seconds: at most.

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
        slow = self.intake.slow_appends
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
                "published": asdict(self.intake.published),
                "requested": asdict(self.intake.requested),
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
        receiver = self._receivers.get(name)
        if receiver is not None:
            figures["requests"] = _requests(receiver)
        return figures

    def sys_figures(self) -> Iterator[tuple[str, int]]:
        """Yield (name, figure) for `$SYS`, for the enqueue controller and each group with requests.

        A group's name has the group, the dequeue strategy and the counter as topic levels; that of
        the enqueue controller, where it leaves physical queues out, has the counter alone.
        """
        slow = self.intake.slow_appends
        if slow is not None:
            yield "excluded", len(slow.excluded)
            yield from asdict(slow.counts).items()
        for name, receiver in self._receivers.items():
            yield f"{name}/waiting", receiver.waiting
            for strategy, counts in receiver.counts.items():
                level = strategy.replace("+", "-")  # a wildcard is no part of a Topic Name
                for counter, number in asdict(counts).items():
                    yield f"{name}/{level}/{counter}", number


def _requests(receiver: GroupReceiver) -> dict[str, Any]:
    """Return what became of the requests of a group: in all, and by strategy."""
    by_strategy = {name: asdict(counts) for name, counts in receiver.counts.items()}
    total = {
        counter.name: sum(counts[counter.name] for counts in by_strategy.values())
        for counter in fields(DequeueCounts)
    }
    return {**total, "waiting": receiver.waiting, "by_strategy": by_strategy}
