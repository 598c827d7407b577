"""Which retained messages the cloud has cleared while nobody told the site."""

from __future__ import annotations

import itertools

import pytest

from penstock.edge_proxy.uplink.retained_cache import Marker, Outcome, RetainedCache


@pytest.fixture
def cache() -> RetainedCache:
    """Return a cache whose markers are numbered."""
    numbers = itertools.count(1)
    return RetainedCache(lambda: b"marker %d" % next(numbers))


def test_what_does_not_come_again_before_the_marker_is_cleared(cache: RetainedCache) -> None:
    """The rest has come, whether it was asked for or published meanwhile."""
    marker = cache.begin(["a/#"], [("a/1", 5), ("a/2", 5), ("a/3", 5)])
    assert marker == Marker(b"marker 1", ["a/#"])
    assert cache.is_waiting
    cache.came("a/2")
    cache.came("b")
    assert cache.marker_came(b"marker 1") == Outcome(["a/1", "a/3"], ["a/#"])
    assert not cache.is_waiting


def test_a_site_without_retained_messages_clears_none(cache: RetainedCache) -> None:
    """The filters are complete all the same."""
    cache.begin(["a", "b"], [])
    assert cache.marker_came(b"marker 1") == Outcome([], ["a", "b"])


def test_a_marker_of_another_time_means_nothing(cache: RetainedCache) -> None:
    """The cloud retains it, and it may come from an earlier connection."""
    cache.begin(["a"], [("a", 1)])
    assert cache.marker_came(b"marker 0") == Outcome([], [])
    assert cache.is_waiting


def test_a_marker_stands_for_those_before_it(cache: RetainedCache) -> None:
    """A broker may send the last one alone, as each replaces the one before."""
    cache.begin(["a"], [("a", 1)])
    cache.begin(["b"], [("b", 1)])
    cache.begin(["c"], [("c", 1)])
    assert cache.marker_came(b"marker 2") == Outcome(["a", "b"], ["a", "b"])
    assert cache.marker_came(b"marker 3") == Outcome(["c"], ["c"])


def test_what_was_large_waits_for_a_marker_as_large(cache: RetainedCache) -> None:
    """The cloud may withhold a large message while small ones pass it."""
    cache.begin(["a/#"], [("a/small", 9_999), ("a/large", 10_000), ("a/larger", 50_000)])
    cache.begin(["b"], [("b", 1)])
    outcome = cache.marker_came(b"marker 2")
    assert (outcome.clear, outcome.complete) == (["a/small", "b"], ["b"])
    assert outcome.marker is not None
    assert outcome.marker.topic_filters == ()
    assert len(outcome.marker.payload) == 50_000
    cache.came("a/large")
    assert cache.marker_came(outcome.marker.payload) == Outcome(["a/larger"], ["a/#"])


def test_where_markers_do_not_pass_nothing_is_cleared(cache: RetainedCache) -> None:
    """The filters do not wait any longer."""
    cache.begin(["a"], [("a", 1)])
    cache.begin(["b"], [])
    assert cache.give_up() == ["a", "b"]
    assert cache.marker_came(b"marker 1") == Outcome([], [])


def test_a_lost_connection_begins_anew(cache: RetainedCache) -> None:
    """Half of them may have come, and the marker of that time proves nothing."""
    cache.begin(["a"], [("a", 1)])
    cache.connection_lost()
    assert cache.marker_came(b"marker 1") == Outcome([], [])
