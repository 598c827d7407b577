"""Section 4.7: topic names and topic filters."""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import Publish, Subscribe, SubscriptionRequest
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.conformance.clients import (
    IN_EACH_VERSION,
    MALFORMED,
    PROTOCOL_ERROR,
    assert_closed,
    frame,
)
from tests.helpers.virtual import VirtualBroker, VirtualClient


def reached(version: int, topic_filter: str, *topics: str) -> list[str]:
    """Return which topics a subscriber to a filter gets, when something is published to each."""
    broker = VirtualBroker()
    subscriber = broker.connect("s", version)
    assert subscriber.subscribe(topic_filter) == 0
    broker.connect("p", version).send(*(Publish(topic) for topic in topics))
    return [packet.topic for packet in subscriber.take_all(Publish)]


def subscribe_bytes(client: VirtualClient, topic_filter: bytes) -> None:
    """Subscribe to whatever these bytes are."""
    properties = "00" if client.version == 5 else ""
    digits = f"{len(topic_filter):04x} {topic_filter.hex()}"
    client.send_bytes(frame(0x82, f"0001 {properties} {digits} 00"))


@pytest.mark.parametrize(
    "topic_filter",
    [
        pytest.param(
            name, marks=[pytest.mark.mqtt5("4.7.1-1"), pytest.mark.mqtt311("4.7.1-2")], id=name
        )
        for name in ("a#", "#a", "a/#/b", "##", "#/")
    ]
    + [
        pytest.param(
            name, marks=[pytest.mark.mqtt5("4.7.1-2"), pytest.mark.mqtt311("4.7.1-3")], id=name
        )
        for name in ("a+", "+a", "a/+b/c", "++")
    ],
)
@IN_EACH_VERSION
def test_a_wildcard_out_of_its_place_is_refused(version: int, topic_filter: str) -> None:
    """A whole level, and for # the last one."""
    client = VirtualBroker().connect("c", version)
    subscribe_bytes(client, topic_filter.encode())
    assert_closed(client, MALFORMED)


@pytest.mark.mqtt5("4.7.1-1", "4.7.1-2", "4.7.3-4")
@pytest.mark.mqtt311("4.7.1-2", "4.7.1-3", "4.7.3-4")
@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("#", ["a", "a/b", "a/b/c", "/a", "a/", "A", "//"]),
        ("a/#", ["a", "a/b", "a/b/c", "a/"]),
        ("+", ["a", "A"]),
        ("+/+", ["a/b", "/a", "a/"]),
        ("+/b/#", ["a/b", "a/b/c"]),
        ("a/+/c", ["a/b/c"]),
        ("a", ["a"]),
        ("/+", ["/a"]),
        ("a/", ["a/"]),
        ("//", ["//"]),
    ],
)
@IN_EACH_VERSION
def test_filters_match_level_by_level(version: int, topic_filter: str, expected: list[str]) -> None:
    """Levels may be empty, and case counts."""
    topics = ["a", "a/b", "a/b/c", "/a", "a/", "A", "//"]
    assert sorted(reached(version, topic_filter, *topics)) == sorted(expected)


@pytest.mark.mqtt5("4.7.2-1")
@pytest.mark.mqtt311("4.7.2-1")
@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [("#", ["a/b"]), ("+/b", ["a/b"]), ("$own/#", ["$own/b"]), ("$own/+", ["$own/b"])],
)
@IN_EACH_VERSION
def test_a_leading_wildcard_matches_no_dollar(
    version: int, topic_filter: str, expected: list[str]
) -> None:
    """Who wants those topics names their first level; retained ones too."""
    assert reached(version, topic_filter, "$own/b", "a/b") == expected
    broker = VirtualBroker()
    publisher, late = broker.connect("p", version), broker.connect("late", version)
    for topic in ("$own/b", "a/b"):
        publisher.publish(topic, b"x", retain=True)
    late.subscribe(topic_filter)
    assert [packet.topic for packet in late.take_all(Publish)] == expected


@pytest.mark.mqtt5("4.7.3-1")
@pytest.mark.mqtt311("4.7.3-1")
@IN_EACH_VERSION
def test_an_empty_topic_or_filter_is_refused(version: int) -> None:
    """One character at least."""
    broker = VirtualBroker()
    subscriber = broker.connect("s", version)
    subscribe_bytes(subscriber, b"")
    assert_closed(subscriber, MALFORMED)
    publisher = broker.connect("p", version)
    publisher.send_bytes(frame(0x30, "0000 00"))
    assert_closed(publisher, PROTOCOL_ERROR if version == 5 else MALFORMED)


@pytest.mark.mqtt5("4.7.3-2")
@pytest.mark.mqtt311("4.7.3-2")
@IN_EACH_VERSION
def test_a_topic_or_filter_with_a_null_is_refused(version: int) -> None:
    """U+0000 is no character of a topic."""
    broker = VirtualBroker()
    subscriber = broker.connect("s", version)
    subscribe_bytes(subscriber, b"a\0b")
    assert_closed(subscriber, MALFORMED)
    publisher = broker.connect("p", version)
    publisher.send_bytes(frame(0x30, "0003 610062 00"))
    assert_closed(publisher, MALFORMED)


@pytest.mark.mqtt5("4.7.3-3")
@pytest.mark.mqtt311("4.7.3-3")
@IN_EACH_VERSION
def test_the_longest_topic_passes(version: int) -> None:
    """65,535 bytes, which is what the length before it can say, and not one more."""
    longest = "\u00e9" * 32_767 + "x"
    assert reached(version, longest, longest) == [longest]


@pytest.mark.mqtt5("4.7.3-4")
@pytest.mark.mqtt311("4.7.3-4")
@pytest.mark.parametrize(
    ("topic_filter", "topic"),
    [
        ("\u00e9", "e\u0301"),  # the same letter, composed and not
        ("\ufb01", "fi"),  # a ligature
        ("A", "a"),
        ("a b", "a  b"),
        ("a/b", "a/b/"),
        ("a/../b", "b"),
        ("a%20b", "a b"),
    ],
)
@IN_EACH_VERSION
def test_topics_are_not_normalised(version: int, topic_filter: str, topic: str) -> None:
    """Character by character, or it is another topic."""
    assert reached(version, topic_filter, topic, topic_filter) == [topic_filter]


@pytest.mark.mqtt5("4.8.2-1", "4.8.2-2")
@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share//a", "$share/g", "$share/g/", "$share/g+/a", "$share/#/a"]
)
def test_a_shared_subscription_has_a_name_and_a_filter(topic_filter: str) -> None:
    """Without either, or with a wildcard in the name, it is malformed."""
    client = VirtualBroker().connect()
    client.send(Subscribe(1, (SubscriptionRequest(topic_filter),)))
    assert_closed(client, ReasonCode.MALFORMED_PACKET)
