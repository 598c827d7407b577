"""Topic filters as sets of topics, compared with the topics that they match."""

from __future__ import annotations

import itertools
import random

import pytest

from penstock.broker.mqtt.topics import matches, validate_topic_filter
from penstock.edge_proxy.uplink.filters import FilterTree, canonical, covers, intersection

LEVELS = ("", "a", "b", "$s")
DEPTHS = (1, 2, 3, 4)
TOPICS = tuple(
    topic
    for depth in DEPTHS
    for topic in map("/".join, itertools.product(LEVELS, repeat=depth))
    if topic
)
"""Topics one level deeper than any filter, so that some are reached by ``#`` alone."""

FILTERS = tuple(
    topic_filter
    for depth in DEPTHS[:-1]
    for levels in itertools.product((*LEVELS, "+"), repeat=depth)
    for topic_filter in ("/".join(levels), "/".join((*levels[:-1], "#")))
    if topic_filter
)

MATCHED = {name: frozenset(t for t in TOPICS if matches(name, t)) for name in set(FILTERS)}


def pairs(n_pairs: int) -> list[tuple[str, str]]:
    """Return pairs of filters that have topics in common more often than by chance."""
    rng = random.Random(17)  # noqa: S311 (no secret)
    names = sorted(MATCHED)
    chosen = [(rng.choice(names), rng.choice(names)) for _ in range(n_pairs)]
    return [*chosen, *((name, name) for name in names), *((name, "#") for name in names)]


def test_an_intersection_matches_the_topics_that_both_match() -> None:
    """This holds for all topics of a small alphabet."""
    for one, other in pairs(4_000):
        common = intersection(one, other)
        wanted = MATCHED[one] & MATCHED[other]
        found = (
            frozenset() if common is None else frozenset(t for t in TOPICS if matches(common, t))
        )
        assert found == wanted, (one, other, common)
        assert common == intersection(other, one)
        if common is not None:
            validate_topic_filter(common)


def test_a_filter_covers_another_where_it_matches_all_of_its_topics() -> None:
    """This holds for all topics of that alphabet."""
    for one, other in pairs(4_000):
        assert covers(one, other) == (MATCHED[one] >= MATCHED[other]), (one, other)


def test_only_two_pairs_of_filters_match_the_same_topics() -> None:
    """So equal filters are equal texts, once they are canonical."""
    by_topics: dict[frozenset[str], set[str]] = {}
    for name, topics in MATCHED.items():
        by_topics.setdefault(topics, set()).add(name)
    alike = {frozenset(names) for names in by_topics.values() if len(names) > 1}
    assert alike == {frozenset({"#", "+/#"}), frozenset({"/#", "/+/#"})}
    assert canonical("+/#") == canonical("#")
    assert canonical("/+/#") == canonical("/#")
    assert canonical("+/+/#") == "+/+/#"


def test_a_tree_finds_what_covers_and_what_is_covered() -> None:
    """As asking each filter of the set."""
    rng = random.Random(18)  # noqa: S311 (no secret)
    names = sorted(set(map(canonical, MATCHED)))
    for n_filters in (0, 1, 10, 60):
        tree, kept = FilterTree(), set()
        for name in rng.sample(names, n_filters):
            tree.add(name)
            kept.add(name)
        for name in rng.sample(sorted(kept), n_filters // 3):
            tree.discard(name)
            kept.discard(name)
        tree.discard("a/b/a/b")
        assert len(tree) == len(kept)
        for name in rng.sample(names, 100):
            assert (name in tree) == (name in kept)
            assert sorted(tree.covering(name)) == sorted(k for k in kept if covers(k, name)), name
            assert sorted(tree.covered_by(name)) == sorted(k for k in kept if covers(name, k)), name


@pytest.mark.parametrize("n_levels", [5_000])
def test_a_filter_of_very_many_levels_is_no_exception(n_levels: int) -> None:
    """A client may send one that is longer than Python's stack."""
    deep = "/".join("+" * n_levels)
    tree = FilterTree()
    tree.add("#")
    tree.add(deep)
    assert sorted(tree.covering(deep)) == ["#", deep]
    assert sorted(tree.covered_by("#")) == ["#", deep]
    assert intersection(deep, "#") == deep
    tree.discard(deep)
    assert list(tree.covered_by("#")) == ["#"]
