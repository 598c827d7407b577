from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.enqueue import EnqueueController


def test_messages_go_to_each_physical_queue_in_turn() -> None:
    """E-Ctrl stores round robin (paper 000), and the turn goes on over calls."""
    controller = EnqueueController(3)
    assert controller.deal("abcd") == {0: "ad", 1: "b", 2: "c"}
    assert controller.deal("ef") == {1: "e", 2: "f"}
    assert controller.deal("g") == {0: "g"}


def test_nothing_is_dealt_from_nothing() -> None:
    """An empty group touches no physical queue and no turn."""
    controller = EnqueueController(2)
    assert controller.deal([]) == {}
    assert controller.deal("a") == {0: "a"}


@given(st.integers(1, 9), st.lists(st.integers(0, 30), max_size=20))
def test_placement_does_not_depend_on_grouping(n: int, sizes: list[int]) -> None:
    """However messages are grouped, each goes where it would alone, and loads differ by one."""
    grouped, alone = EnqueueController(n), EnqueueController(n)
    messages = iter(range(sum(sizes)))
    load: Counter[int] = Counter(dict.fromkeys(range(n), 0))
    for size in sizes:
        group = [next(messages) for _ in range(size)]
        places = {one: number for number, dealt in grouped.deal(group).items() for one in dealt}
        for one in group:
            assert alone.deal([one]) == {places[one]: [one]}
            load[places[one]] += 1
    assert max(load.values()) - min(load.values()) <= 1
