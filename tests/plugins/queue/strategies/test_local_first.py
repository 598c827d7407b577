from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.strategies.local_first import ROUNDS_FOR_OTHERS, LocalFirst


def tried(order: LocalFirst, targets: Sequence[int], lengths: Sequence[int], tries: int = 1) -> int:
    """Make one round of tries; return which was the first."""
    numbers = order.round(targets)
    for number in numbers[:tries]:
        order.trying(number)
        order.tried(number, lengths[number])
    return numbers[0]


def test_local_ones_come_first_in_turn() -> None:
    """Then those of other machines (paper 001, 3.3.1.1)."""
    order = LocalFirst({1, 3}.__contains__)
    full = [1] * 4
    assert order.round(range(4)) == [1, 3, 0, 2]
    assert [tried(order, range(4), full) for _ in range(3)] == [1, 3, 1]
    assert order.round([0, 2]) == [0, 2]
    assert order.round([]) == []


def test_others_come_when_local_ones_are_empty() -> None:
    """An empty local one is tried in turn with the others until it has something."""
    order = LocalFirst({0}.__contains__)
    lengths = [0, 1, 1]
    assert [tried(order, range(3), lengths) for _ in range(6)] == [0, 0, 1, 2, 0, 1]
    lengths[0] = 1
    assert [tried(order, range(3), lengths) for _ in range(3)] == [2, 0, 0]


@given(st.integers(1, 8), st.sets(st.integers(0, 7)), st.integers(1, 3))
def test_no_physical_queue_is_left_waiting(n: int, local: set[int], tries: int) -> None:
    """Each is first in a round at least once in as many rounds as it takes, however busy others."""
    order = LocalFirst(local.__contains__)
    lengths = [1] * n
    for _ in range(ROUNDS_FOR_OTHERS * n):
        numbers = order.round(range(n))
        assert sorted(numbers) == list(range(n))
        for number in numbers[:tries]:
            order.trying(number)
            order.tried(number, 1)
            lengths[number] = 0
    assert not any(lengths)


@given(st.integers(1, 8))
def test_a_machine_without_masters_goes_in_turn(n: int) -> None:
    """As round robin does."""
    order = LocalFirst(set[int]().__contains__)
    firsts = [tried(order, range(n), [1] * n) for _ in range(3 * ROUNDS_FOR_OTHERS)]
    assert firsts == [number % n for number in range(3 * ROUNDS_FOR_OTHERS)]
