"""Topic Names and filters, section 4.7."""

from __future__ import annotations

import pytest

from penstock.netem.clients.topics import fault_of_filter, fault_of_topic, matches


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/b", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("+", "a", True),
        ("+", "/a", False),
        ("/+", "/a", True),
        ("a/+/c", "a//c", True),
        ("a/+", "a", False),
        ("+/+/#", "a", False),
    ],
)
def test_a_filter_matches(topic_filter: str, topic: str, *, expected: bool) -> None:
    """Examples of [MQTT-4.7.1-2], [MQTT-4.7.1-3] and [MQTT-4.7.2-1]."""
    assert matches(topic_filter, topic) is expected


@pytest.mark.parametrize("topic_filter", ["a/#", "#", "+", "+/b", "/", "a//b"])
def test_a_right_filter_has_no_fault(topic_filter: str) -> None:
    """Section 4.7.1's examples."""
    assert fault_of_filter(topic_filter) is None


@pytest.mark.parametrize(
    "topic_filter", ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a\0", "é" * 40_000]
)
def test_a_wrong_filter_has_one(topic_filter: str) -> None:
    """Wildcards take whole levels, # the last; no more than 65,535 bytes."""
    assert fault_of_filter(topic_filter)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0", "\0" * 70_000])
def test_a_wrong_topic_has_a_fault(topic: str) -> None:
    """A Topic Name has no wildcards [MQTT-4.7.1-1]."""
    assert fault_of_topic(topic)


def test_a_right_topic_has_no_fault() -> None:
    """Any other text is one."""
    assert fault_of_topic("QoS1/10 KB") is None
