"""The bytes that a throughput run publishes, and thereby the bytes that must arrive.

A block of packets whose payloads all differ, sent over and over. A QoS 0 PUBLISH reaches an
MQTT 3.1.1 subscriber unchanged, so that sender and receiver build the same block and the
receiver compares what comes with it, byte for byte.
"""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import dataclass
from typing import Final

from benchmarks import wire

BLOCK_BYTES: Final = 1 << 20
"""What one call sends: large enough that calls do not count, small enough for the cache."""

TOPIC: Final = "bench/throughput"
TOPIC_FILTER: Final = f"{TOPIC}/+"


@dataclass(frozen=True, slots=True)
class Shape:
    """Which messages are published.

    Attributes:
        least_bytes: of a payload.
        most_bytes: of a payload; sizes between the two are equally likely.
        topics: among which the messages are spread at random.
    """

    least_bytes: int
    most_bytes: int
    topics: int = 1


class Stream:
    """An endless sequence of packets, the same for all who build it from the same shape.

    Attributes:
        shape: which messages these are.
        block: about a mebibyte of whole packets, after which they come again.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        generator = random.Random(0)  # noqa: S311 - payloads, not secrets
        packets: list[bytes] = []
        size_bytes = 0
        while size_bytes < BLOCK_BYTES:
            topic = f"{TOPIC}/{generator.randrange(shape.topics)}"
            payload = generator.randbytes(generator.randint(shape.least_bytes, shape.most_bytes))
            packets.append(wire.publish_packet(topic, payload))
            size_bytes += len(packets[-1])
        self.block = b"".join(packets)
        self._ends = list(itertools.accumulate(map(len, packets)))
        self._twice = self.block * 2

    @property
    def mean_packet_bytes(self) -> float:
        """Mean length of a packet."""
        return len(self.block) / len(self._ends)

    def size_of(self, messages: int) -> int:
        """Return the length in bytes of the first so many packets."""
        blocks, rest = divmod(messages, len(self._ends))
        return blocks * len(self.block) + (self._ends[rest - 1] if rest else 0)

    def packets_in(self, size_bytes: int) -> int:
        """Return how many packets are whole within the first so many bytes."""
        blocks, rest = divmod(size_bytes, len(self.block))
        return blocks * len(self._ends) + bisect.bisect_right(self._ends, rest)

    def holds(self, position: int, chunk: bytes | bytearray) -> bool:
        """Say whether `chunk`, no longer than a block, stands at this position of the stream."""
        start = position % len(self.block)
        return self._twice[start : start + len(chunk)] == chunk
