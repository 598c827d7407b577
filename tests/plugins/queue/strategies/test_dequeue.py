from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.strategies.dequeue import (
    Conventional,
    DequeueController,
    DequeueRequest,
    make_strategy,
)
from penstock.plugins.queue.strategies.local_first import LocalFirst

NAMES = ("conventional", "pms", "rds", "rds+wake")


class Queues:
    """Physical queues of these lengths, and a controller for them.

    Attributes:
        lengths: messages by number.
        controller: of the strategy.
        stored_bytes: that were ever stored.
    """

    def __init__(
        self,
        strategy: str,
        *lengths: int,
        tries: int = 3,
        sleep_time: float = 0.5,
        size: int = 1,
        local: Collection[int] = (),
    ) -> None:
        self.lengths = dict(enumerate(lengths))
        self.controller = DequeueController(
            range(len(lengths)),
            make_strategy(strategy, sleep_time),
            self.visible,
            tries,
            lambda: self.stored_bytes,
            LocalFirst(local.__contains__) if local else None,
        )
        self.stored_bytes = 0
        self._size = size

    def visible(self) -> dict[int, int]:
        """Return the lengths as an engine does."""
        return {number: length for number, length in self.lengths.items() if length}

    def round(self, request: DequeueRequest, now: float = 0.0) -> list[int]:
        """Make one round of tries; return which were tried."""
        tried: list[int] = []
        while (number := request.next_try(now)) is not None:
            found = min(self.lengths[number], request.missing)
            self.lengths[number] -= found
            request.tried(found, found * self._size)
            tried.append(number)
        return tried

    def held(self, max_messages: int, wait_seconds: float, **more: int) -> DequeueRequest:
        """Begin a request that is held after its first round."""
        request = self.controller.begin(max_messages, 0.0, wait_seconds, **more)
        self.round(request)
        assert not request.decide(0.0)
        return request


def test_tries_go_round_robin_over_requests() -> None:
    """All requests of a D-Ctrl share one round over the physical queues (paper 000)."""
    queues = Queues("conventional", 0, 0, 0, 0)
    begin = queues.controller.begin
    assert queues.round(begin(10, 0.0, 0.0)) == [0, 1, 2]
    assert queues.round(begin(10, 0.0, 0.0)) == [3, 0, 1]


def test_tries_end_when_n_max_is_found() -> None:
    """A round tries no further queue once it has N_max messages."""
    queues = Queues("rds", 2, 7, 7)
    request = queues.controller.begin(5, 0.0, 0.0)
    assert queues.round(request) == [0, 1]
    assert (request.found, request.missing) == (5, 0)


@pytest.mark.parametrize("name", NAMES)
def test_tries_end_when_the_answer_is_full(name: str) -> None:
    """A round tries no further queue once the answer can hold no more bytes, and answers."""
    queues = Queues(name, 3, 3, 3)
    request = queues.controller.begin(5, 0.0, 9.0, min_messages=5)
    request.next_try(0.0)
    request.tried(1, 1, is_full=True)
    assert request.next_try(0.0) is None
    assert request.decide(0.0)


@pytest.mark.parametrize("name", NAMES)
def test_no_more_tries_than_physical_queues(name: str) -> None:
    """A physical queue is not tried twice in one round."""
    queues = Queues(name, 1, 1)
    assert queues.round(queues.controller.begin(10, 0.0, 0.0)) == [0, 1]


def test_hits_and_misses_are_counted() -> None:
    """A try that finds something is a hit dequeue, one that does not a missed dequeue."""
    queues = Queues("conventional", 4, 0, 3)
    request = queues.controller.begin(10, 0.0, 0.0)
    queues.round(request)
    assert request.decide(0.0)
    counts = queues.controller.counts
    assert (counts.hit_dequeues, counts.missed_dequeues) == (2, 1)
    assert (counts.requests, counts.messages) == (1, 7)


