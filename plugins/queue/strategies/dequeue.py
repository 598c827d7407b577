"""The dequeue controller: which physical queues a request tries, and when (papers 000 and 001).

A `DequeueController` serves the requests of one group. A request makes *rounds* of *tries*, each of
one physical queue. After a round it is answered, or *held* until the controller says that it is to
make another one. Nothing here waits: the queue drives it with the real clock, a simulation with its
own:

    request = controller.begin(max_messages, now, wait_seconds)
    while True:
        while (number := request.next_try(now)) is not None:
            request.tried(messages and bytes received from physical queue `number`)
        if request.decide(now):
            break
        give back what this round received
        wait until `due` or `arrived` of the controller returns the request
    request.end()

A held request is an entry in a heap, so that the controller needs one timer, for `next_at`,
however many requests are held. It calls `due` then. With a strategy that `wakes_on_arrival`, it
also calls `arrived` whenever messages may have become visible; the requests that get them are
found without a look at the others.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from penstock.plugins.queue.strategies.local_first import LocalFirst

Lengths: TypeAlias = Callable[[], Mapping[int, int]]
"""A function that returns the number of messages that can be received, by number of physical queue
in ascending order. Empty physical queues may be left out."""

_STALE_ENTRIES: Final = 1024
"""The heaps are made anew if they have more stale entries than this, and more than held
requests."""


@dataclass(slots=True)
class DequeueCounts:
    """What a controller did by one strategy; all but the last only grow.

    Attributes:
        requests: requests that began.
        retries: rounds of tries after the first of a request.
        hit_dequeues: tries that found something.
        missed_dequeues: tries that found nothing.
        polls: looks at the lengths of the physical queues by `pms`.
        messages: messages of all answers.
        held: requests that are held.
    """

    requests: int = 0
    retries: int = 0
    hit_dequeues: int = 0
    missed_dequeues: int = 0
    polls: int = 0
    messages: int = 0
    held: int = 0


class DequeueStrategy(ABC):
    """Chooses the tries of a round and says how long a request is held after it.

    One object serves one controller.

    Attributes:
        wakes_on_arrival: held requests are answered when messages arrive.
    """

    name: ClassVar[str]
    wakes_on_arrival: ClassVar[bool] = False

    @abstractmethod
    def tries(
        self, controller: DequeueController, request: DequeueRequest, now: float
    ) -> Iterator[int]:
        """Yield the physical queues of one round; the outcome of each is known before the next."""

    def tried(self, number: int, found: int) -> None:  # noqa: B027 (a default)
        """Take note of the outcome of a try."""

    @abstractmethod
    def retry_at(self, request: DequeueRequest, now: float) -> float | None:
        """Return when a request makes its next round at the latest; None to answer it now."""


class Conventional(DequeueStrategy):
    """Answer at once, even with nothing; the client's wait is ignored."""

    name = "conventional"

    def tries(
        self,
        controller: DequeueController,
        request: DequeueRequest,  # noqa: ARG002 (DequeueStrategy's form)
        now: float,  # noqa: ARG002
    ) -> Iterator[int]:
        """Try the next physical queues in turn, blindly."""
        if controller.local_first is None:
            for _ in range(controller.tries_per_round):
                yield controller.take_turn()
            return
        order = controller.local_first.round(controller.physical_queues)
        for number in order[: controller.tries_per_round]:
            controller.local_first.trying(number)
            yield number

    def retry_at(self, request: DequeueRequest, now: float) -> float | None:  # noqa: ARG002
        """Answer."""
        return None


class RetryDequeueRequest(Conventional):
    """RDS: hold a request that found nothing and retry it after `sleep_time`.

    The last retry is made when the client's wait ends.
    """

    name = "rds"

    def __init__(self, sleep_time: float) -> None:
        self.sleep_time = sleep_time

    def retry_at(self, request: DequeueRequest, now: float) -> float | None:
        """Answer when something was found or the client's wait is over."""
        if request.found or now >= request.answer_by:
            return None
        return min(now + self.sleep_time, request.answer_by)


