"""Planning says where the next range of a reader ends.

Physical queues share the limits in proportion to what waits in each. So a reader with a backlog
comes to about the same time in all of them, and windows of event time see little lateness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from penstock.plugins.queue.engines.partition import PhysicalQueue, bits_below, each_bit


class _Range:
    """A range of one physical queue that grows at its end."""

    def __init__(self, physical: PhysicalQueue, start: int, stop: int) -> None:
        self.physical = physical
        self.end = max(start, physical.earliest)
        self.stop = stop

    @property
    def waiting(self) -> int:
        """Offsets from its end to where it stops."""
        return max(0, self.stop - self.end)

    def grow(
        self, max_messages: float, max_bytes: float, max_segments: float = math.inf
    ) -> tuple[int, int]:
        """Take messages; return how many, and the stored bytes of their segments."""
        n_messages = n_bytes = 0
        for segment in self.physical.index.since(self.end):
            first, n = segment.first_offset, segment.n_messages
            if first >= self.stop:
                break
            bits = ~bits_below(first, n, self.end) & bits_below(first, n, self.stop)
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
            self.end = min(first + n, self.stop)
        self.end = max(self.end, self.stop)
        return n_messages, n_bytes


def shares_of(limit: int, waiting: Sequence[int]) -> list[int]:
    """Divide a limit in proportion; the remainder of the rounding goes to the largest.

    Returns:
        A share for each weight, no larger than it; at least one is above 0 where a weight is.
    """
    total = sum(waiting)
    if total <= limit:
        return list(waiting)
    shares = [limit * count // total for count in waiting]
    left = limit - sum(shares)
    for index in sorted(range(len(waiting)), key=lambda index: -waiting[index])[:left]:
        shares[index] += 1
    return shares


def plan_end(
    parts: Mapping[int, PhysicalQueue],
    start: Mapping[int, int],
    max_messages: int | None,
    max_bytes: int | None,
    until: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Return the ends of the next range, by number of physical queue."""
    ranges = {
        number: _Range(
            part, start.get(number, 0), part.next if until is None else until.get(number, 0)
        )
        for number, part in parts.items()
    }
    if max_messages is None and max_bytes is None:
        return {number: max(one.end, one.stop) for number, one in ranges.items()}
    left: float = math.inf if max_messages is None else max_messages
    left_bytes: float = math.inf if max_bytes is None else max_bytes
    growing = [one for one in ranges.values() if one.waiting]
    is_first = True
    while growing and left > 0:
        waiting = [one.waiting for one in growing]
        total = sum(waiting)
        shares = waiting if left >= total else shares_of(int(left), waiting)
        bytes_a_message = left_bytes / total
        has_grown = False
        for one, share, weight in zip(growing, shares, waiting, strict=True):
            before = one.end
            n_messages, n_bytes = one.grow(share, bytes_a_message * weight)
            left -= n_messages
            left_bytes -= n_bytes
            has_grown = has_grown or one.end > before
            is_first = is_first and not n_messages
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
        growing = [one for one in growing if one.waiting]
    return {number: one.end for number, one in ranges.items()}
