"""The index of messages that are visible again, in the order in which they may be received.

With `order: key`, the unsettled messages of a key that the cursor has passed are in its *lane*. The
first of a lane may be received, and others behind it in the same call, in order. A message whose
lane is occupied stays visible, but is a candidate only once it is the first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Final

_SPARE_OFFSETS: Final = 64
"""How many places of messages that have left a lane are kept before they are freed."""


class _Lane:
    """The messages of one key: their offsets, ascending."""

    __slots__ = ("_offsets", "_start")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._start = 0

    def __bool__(self) -> bool:
        return self._start < len(self._offsets)

    @property
    def first(self) -> int:
        """The first offset."""
        return self._offsets[self._start]

    def add(self, offset: int) -> int:
        """Add an offset at its place; return the one before it, -1 for none."""
        at = bisect_left(self._offsets, offset, self._start)
        self._offsets.insert(at, offset)
        return self._offsets[at - 1] if at > self._start else -1

    def behind(self, offset: int) -> int:
        """Return the first offset above another one; -1 for none."""
        at = bisect_right(self._offsets, offset, self._start)
        return self._offsets[at] if at < len(self._offsets) else -1

    def remove(self, offset: int) -> None:
        """Take an offset out."""
        if offset != self.first:
            del self._offsets[bisect_left(self._offsets, offset, self._start)]
            return
        self._start += 1
        if self._start > _SPARE_OFFSETS and self._start * 2 > len(self._offsets):
            del self._offsets[: self._start]
            self._start = 0


class RedeliveryIndex:
    """Messages of one place that are visible below its cursor.

    Attributes:
        nonces: the nonce of the newest receive of each visible message, by offset.
        keys: the key of each message in a lane, by offset; received ones included.
    """

    def __init__(self) -> None:
        self.nonces: dict[int, int] = {}
        self.keys: dict[int, str] = {}
        self._candidates: list[int] = []
        self._lanes: dict[str, _Lane] = {}

    def __contains__(self, offset: int) -> bool:
        return offset in self.nonces

    def show(self, offset: int, nonce: int) -> None:
        """Make a message visible."""
        self.nonces[offset] = nonce
        key = self.keys.get(offset)
        if key is None or self._lanes[key].first == offset:
            heapq.heappush(self._candidates, offset)

    def block(self, offset: int, nonce: int) -> None:
        """Make a message visible that waits for others of its key."""
        self.nonces[offset] = nonce

    def hide(self, offset: int) -> int | None:
        """Make a message invisible; return the nonce of its newest receive, None if it was so."""
        return self.nonces.pop(offset, None)

    def forget(self, offset: int) -> bool:
        """Forget a message that is settled; say whether it was the first of a lane."""
        self.nonces.pop(offset, None)
        key = self.keys.pop(offset, None)
        if key is None:
            return False
        lane = self._lanes[key]
        was_first = lane.first == offset
        lane.remove(offset)
        if not lane:
            del self._lanes[key]
        elif was_first and lane.first in self.nonces:
            heapq.heappush(self._candidates, lane.first)
        return was_first

    def clear(self) -> None:
        """Forget everything."""
        self.nonces.clear()
        self.keys.clear()
        self._candidates.clear()
        self._lanes.clear()

    # Candidates.

    def candidate(self, last_of_key: Mapping[str, int]) -> int:
        """Return the oldest message that may be received; -1 for none.

        Args:
            last_of_key: newest message of each key that was received in the same call.
        """
        candidates = self._candidates
        while candidates:
            offset = candidates[0]
            if offset in self.nonces and self._is_turn(offset, last_of_key):
                return offset
            heapq.heappop(candidates)
        return -1

    def candidates(self, n: int) -> list[int]:
        """Return the first candidates, some of which may not be received."""
        return heapq.nsmallest(n, self._candidates)

    def took(self, offset: int) -> None:
        """Take the candidate out; the next of its key may be received in the same call."""
        heapq.heappop(self._candidates)
        self.nonces.pop(offset, None)
        key = self.keys.get(offset)
        if key is not None:
            following = self._lanes[key].behind(offset)
            if following in self.nonces:
                heapq.heappush(self._candidates, following)

    def drop_candidate(self) -> None:
        """Take the candidate out: it is not visible any more."""
        heapq.heappop(self._candidates)

    def _is_turn(self, offset: int, last_of_key: Mapping[str, int]) -> bool:
        """Say whether all earlier messages of its key are settled, or received in this call."""
        key = self.keys.get(offset)
        if key is None:
            return True
        lane = self._lanes[key]
        if lane.first == offset:
            return True
        last = last_of_key.get(key)
        return last is not None and lane.behind(last) == offset

    # Lanes.

    def enter_lane(self, offset: int, key: str) -> int:
        """Put a message into its key's lane, behind those with lower offsets.

        Returns:
            Offset of the message before it; -1 where it is the first.
        """
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        self.keys[offset] = key
        return lane.add(offset)
