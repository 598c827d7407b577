"""The end of the next range of a reader: equal shares of its limits for all physical queues."""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock.plugins.queue.engines.physical import PhysicalQueue, bits_below, each_bit


class _Range:
    """A range of one physical queue that grows at its end."""

    def __init__(self, physical: PhysicalQueue, start: int) -> None:
        self.physical = physical
        self.end = max(start, physical.earliest)

    def grow(
        self, max_messages: float, max_bytes: float, max_segments: float = math.inf
    ) -> tuple[int, int]:
        """Take messages; return how many, and the stored bytes of their segments.

        Args:
            max_messages: at most.
            max_bytes: the same; a segment counts whole.
            max_segments: of which messages are taken.
        """
        n_messages = n_bytes = 0
        for segment in self.physical.index.since(self.end):
            first, n = segment.first_offset, segment.n_messages
            bits = ~bits_below(first, n, self.end) & (1 << n) - 1
            bits &= ~self.physical.gone_bits(first)
            size = bits.bit_count()
            if n_messages >= max_messages or max_segments <= 0:
                return n_messages, n_bytes
            if n_bytes + segment.stored_bytes > max_bytes:
                return n_messages, n_bytes
            max_segments -= 1 if size else 0
            n_bytes += segment.stored_bytes if size else 0
            if n_messages + size > max_messages:
                numbers = list(each_bit(bits))[: int(max_messages) - n_messages]
                self.end = first + numbers[-1] + 1
                return n_messages + len(numbers), n_bytes
            n_messages += size
            self.end = first + n
        self.end = max(self.end, self.physical.next)
        return n_messages, n_bytes


def plan_end(
    parts: Mapping[int, PhysicalQueue],
    start: Mapping[int, int],
    max_messages: int | None,
    max_bytes: int | None,
) -> dict[int, int]:
    """Return the ends of the next range, by number of physical queue.

    Args:
        parts: the physical queues.
        start: where the range begins; those that it lacks begin at their earliest offset.
        max_messages: of all; None for any number.
        max_bytes: in stored bytes of whole segments; None for any number.
    """
    ranges = {number: _Range(part, start.get(number, 0)) for number, part in parts.items()}
    if max_messages is None and max_bytes is None:
        return {number: max(one.end, one.physical.next) for number, one in ranges.items()}
    left: float = math.inf if max_messages is None else max_messages
    left_bytes: float = math.inf if max_bytes is None else max_bytes
    growing = [one for one in ranges.values() if one.end < one.physical.next]
    is_first = True
    while growing and left > 0:
        share = left if math.isinf(left) else max(1, left // len(growing))
        share_bytes = left_bytes / len(growing)
        has_grown = False
        for one in growing:
            before = one.end
            n_messages, n_bytes = one.grow(min(share, left), share_bytes)
            left -= n_messages
            left_bytes -= n_bytes
            has_grown = has_grown or one.end > before
            is_first = is_first and not n_messages
            if left <= 0:
                break
        if not has_grown:
            # No share holds a segment: the whole rest may, and a first one is taken anyway.
            room = math.inf if is_first else left_bytes
            for one in growing:
                n_messages, n_bytes = one.grow(left, room, 1)
                if n_messages:
                    break
            else:
                break
            left -= n_messages
            left_bytes -= n_bytes
            is_first = False
        growing = [one for one in growing if one.end < one.physical.next]
    return {number: one.end for number, one in ranges.items()}
