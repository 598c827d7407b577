"""One logical queue as its publishers and readers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from penstock.plugins.queue.client import ReceivedMessage
from penstock.plugins.queue.engines.contract import (
    Engine,
    GroupSnapshot,
    Position,
    QueueSpec,
    UnknownGroupError,
)
from penstock.plugins.queue.group_receiver import BusyError, GroupReceiver, ReceiveRequest
from penstock.plugins.queue.intake import Intake

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
        spec: its settings.
        intake: takes new messages.
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
        self.spec = spec
        self.intake = intake
        self._engine = engine
        self._clock = clock
        self._receivers: dict[str, GroupReceiver] = {}
        self._plans: set[asyncio.Future[int]] = set()
        self._is_closing = False
        intake.on_stored = self._look

    def set_up(self, spec: QueueSpec) -> None:
        """Go by these settings, which the engine has, from now on."""
        self.spec = spec
        self.intake.set_up(spec)
        for receiver in self._receivers.values():
            receiver.set_up(spec)

    def close(self) -> None:
        """Answer waiting requests now."""
        self._is_closing = True
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

    async def plan(
        self,
        start: Position,
        max_messages: int | None,
        max_bytes: int | None,
        wait_seconds: float,
    ) -> Position:
        """Return the end of the next range; see `QueueService.plan`."""
        answer_by = self._clock() + wait_seconds
        seen = -1
        while True:
            end = await self._engine.plan(self.name, start, max_messages, max_bytes)
            left = answer_by - self._clock()
            if left <= 0 or self._is_closing:
                return end
            earliest = await self._engine.locate(self.name, "earliest")
            if _holds_messages(start, end, earliest):
                return end
            arrival = self._engine.wait_for_arrival(self.name, None, seen, left)
            waiting = asyncio.ensure_future(arrival)
            self._plans.add(waiting)
            try:
                # `close` cancels the future, which ends the wait and not the request.
                await asyncio.wait([waiting])
            finally:
                self._plans.discard(waiting)
                waiting.cancel()
            with suppress(asyncio.CancelledError):
                seen = waiting.result()

    def figures(self) -> dict[str, Any]:
        """Return what the queue holds and what its requests did, as JSON has it."""
        snapshot = self._engine.snapshot(self.name)
        settings = asdict(snapshot.spec)
        del settings["groups"]
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
            figures["requests"] = asdict(receiver.counts)
        return figures


def _holds_messages(start: Position, end: Position, earliest: Position) -> bool:
    """Say whether a range may hold messages, of a queue whose first offsets are `earliest`."""
    return any(
        offset > max(start.offsets.get(number, 0), earliest.offsets[number])
        for number, offset in end.offsets.items()
        if number in earliest.offsets
    )
