from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.batch_format import write_batch
from penstock.plugins.queue.engines.segments import (
    Decoded,
    SegmentCache,
    SegmentIndex,
    check,
    count_down,
    decode,
    user_property,
)
from penstock.plugins.queue.engines.store import DELAYED, EXPIRES, BrokenSegmentError, Segment
from penstock.plugins.queue.wire.frames import Batch


def segment(first: int, n: int = 1, clock: float = 0.0, flags: int = 0) -> Segment:
    """Return the facts about a segment."""
    return Segment(first, n, n, 100 * n, clock + 1000.0, clock, flags)


def batch(first: int, n: int, properties: str = "") -> Batch:
    """Return messages."""
    return Batch(
        list(range(first, first + n)),
        ["t"] * n,
        [b"x"] * n,
        [0] * n,
        [""] * n,
        [1000.0] * n,
        [properties] * n,
    )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=200), st.data())
def test_an_index_finds_what_is_left(sizes: list[int], data: st.DataObject) -> None:
    """In whatever order segments are removed."""
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    kept = dict(zip(firsts, sizes, strict=True))
    index = SegmentIndex([segment(first, n) for first, n in kept.items()])
    for first in data.draw(st.lists(st.sampled_from(firsts), unique=True)):
        index.remove(first)
        index.remove(first)
        del kept[first]
    assert [(one.first_offset, one.n_messages) for one in index] == list(kept.items())
    assert len(index) == len(kept)
    offset = data.draw(st.integers(0, sum(sizes)))
    holding = [first for first, n in kept.items() if first <= offset < first + n]
    assert index.first_of(offset) == (holding[0] if holding else -1)
    found = index.holding(offset)
    assert (None if found is None else found.first_offset) == (holding[0] if holding else None)
    behind = [first for first, n in kept.items() if first + n > offset]
    assert [one.first_offset for one in index.since(offset)] == behind
    following = index.following(offset)
    assert (following.first_offset if following else None) == (behind[0] if behind else None)


def test_an_index_finds_the_first_segment_that_is_newer() -> None:
    """What is not older than a time begins there."""
    index = SegmentIndex([segment(0, 1, 1.0), segment(1, 1, 2.0), segment(2, 1, 2.0)])
    assert [index.not_before(at) for at in (0.5, 1.0, 1.5, 2.0)] == [0, 1, 1, -1]


def test_a_frame_is_decoded() -> None:
    """With sizes, and time on the engine's clock."""
    facts = segment(5, 2, clock=7.0)
    decoded = decode(1, facts, write_batch(batch(5, 2)))
    assert (decoded.first_offset, list(decoded.sizes)) == (5, [1, 1])
    assert decoded.row(1).offset == 6
    assert decoded.stored_clock(0) == pytest.approx(0.0 - 0.0 + 1000.0 - 1007.0 + 7.0)
    assert (decoded.expires_at(0), decoded.delay(0)) == (None, None)


@pytest.mark.parametrize("frame", [b"broken", write_batch(batch(4, 2)), write_batch(batch(5, 3))])
def test_a_frame_that_holds_something_else_is_broken(frame: bytes) -> None:
    """Whole or not."""
    for look in (decode, check):
        with pytest.raises(BrokenSegmentError, match="segment at offset 5 cannot be read"):
            look(1, segment(5, 2), frame)


@pytest.mark.parametrize(
    ("properties", "expires_at", "delay"),
    [
        ("", None, None),
        ('{"message_expiry_interval": 60}', 60.0, None),
        ('{"content_type": "message_expiry_interval penstock-delay"}', None, None),
        ('{"user_property": [["penstock-delay", "2.5"]]}', None, 2.5),
        ('{"user_property": [["penstock-delay", "-1"]]}', None, 0.0),
        ('{"user_property": [["penstock-delay", "soon"]]}', None, None),
    ],
)
def test_expiry_and_delay_are_read_from_properties(
    properties: str, expires_at: float | None, delay: float | None
) -> None:
    """Only in segments where one message has them."""
    facts = Segment(0, 1, 1, 1, 1000.0, 0.0, EXPIRES | DELAYED)
    decoded = Decoded(facts, batch(0, 1, properties))
    assert (decoded.expires_at(0), decoded.delay(0)) == (expires_at, delay)
    unflagged = Decoded(facts._replace(flags=0), batch(0, 1, properties))
    assert (unflagged.expires_at(0), unflagged.delay(0)) == (None, None)


def test_the_cache_evicts_what_was_not_used_for_longest() -> None:
    """And counts the bytes of what it holds."""
    made = [Decoded(segment(first), batch(first, 1)) for first in range(3)]
    cache = SegmentCache(made[0].memory_bytes * 2)
    cache.put(1, made[0])
    cache.put(1, made[1])
    assert cache.get(1, 0) is made[0]
    cache.put(1, made[2])
    assert (cache.get(1, 1), cache.peek(1, 0)) == (None, made[0])
    assert cache.n_bytes == made[0].memory_bytes * 2
    cache.drop(1, 0)
    cache.drop(1, 0)
    cache.drop(1, 2)
    assert cache.n_bytes == 0


def test_one_segment_alone_may_be_larger_than_the_cache() -> None:
    """Else it would be read for each message."""
    cache = SegmentCache(0)
    made = Decoded(segment(0), batch(0, 1))
    cache.put(1, made)
    assert cache.get(1, 0) is made


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ("", None),
        ('{"content_type": "unit"}', None),
        ('{"user_property": [["a", "unit"], ["unit", "K"], ["unit", "F"]]}', "K"),
    ],
)
def test_the_first_user_property_of_a_name_counts(properties: str, found: str | None) -> None:
    """Names may repeat."""
    assert user_property(properties, "unit") == found


@pytest.mark.parametrize(("now", "left"), [(10.0, 50), (10.4, 50), (59.5, 1)])
def test_what_is_left_of_the_interval_is_told(now: float, left: int) -> None:
    """In whole seconds, rounded up; other properties stay."""
    properties = '{"message_expiry_interval": 60, "content_type": "ü"}'
    counted = json.loads(count_down(properties, 60.0, now))
    assert counted == {"message_expiry_interval": left, "content_type": "ü"}
