"""The packets of a QoS 0 load: made once on each side, compared byte for byte on arrival.

A publisher sends a block of packets over and over. A QoS 0 PUBLISH reaches an MQTT 3.1.1 subscriber
unchanged. So sender and receiver build the same packets, and the receiver compares the received
bytes with the packets that it should get.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.loads import wire
from benchmarks.loads.access import publisher_id

BLOCK_BYTES: Final = 1 << 20
"""The size of one send: large enough that calls do not count, small enough for the cache."""

PAIR_BLOCK_BYTES: Final = 1 << 17
"""The size of one send of each publisher where there are several."""

CHUNK_BYTES: Final = 1 << 18
"""The most that is read and compared at once."""

TOPIC: Final = "bench/throughput"
TOPIC_FILTER: Final = f"{TOPIC}/+"

RANDOM_TOPICS: Final = 20
"""The number of topics of a publisher where they are at random."""

FILTERS_OF_A_TOPIC: Final = 3
TOPIC_STEP: Final = 3
"""One in this many of the topics with a subscriber is published to."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a load: the numbers of clients and topics, and the sizes of messages.

    Attributes:
        least_bytes: the least payload length.
        most_bytes: the greatest payload length; lengths between the two are equally likely.
        topics: the number of topics over which the messages of a publisher are spread at random.
        subscribers: the number of subscribers. Each receives all messages; with several publishers,
            those of one publisher, in turn; with filters, those that its filters match.
        publishers: the number of publishers, of which that of subscribers is a multiple.
        filters: the number of topic filters with wildcards of all subscribers together; 0 for a
            single filter that matches all.
    """

    least_bytes: int
    most_bytes: int
    topics: int = 1
    subscribers: int = 1
    publishers: int = 1
    filters: int = 0

    def at_random(self) -> Shape:
        """Return the shape with sizes and topics at random, of two users in turn.

        The mean size stays, and so does the number of subscribers of a topic.
        """
        two = max(2, self.publishers)
        return replace(
            self,
            least_bytes=1,
            most_bytes=self.least_bytes + self.most_bytes - 1,
            topics=RANDOM_TOPICS,
            publishers=two,
            subscribers=self.subscribers * two // self.publishers,
        )


class Stream:
    """An endless sequence of packets, equal for all who build it from the same packets.

    Attributes:
        block: the packets, after which the sequence repeats.
    """

    def __init__(self, packets: Sequence[bytes], positions: Sequence[int], period: int) -> None:
        """Make the stream of one block of packets.

        Args:
            packets: the packets in their order.
            positions: the position of each packet among the messages of its publisher.
            period: the number of messages that the publisher sends before the sequence repeats.
        """
        self.block = b"".join(packets)
        self._ends = list(itertools.accumulate(map(len, packets)))
        self._positions = positions
        self._period = period
        self._repeated = self.block * (1 + -(-CHUNK_BYTES // len(self.block)))

    @property
    def mean_packet_bytes(self) -> float:
        """Mean length of a packet."""
        return len(self.block) / len(self._ends)

    def count_of(self, messages: int) -> int:
        """Return how many of the publisher's first so many messages are in this stream."""
        blocks, rest = divmod(messages, self._period)
        return blocks * len(self._ends) + bisect.bisect_left(self._positions, rest)

    def size_of(self, messages: int) -> int:
        """Return the length in bytes of those of the publisher's first so many messages."""
        blocks, rest = divmod(self.count_of(messages), len(self._ends))
        return blocks * len(self.block) + (self._ends[rest - 1] if rest else 0)

    def packets_in(self, size_bytes: int) -> int:
        """Return how many packets are whole within the first so many bytes."""
        blocks, rest = divmod(size_bytes, len(self.block))
        return blocks * len(self._ends) + bisect.bisect_right(self._ends, rest)

    def holds(self, position: int, chunk: bytes | bytearray | memoryview) -> bool:
        """Say whether `chunk`, of CHUNK_BYTES at most, stands at this position of the stream."""
        return self._repeated.startswith(chunk, position % len(self.block))