@pytest.mark.parametrize("name", NAMES)
def test_request_without_a_wait_gets_one_round(name: str) -> None:
    """A client that waits 0 seconds is answered with what is there, or with nothing."""
    queues = Queues(name, 0, 0, 0)
    request = queues.controller.begin(1, 7.0, 0.0, min_messages=1)
    queues.round(request, 7.0)
    assert request.decide(7.0)


def test_conventional_answers_at_once_with_nothing() -> None:
    """Conventional dequeue takes no account of the client's wait."""
    queues = Queues("conventional", 0, 0, 0)
    request = queues.controller.begin(10, 0.0, 60.0)
    queues.round(request)
    assert request.decide(0.1)


def test_rds_retries_after_sleep_time_until_the_wait_ends() -> None:
    """RDS holds a request that missed; its last retry is when the client's wait ends."""
    queues = Queues("rds", 0, 0, sleep_time=0.4)
    controller = queues.controller
    request = controller.begin(10, 100.0, 1.0)
    retries = []
    now = 100.0
    while True:
        assert len(queues.round(request, now)) == 2
        if request.decide(now):
            break
        assert controller.next_at is not None
        now = controller.next_at
        assert controller.due(math.nextafter(now, 0.0)) == []
        assert controller.due(now) == [request]
        retries.append(now)
    assert retries == pytest.approx([100.4, 100.8, 101.0])
    assert controller.counts.retries == 3
    assert controller.counts.missed_dequeues == 8


def test_rds_answers_as_soon_as_something_is_found() -> None:
    """RDS holds a request only while all its tries have missed."""
    queues = Queues("rds", 0, 0, 0, 0)
    request = queues.held(10, 60.0)
    assert queues.controller.next_at == pytest.approx(0.5)
    queues.controller.due(0.5)
    queues.lengths[3] = 1
    queues.round(request, 0.5)
    assert request.decide(0.5)
    assert request.found == 1


def test_pms_tries_the_longest_first() -> None:
    """PMS goes by the lengths of its last poll, less what it has received itself."""
    queues = Queues("pms", 1, 9, 0, 5, tries=2)
    begin = queues.controller.begin
    assert queues.round(begin(4, 0.0, 0.0)) == [1]
    assert queues.round(begin(20, 0.1, 0.0)) == [1, 3]
    queues.lengths[2] = 50
    assert queues.round(begin(20, 0.2, 0.0), 0.2) == [0]
    assert queues.round(begin(20, 0.5, 0.0), 0.5) == [2]
    assert queues.controller.counts.polls == 2


def test_pms_holds_requests_until_a_queue_has_enough() -> None:
    """Where no physical queue has the minimum, PMS waits for the next poll."""
    queues = Queues("pms", 3, 4)
    request = queues.held(10, 1.2, min_messages=5)
    for now in (0.5, 1.0):
        assert queues.controller.next_at == pytest.approx(now)
        assert queues.controller.due(now) == [request]
        assert queues.round(request, now) == []
        assert not request.decide(now)
    queues.controller.due(1.2)
    assert queues.round(request, 1.2) == [1, 0]
    assert request.decide(1.2)


def test_pms_takes_a_missed_queue_for_empty() -> None:
    """A queue that others have emptied is not tried again before the next poll."""
    queues = Queues("pms", 9, 2, tries=1)
    begin = queues.controller.begin
    queues.controller.lengths()
    queues.round(begin(1, 0.0, 0.0))
    queues.lengths[0] = 0
    assert queues.round(begin(1, 0.1, 0.0), 0.1) == [0]
    assert queues.round(begin(1, 0.2, 0.0), 0.2) == [1]


def test_wake_tries_only_queues_that_have_messages() -> None:
    """An arrival signal makes no missed dequeue, and the turn goes round."""
    queues = Queues("rds+wake", 0, 5, 0, 5, 0, 5)
    begin = queues.controller.begin
    assert queues.round(begin(1, 0.0, 0.0)) == [1]
    assert queues.round(begin(7, 0.0, 0.0)) == [3, 5]
    assert queues.round(begin(9, 0.0, 0.0)) == [1, 5]
    assert queues.controller.counts.missed_dequeues == 0


