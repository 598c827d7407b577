"""A queue in this process with the client's own methods, for tests that need no server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.plugins.queue.client import Batch, Position, QueueClient, QueueError, error_of


class MemoryQueue(QueueClient):
    """One logical queue; payloads are what is put into it.

    Attributes:
        earliest: physical queue to its first offset.
        payloads: physical queue to every payload ever stored, by offset.
        failures: errors that the next calls raise instead of answering, first one first.
        requested: the message counts that `read_range` was asked for.
        incarnation: of the queue.
        groups: group to its kind.
        committed: group to its position.
        may_create: whether groups may be created.
        keeps_last: whether messages leave for newer ones of their key.
        gone: offsets that have left physical queue 0 for such a reason.
    """

    def __init__(self, name: str = "telemetry", physical_queues: int = 2) -> None:
        super().__init__("http://127.0.0.1:9")
        self.name = name
        self.payloads: dict[int, list[bytes]] = {n: [] for n in range(physical_queues)}
        self.earliest = dict.fromkeys(self.payloads, 0)
        self.failures: list[QueueError] = []
        self.requested: list[int | None] = []
        self.incarnation = "7e3cf3a2"
        self.groups: dict[str, str] = {}
        self.committed: dict[str, dict[int, int]] = {}
        self.may_create = True
        self.keeps_last = False
        self.gone: set[int] = set()

    def put(self, physical_queue: int, *payloads: bytes) -> None:
        """Store payloads at the end of a physical queue."""
        self.payloads[physical_queue] += payloads

    def queue(self, queue: str) -> dict[str, Any]:
        """Return what the reader asks for of the queue's settings."""
        self._answer(queue)
        return {"settings": {"keeps_last": self.keeps_last}}

    def group(self, queue: str, group: str) -> dict[str, Any]:
        """Return a group."""
        self._answer(queue)
        if group not in self.groups:
            raise error_of(404, f"no group {group!r}")
        position = {str(n): offset for n, offset in self.committed[group].items()}
        settings = {"kind": self.groups[group]}
        return {"incarnation": self.incarnation, "settings": settings, "position": position}

    def put_group(self, queue: str, group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a group at the earliest offsets."""
        self._answer(queue)
        if not self.may_create:
            raise error_of(403, "role admin is missing")
        self.groups[group] = settings["kind"]
        self.committed[group] = dict(self.earliest)
        return self.group(queue, group)

    def position(self, queue: str, at: str | float = "earliest") -> Position:
        """Return the earliest or the latest position."""
        self._answer(queue)
        latest = {n: len(stored) for n, stored in self.payloads.items()}
        return Position(self.incarnation, self.earliest if at == "earliest" else latest)

    def plan(self, queue: str, start: Position | None = None, **more: Any) -> Position:
        """Return the latest position; nothing is waited for."""
        assert start is not None
        self._answer(queue)
        self._check(start.incarnation)
        assert more.keys() == {"wait_seconds"}
        return self.position(queue, "latest")

    def read_range(
        self,
        queue: str,
        physical_queue: int,
        start: int,
        end: int,
        max_messages: int | None = None,
        *,
        incarnation: str | None = None,
    ) -> Batch:
        """Return messages of a range, at most `max_messages`."""
        self._answer(queue)
        self._check(incarnation)
        self.requested.append(max_messages)
        if start < self.earliest[physical_queue]:
            raise error_of(410, f"start {start} is below {self.earliest[physical_queue]}")
        past = end if max_messages is None else min(end, start + max_messages)
        stored = enumerate(self.payloads[physical_queue][start:past], start)
        kept = [(offset, payload) for offset, payload in stored if offset not in self.gone]
        count = len(kept)
        return Batch(
            [offset for offset, _ in kept],
            [f"telemetry/host/{physical_queue}"] * count,
            [payload for _, payload in kept],
            [1] * count,
            ["publisher"] * count,
            [1_700_000_000.25] * count,
            [""] * count,
        )

    def commit(self, queue: str, group: str, position: Position) -> None:
        """Delete everything below the position, as where there is no other group."""
        self._answer(queue)
        self._check(position.incarnation)
        if group not in self.groups:
            raise error_of(404, f"no group {group!r}")
        for number, offset in position.offsets.items():
            self.earliest[number] = max(self.earliest[number], offset)
        self.committed[group].update(position.offsets)

    def _check(self, incarnation: str | None) -> None:
        if incarnation not in (None, self.incarnation):
            raise error_of(409, "created again", {"incarnation": self.incarnation})

    def _answer(self, queue: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if queue != self.name:
            raise error_of(404, f"no queue {queue!r}")
