from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.dequeue import (
    Conventional,
    DequeueController,
    DequeueRequest,
    DequeueStrategy,
    RetryDequeueRequest,
)


def drive_round(request: DequeueRequest, lengths: dict[int, int]) -> list[int]:
    """Make one round of tries on queues of these lengths; return which were tried."""
    tried: list[int] = []
    while (number := request.next_try()) is not None:
        found = min(lengths[number], request.missing)
        lengths[number] -= found
        request.tried(found)
        tried.append(number)
    return tried


def test_tries_go_round_robin_over_requests() -> None:
    """All requests of a D-Ctrl share one round over the physical queues (paper 000)."""
    controller = DequeueController(range(4), Conventional(), 3)
    empty = dict.fromkeys(range(4), 0)
    assert drive_round(controller.begin(10, 0.0, 0.0), empty) == [0, 1, 2]
    assert drive_round(controller.begin(10, 0.0, 0.0), empty) == [3, 0, 1]


def test_tries_end_when_n_max_is_found() -> None:
    """A round tries no further queue once it has N_max messages."""
    controller = DequeueController(range(3), Conventional(), 3)
    request = controller.begin(5, 0.0, 0.0)
    assert drive_round(request, {0: 2, 1: 7, 2: 7}) == [0, 1]
    assert (request.found, request.missing) == (5, 0)


def test_tries_end_when_the_answer_is_full() -> None:
    """A round tries no further queue once the answer can hold no more bytes."""
    request = DequeueController(range(3), Conventional(), 3).begin(5, 0.0, 0.0)
    request.next_try()
    request.tried(1, is_full=True)
    assert request.next_try() is None


def test_no_more_tries_than_physical_queues() -> None:
    """A physical queue is not tried twice in one round."""
    request = DequeueController([0, 5], Conventional(), 3).begin(10, 0.0, 0.0)
    assert drive_round(request, {0: 0, 5: 0}) == [0, 5]


def test_hits_and_misses_are_counted() -> None:
    """A try that finds something is a hit dequeue, one that does not a missed dequeue."""
    controller = DequeueController(range(3), Conventional(), 3)
    drive_round(controller.begin(10, 0.0, 0.0), {0: 4, 1: 0, 2: 3})
    assert (controller.hit_dequeues, controller.missed_dequeues) == (2, 1)
    assert (controller.requests, controller.messages) == (1, 7)


def test_conventional_answers_at_once_with_nothing() -> None:
    """Conventional dequeue takes no account of the client's wait."""
    request = DequeueController(range(3), Conventional(), 3).begin(10, 0.0, 60.0)
    drive_round(request, dict.fromkeys(range(3), 0))
    assert request.decide(0.1) is None


def test_rds_retries_after_sleep_time_until_the_wait_ends() -> None:
    """RDS keeps a request that missed; its last retry is when the client's wait ends."""
    controller = DequeueController(range(2), RetryDequeueRequest(0.4), 3)
    request = controller.begin(10, 100.0, 1.0)
    lengths = {0: 0, 1: 0}
    retries = []
    now = 100.0
    while True:
        assert len(drive_round(request, lengths)) == 2
        retry_at = request.decide(now)
        if retry_at is None:
            break
        retries.append(retry_at)
        now = retry_at
    assert retries == pytest.approx([100.4, 100.8, 101.0])
    assert controller.retries == 3
    assert controller.missed_dequeues == 8


def test_rds_answers_as_soon_as_something_is_found() -> None:
    """RDS holds a request only while all its tries have missed."""
    controller = DequeueController(range(4), RetryDequeueRequest(0.5), 3)
    request = controller.begin(10, 0.0, 60.0)
    drive_round(request, dict.fromkeys(range(4), 0))
    assert request.decide(0.0) == pytest.approx(0.5)
    drive_round(request, {0: 0, 1: 0, 2: 0, 3: 1})
    assert request.decide(0.5) is None
    assert request.found == 1


def test_rds_without_a_wait_answers_at_once() -> None:
    """A client that waits 0 seconds gets one round of tries."""
    request = DequeueController(range(4), RetryDequeueRequest(0.5), 3).begin(1, 7.0, 0.0)
    drive_round(request, dict.fromkeys(range(4), 0))
    assert request.decide(7.0) is None


def test_waiting_requests_are_counted_until_they_end() -> None:
    """A request waits from its begin to its end, and ends once."""
    controller = DequeueController(range(1), Conventional(), 3)
    first, second = controller.begin(1, 0.0, 0.0), controller.begin(1, 0.0, 0.0)
    assert controller.waiting == 2
    first.end()
    first.end()
    assert controller.waiting == 1
    second.end()
    assert controller.waiting == 0


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.integers(1, 30),
    st.integers(1, 10),
    st.sampled_from([Conventional(), RetryDequeueRequest(0.5)]),
)
def test_found_messages_are_those_that_left_the_queues(
    lengths: Sequence[int], n_max: int, max_tries: int, strategy: DequeueStrategy
) -> None:
    """No answer has more than N_max, and what it has is what its tries took."""
    queues = dict(enumerate(lengths))
    controller = DequeueController(list(queues), strategy, max_tries)
    request = controller.begin(n_max, 0.0, 0.0)
    tried = drive_round(request, queues)
    assert request.found == sum(lengths) - sum(queues.values()) <= n_max
    assert len(tried) <= min(max_tries, len(lengths))
    assert controller.hit_dequeues + controller.missed_dequeues == len(tried)
