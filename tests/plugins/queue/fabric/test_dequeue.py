from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.fabric.dequeue import ROUNDS_FOR_OTHERS, LocalFirst


def test_local_ones_come_first_in_turn() -> None:
    """Then those of other machines (paper 001, 3.3.1.1), and last what does not answer."""
    order = LocalFirst[str](lambda target: target in "AB")
    assert order.round("ABCD") == list("ABCD")
    assert order.round("ABCD") == list("BACD")
    assert order.round("ABCD") == list("ABCD")
    assert order.round("ABCD", away="AC") == list("BDAC")
    assert order.round([]) == []


@given(st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_no_physical_queue_is_left_waiting(n: int, local: set[int]) -> None:
    """Each is first in a round at least once in as many rounds as it takes, however busy others."""
    order = LocalFirst[int](lambda target: target in local)
    rounds = [order.round(range(n)) for _ in range(ROUNDS_FOR_OTHERS * n)]
    assert all(sorted(one) == list(range(n)) for one in rounds)
    assert {one[0] for one in rounds} == set(range(n))


@given(st.integers(1, 8))
def test_a_machine_without_masters_goes_in_turn(n: int) -> None:
    """As round robin does."""
    order = LocalFirst[int](set[int]().__contains__)
    firsts = [order.round(range(n))[0] for _ in range(ROUNDS_FOR_OTHERS - 1)]
    assert firsts == [number % n for number in range(ROUNDS_FOR_OTHERS - 1)]
