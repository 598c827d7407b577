from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.message import Message
from penstock.plugins.queue.batch_format import write_batch
from penstock.plugins.queue.engines.contract import NewMessage, QueueSpec
from penstock.plugins.queue.engines.incoming import Incoming, stored_properties
from penstock.plugins.queue.engines.partition import PhysicalQueue
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.segments import (
    Decoded,
    SegmentCache,
    SegmentIndex,
    check,
    count_down,
    decode,
    user_property,
)
from penstock.plugins.queue.engines.store import (
    DELAYED,
    EXPIRES,
    BrokenSegmentError,
    PhysicalRow,
    QueueRow,
    Segment,
)
from penstock.plugins.queue.wire.frames import Batch
from tests.plugins.queue.running import LostPayload


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


def incoming() -> Incoming:
    """Return what comes to a physical queue whose next offset is 7."""
    queue = LocalQueue(QueueRow(1, "q", "i", ""), QueueSpec())
    return Incoming(queue, PhysicalQueue(PhysicalRow(1, 1, 0, 0, 7, 0, 0, 0)))


def test_messages_that_need_no_look_of_their_own_are_added_together() -> None:
    """With the same offsets and columns as one by one, behind those that are there."""
    news = [
        NewMessage(Message(f"t/{n}", b"%d" % n, qos=n % 3, arrived_at=float(n), publisher="p"))
        for n in range(9)
    ]
    singly, together = incoming(), incoming()
    offsets = [singly.add(new, 1e9) for new in news]
    assert together.add(news[0], 1e9) == 7
    assert together.add_plain(news[1:], 1e9) == offsets[1:]
    assert together.add_plain([], 1e9) == []
    assert [one[:2] for one in singly.encode(0.0)] == [one[:2] for one in together.encode(0.0)]


@pytest.mark.parametrize(
    "new",
    [
        NewMessage(Message("t", b"x"), b"id"),
        NewMessage(Message("t", b"x"), delay_seconds=0.0),
        NewMessage(Message("t", b"x", properties={"content_type": "x"})),
        NewMessage(Message("t", b"x", retain=True)),
        NewMessage(Message("t", b"x", expires_at=9.0)),
        NewMessage(Message("ü", b"x")),
        NewMessage(Message("t", b"x", publisher="\ud800")),
        NewMessage(Message("t", LostPayload())),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_needs_a_look_of_its_own_is_not_added_with_others(new: NewMessage) -> None:
    """Nor are they: each is looked at."""
    coming = incoming()
    plain = NewMessage(Message("t", b"x"))
    assert coming.add_plain([plain, new, plain], 0.0) is None
    assert list(coming.encode(0.0)) == []


@pytest.mark.parametrize(
    ("new", "properties", "flags"),
    [
        (NewMessage(Message("t", b"")), None, 0),
        (
            NewMessage(Message("t", b"", properties={"message_expiry_interval": 5}, expires_at=5)),
            {"message_expiry_interval": 5},
            EXPIRES,
        ),
        (
            NewMessage(Message("t", b"", arrived_at=10.0, expires_at=15.5)),
            {"message_expiry_interval": 6},
            EXPIRES,
        ),
        (
            NewMessage(
                Message("t", b"", properties={"user_property": [("a", "b")]}), delay_seconds=2.5
            ),
            {"user_property": [["a", "b"], ["penstock-delay", "2.5"]]},
            DELAYED,
        ),
    ],
)
def test_expiry_and_delay_are_stored_as_properties(
    new: NewMessage, properties: dict[str, object] | None, flags: int
) -> None:
    """And their segment is flagged."""
    text = stored_properties(new)
    assert (json.loads(text) if text else None) == properties
    coming = incoming()
    coming.add(new, 0.0)
    ((facts, _, _),) = coming.encode(0.0)
    assert facts.flags == flags


def test_the_retain_flag_of_a_publish_is_stored() -> None:
    """Beside the properties; a message without it and without properties has none."""
    message = Message("t", b"x", retain=True)
    assert json.loads(stored_properties(NewMessage(message))) == {"retain": True}
    assert stored_properties(NewMessage(Message("t", b"x"))) == ""