class PeriodicalMonitoring(DequeueStrategy):
    """PMS: poll the lengths of the physical queues each period and try the longest first.

    Where none has as many messages as the request asks for at least, it is held until the next
    poll. Lengths are those of the last poll, less what this controller has received since.
    """

    name = "pms"

    def __init__(self, period: float) -> None:
        self.period = period
        self._lengths: dict[int, int] = {}
        self._next_poll = -math.inf

    def tries(
        self, controller: DequeueController, request: DequeueRequest, now: float
    ) -> Iterator[int]:
        """Try the longest physical queues that have enough."""
        if now >= self._next_poll:
            self._next_poll = now + self.period
            self._lengths = dict(controller.lengths())
            controller.counts.polls += 1
        enough = 1 if now >= request.answer_by else request.min_messages
        lengths = self._lengths
        ready = [number for number, length in lengths.items() if length >= enough]
        first, rest = ready, list[int]()
        if controller.local_first is not None:
            first, rest = controller.local_first.kinds(ready)
        most = controller.tries_per_round
        longest = heapq.nlargest(most, first, key=lengths.__getitem__)
        yield from longest
        yield from heapq.nlargest(most - len(longest), rest, key=lengths.__getitem__)

    def tried(self, number: int, found: int) -> None:
        """Take what was found from the last poll's length; a miss says that others have it."""
        self._lengths[number] = self._lengths.get(number, 0) - found if found else 0

    def retry_at(self, request: DequeueRequest, now: float) -> float | None:
        """Answer when something was found or the client's wait is over."""
        if request.found or now >= request.answer_by:
            return None
        return min(max(self._next_poll, now), request.answer_by)


