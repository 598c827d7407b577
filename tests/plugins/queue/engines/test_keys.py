from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.batch_format import properties_json
from penstock.plugins.queue.engines.keys import key_reader
from penstock.plugins.queue.strategies import message_key

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
KEYS = st.one_of(
    st.none(),
    st.sampled_from(["topic", "topic:0", "topic:3", "publisher", "property:a"]),
    TEXT.filter(bool).map("property:{}".format),
)
PAIRS = st.lists(st.tuples(st.one_of(TEXT, st.sampled_from(["a", "penstock-key"])), TEXT))


@given(KEYS, TEXT, TEXT, PAIRS)
def test_stored_message_has_the_key_that_it_was_dealt_by(
    key: str | None, topic: str, publisher: str, pairs: list[tuple[str, str]]
) -> None:
    """Order and compaction go by the key that chose the physical queue."""
    properties = properties_json({"user_property": pairs}) if pairs else ""
    expected = message_key.key_reader(key)(topic, publisher, pairs)
    assert key_reader(key)(topic, publisher, properties) == expected


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_name_that_json_escapes_is_found(name: str) -> None:
    """A user property may have any name."""
    properties = properties_json({"user_property": [(name, "k")]})
    assert key_reader(f"property:{name}")("t", "p", properties) == "k"
