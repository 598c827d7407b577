"""A queue in this process with the client's own methods, for tests that need no server."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.plugins.queue.client import Batch, QueueClient, QueueError


class MemoryQueue(QueueClient):
    """One logical queue; payloads are what is put into it.

    Attributes:
        earliest: physical queue to its first offset.
        payloads: physical queue to every payload ever stored, by offset.
        failures: errors that the next calls raise instead of answering, first one first.
        requested: the message counts that `read_range` was asked for.
    """

    def __init__(self, name: str = "telemetry", physical_queues: int = 2) -> None:
        super().__init__("http://127.0.0.1:9")
        self.name = name
        self.payloads: dict[int, list[bytes]] = {n: [] for n in range(physical_queues)}
        self.earliest = dict.fromkeys(self.payloads, 0)
        self.failures: list[QueueError] = []
        self.requested: list[int | None] = []

    def put(self, physical_queue: int, *payloads: bytes) -> None:
        """Store payloads at the end of a physical queue."""
        self.payloads[physical_queue] += payloads

    def offsets(self, queue: str) -> dict[int, tuple[int, int]]:
        """Return (earliest, next) by physical queue."""
        self._answer(queue)
        return {n: (self.earliest[n], len(stored)) for n, stored in self.payloads.items()}

    def read_range(
        self,
        queue: str,
        physical_queue: int,
        start: int,
        end: int,
        max_messages: int | None = None,
    ) -> Batch:
        """Return messages of a range, at most `max_messages`."""
        self._answer(queue)
        self.requested.append(max_messages)
        if start < self.earliest[physical_queue]:
            raise QueueError(410, f"start {start} is below {self.earliest[physical_queue]}")
        past = end if max_messages is None else min(end, start + max_messages)
        payload = self.payloads[physical_queue][start:past]
        count = len(payload)
        return Batch(
            list(range(start, start + count)),
            [f"telemetry/host/{physical_queue}"] * count,
            payload,
            [1] * count,
            ["publisher"] * count,
            [1_700_000_000.25] * count,
            [""] * count,
        )

    def commit(self, queue: str, offsets: Mapping[int, int]) -> None:
        """Delete everything below the offsets."""
        self._answer(queue)
        for number, offset in offsets.items():
            self.earliest[number] = max(self.earliest[number], offset)

    def _answer(self, queue: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if queue != self.name:
            raise QueueError(404, f"no queue {queue!r}")
