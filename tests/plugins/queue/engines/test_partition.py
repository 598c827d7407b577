from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.engines.partition import (
    Delays,
    PhysicalQueue,
    bits_below,
    each_bit,
    repeats_in,
    sum_of,
    trailing_ones,
)
from penstock.plugins.queue.engines.store import PhysicalRow


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 20))
def test_bits_below_are_those_of_lower_offsets(first: int, n: int, offset: int) -> None:
    """None for a segment behind the offset, all for one before it."""
    bits = bits_below(first, n, offset)
    assert list(each_bit(bits)) == [index for index in range(n) if first + index < offset]


@given(st.sets(st.integers(0, 300)))
def test_each_bit_is_told_once_in_order(numbers: set[int]) -> None:
    """However long the map."""
    assert list(each_bit(sum(1 << number for number in numbers))) == sorted(numbers)


@pytest.mark.parametrize(("bits", "n"), [(0, 0), (0b1, 1), (0b10, 0), (0b1011, 2), (2**99 - 1, 99)])
def test_trailing_ones_end_at_the_first_gap(bits: int, n: int) -> None:
    """The floor of a group goes so far."""
    assert trailing_ones(bits) == n


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.data())
def test_sizes_are_summed_by_a_bit_map(sizes: list[int], data: st.DataObject) -> None:
    """Whether its bits follow each other or not."""
    bits = data.draw(st.integers(1, (1 << len(sizes)) - 1))
    assert sum_of(sizes, bits) == sum(sizes[index] for index in each_bit(bits))


def test_repeats_are_all_but_the_first_of_each_offset() -> None:
    """By their places."""
    assert repeats_in([5, 7, 5, 5, 8, 7], 100) == [102, 103, 105]
    assert repeats_in([], 0) == []


def test_delays_are_forgotten_when_all_of_a_segment_are_over() -> None:
    """So that a snapshot need not look at them."""
    physical = PhysicalQueue(PhysicalRow(1, 1, 0, 0, 0, 0, 0, 0))
    late = Delays([9.0, 5.0], [5.0, 9.0])
    physical.delays = {0: late, 2: Delays([3.0], [3.0])}
    physical.forget_delays(5.0)
    assert physical.delays == {0: late}
    assert (late.n_waiting(5.0, 0), late.n_waiting(5.0, 1), late.n_waiting(4.0, 1)) == (1, 0, 1)
    assert physical.gone_bits(0) == 0
