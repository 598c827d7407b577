from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.withholding.thresholds import (
    LONGEST_KNOWN,
    MAX_TOPICS,
    FirstTopics,
    SizeClasses,
)


def test_payload_as_long_as_threshold_s_is_small() -> None:
    """Large means strictly greater than threshold_s (paper 002)."""
    classes = SizeClasses(10_000, {})
    assert not classes.is_large("a", 10_000)
    assert classes.is_large("a", 10_001)


def test_threshold_s_of_zero_makes_every_payload_large_but_the_empty() -> None:
    """The comparison is strict at zero too."""
    classes = SizeClasses(0, {})
    assert not classes.is_large("a", 0)
    assert classes.is_large("a", 1)


def test_first_matching_filter_decides() -> None:
    """Filters are tried in the order given, whichever is more specific."""
    classes = SizeClasses(10_000, {"cam/+/raw": 500, "cam/#": 50_000, "cam/1/raw": 7})
    assert classes.threshold_s("cam/1/raw") == 500
    assert classes.threshold_s("cam/1/jpeg") == 50_000
    assert classes.threshold_s("cam") == 50_000


def test_topic_without_matching_filter_has_the_general_threshold() -> None:
    """A filter says nothing of other topics."""
    classes = SizeClasses(10_000, {"cam/#": 500})
    assert classes.threshold_s("camera/1") == 10_000
    assert not classes.is_large("camera/1", 9_000)


def test_filter_without_threshold_makes_nothing_large() -> None:
    """None for a filter means that its topics are never withheld."""
    classes = SizeClasses(10_000, {"alarm/#": None})
    assert classes.threshold_s("alarm/fire") is None
    assert not classes.is_large("alarm/fire", 10**9)


def test_wildcard_filter_leaves_system_topics_alone() -> None:
    """A filter that begins with a wildcard does not match $SYS [MQTT-4.7.2-1]."""
    classes = SizeClasses(10_000, {"#": 1})
    assert classes.threshold_s("$SYS/broker/uptime") == 10_000


LISTENERS = {"field": 1_000, "office": 50_000, "lan": None}


@pytest.mark.parametrize(
    ("topic", "listener", "threshold_s"),
    [
        ("a", "field", 1_000),
        ("a", "office", 50_000),
        ("a", "lan", None),
        ("a", "default", 10_000),
        ("a", "", 10_000),
        ("cam/1", "field", 500),
        ("cam/1", "lan", 500),
        ("alarm/1", "field", None),
    ],
)
def test_topic_filter_decides_then_listener_then_the_general_threshold(
    topic: str, listener: str, threshold_s: int | None
) -> None:
    """What the messages are is said over where they go, and both over what holds in general."""
    classes = SizeClasses(10_000, {"cam/#": 500, "alarm/#": None}, LISTENERS)
    assert classes.threshold_s(topic, listener) == threshold_s


def test_least_threshold_is_that_of_the_listener_with_the_least() -> None:
    """What is not above it is small for everybody; a topic filter leaves no choice."""
    classes = SizeClasses(10_000, {"cam/#": 500, "alarm/#": None}, LISTENERS)
    assert classes.least_threshold_s("a") == 1_000
    assert classes.least_threshold_s("cam/1") == 500
    assert classes.least_threshold_s("alarm/1") is None
    assert SizeClasses(10_000, {}, {"lan": None}).least_threshold_s("a") == 10_000
    assert SizeClasses(None, {}, {"lan": None}).least_threshold_s("a") is None


@given(
    st.none() | st.integers(0, 100),
    st.dictionaries(st.sampled_from(["a", "b"]), st.none() | st.integers(0, 100)),
    st.dictionaries(st.sampled_from(["x", "y"]), st.none() | st.integers(0, 100)),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["x", "y", "z"]),
    st.integers(0, 100),
)
def test_nobody_finds_large_what_is_not_above_the_least(
    threshold_s: int | None,
    by_topic: dict[str, int | None],
    by_listener: dict[str, int | None],
    topic: str,
    listener: str,
    payload_bytes: int,
) -> None:
    """Whatever is configured, a message that nobody is asked about is small for everybody."""
    classes = SizeClasses(threshold_s, by_topic, by_listener)
    least = classes.least_threshold_s(topic)
    if classes.is_large(topic, payload_bytes, listener):
        assert least is not None
        assert payload_bytes > least


def test_first_topics_are_those_that_any_filter_matches() -> None:
    """Wildcards as in subscriptions; the answer stays the same however often it is asked for."""
    first = FirstTopics(["alarms/#", "+/status"])
    for _ in range(2):
        assert [first.has(t) for t in ("alarms", "alarms/a/b", "x/status")] == [True] * 3
        assert [first.has(t) for t in ("alarm", "x/y/status", "$SYS/status")] == [False] * 3
    assert not FirstTopics([]).has("alarms")


def test_topics_that_somebody_makes_up_do_not_fill_the_memory() -> None:
    """What is remembered is bounded, and forgetting changes no answer."""
    first = FirstTopics(["alarms/#"])
    for number in range(2 * MAX_TOPICS):
        assert first.has(f"alarms/{number}")
    assert len(first._known) <= MAX_TOPICS
    assert not first.has("other")
    assert first.has("alarms/" + LONGEST_KNOWN * "x")
    assert max(map(len, first._known)) <= LONGEST_KNOWN
