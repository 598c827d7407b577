"""The state of a physical queue: its offsets, its segments and the messages that have left."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.plugins.queue.engines.segments import SegmentIndex
from penstock.plugins.queue.engines.store import PhysicalRow


class Delays(NamedTuple):
    """When the messages of a segment may be received, in seconds of the engine's clock.

    Attributes:
        due: the times in the order of offsets.
        ascending: the same times, sorted, so that a count need not look at each.
    """

    due: Sequence[float]
    ascending: Sequence[float]

    def n_waiting(self, now: float, start: int) -> int:
        """Return how many messages from an index on are not due."""
        if not start:
            return len(self.ascending) - bisect_right(self.ascending, now)
        return sum(due_at > now for due_at in self.due[start:])


class PhysicalQueue:
    """A physical queue as it is in the storage.

    It changes on the loop's thread alone, when a transaction is done.

    Attributes:
        earliest: first offset that may still exist.
        messages: the number of messages.
        payload_bytes: the bytes of their payloads.
        stored_bytes: the bytes of their segments.
        gone: bit map, and payload bytes, of messages that left a segment, by its first offset.
        delays: the delays of the messages of a segment, by first offset, where one has a delay of
            its own that was not over at the last look.
        last_own_delay: first offset of the newest segment in which a message has a delay of its
            own; -1 for none.
    """

    __slots__ = (
        "aside",
        "delays",
        "earliest",
        "gone",
        "index",
        "last_own_delay",
        "messages",
        "next",
        "number",
        "payload_bytes",
        "queue_id",
        "row_id",
        "stored_bytes",
    )

    def __init__(self, row: PhysicalRow) -> None:
        self.row_id, self.queue_id, self.number, self.earliest, self.next, *held = row
        self.messages, self.payload_bytes, self.stored_bytes = held
        self.index = SegmentIndex()
        self.gone: dict[int, tuple[int, int]] = {}
        self.aside = 0
        self.delays: dict[int, Delays] = {}
        self.last_own_delay = -1

    def forget_delays(self, now: float) -> None:
        """Drop delays that are over."""
        for first in [one for one, delays in self.delays.items() if delays.ascending[-1] <= now]:
            del self.delays[first]

    def gone_bits(self, first_offset: int) -> int:
        """Return the bit map of the messages that left a segment."""
        found = self.gone.get(first_offset)
        return 0 if found is None else found[0]


def bits_below(first_offset: int, n_messages: int, offset: int) -> int:
    """Return the bit map of a segment's messages below an offset."""
    n = min(max(offset - first_offset, 0), n_messages)
    return (1 << n) - 1


def trailing_ones(bits: int) -> int:
    """Return how many of the lowest bits are set without a gap."""
    return (~bits & (bits + 1)).bit_length() - 1


def each_bit(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, in ascending order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def sum_of(sizes: Sequence[int], bits: int) -> int:
    """Return the sum of the sizes in a bit map, which is not empty."""
    least, end = (bits & -bits).bit_length() - 1, bits.bit_length()
    if bits.bit_count() == end - least:  # as where a receiver settles what it has received
        return sum(sizes[least:end])
    return sum([size for index, size in enumerate(sizes) if bits >> index & 1])


def repeats_in(offsets: Sequence[int], start: int) -> list[int]:
    """Return where offsets stand that stood before; `start` is the place of the first."""
    seen: set[int] = set()
    repeats: list[int] = []
    for at, offset in enumerate(offsets, start):
        if offset in seen:
            repeats.append(at)
        seen.add(offset)
    return repeats
