"""What became visible again, and in which order it may be received.

With `order: key`, the unsettled messages of a key that the cursor has passed are in its *lane*. The
first of a lane may be received, and others behind it in the same call, in order. A message whose
lane is occupied stays visible, but is a candidate only once it is the first.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping


class Visible:
    """Messages of one place that are visible below its cursor.

    Attributes:
        nonces: of the newest receive of each visible message, by offset.
        keys: of each message in a lane, by offset; received ones included.
    """

    def __init__(self) -> None:
        self.nonces: dict[int, int] = {}
        self.keys: dict[int, str] = {}
        self._candidates: list[int] = []
        self._lanes: dict[str, deque[int]] = {}

    def __contains__(self, offset: int) -> bool:
        return offset in self.nonces

    def show(self, offset: int, nonce: int) -> None:
        """Make a message visible."""
        self.nonces[offset] = nonce
        key = self.keys.get(offset)
        if key is None or self._lanes[key][0] == offset:
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
        if lane[0] != offset:
            lane.remove(offset)
            return False
        lane.popleft()
        if not lane:
            del self._lanes[key]
        elif lane[0] in self.nonces:
            heapq.heappush(self._candidates, lane[0])
        return True

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
            following = next((one for one in self._lanes[key] if one > offset), -1)
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
        if lane[0] == offset:
            return True
        last = last_of_key.get(key)
        return last is not None and next((one for one in lane if one > last), -1) == offset

    # Lanes.

    def enter_lane(self, offset: int, key: str) -> int:
        """Put a message at the end of its key's lane.

        Returns:
            Offset of the message before it; -1 where it is the first.
        """
        lane = self._lanes.setdefault(key, deque())
        before = lane[-1] if lane else -1
        lane.append(offset)
        self.keys[offset] = key
        return before
