from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.engines.partition import PhysicalQueue, bits_below
from penstock.plugins.queue.engines.planning import plan_end
from penstock.plugins.queue.engines.store import PhysicalRow, Segment


def part(number: int, sizes: list[int], gone: dict[int, int] | None = None) -> PhysicalQueue:
    """Return a physical queue with segments of 100 bytes."""
    n = sum(sizes)
    made = PhysicalQueue(PhysicalRow(number, 1, number, 0, n, n, n, 100 * len(sizes)))
    first = 0
    for size in sizes:
        made.index.append(Segment(first, size, size, 100, 0.0, 0.0, 0))
        first += size
    for first_offset, bits in (gone or {}).items():
        made.gone[first_offset] = (bits, 0)
    return made


def parts(*sizes: list[int]) -> dict[int, PhysicalQueue]:
    """Return physical queues."""
    return {number: part(number, one) for number, one in enumerate(sizes)}


def n_messages(physical: PhysicalQueue, end: int) -> int:
    """Count the messages below an end."""
    return sum(
        (
            bits_below(one.first_offset, one.n_messages, end)
            & ~physical.gone_bits(one.first_offset)
        ).bit_count()
        for one in physical.index
    )


def test_no_limits_mean_everything() -> None:
    """Up to the next offset of each."""
    assert plan_end(parts([3, 4], []), {}, None, None) == {0: 7, 1: 0}


def test_shares_are_in_proportion_to_what_waits() -> None:
    """A reader with a backlog comes to about the same time in all."""
    assert plan_end(parts([10], [10]), {}, 6, None) == {0: 3, 1: 3}
    assert plan_end(parts([20], [10]), {}, 6, None) == {0: 4, 1: 2}
    assert plan_end(parts([20], [10]), {0: 15}, 6, None) == {0: 17, 1: 4}
    assert plan_end(parts([1], [10]), {}, 6, None) == {0: 0, 1: 6}
    # What one does not use, as its messages left, is for the others.
    assert plan_end({0: part(0, [8], {0: 0b11111100}), 1: part(1, [8])}, {}, 8, None) == {
        0: 8,
        1: 6,
    }
    assert plan_end(parts([10], [10], [10]), {}, 2, None) in (
        {0: 1, 1: 1, 2: 0},
        {0: 1, 1: 0, 2: 1},
    )


def test_a_range_ends_where_it_is_to_end() -> None:
    """What came later is not read, nor does it take a share; what is not named is not read."""
    assert plan_end(parts([10], [10]), {}, None, None, {0: 4}) == {0: 4, 1: 0}
    assert plan_end(parts([3, 7], [10]), {0: 1}, 6, None, {0: 4, 1: 9}) == {0: 2, 1: 5}
    assert plan_end(parts([3, 3]), {}, None, 100, {0: 4}) == {0: 3}
    assert plan_end(parts([3, 3]), {0: 3}, None, 100, {0: 4}) == {0: 4}


def test_messages_that_left_do_not_count() -> None:
    """The range goes on until it has so many."""
    assert plan_end({0: part(0, [8], {0: 0b0110})}, {}, 3, None) == {0: 5}


def test_bytes_count_by_segments() -> None:
    """One is taken where no share holds it."""
    assert plan_end(parts([3, 3, 3]), {}, None, 200) == {0: 6}
    assert plan_end(parts([3, 3], [3, 3]), {}, None, 50) == {0: 3, 1: 0}
    assert plan_end(parts([3, 3], [3, 3]), {}, None, 150) == {0: 3, 1: 0}


@given(
    st.lists(st.lists(st.integers(1, 5), max_size=5), min_size=1, max_size=4),
    st.integers(1, 30),
    st.integers(1, 1500),
)
def test_limits_are_kept_and_something_is_planned(
    sizes: list[list[int]], max_messages: int, max_bytes: int
) -> None:
    """Repeated, the ranges come to the end."""
    made = parts(*sizes)
    start: dict[int, int] = {}
    for _ in range(200):
        end = plan_end(made, start, max_messages, max_bytes)
        taken = sum(
            n_messages(made[number], at) - n_messages(made[number], start.get(number, 0))
            for number, at in end.items()
        )
        assert taken <= max_messages
        if all(end[number] == made[number].next for number in made):
            return
        assert taken > 0
        start = end
    raise AssertionError("it comes to no end")