def test_arrival_wakes_as_many_requests_as_it_can_serve() -> None:
    """Messages go to the request that waits longest; the others stay held."""
    queues = Queues("rds+wake", 0, 0)
    first, second, third = (queues.held(2, 10.0) for _ in range(3))
    assert queues.controller.arrived() == []
    queues.lengths[1] = 3
    assert queues.controller.arrived() == [first, second]
    assert queues.round(first) == [1]
    assert queues.round(second) == [1]
    assert first.decide(0.0)
    assert second.decide(0.0)
    assert queues.controller.counts.held == 1
    assert queues.controller.due(10.0) == [third]


def test_wake_holds_a_request_until_its_minimum_is_there() -> None:
    """The minimum counts all physical queues together, even more than a round tries."""
    queues = Queues("rds+wake", *[1] * 9, tries=2)
    request = queues.held(20, 10.0, min_messages=10)
    assert queues.controller.arrived() == []
    queues.lengths[0] += 1
    assert queues.controller.arrived() == [request]
    assert len(queues.round(request)) == 9
    assert request.decide(0.0)
    assert request.found == 10


def test_smaller_minimum_is_served_before_a_larger_one() -> None:
    """A request that waits for many does not keep messages from one that takes what comes."""
    queues = Queues("rds+wake", 0)
    many, few = queues.held(10, 10.0, min_messages=10), queues.held(10, 10.0)
    queues.lengths[0] = 3
    assert queues.controller.arrived() == [few]
    queues.round(few)
    queues.lengths[0] = 10
    assert queues.controller.arrived() == [many]


def test_wake_answers_with_less_than_the_minimum_when_the_wait_ends() -> None:
    """At the end of its wait a request gets what is there."""
    queues = Queues("rds+wake", 2)
    request = queues.held(10, 10.0, min_messages=5)
    assert queues.controller.due(10.0) == [request]
    queues.round(request, 10.0)
    assert request.decide(10.0)
    assert request.found == 2


def test_wake_holds_a_request_until_its_bytes_are_there() -> None:
    """What a round found is given back while it is less, and then so much must be stored."""
    queues = Queues("rds+wake", 1, size=10)
    request = queues.held(100, 10.0, min_bytes=200)
    queues.lengths[0] = 1
    assert queues.controller.arrived() == []
    for stored in range(18):
        queues.lengths[0] += 1
        queues.stored_bytes += 10
        assert queues.controller.arrived() == [], stored
    queues.lengths[0] += 1
    queues.stored_bytes += 10
    assert queues.controller.arrived() == [request]
    queues.lengths[0] -= 5  # another one was faster
    queues.round(request)
    assert not request.decide(0.0)
    queues.lengths[0] = 19
    assert queues.controller.arrived() == []
    queues.lengths[0] += 1
    queues.stored_bytes += 50
    assert queues.controller.arrived() == [request]
    queues.round(request)
    assert request.decide(0.0)
    assert request.found_bytes == 200


def test_request_that_is_refused_what_was_visible_is_not_woken_by_its_own_give_back() -> None:
    """Messages that seemed to be there and are not for this group do not make it spin."""
    queues = Queues("rds+wake", 5)
    request = queues.controller.begin(10, 0.0, 10.0, min_messages=5)
    assert request.next_try(0.0) == 0
    request.tried(3, 3)
    assert request.next_try(0.0) is None
    assert not request.decide(0.0)
    assert queues.controller.arrived() == []
    queues.lengths[0] = 8
    assert queues.controller.arrived() == []
    queues.lengths[0] = 9
    assert queues.controller.arrived() == [request]


def test_held_requests_are_one_entry_each() -> None:
    """Requests that come and go while others are held leave nothing behind."""
    queues = Queues("rds+wake", 0)
    held = [queues.held(1, 1e6) for _ in range(10)]
    for _ in range(5_000):
        queues.held(1, 1e6).end()
    assert queues.controller.counts.held == 10
    assert len(queues.controller._by_time) < 2_000
    assert len(queues.controller._by_need) < 2_000
    assert queues.controller.due(1e6) == held
    assert queues.controller.next_at is None


