"""What has come of a message."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.edge_proxy.parts.part_format import Part, Trailer
from penstock.edge_proxy.parts.partial_message import PartialMessage, Span

DIGEST = bytes(32)


def part(start: int, end: int, total: int = 20) -> Part:
    """Return a part with data of a message."""
    trailer = Trailer(DIGEST, b"\0") if end == total else None
    return Part(bytes(16), start, total, 1, retain=False, trailer=trailer, data=bytes(end - start))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)), st.randoms())
def test_each_byte_is_new_once(spans: list[list[int]], rng: random.Random) -> None:
    """In any order, any number of times, and however parts overlap."""
    spans = [span for span in spans if span[0] < span[1]] * 2
    rng.shuffle(spans)
    partial = PartialMessage(part(0, 1), "a")
    received: set[int] = set()
    for start, end in spans:
        gaps = partial.add(part(start, end))
        partial.check_invariants()
        new = [place for gap in gaps for place in range(*gap)]
        assert len(new) == len(set(new))
        assert set(new) == set(range(start, end)) - received
        received.update(new)
        assert partial.received_bytes == len(received)
        assert partial.is_whole == (len(received) == 20)


def test_an_empty_message_is_whole_with_its_last_part() -> None:
    """It has no byte, but a hash and properties."""
    only = Part(bytes(16), 0, 0, 1, retain=False, trailer=Trailer(DIGEST, b"\0"), data=b"")
    partial = PartialMessage(only, "a")
    assert not partial.is_whole
    assert not partial.add(only)
    assert partial.is_whole


def test_all_bytes_without_the_last_part_are_not_whole() -> None:
    """As spans are restored from the disk before the trailer is known."""
    partial = PartialMessage(part(0, 1), "a")
    partial.add_span(Span(0, 20))
    assert not partial.is_whole


@pytest.mark.parametrize(
    ("changes", "topic", "told"),
    [
        ({}, "b", "topic: read 'b'; allowed: 'a'"),
        ({"total_bytes": 21}, "a", "total: read 21; allowed: 20"),
        ({"qos": 2}, "a", "QoS: read 2; allowed: 1"),
        ({"retain": True}, "a", "RETAIN: read True; allowed: False"),
        ({"trailer": Trailer(bytes(31) + b"x", b"\0")}, "a", "SHA-256"),
        ({}, "a", ""),
    ],
)
def test_a_part_that_contradicts_the_others_is_named(
    changes: dict[str, object], topic: str, told: str
) -> None:
    """By what differs."""
    partial = PartialMessage(part(0, 1), "a")
    partial.add(part(19, 20))
    mismatch = partial.mismatch(part(1, 2)._replace(**changes), topic)  # type: ignore[arg-type]
    assert told in mismatch
    assert bool(told) == bool(mismatch)
