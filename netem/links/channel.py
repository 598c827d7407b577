"""One direction of a link, which decides which packets are lost and when the others arrive.

Theory of operation. A packet first waits in a bounded queue for the rate. It occupies the link for
its length divided by the rate, and leaves with its last bit. Chance then decides whether the packet
is lost. If not, it arrives after the delay plus or minus the jitter, and not before the packet
ahead of it, unless it is reordered. The channel has no timer: the caller calls again at
`next_event` or later. Times do not depend on when the caller calls, so that lateness does not
accumulate.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from penstock.netem.links.profiles import Bursts, Direction

if TYPE_CHECKING:
    from random import Random

MAX_UNDER_WAY_BYTES: Final = 64 << 20
"""The most bytes that may be delayed at a time: ten seconds at the rate at which a forwarder
works."""

UNIMPAIRED: Final = Direction()


@dataclass(slots=True)
class Counts:
    """The numbers of packets of one direction.

    taken + duplicated = delivered + lost + dropped + overflowed + under way.

    Attributes:
        taken: the packets that entered the link.
        delivered: the packets that arrived, duplicates included.
        lost: the packets lost by chance.
        dropped: the packets for which the queue was full.
        duplicated: the packets that arrive twice.
        overtaking: the packets that were not delayed.
        overflowed: the packets that this harness dropped, because too much was under way.
        refused: the delivered packets that the host's device did not take.
        carried_bytes: the bytes of packets that left the queue and used the link, IP headers
            included, also of those that were lost on it.
    """

    taken: int = 0
    delivered: int = 0
    lost: int = 0
    dropped: int = 0
    duplicated: int = 0
    overtaking: int = 0
    overflowed: int = 0
    refused: int = 0
    carried_bytes: int = 0


class Channel:
    """One direction of a link."""

    __slots__ = (
        "_arriving",
        "_direction",
        "_free_at",
        "_in_burst",
        "_last_arrival",
        "_number",
        "_queue",
        "_queued_bytes",
        "_rng",
        "_under_way_bytes",
        "counts",
    )

    def __init__(self, direction: Direction, rng: Random) -> None:
        """Make a channel on which nothing is under way."""
        self.counts = Counts()
        self._direction = direction
        self._rng = rng
        self._in_burst = False
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._free_at = -inf  # when the first packet of the queue has left
        self._arriving: list[tuple[float, int, bytes]] = []
        self._under_way_bytes = 0
        self._number = 0
        self._last_arrival = -inf

    @property
    def is_open(self) -> bool:
        """Return whether packets arrive at the moment they enter, so that callers may skip it."""
        return self._direction == UNIMPAIRED and not self._arriving and not self._queue

    @property
    def under_way(self) -> int:
        """Number of packets that are queued or delayed."""
        return len(self._queue) + len(self._arriving)

    @property
    def next_event(self) -> float:
        """Monotonic seconds at which `due` may have something new; infinite if never."""
        arrival = self._arriving[0][0] if self._arriving else inf
        if not self._queue:
            return arrival
        direction = self._direction
        least_delay = 0.0 if direction.reorder else direction.delay - direction.jitter
        return min(arrival, self._free_at + least_delay)

    def take(self, packet: bytes, now: float) -> None:
        """Let a packet enter the link."""
        counts = self.counts
        counts.taken += 1
        if self._direction.rate is None and not self._queue:
            self._leave(packet, now)
            return
        self._advance(now)
        if self._queued_bytes + len(packet) > self._direction.max_queue_bytes:
            counts.dropped += 1
            return
        self._queue.append(packet)
        self._queued_bytes += len(packet)
        if len(self._queue) == 1:
            self._free_at = now + self._seconds(packet)
            self._advance(now)

    def due(self, now: float) -> list[bytes]:
        """Return the packets that have arrived, in order, and remove them."""
        self._advance(now)
        arriving = self._arriving
        packets = []
        while arriving and arriving[0][0] <= now:
            packet = heapq.heappop(arriving)[2]
            self._under_way_bytes -= len(packet)
            packets.append(packet)
        self.counts.delivered += len(packets)
        return packets

    def change(self, direction: Direction, now: float) -> None:
        """Change the link for packets that have not left; the others keep their arrival time."""
        self._advance(now)
        before = self._direction
        self._direction = direction
        if self._queue and before.rate is not None:
            rest_bytes = (self._free_at - now) * before.rate
            self._free_at = now + (0.0 if direction.rate is None else rest_bytes / direction.rate)
            self._advance(now)

    def _seconds(self, packet: bytes) -> float:
        """Return how long a packet occupies the link."""
        rate = self._direction.rate
        return 0.0 if rate is None else len(packet) / rate

    def _advance(self, now: float) -> None:
        """Move on the packets whose last bit has left."""
        queue = self._queue
        while queue and self._free_at <= now:
            packet = queue.popleft()
            self._queued_bytes -= len(packet)
            self._leave(packet, self._free_at)
            if queue:
                self._free_at += self._seconds(queue[0])

    def _leave(self, packet: bytes, at: float) -> None:
        """Draw loss, duplication and arrival time of a packet that has left the sender."""
        self.counts.carried_bytes += len(packet)
        if self._is_lost():
            self.counts.lost += 1
            return
        direction, rng = self._direction, self._rng
        arrives_at = at + direction.delay
        if direction.jitter:
            arrives_at += rng.uniform(-direction.jitter, direction.jitter)
        if direction.reorder and rng.random() < direction.reorder:
            self.counts.overtaking += 1
            arrives_at = at
        else:
            # A shorter delay, by jitter or by a change of profile, overtakes no packet.
            arrives_at = self._last_arrival = max(arrives_at, self._last_arrival)
        self._send(packet, arrives_at)
        if direction.duplicate and rng.random() < direction.duplicate:
            self.counts.duplicated += 1
            self._send(packet, arrives_at)

    def _send(self, packet: bytes, arrives_at: float) -> None:
        if self._under_way_bytes + len(packet) > MAX_UNDER_WAY_BYTES:
            self.counts.overflowed += 1
            return
        self._under_way_bytes += len(packet)
        self._number += 1  # packets of the same time keep their order
        heapq.heappush(self._arriving, (arrives_at, self._number, packet))

    def _is_lost(self) -> bool:
        loss = self._direction.loss
        if not isinstance(loss, Bursts):
            return loss > 0 and self._rng.random() < loss
        changes = self._rng.random() < (loss.end if self._in_burst else loss.begin)
        self._in_burst ^= changes
        return self._rng.random() < (loss.inside if self._in_burst else loss.outside)
