from __future__ import annotations

from benchmarks.loads.stream import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    Shape,
    Traffic,
    wildcard_filters,
    wildcard_topic,
)

SHAPE = Shape(least_bytes=1, most_bytes=300, topics=5)
MIXED = Traffic(SHAPE).publishers[0]


def test_both_sides_build_the_same_packets() -> None:
    """Publisher and subscribers are two processes that agree without talking."""
    assert Traffic(SHAPE).publishers[0].block == MIXED.block
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


def test_a_chunk_may_be_longer_than_the_block() -> None:
    """A subscriber that is due little reads its block more than once in a call."""
    traffic = Traffic(Shape(20, 20, topics=100, subscribers=200, filters=1_000))
    stream = traffic.expectations[-1].stream
    assert len(stream.block) < CHUNK_BYTES // 3
    chunk = (stream.block * 4)[7:]
    assert stream.holds(7, chunk)
    assert not stream.holds(7, chunk[:-1] + bytes([chunk[-1] ^ 1]))


def test_each_topic_has_its_three_filters() -> None:
    """Filters are dealt out so that a message goes to three subscribers, once to each."""
    filters = wildcard_filters(10_000)
    assert len(set(filters)) == len(filters)
    for number in (0, 1, 299, 2997):
        levels = wildcard_topic(number).split("/")
        matching = [i for i, each in enumerate(filters) if matches(each.split("/"), levels)]
        assert matching == list(range(3 * number, 3 * number + 3))


def matches(topic_filter: list[str], topic: list[str]) -> bool:
    """Say by the plainest means whether a filter matches a topic, level by level."""
    if topic_filter[-1] == "#":
        return matches(topic_filter[:-1], topic[: len(topic_filter) - 1])
    return len(topic_filter) == len(topic) and all(
        wanted in ("+", level) for wanted, level in zip(topic_filter, topic, strict=True)
    )


def test_subscribers_with_filters_are_due_the_messages_that_these_match() -> None:
    """Three copies of each message, in the order of the publisher."""
    traffic = Traffic(Shape(10, 10, topics=50, subscribers=7, filters=1_000))
    period = traffic.publishers[0].packets_in(len(traffic.publishers[0].block))
    for messages in (1, 100, period, period + 17):
        due = [each.stream.count_of(messages) for each in traffic.expectations]
        assert sum(due) == 3 * messages
    assert sum(len(each.topic_filters) for each in traffic.expectations) == 1_000
