from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.batch_format import properties_json
from penstock.plugins.queue.strategies.message_key import key_reader, stored_key_reader

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
KEYS = st.one_of(
    st.none(),
    st.sampled_from(["topic", "topic:0", "topic:3", "publisher", "property:a"]),
    TEXT.filter(bool).map("property:{}".format),
)
PAIRS = st.lists(st.tuples(st.one_of(TEXT, st.sampled_from(["a", "penstock-key"])), TEXT))


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


@given(KEYS, TEXT, TEXT, PAIRS)
def test_stored_message_has_the_key_that_it_was_dealt_by(
    key: str | None, topic: str, publisher: str, pairs: list[tuple[str, str]]
) -> None:
    """Order and compaction go by the key that chose the physical queue."""
    properties = properties_json({"user_property": pairs}) if pairs else ""
    expected = key_reader(key)(topic, publisher, pairs)
    assert stored_key_reader(key)(topic, publisher, properties) == expected


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_name_that_json_escapes_is_found(name: str) -> None:
    """A user property may have any name."""
    properties = properties_json({"user_property": [(name, "k")]})
    assert stored_key_reader(f"property:{name}")("t", "p", properties) == "k"
