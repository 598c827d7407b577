"""D-Ctrl: which physical queues a back end's request tries, and when (papers 000 and 001).

A `DequeueRequest` is one request of a back-end system. It names the physical queue to try, is told
what was found, and in the end says whether to answer or when to try again. It does not wait itself.
The HTTP API drives it with the real clock, a simulation with its own:

    request = controller.begin(n_max, now, wait_seconds)
    while True:
        while (number := request.next_try()) is not None:
            request.tried(take from physical queue `number` at most `request.missing`)
        retry_at = request.decide(now)
        if retry_at is None:
            break
        wait until retry_at
    request.end()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class DequeueStrategy(Protocol):
    """What to do with a request after its tries.

    Attributes:
        name: in the policy file.
    """

    name: str

    def retry_at(self, found: int, now: float, answer_by: float) -> float | None:
        """Say when to try again; None to answer now.

        Args:
            found: messages found so far.
            now: seconds, on the caller's clock.
            answer_by: when the client's wait ends, on the same clock.
        """


class Conventional:
    """Answer at once, even with nothing; the client's wait is ignored."""

    name = "conventional"

    def retry_at(self, found: int, now: float, answer_by: float) -> float | None:  # noqa: ARG002 (DequeueStrategy's form)
        """Answer."""
        return None


class RetryDequeueRequest:
    """RDS: hold a request that found nothing and retry it after `sleep_time`.

    The last retry is made when the client's wait ends.

    Args:
        sleep_time: seconds between two retries, more than 0.
    """

    name = "rds"

    def __init__(self, sleep_time: float) -> None:
        self.sleep_time = sleep_time

    def retry_at(self, found: int, now: float, answer_by: float) -> float | None:
        """Answer when something was found or the client's wait is over."""
        if found or now >= answer_by:
            return None
        return min(now + self.sleep_time, answer_by)


class DequeueController:
    """The dequeue controller of one logical queue.

    Invariant: every request that has begun is answered or waiting.

    Args:
        physical_queues: their numbers, in the order of the tries.
        strategy: what to do when all tries have missed.
        max_queues_per_dequeue: physical queues that one round of tries may touch.

    Attributes:
        requests: requests that began.
        retries: rounds of tries after the first of a request.
        missed_dequeues: tries that found nothing.
        hit_dequeues: tries that found something.
        messages: messages found.
        waiting: requests that have begun and not ended.
    """

    def __init__(
        self,
        physical_queues: Sequence[int],
        strategy: DequeueStrategy,
        max_queues_per_dequeue: int = 3,
    ) -> None:
        self.strategy = strategy
        self.tries_per_round = min(max_queues_per_dequeue, len(physical_queues))
        self.requests = 0
        self.retries = 0
        self.missed_dequeues = 0
        self.hit_dequeues = 0
        self.messages = 0
        self.waiting = 0
        self._physical_queues = tuple(physical_queues)
        self._turn = 0

    def begin(self, n_max: int, now: float, wait_seconds: float) -> DequeueRequest:
        """Take a request for up to `n_max` messages; its `end` must be called.

        Args:
            n_max: most messages to find, at least 1.
            now: seconds, on the caller's clock.
            wait_seconds: how long the client waits for a first message.
        """
        self.requests += 1
        self.waiting += 1
        return DequeueRequest(self, n_max, now + wait_seconds)

    def take_turn(self) -> int:
        """Return the next physical queue, round robin over all requests."""
        number = self._physical_queues[self._turn]
        self._turn = (self._turn + 1) % len(self._physical_queues)
        return number

    def count_try(self, found: int) -> None:
        """Count one try as hit or missed."""
        if found:
            self.hit_dequeues += 1
            self.messages += found
        else:
            self.missed_dequeues += 1


class DequeueRequest:
    """One request of a back-end system; the module's docstring shows how to drive it.

    Attributes:
        missing: messages that may still be found.
        found: messages found so far.
        answer_by: when the client's wait ends, on the caller's clock.
    """

    __slots__ = ("_controller", "_has_ended", "_tries_left", "answer_by", "found", "missing")

    def __init__(self, controller: DequeueController, n_max: int, answer_by: float) -> None:
        self.missing = n_max
        self.found = 0
        self.answer_by = answer_by
        self._controller = controller
        self._tries_left = controller.tries_per_round
        self._has_ended = False

    def next_try(self) -> int | None:
        """Return the physical queue to try next; None when this round is over."""
        if not self.missing or not self._tries_left:
            return None
        self._tries_left -= 1
        return self._controller.take_turn()

    def tried(self, found: int, *, is_full: bool = False) -> None:
        """Report what a try found.

        Args:
            found: messages it found.
            is_full: the answer can hold no more bytes, so no further queue is tried.
        """
        self._controller.count_try(found)
        self.found += found
        self.missing = 0 if is_full else self.missing - found

    def decide(self, now: float) -> float | None:
        """Return when to begin the next round of tries; None to answer now."""
        retry_at = self._controller.strategy.retry_at(self.found, now, self.answer_by)
        if retry_at is not None:
            self._controller.retries += 1
            self._tries_left = self._controller.tries_per_round
        return retry_at

    def end(self) -> None:
        """The request was answered or its client has left; may be called again."""
        if not self._has_ended:
            self._has_ended = True
            self._controller.waiting -= 1
