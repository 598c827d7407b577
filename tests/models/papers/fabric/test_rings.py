from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.models.papers.fabric.rings import CLOCKWISE, Direction, RingQueue, Rings

FIVE = Rings("ABCDE")
NODES = st.lists(st.text("abcdefgh", min_size=1, max_size=3), unique=True, min_size=3, max_size=12)


def test_copies_follow_the_direction_of_their_ring() -> None:
    """Clockwise in ring 1, counter-clockwise in ring 2 (paper 001, figure 3.7)."""
    assert FIVE.holders(RingQueue(0, "C")) == ("C", "D", "E")
    assert FIVE.holders(RingQueue(1, "C")) == ("C", "B", "A")
    assert FIVE.takeover_order(RingQueue(1, "A")) == ("A", "E", "D", "C", "B")
    assert [str(queue) for queue in FIVE.queues[:3]] == ["Q1-A", "Q2-A", "Q1-B"]


@pytest.mark.parametrize(
    ("directions", "loads"),
    [
        ((CLOCKWISE, CLOCKWISE), {"A": 2, "B": 2, "E": 6}),
        ((CLOCKWISE, -CLOCKWISE), {"A": 2, "B": 4, "E": 4}),
    ],
)
def test_load_of_two_failed_neighbours(
    directions: tuple[Direction, Direction], loads: dict[str, int]
) -> None:
    """C and D away: one node has that of three, or two have that of two (paper 001, 3.3.2.2)."""
    rings = Rings("ABCDE", directions)
    assert Counter(rings.masters(away="CD").values()) == loads


def test_nobody_is_master_where_all_are_away() -> None:
    """Two of three copies are enough for a master, none is not."""
    three = Rings("ABC")
    assert set(three.masters(away="AB").values()) == {"C"}
    assert three.masters(away="ABC") == {}


@given(NODES, st.data())
def test_every_physical_queue_has_three_distinct_nodes(
    nodes: list[str], data: st.DataObject
) -> None:
    """As long as three are there, whichever are away; its home is first if it is there."""
    rings = Rings(nodes)
    away = data.draw(st.sets(st.sampled_from(nodes), max_size=len(nodes) - 3))
    for queue in rings.queues:
        holders = rings.holders(queue, away)
        assert len(holders) == len(set(holders)) == 3
        assert not away & set(holders)
        assert queue.home in away or holders[0] == queue.home
        assert set(rings.takeover_order(queue)) == set(nodes)
    assert Counter(rings.masters().values()) == dict.fromkeys(nodes, 2)


@given(NODES, st.data())
def test_a_node_that_leaves_or_joins_moves_little(nodes: list[str], data: st.DataObject) -> None:
    """Two queues of each ring have one copy elsewhere each; no other master moves."""
    place = data.draw(st.integers(0, len(nodes)))
    larger = Rings([*nodes[:place], "new", *nodes[place:]])
    rings = Rings(nodes)
    moves = []
    for queue in rings.queues:
        with_it, without_it = larger.holders(queue), rings.holders(queue)
        assert with_it[0] == without_it[0] == queue.home
        if set(with_it) != set(without_it):
            moves.append(queue.ring)
            assert set(with_it) - set(without_it) == {"new"}
            assert len(set(without_it) - set(with_it)) == 1
    assert Counter(moves) == {0: 2, 1: 2}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Rings("AB"), "nodes: read 2; allowed: 3 or more, one a copy"),
        (lambda: Rings("ABCA"), "nodes: read A twice; allowed: each name once"),
        (lambda: Rings("ABC", copies=0), "copies: read 0; allowed: 1 or more"),
    ],
)
def test_wrong_nodes_are_named(make: object, told: str) -> None:
    """What was read, and what is allowed."""
    assert callable(make)
    with pytest.raises(ValueError, match=told):
        make()
