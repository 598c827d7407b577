"""The baseline: a broker or gateway that stores by consistent hashing, and leaves nothing out.

Usage: ``python -m benchmarks.fabric.hashing MODULE ARGUMENTS``, where the module is
    ``penstock.broker`` or ``penstock.plugins.queue``. All parts are the product's except the
    enqueue controller: the topic of a message decides which physical queue gets it (paper 001,
    3.2.3.1). A dead node's physical queues belong to its replica as soon as that has taken over.
``penstock.broker`` or ``penstock.plugins.queue``. Everything is the product's but for the enqueue
controller: the topic of a message says which physical queue gets it (paper 001, 3.2.3.1). A dead
node's physical queues belong to its replica as soon as that has taken over.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from penstock.models.papers.fabric.consistent_hashing import ConsistentHashing
from penstock.plugins.queue import append_buffer
from penstock.plugins.queue.strategies.enqueue import EnqueueController
from penstock.plugins.queue.strategies.slowdown_exclusion import SlowdownExclusion

T = TypeVar("T")


class HashingController(EnqueueController[T]):
    """A controller that assigns messages to physical queues by their topics.

    Args:
        physical_queues: the number of physical queues.
        key_of: unused.
        exclusion: unused.
    """

    def __init__(
        self,
        physical_queues: int,
        key_of: Callable[[T], str | None] | None = None,
        exclusion: SlowdownExclusion[int] | None = None,
    ) -> None:
        super().__init__(physical_queues, key_of, exclusion)
        self._circle = ConsistentHashing([str(number) for number in range(physical_queues)])

    def deal(self, messages: Sequence[T], now: float = 0.0) -> dict[int, Sequence[T]]:
        """Return the messages by the number of their physical queue, in order within each."""
        del now
        dealt: dict[int, list[T]] = {}
        for entry in messages:
            new, _ = cast("append_buffer.Entry", entry)
            number = int(self._circle.node_of(new.message.topic))
            dealt.setdefault(number, []).append(entry)
        return dict(dealt)


def main() -> None:
    """Run a module of the product with this controller."""
    append_buffer.EnqueueController = HashingController  # type: ignore[attr-defined]
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