@dataclass(frozen=True, slots=True)
class Expectation:
    """The subscriptions of one subscriber, and the packets that it should receive.

    Attributes:
        topic_filters: the topic filters, of which one at most matches a topic.
    """

    topic_filters: Sequence[str]
    stream: Stream


def wildcard_filters(filters: int, name: str = "plant") -> list[str]:
    """Return topic filters with wildcards, three in a row for each topic, of two kinds."""
    forms = (f"{name}/{{0}}/{{1}}/+", f"{name}/+/{{1}}/temperature", f"{name}/{{0}}/{{1}}/#")
    return [forms[i % 3].format(i // 300, i // 3) for i in range(filters)]


def wildcard_topic(number: int) -> str:
    """Return the topic that the filters 3 * number to 3 * number + 2 match, and no others."""
    return f"plant/{number // 100}/{number}/temperature"


class Traffic:
    """The streams of a shape.

    Attributes:
        expectations: the subscriptions of each subscriber and the packets that it should receive.
    """

    def __init__(self, shape: Shape) -> None:
        self.publishers: list[Stream] = []
        self.expectations: list[Expectation] = []
        for publisher in range(shape.publishers):
            self._add_publisher(shape, publisher)
        if shape.publishers > 1:
            self.expectations *= shape.subscribers // shape.publishers

    def _add_publisher(self, shape: Shape, publisher: int) -> None:
        generator = random.Random(publisher)  # noqa: S311 - payloads, not secrets
        # Each has to be whole in a block whose repetitions its subscribers see.
        least_bytes = BLOCK_BYTES if shape.publishers == 1 else PAIR_BLOCK_BYTES
        topics = self._topics(shape, publisher)
        packets: list[bytes] = []
        numbers: list[int] = []
        size_bytes = 0
        while size_bytes < least_bytes:
            numbers.append(generator.randrange(len(topics)))
            payload = generator.randbytes(generator.randint(shape.least_bytes, shape.most_bytes))
            packets.append(wire.publish_packet(topics[numbers[-1]], payload))
            size_bytes += len(packets[-1])
        stream = Stream(packets, range(len(packets)), len(packets))
        self.publishers.append(stream)
        if shape.filters:
            self._subscribe_filters(shape, packets, numbers)
        elif shape.publishers > 1:
            roots = self._roots(publisher)[: shape.topics]
            self.expectations.append(Expectation([f"{root}/+" for root in roots], stream))
        else:
            self.expectations += [Expectation([TOPIC_FILTER], stream)] * shape.subscribers

    @staticmethod
    def _topics(shape: Shape, publisher: int) -> list[str]:
        if shape.filters:
            return [wildcard_topic(number * TOPIC_STEP) for number in range(shape.topics)]
        roots = [TOPIC] if shape.publishers == 1 else Traffic._roots(publisher)
        return [f"{roots[number % len(roots)]}/{number}" for number in range(shape.topics)]

    @staticmethod
    def _roots(publisher: int) -> list[str]:
        """Return above which levels the topics of one of several publishers are, in turn."""
        return [f"{TOPIC}/{publisher}", f"bench/{publisher_id(publisher)}"]

    def _subscribe_filters(self, shape: Shape, packets: list[bytes], numbers: list[int]) -> None:
        """Deal the filters out, so that those of one topic are those of three subscribers."""
        filters = wildcard_filters(shape.filters)
        positions: list[list[int]] = [[] for _ in range(shape.subscribers)]
        for position, number in enumerate(numbers):
            first = number * TOPIC_STEP * FILTERS_OF_A_TOPIC
            for i in range(first, first + FILTERS_OF_A_TOPIC):
                positions[i % shape.subscribers].append(position)
        for i, own in enumerate(positions):
            stream = Stream([packets[position] for position in own], own, len(packets))
            self.expectations.append(Expectation(filters[i :: shape.subscribers], stream))
