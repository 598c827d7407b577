"""A consumer of the queue that may be killed at any moment, and logs all its actions.

``python -m tests.campaigns.queue_consumer URL QUEUE GROUP KIND LOG SEED``: KIND is ``lease`` or
``offsets``. Each line of the log is one JSON array, written at once, so that a kill cuts none off:

* ``["got", asked, at, [[payload, physical_queue, offset, receive_count], ...]]``: an answer, with
  the monotonic seconds of its request and of its arrival;
* ``["settling", at, [[physical_queue, offset], ...]]``: an acknowledgement is sent;
* ``["settled", at, [[physical_queue, offset], ...]]``: it was confirmed.

A reader of an offsets group writes ``got`` only, with receive counts of 0.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.plugins.queue.client import Position, QueueClient, QueueError, ReceivedMessage

RETRY_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 10.0
MAX_MESSAGES: Final = 20
RANGE_MESSAGES: Final = 500
REJECTED_RATIO: Final = 0.05
"""The share of answers that are rejected at once and not acknowledged."""


class Consumer:
    """The consumer, which receives messages and logs its actions.

    Args:
        client: the client of the queue's API.
        queue: the name of the logical queue.
        group: the group of this consumer.
        log: the descriptor of a file that is open for appending.
        rng: the source of random values, which decides which answers are rejected.
    """

    def __init__(
        self, client: QueueClient, queue: str, group: str, log: int, rng: random.Random
    ) -> None:
        self._client = client
        self._queue = queue
        self._group = group
        self._log = log
        self._rng = rng

    def note(self, *event: Any) -> None:
        """Write one line; a kill behind it does not undo it."""
        os.write(self._log, json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def lease(self) -> None:
        """Receive and acknowledge once."""
        asked = time.monotonic()
        received = self._client.receive(
            self._queue, self._group, max_messages=MAX_MESSAGES, wait_seconds=WAIT_SECONDS
        )
        if not received:
            return
        rows = [(each.payload.decode(), *_place(each), each.receive_count) for each in received]
        self.note("got", asked, time.monotonic(), rows)
        handles = [each.receipt_handle for each in received]
        if self._rng.random() < REJECTED_RATIO:
            self._client.settle(self._queue, handles, "nack", group=self._group)
            return
        self.note("settling", time.monotonic(), [_place(each) for each in received])
        failed = self._client.settle(self._queue, handles, group=self._group)
        done = [_place(each) for index, each in enumerate(received) if index not in failed]
        self.note("settled", time.monotonic(), done)

    def read(self) -> None:
        """Read a range from the group's position on, and commit it."""
        asked = time.monotonic()
        offsets = self._client.group(self._queue, self._group)["position"]
        start = Position(
            self._client.position(self._queue).incarnation,
            {int(number): offset for number, offset in offsets.items()},
        )
        end = self._client.plan(
            self._queue, start, max_messages=RANGE_MESSAGES, wait_seconds=WAIT_SECONDS
        )
        for number, behind in end.offsets.items():
            first = start.offsets.get(number, 0)
            batch = self._client.read_range(
                self._queue, number, first, behind, incarnation=end.incarnation
            )
            rows = [
                (payload.decode(), number, offset, 0)
                for payload, offset in zip(batch.payload, batch.offset, strict=True)
            ]
            if rows:
                self.note("got", asked, time.monotonic(), rows)
        if end != start:
            self._client.commit(self._queue, self._group, end)

    def run(self, turn: Callable[[], None]) -> None:
        """Take turns until the process ends; what fails is tried again."""
        while True:
            try:
                turn()
            except (QueueError, OSError):
                self._client.close()
                time.sleep(RETRY_SECONDS)


def _place(message: ReceivedMessage) -> tuple[int, int]:
    return (message.physical_queue, message.offset)


def main(argv: list[str]) -> None:
    """Run one consumer."""
    url, queue, group, kind, path, seed = argv
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    rng = random.Random(seed)  # noqa: S311 - what is rejected, no secret
    consumer = Consumer(QueueClient(url, TIMEOUT_SECONDS), queue, group, log, rng)
    consumer.run(consumer.lease if kind == "lease" else consumer.read)


if __name__ == "__main__":
    main(sys.argv[1:])