def test_arrival_looks_at_no_request_that_it_does_not_wake() -> None:
    """With ten thousand held requests, a message costs what it does with one."""
    queues = Queues("rds+wake", 0)
    requests = [queues.held(1, 1e6) for _ in range(10_000)]
    queues.lengths[0] = 1
    assert queues.controller.arrived() == requests[:1]
    assert len(queues.controller._by_need) == 9_999


def test_each_strategy_has_counts_of_its_own() -> None:
    """What a strategy costs is not mixed with what another one did before."""
    queues = Queues("rds", 0)
    controller = queues.controller
    held = queues.held(1, 9.0)
    assert controller.change_strategy(make_strategy("rds+wake", 1.0)) == [held]
    queues.lengths[0] = 1
    queues.round(held)
    assert held.decide(0.0)
    rds, wake = controller.counts_by_strategy["rds"], controller.counts_by_strategy["rds+wake"]
    assert (rds.requests, rds.missed_dequeues, rds.hit_dequeues, rds.held) == (1, 1, 0, 0)
    assert (wake.requests, wake.missed_dequeues, wake.hit_dequeues, wake.messages) == (0, 0, 1, 1)
    controller.change_strategy(make_strategy("rds", 1.0))
    assert controller.counts is rds


@pytest.mark.parametrize("name", NAMES)
def test_waiting_requests_are_counted_until_they_end(name: str) -> None:
    """A request waits from its begin to its end, and ends once."""
    controller = Queues(name, 0).controller
    first, second = controller.begin(1, 0.0, 0.0), controller.begin(1, 0.0, 0.0)
    assert controller.waiting == 2
    first.end()
    first.end()
    assert controller.waiting == 1
    second.end()
    assert (controller.waiting, controller.counts.held) == (0, 0)


def test_physical_queues_may_change() -> None:
    """A queue that is given more physical queues has all of them tried."""
    queues = Queues("rds", 0, 0)
    queues.round(queues.controller.begin(1, 0.0, 0.0))
    queues.lengths = dict.fromkeys(range(4), 0)
    queues.controller.physical_queues = range(4)
    assert queues.round(queues.controller.begin(1, 0.0, 0.0)) == [0, 1, 2]


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.integers(1, 30),
    st.integers(1, 10),
    st.sampled_from(NAMES),
    st.integers(1, 5),
)
def test_found_messages_are_those_that_left_the_queues(
    lengths: Sequence[int], n_max: int, max_tries: int, name: str, minimum: int
) -> None:
    """No answer has more than N_max, and what it has is what its tries took."""
    queues = Queues(name, *lengths, tries=max_tries)
    request = queues.controller.begin(n_max, 0.0, 0.0, min_messages=minimum)
    tried = queues.round(request)
    assert request.found == sum(lengths) - sum(queues.lengths.values()) <= n_max
    assert len(tried) == len(set(tried))
    counts = queues.controller.counts
    assert counts.hit_dequeues + counts.missed_dequeues == len(tried)
    assert request.decide(0.0)
    if name != "rds+wake":
        assert len(tried) <= max_tries


def test_rds_is_conventional_with_a_retry() -> None:
    """Both try blindly, so that a comparison changes one thing."""
    assert isinstance(make_strategy("rds", 0.1), Conventional)


@pytest.mark.parametrize("strategy", NAMES)
def test_near_physical_queues_are_emptied_first(strategy: str) -> None:
    """Whatever the strategy, and the others behind them (paper 001, 3.3.1.1)."""
    queues = Queues(strategy, 6, 2, 5, 3, tries=2, local={1, 3})
    first = queues.controller.begin(5, 0.0, 0.0)
    assert sorted(queues.round(first)) == [1, 3]
    assert list(queues.lengths.values()) == [6, 0, 5, 0]
    for _ in range(10):
        queues.round(queues.controller.begin(4, 1.0, 0.0))
    assert not any(queues.lengths.values())
