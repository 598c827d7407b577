from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.topics import (
    matches,
    parse_share,
    read_topic,
    validate_filters_read,
    validate_topic,
    validate_topic_filter,
)
from tests.broker.mqtt.strategies import SHARED, TOPIC_FILTERS, TOPICS


@pytest.mark.parametrize("name", ["a", "/", "a b/É", "$SYS/x", "//", "x" * 65_535, "\ufeff"])
def test_names_that_are_valid(name: str) -> None:
    """Any character but wildcards and U+0000, one to 65,535 bytes."""
    validate_topic(name)


@pytest.mark.mqtt5("1.5.4-1")
@pytest.mark.parametrize("topic_bytes", [b"", b"\xff", b"\xed\xa0\x80", b"a\0", b"a/+", b"#"])
def test_bytes_that_are_no_topic_are_malformed(topic_bytes: bytes) -> None:
    """They must be UTF-8, and what they say a Topic Name."""
    assert read_topic("temperatur/küche".encode()) == "temperatur/küche"
    with pytest.raises(MalformedPacketError):
        read_topic(topic_bytes)


@pytest.mark.mqtt5("4.7.0-1", "4.7.3-1", "4.7.3-2", "4.7.3-3")
@pytest.mark.mqtt311("4.7.1-1", "4.7.3-1", "4.7.3-2", "4.7.3-3")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "4.7.3-1"),
        ("a\0", "4.7.3-2"),
        ("a/+", "4.7.0-1"),
        ("a#", "4.7.0-1"),
        ("x" * 65_536, "4.7.3-3"),
        ("é" * 32_768, "4.7.3-3"),
        ("a\ud800", "1.5.4-1"),
    ],
)
def test_names_that_are_not_valid(name: str, reason: str) -> None:
    """Each rule of section 4.7 is named by the error that it gives."""
    with pytest.raises(MalformedPacketError, match=reason):
        validate_topic(name)


@pytest.mark.parametrize(
    "topic_filter",
    [
        "a",
        "#",
        "+",
        "/",
        "a/#",
        "+/+/#",
        "/+",
        "a/+/b",
        "$SYS/#",
        "$share",
        "$share/g/a/#",
        "$share/g/#",
        "$share/g//",
        "$shared/x",
    ],
)
def test_filters_that_are_valid(topic_filter: str) -> None:
    """Wildcards take whole levels; ``$share/`` has a name and a filter."""
    validate_topic_filter(topic_filter)


@pytest.mark.mqtt5("4.7.1-1", "4.7.1-2", "4.7.3-1", "4.7.3-2", "4.7.3-3", "4.8.2-1", "4.8.2-2")
@pytest.mark.mqtt311("4.7.1-2", "4.7.1-3", "4.7.3-1", "4.7.3-2", "4.7.3-3")
@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("", "4.7.3-1"),
        ("a\0b", "4.7.3-2"),
        ("x" * 65_536, "4.7.3-3"),
        ("a#", "4.7.1-1"),
        ("#/a", "4.7.1-1"),
        ("a/#/b", "4.7.1-1"),
        ("##", "4.7.1-1"),
        ("a+", "4.7.1-2"),
        ("a/+b/c", "4.7.1-2"),
        ("++", "4.7.1-2"),
        ("$share/", "4.8.2-2"),
        ("$share/g", "4.8.2-2"),
        ("$share/g/", "4.8.2-2"),
        ("$share//a", "4.8.2-2"),
        ("$share/g+/a", "4.8.2-2"),
        ("$share/#/a", "4.8.2-2"),
        ("$share/g/a#", "4.7.1-1"),
    ],
)
def test_filters_that_are_not_valid(topic_filter: str, reason: str) -> None:
    """Each rule of sections 4.7 and 4.8 is named by the error that it gives."""
    with pytest.raises(MalformedPacketError, match=re.escape(reason)):
        validate_topic_filter(topic_filter)


