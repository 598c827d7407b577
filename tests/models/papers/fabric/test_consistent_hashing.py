from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.models.papers.fabric.consistent_hashing import ConsistentHashing

KEYS = [f"device {number}" for number in range(400)]
NAMES = st.lists(st.text("abc", min_size=1, max_size=3), unique=True, min_size=2, max_size=6)


def test_each_node_has_its_share_of_the_keys() -> None:
    """Within what the points of a node leave to chance."""
    nodes = ConsistentHashing("ABCDE")
    load = Counter(nodes.node_of(f"device {number}") for number in range(5000))
    assert set(load) == set("ABCDE")
    assert all(800 <= count <= 1200 for count in load.values())


@given(NAMES)
def test_a_node_that_joins_takes_keys_and_moves_none_among_the_others(names: list[str]) -> None:
    """What it does not take stays where it was."""
    smaller, larger = ConsistentHashing(names[1:]), ConsistentHashing(names)
    for key in KEYS:
        assert larger.node_of(key) in (names[0], smaller.node_of(key))
