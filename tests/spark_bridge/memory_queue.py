"""A queue in this process with the client's own methods, for tests that need no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.plugins.queue.batch_format import Selection, last_offset, write_batch
from penstock.plugins.queue.client import (
    Plan,
    Position,
    QueueClient,
    QueueError,
    RangeAnswer,
    error_of,
)
from penstock.plugins.queue.wire.frames import COLUMNS, Batch

ANSWER_MESSAGES = 1_000
"""Most messages of an answer."""


class MemoryQueue(QueueClient):
    """One logical queue; payloads are what is put into it.

    Attributes:
        earliest: physical queue to its first offset.
        payloads: physical queue to every payload ever stored, by offset.
        failures: errors that the next calls raise instead of answering, first one first.
        requests: name of each call that was answered.
        waits: for how long each plan was to wait, seconds.
        incarnation: of the queue.
        groups: group to its kind.
        committed: group to its position.
        may_create: whether groups may be created.
        readers: group to the query that it belongs to.
        max_bytes: setting of the queue.
        retention_seconds: the same.
        keeps_last: whether messages leave for newer ones of their key.
        gone: offsets that have left physical queue 0 for such a reason.
    """

    def __init__(self, name: str = "telemetry", physical_queues: int = 2) -> None:
        super().__init__("http://127.0.0.1:9")
        self.name = name
        self.payloads: dict[int, list[bytes]] = {n: [] for n in range(physical_queues)}
        self.earliest = dict.fromkeys(self.payloads, 0)
        self.failures: list[QueueError] = []
        self.requests: list[str] = []
        self.waits: list[float] = []
        self.incarnation = "7e3cf3a2"
        self.groups: dict[str, str] = {}
        self.committed: dict[str, dict[int, int]] = {}
        self.may_create = True
        self.keeps_last = False
        self.max_bytes: int | None = None
        self.retention_seconds: float | None = None
        self.readers: dict[str, str] = {}
        self.gone: set[int] = set()

    def put(self, physical_queue: int, *payloads: bytes) -> None:
        """Store payloads at the end of a physical queue."""
        self.payloads[physical_queue] += payloads

    def queue(self, queue: str) -> dict[str, Any]:
        """Return what the reader asks for of the queue's settings."""
        self._answer("queue", queue)
        settings = {"keeps_last": self.keeps_last, "key": None, "when_full": "refuse"}
        limits = {"max_messages": None, "max_bytes": self.max_bytes}
        return {"settings": settings | limits | {"retention_seconds": self.retention_seconds}}

    def group(self, queue: str, group: str) -> dict[str, Any]:
        """Return a group."""
        self._answer("group", queue)
        if group not in self.groups:
            raise error_of(404, f"no group {group!r}")
        position = {str(n): offset for n, offset in self.committed[group].items()}
        settings = {"kind": self.groups[group]}
        found = {"incarnation": self.incarnation, "settings": settings, "position": position}
        return found | {"reader": self.readers.get(group, "")}

    def put_group(self, queue: str, group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a group at the earliest offsets."""
        self._answer("put_group", queue)
        if not self.may_create:
            raise error_of(403, "role admin is missing")
        self.groups[group] = settings["kind"]
        self.committed[group] = dict(self.earliest)
        return self.group(queue, group)

    def position(self, queue: str, at: str | float = "earliest") -> Position:
        """Return the earliest or the latest position."""
        self._answer("position", queue)
        return Position(self.incarnation, self.earliest if at == "earliest" else self.latest)

    @property
    def latest(self) -> dict[int, int]:
        """The offset after the last of each physical queue."""
        return {n: len(stored) for n, stored in self.payloads.items()}

    def plan_queues(
        self,
        starts: Mapping[str, Position],
        *,
        until: Mapping[str, Mapping[int, int]] | None = None,
        **limits: Any,
    ) -> dict[str, Plan]:
        """Return the end of a range; the first physical queues take the limit."""
        assert limits.keys() == {"max_messages", "max_bytes", "wait_seconds"}
        self.waits.append(limits["wait_seconds"])
        ((queue, start),) = starts.items()
        self._answer("plan", queue)
        self._check(start.incarnation)
        self._check_offsets(start.offsets)
        left = limits["max_messages"]
        ends = {}
        for number, past in (until[queue] if until else self.latest).items():
            begin = max(start.offsets.get(number, 0), self.earliest[number])
            ends[number] = past if left is None else min(past, begin + left)
            left = None if left is None else left - ends[number] + begin
        return {queue: Plan(Position(self.incarnation, ends), dict(self.earliest), self.latest)}

    def read_columns(
        self,
        queue: str,
        physical_queue: int,
        start: int,
        end: int,
        columns: Sequence[str] = COLUMNS,
        *,
        topic_filters: Sequence[str] = (),
        incarnation: str | None = None,
    ) -> RangeAnswer:
        """Return messages of a range, at most `ANSWER_MESSAGES`."""
        self._answer("read", queue)
        self._check(incarnation)
        self._check_offsets({physical_queue: end})
        if start < self.earliest[physical_queue]:
            earliest = self.earliest[physical_queue]
            raise error_of(410, f"start {start} is below {earliest}", {"earliest": earliest})
        past = min(end, start + ANSWER_MESSAGES)
        stored = enumerate(self.payloads[physical_queue][start:past], start)
        kept = [(offset, payload) for offset, payload in stored if offset not in self.gone]
        if not kept:
            return RangeAnswer(b"", end, 0)
        count = len(kept)
        batch = Batch(
            [offset for offset, _ in kept],
            [f"telemetry/host/{physical_queue}"] * count,
            [payload for _, payload in kept],
            [1] * count,
            ["publisher"] * count,
            [1_700_000_000.25] * count,
            [""] * count,
        )
        wanted = Selection(frozenset(columns), tuple(topic_filters))
        frame = write_batch(batch)
        matching = wanted.matching(frame)
        body = b"".join(wanted.cut(matching)) if matching else b""
        return RangeAnswer(body, last_offset(frame) + 1, count)

    def commit(self, queue: str, group: str, position: Position, *, reader: str = "") -> None:
        """Delete everything below the position, as where there is no other group."""
        self._answer("commit", queue)
        self._check(position.incarnation)
        if group not in self.groups:
            raise error_of(404, f"no group {group!r}")
        owner = self.readers.get(group, "")
        if owner not in ("", reader):
            raise error_of(409, "of another reader", {"reader": owner})
        self.readers[group] = reader
        self._check_offsets(position.offsets)
        for number, offset in position.offsets.items():
            self.earliest[number] = max(self.earliest[number], offset)
        self.committed[group].update(position.offsets)

    def _check(self, incarnation: str | None) -> None:
        if incarnation not in (None, self.incarnation):
            raise error_of(409, "created again", {"incarnation": self.incarnation})

    def _check_offsets(self, offsets: Mapping[int, int]) -> None:
        for number, offset in offsets.items():
            if number not in self.payloads or offset > len(self.payloads[number]):
                raise error_of(400, f"offset of physical queue {number}: read {offset}")

    def _answer(self, call: str, queue: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if queue != self.name:
            raise error_of(404, f"no queue {queue!r}")
        self.requests.append(call)
