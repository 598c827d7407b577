from __future__ import annotations

import pytest

from penstock.plugins.queue.strategies.message_key import key_reader


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("topic", "plant/7/temperature"),
        ("topic:0", "plant"),
        ("topic:1", "7"),
        ("topic:2", "temperature"),
        ("topic:3", None),
        ("publisher", "sensor-1"),
        ("property:machine", "m1"),
        ("property:other", None),
    ],
)
def test_key_is_read_from_where_the_queue_says(key: str, expected: str | None) -> None:
    """Topic, a level of it, publisher and the first user property of a name can be keys."""
    pairs = [("machine", "m1"), ("machine", "m2")]
    assert key_reader(key)("plant/7/temperature", "sensor-1", pairs) == expected


@pytest.mark.parametrize("key", ["topic", "topic:9", "publisher", "property:other"])
def test_own_key_of_a_message_goes_before_the_setting(key: str) -> None:
    """User property `penstock-key` is the key, even where the setting finds none."""
    assert key_reader(key)("a", "b", [("x", "y"), ("penstock-key", "mine")]) == "mine"


def test_message_of_no_publisher_has_no_key() -> None:
    """The broker's own messages have no Client Identifier."""
    assert key_reader("publisher")("a", "", ()) is None


@pytest.mark.parametrize("key", ["", "topics", "topic:", "topic:-1", "topic:x", "property:", "id"])
def test_other_settings_are_refused(key: str) -> None:
    """An error tells what was read and what is allowed."""
    with pytest.raises(ValueError, match=f"key: read {key}; allowed: topic, topic:LEVEL, publ"):
        key_reader(key)


def test_message_may_have_a_key_where_the_queue_has_none() -> None:
    """A queue without a setting still knows the key that a message brings."""
    assert key_reader(None)("a", "b", [("penstock-key", "mine")]) == "mine"
    assert key_reader(None)("a", "b", [("x", "y")]) is None
