from __future__ import annotations

from plugins.withholding.classes import SizeClasses


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
