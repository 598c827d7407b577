from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plugins.queue.engines.redis.messages import (
    INFO,
    Row,
    frames_of,
    read_row,
    written_row,
)
from penstock.plugins.queue.strategies.message_key import stored_key_reader
from penstock.spark_bridge.ranges.redis_rows import RedisRows, sizes_of, topic_of
from penstock.spark_bridge.rows import Frames, RowOrigin, to_record_batch
from penstock.spark_bridge.schema import BY_NAME
from tests.helpers.effort import examples

PLACE = RowOrigin("q", 0, None, 10)
COLUMNS = tuple(BY_NAME)


def kept(row: Row, key: str | None) -> tuple[bytes, bytes]:
    """Return what the server keeps of a message, as its function `append` makes it."""
    *_, topic, _, body = written_row(row, 0.0, stored_key_reader(None))
    own = (key or "").encode()
    fields = (5.0, 5.0, 0.0, row.enqueued_at, len(row.payload), int(key is not None), len(own))
    return INFO.pack(*fields) + own + topic, body


ROWS = st.lists(
    st.tuples(
        st.builds(
            Row,
            st.just(0),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
            st.binary(max_size=20),
            st.integers(0, 2),
            st.text(st.characters(codec="utf-8"), max_size=3),
            st.floats(0, 2e9),
            st.sampled_from(["", '{"content_type": "a"}', '{"retain": true}']),
            st.just(5.0),
            st.just(0.0),
        ),
        st.none() | st.text(st.characters(codec="utf-8"), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(50), deadline=None)
@given(ROWS)
def test_columns_are_those_of_frames(drawn: list[tuple[Row, str | None]]) -> None:
    """Whatever messages have in common, and whatever is different in each."""
    rows = [row._replace(offset=7 + at) for at, (row, _) in enumerate(drawn)]
    both = [kept(row, key) for row, (_, key) in zip(rows, drawn, strict=True)]
    infos, bodies = [info for info, _ in both], [body for _, body in both]
    assert [read_row(row.offset, *one) for row, one in zip(rows, both, strict=True)] == rows
    assert [topic_of(info).decode() for info in infos] == [row.topic for row in rows]
    assert sizes_of(infos) == [len(row.payload) for row in rows]
    offsets = [row.offset for row in rows]
    expected = to_record_batch(Frames(b"".join(frames_of(rows))), COLUMNS, PLACE)
    found = to_record_batch(RedisRows(offsets, infos, bodies), COLUMNS, PLACE)
    assert found.to_pylist() == expected.to_pylist()
    assert found.schema == expected.schema
    found.validate(full=True)


@pytest.mark.parametrize("name", ["offset", "topic", "arrival_time", "size_class"])
def test_what_stands_beside_a_message_needs_no_message(name: str) -> None:
    """So its payload does not cross the wire."""
    row = Row(3, "t", b"x" * 20, 1, "", 1.5, "", 5.0, 0.0)
    info, body = kept(row, None)
    alone = to_record_batch(RedisRows([3], [info], None), [name], PLACE)
    whole = to_record_batch(RedisRows([3], [info], [body]), [name], PLACE)
    assert alone.equals(whole)