def test_error_shortens_a_long_filter() -> None:
    """A peer cannot fill the log with one filter."""
    with pytest.raises(MalformedPacketError) as refusal:
        validate_topic_filter("a" * 60_000 + "#")
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("topic_filter", "share"),
    [
        ("a/b", ("", "a/b")),
        ("$share", ("", "$share")),
        ("$SHARE/g/a", ("", "$SHARE/g/a")),
        ("$share/g/a/b", ("g", "a/b")),
        ("$share/g/$share/h/a", ("g", "$share/h/a")),
    ],
)
def test_share_name_is_taken_off(topic_filter: str, share: tuple[str, str]) -> None:
    """A share name is the level after ``$share`` [MQTT-4.8.2-1]."""
    assert parse_share(topic_filter) == share


@pytest.mark.mqtt5("4.7.2-1", "4.7.3-4")
@pytest.mark.mqtt311("4.7.2-1", "4.7.3-4")
@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        # The examples of sections 4.7.1 and 4.7.2.
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "sport/tennis", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/a", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/a", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        # Levels are compared whole, with case, and nothing is normalised [MQTT-4.7.3-4].
        ("a", "A", False),
        ("a/b", "a//b", False),
        ("a/b", "a/b/", False),
        ("sport/#", "sports", False),
        ("a/+/c", "a//c", True),
        ("a/b/#", "a", False),
        ("a/$x/+", "a/$x/y", True),
        ("+/b", "x/c", False),
        ("#", "/", True),
    ],
)
def test_filter_matches_topic(topic_filter: str, topic: str, *, expected: bool) -> None:
    """The examples of the specification, and their neighbours."""
    assert matches(topic_filter, topic) is expected


@given(
    st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), min_size=1, max_size=4),
    st.sampled_from(["", "#"]),
    st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4),
)
def test_match_is_that_of_a_regular_expression(
    levels: list[str], ending: str, topic_levels: list[str]
) -> None:
    """Matching agrees with the rules of section 4.7 put another way."""
    topic_filter = "/".join([*levels, ending] if ending else levels)
    topic = "/".join(topic_levels)
    if not topic_filter or not topic:
        return
    pattern = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    expected = re.fullmatch(pattern + ("(/.*)?" if ending else ""), topic) is not None
    if topic.startswith("$") and topic_filter[0] in "+#":
        expected = False
    assert matches(topic_filter, topic) is expected


@given(TOPICS)
def test_topic_is_a_filter_that_matches_itself(topic: str) -> None:
    """A valid name is a valid filter for that name alone."""
    validate_topic(topic)
    validate_topic_filter(topic)
    assert matches(topic, topic)
    assert not matches(topic, topic + "/x")


@given(SHARED, TOPIC_FILTERS)
def test_generated_filters_are_valid(shared: str, topic_filter: str) -> None:
    """What the other tests are fed with is what the rules allow."""
    validate_topic_filter(shared)
    validate_topic_filter(topic_filter)
    assert parse_share(shared).share_name


@given(st.lists(TOPIC_FILTERS | st.text("a/+#$\0", max_size=5), max_size=6))
@example(["a", "#/b"])
@example(["a#", "b"])
@example(["/", "a", ""])
@example(["a/+b"])
@example(["a+/b"])
@example(["++"])
@example(["a\0b"])
@example(["$share/+/a"])
@example(["#", "#", "+", "+", "/#", "+/+/#"])
def test_filters_that_are_read_together_are_checked_as_each_by_itself(filters: list[str]) -> None:
    """A packet that has one which is not valid is malformed, whatever stands beside it."""

    def is_valid(topic_filter: str) -> bool:
        with contextlib.suppress(MalformedPacketError):
            validate_topic_filter(topic_filter)
            return True
        return False

    if all(map(is_valid, filters)):
        validate_filters_read(filters)
    else:
        with pytest.raises(MalformedPacketError):
            validate_filters_read(filters)
