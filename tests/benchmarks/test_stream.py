from __future__ import annotations

from benchmarks.stream import BLOCK_BYTES, Shape, Stream

MIXED = Stream(Shape(least_bytes=1, most_bytes=300, topics=5))


def test_both_sides_build_the_same_packets() -> None:
    """Publisher and subscribers are two processes that agree without talking."""
    assert Stream(MIXED.shape).block == MIXED.block
    assert len(MIXED.block) >= BLOCK_BYTES


def test_sizes_and_counts_agree_past_the_end_of_the_block() -> None:
    """The count of a run's bytes is its messages, whole packets only."""
    in_block = MIXED.packets_in(len(MIXED.block))
    for messages in (0, 1, in_block - 1, in_block, in_block + 1, 3 * in_block + 17):
        assert MIXED.packets_in(MIXED.size_of(messages)) == messages
        assert MIXED.packets_in(MIXED.size_of(messages + 1) - 1) == messages


def test_stream_goes_on_from_its_beginning() -> None:
    """A chunk that crosses the end of the block is found there."""
    size = len(MIXED.block)
    crossing = MIXED.block[-10:] + MIXED.block[:10]
    assert MIXED.holds(size - 10, crossing)
    assert MIXED.holds(5 * size - 10, bytearray(crossing))
    assert not MIXED.holds(size - 9, crossing)
