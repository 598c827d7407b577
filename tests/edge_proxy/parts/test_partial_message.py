"""What has come of a message."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.edge_proxy.parts.part_format import Part, Trailer
from penstock.edge_proxy.parts.partial_message import Assembly, Span

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
    assembly = Assembly(part(0, 1), "a")
    received: set[int] = set()
    for start, end in spans:
        gaps = assembly.add(part(start, end))
        assembly.check_invariants()
        new = [place for gap in gaps for place in range(*gap)]
        assert len(new) == len(set(new))
        assert set(new) == set(range(start, end)) - received
        received.update(new)
        assert assembly.received_bytes == len(received)
        assert assembly.is_whole == (len(received) == 20)


def test_an_empty_message_is_whole_with_its_last_part() -> None:
    """It has no byte, but a hash and properties."""
    only = Part(bytes(16), 0, 0, 1, retain=False, trailer=Trailer(DIGEST, b"\0"), data=b"")
    assembly = Assembly(only, "a")
    assert not assembly.is_whole
    assert not assembly.add(only)
    assert assembly.is_whole


def test_all_bytes_without_the_last_part_are_not_whole() -> None:
    """As spans are restored from the disk before the trailer is known."""
    assembly = Assembly(part(0, 1), "a")
    assembly.add_span(Span(0, 20))
    assert not assembly.is_whole


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
    assembly = Assembly(part(0, 1), "a")
    assembly.add(part(19, 20))
    mismatch = assembly.mismatch(part(1, 2)._replace(**changes), topic)  # type: ignore[arg-type]
    assert told in mismatch
    assert bool(told) == bool(mismatch)