class WakeOnArrival(DequeueStrategy):
    """RDS with arrival signals: hold a request until enough can be received, or its wait ends.

    It tries only physical queues that have messages, in turn, so that a try hardly ever misses.
    """

    name = "rds+wake"
    wakes_on_arrival = True

    def tries(
        self, controller: DequeueController, request: DequeueRequest, now: float
    ) -> Iterator[int]:
        """Try physical queues that have messages, once they have enough of them together."""
        request.stored_bytes = controller.stored_bytes()
        lengths = controller.lengths()
        request.visible = sum(lengths.values())
        if request.visible < request.needed and now < request.answer_by:
            return
        for tried, number in enumerate(controller.in_turn(list(lengths))):
            # More than the usual number are tried for a minimum that is spread over many.
            if tried >= controller.tries_per_round and request.has_enough:
                return
            controller.turn_is_behind(number)
            yield number

    def retry_at(self, request: DequeueRequest, now: float) -> float | None:
        """Answer when enough was found or the client's wait is over."""
        if request.has_enough or now >= request.answer_by:
            return None
        # Giving back what was found is a signal, too, which must not wake this request before
        # there is more.
        lacking = request.min_bytes - request.found_bytes
        request.needed_bytes = request.stored_bytes + max(lacking, 1)
        if request.found and not request.min_bytes:
            # Of the messages that are there, the group gets a part.
            request.needed = -(-request.visible * request.min_messages // request.found)
        return request.answer_by


def make_strategy(name: str, sleep_time: float) -> DequeueStrategy:
    """Return a strategy by its name in the policy file."""
    if name == Conventional.name:
        return Conventional()
    if name == PeriodicalMonitoring.name:
        return PeriodicalMonitoring(sleep_time)
    return RetryDequeueRequest(sleep_time) if name == "rds" else WakeOnArrival()


class DequeueController:
    """The dequeue controller of one group of a logical queue.

    Invariant: every request that has begun is ended, held, or making a round.

    Args:
        physical_queues: their numbers, ascending.
        strategy: chooses tries, and when they are made.
        lengths: looks at the physical queues.
        max_queues_per_dequeue: physical queues that one round of tries may touch.
        stored_bytes: returns the payload bytes that were ever stored, for requests that wait for
            bytes.
        local_first: says which are tried before others; None where none is nearer.

    Attributes:
        strategy: chooses tries, and when they are made.
        stored_bytes: returns the payload bytes that were ever stored.
        local_first: says which are tried before others; None where none is nearer.
        max_queues_per_dequeue: physical queues that one round of tries may touch.
        counts_by_strategy: what it did by each strategy that it has had, by name.
        waiting: requests that have begun and not ended.
    """

    def __init__(
        self,
        physical_queues: Sequence[int],
        strategy: DequeueStrategy,
        lengths: Lengths,
        max_queues_per_dequeue: int = 3,
        stored_bytes: Callable[[], int] = lambda: 0,
        local_first: LocalFirst | None = None,
    ) -> None:
        self.strategy = strategy
        self.lengths = lengths
        self.stored_bytes = stored_bytes
        self.local_first = local_first
        self.counts = DequeueCounts()
        self.counts_by_strategy = {strategy.name: self.counts}
        self.waiting = 0
        self.max_queues_per_dequeue = max_queues_per_dequeue
        self._physical_queues = tuple(physical_queues)
        self._turn = 0
        self._entries = itertools.count(1)
        self._begun = itertools.count()
        # Of held requests. An entry whose request has another number since is stale.
        self._by_time: list[tuple[float, int, DequeueRequest]] = []
        self._by_need: list[tuple[int, int, int, DequeueRequest]] = []
        self._by_bytes: list[tuple[int, int, int, DequeueRequest]] = []

    @property
    def physical_queues(self) -> Sequence[int]:
        """Numbers of the physical queues, ascending; they may be changed."""
        return self._physical_queues

    @physical_queues.setter
    def physical_queues(self, numbers: Sequence[int]) -> None:
        self._physical_queues = tuple(numbers)
        self._turn = 0

    @property
    def tries_per_round(self) -> int:
        """Most physical queues that one round touches."""
        return min(self.max_queues_per_dequeue, len(self._physical_queues))

    def change_strategy(self, strategy: DequeueStrategy) -> list[DequeueRequest]:
        """Go by another strategy; return all held requests, which are to make a round by it."""
        held = [request for _, entry, request in self._by_time if request.held_as == entry]
        for request in held:
            self.let_go(request)
        self.strategy = strategy
        self.counts = self.counts_by_strategy.setdefault(strategy.name, DequeueCounts())
        return held

    def begin(
        self,
        max_messages: int,
        now: float,
        wait_seconds: float,
        *,
        min_messages: int = 1,
        min_bytes: int = 0,
    ) -> DequeueRequest:
        """Take a request; its `end` must be called.

        Args:
            max_messages: most messages to find (N_max), at least 1.
            now: seconds, on the caller's clock.
            wait_seconds: how long the client waits.
            min_messages: the messages that the client waits for, at most `max_messages`; `pms` asks
                one physical queue for them, `rds+wake` all together.
            min_bytes: payload bytes that the client waits for; for `rds+wake` alone.
        """
        self.counts.requests += 1
        self.waiting += 1
        minimum = min(min_messages, max_messages)
        return DequeueRequest(
            self, next(self._begun), max_messages, minimum, min_bytes, now + wait_seconds
        )

    def take_turn(self) -> int:
        """Return the next physical queue, round robin over all requests."""
        number = self._physical_queues[self._turn]
        self._turn = (self._turn + 1) % len(self._physical_queues)
        return number

    def in_turn(self, numbers: Sequence[int]) -> Iterator[int]:
        """Yield physical queues of these numbers, which ascend, from the one whose turn it is."""
        if self.local_first is not None:
            yield from self.local_first.round(numbers)
            return
        first = bisect_left(numbers, self._physical_queues[self._turn])
        yield from itertools.chain(numbers[first:], numbers[:first])

    def turn_is_behind(self, number: int) -> None:
        """Take note that a physical queue is tried: the turn is that of the next one."""
        if self.local_first is not None:
            self.local_first.trying(number)
        behind = bisect_left(self._physical_queues, number + 1)
        self._turn = behind % len(self._physical_queues)

    def hold(self, request: DequeueRequest, retry_at: float) -> None:
        """Keep a request until it is due, or until messages for it arrive."""
        entry = next(self._entries)
        request.held_as = entry
        self.counts.held += 1
        heapq.heappush(self._by_time, (retry_at, entry, request))
        if self.strategy.wakes_on_arrival:
            if request.min_bytes:
                heapq.heappush(self._by_bytes, (request.needed_bytes, *request.place, request))
            else:
                heapq.heappush(self._by_need, (request.needed, *request.place, request))
        for heap in (self._by_time, self._by_need, self._by_bytes):
            if len(heap) > 2 * self.counts.held + _STALE_ENTRIES:
                _remove_stale(heap)

    def let_go(self, request: DequeueRequest) -> None:
        """Hold a request no longer; may be called of one that is not held."""
        if request.held_as:
            request.held_as = 0
            self.counts.held -= 1

    @property
    def next_at(self) -> float | None:
        """When `due` is to be called, on the caller's clock; None while no request is held."""
        heap = self._by_time
        while heap and heap[0][-1].held_as != heap[0][-2]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[DequeueRequest]:
        """Return the requests that are to make a round because their time has come."""
        found: list[DequeueRequest] = []
        while (at := self.next_at) is not None and at <= now:
            request = heapq.heappop(self._by_time)[-1]
            self.let_go(request)
            found.append(request)
        return found

    def arrived(self) -> list[DequeueRequest]:
        """Return the requests that are to make a round because there are messages for them.

        Those that need fewest come first, and of these the one that waits longest.
        """
        found: list[DequeueRequest] = []
        if not self.counts.held:
            return found
        left = sum(self.lengths().values())
        left = self._wake(self._by_need, left, left, found)
        if self._by_bytes:
            self._wake(self._by_bytes, self.stored_bytes(), left, found)
        return found

    def _wake(
        self,
        heap: list[tuple[int, int, int, DequeueRequest]],
        reached: int,
        left: int,
        found: list[DequeueRequest],
    ) -> int:
        """Wake requests whose needs are met.

        Args:
            heap: the needs, and the requests that have them.
            reached: needs that are met; less where messages of `left` are given out.
            left: messages that are there.
            found: gets the requests.

        Returns:
            The messages that are left.
        """
        while heap and left > 0:
            needed, _, entry, request = heap[0]
            if request.held_as == entry:
                if needed > reached or request.needed > left:
                    break
                self.let_go(request)
                found.append(request)
                left -= request.missing
                if heap is self._by_need:
                    reached = left
            heapq.heappop(heap)
        return left


def _remove_stale(heap: list[Any]) -> None:
    """Remove entries of requests that are held no longer, or by another entry."""
    heap[:] = [each for each in heap if each[-1].held_as == each[-2]]
    heapq.heapify(heap)


class DequeueRequest:
    """One request of a back-end system; the module's docstring shows how to drive it.

    Attributes:
        number: the number of the request, in the order in which they began.
        missing: messages that may still be found.
        found: messages found in this round.
        found_bytes: their payload bytes.
        min_bytes: payload bytes that it waits for.
        needed: messages that must be there for another round.
        needed_bytes: payload bytes that must have been stored ever for another round, where it
            waits for bytes.
        stored_bytes: the bytes that were ever stored when this round began.
        visible: messages that were there when this round began.
        answer_by: when the client's wait ends, on the caller's clock.
        held_as: number of its entry while it is held; 0 else.
    """

    __slots__ = (
        "_controller",
        "_has_ended",
        "_is_full",
        "_max_messages",
        "_tries",
        "_trying",
        "answer_by",
        "found",
        "found_bytes",
        "held_as",
        "min_bytes",
        "min_messages",
        "missing",
        "needed",
        "needed_bytes",
        "number",
        "stored_bytes",
        "visible",
    )

    def __init__(
        self,
        controller: DequeueController,
        number: int,
        max_messages: int,
        min_messages: int,
        min_bytes: int,
        answer_by: float,
    ) -> None:
        self.number = number
        self.missing = self._max_messages = max_messages
        self.found = 0
        self.found_bytes = 0
        self.min_messages = min_messages
        self.min_bytes = min_bytes
        self.needed = 1 if min_bytes else min_messages
        self.needed_bytes = 0
        self.stored_bytes = 0
        self.visible = 0
        self.answer_by = answer_by
        self.held_as = 0
        self._controller = controller
        self._tries: Iterator[int] | None = None
        self._trying = -1
        self._is_full = False
        self._has_ended = False

    @property
    def place(self) -> tuple[int, int]:
        """Its place among held requests of the same needs, and the number of its entry."""
        return self.number, self.held_as

    @property
    def has_enough(self) -> bool:
        """Whether the client need not wait for more."""
        if self._is_full or not self.missing:
            return True
        return self.found >= self.min_messages and self.found_bytes >= self.min_bytes

    def next_try(self, now: float) -> int | None:
        """Return the physical queue to try next; None when this round is over."""
        if self._is_full or not self.missing:
            return None
        if self._tries is None:
            self._tries = self._controller.strategy.tries(self._controller, self, now)
        number = next(self._tries, None)
        if number is not None:
            self._trying = number
        return number

    def tried(self, found: int, found_bytes: int = 0, *, is_full: bool = False) -> None:
        """Report what a try found."""
        counts = self._controller.counts
        if found:
            counts.hit_dequeues += 1
        else:
            counts.missed_dequeues += 1
        self._controller.strategy.tried(self._trying, found)
        if self._controller.local_first is not None:
            self._controller.local_first.tried(self._trying, found)
        self.found += found
        self.found_bytes += found_bytes
        self.missing -= found
        self._is_full = is_full

    def decide(self, now: float) -> bool:
        """Say whether to answer now; else the request is held, and gives back what it found."""
        counts = self._controller.counts
        retry_at = self._controller.strategy.retry_at(self, now)
        if retry_at is None:
            counts.messages += self.found
            return True
        counts.retries += 1
        self.missing = self._max_messages
        self.found = self.found_bytes = 0
        self._tries = None
        self._controller.hold(self, retry_at)
        return False

    def end(self) -> None:
        """The request was answered or its client has left; may be called again."""
        if not self._has_ended:
            self._has_ended = True
            self._controller.let_go(self)
            self._controller.waiting -= 1
