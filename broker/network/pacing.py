"""The rate of the large lane, chosen so that its queue does not delay an alarm for long.

Theory of operation. Both lanes of a subscriber share a path. What the large lane sends beyond the
rate of the narrowest link fills the queue before it, and each small message waits in that queue.
The large lane is there while it sends, so its own round trips show the queue. The kernel times
them; the least is the path without a queue. A router's usual buffer of 0.2 s delays an alarm by no
more than a person notices, and to keep it empty costs large messages much of the rate: round trips
vary by themselves on many paths, such as those of radio links. Modems hold seconds: those count.

* *Yield*: a round trip above the least by more than `QUEUE_SECONDS` is a queue. The pace is below
  the rate at which the path delivers, the more so the longer the queue is, so that it shrinks. The
  link stays full meanwhile, by what the queue holds.
* *Hold*: with a shorter queue, the pace is just above that rate: the link is never idle.
* *Rise*: without any queue, the path may carry more. The pace grows with each round trip, by small
  steps first and then by long ones.

A message begins at the pace that was found last, or at full rate where that was long ago. What the
pace has not shortened, though it should have drained it, is no queue of the large lane's: the path
has become longer, or others fill it. That round trip is the least from then on.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.network.tcp_info import TcpInfo

LOOK_SECONDS: Final = 0.05
"""Time between two looks at the large lane while it sends, about a round trip of many paths. A look
takes two system calls."""

QUEUE_SECONDS: Final = 0.25
"""A longer queue makes the large lane yield."""

CALM_SECONDS: Final = 0.02
"""A shorter queue counts as none: two segments of a narrow link, and what a busy machine adds."""

DRAIN_SECONDS: Final = 1.0
"""A queue is to shrink to `QUEUE_SECONDS` in about this time."""

YIELD_RATIO: Final = 0.95
LEAST_RATIO: Final = 0.5
"""The greatest and the least pace while the large lane yields, as parts of the delivery rate."""

SHRUNK_RATIO: Final = 0.75
DRAINED_TIMES: Final = 2.0
"""A queue that has not shrunk to `SHRUNK_RATIO` of itself, though the pace should have drained it
this many times, is not there. It is two, as a queue shrinks a round trip later than the pace. The
rates meanwhile tell nothing of the path: losses may have limited them."""

LEAST_SEGMENTS: Final = 4
"""A connection with so few segments in flight is limited by its losses and has no queue. The pace
is never below so few in a round trip: the kernel's wait after a segment is not shortened by a
higher pace that it is given meanwhile."""

KNOWN_SECONDS: Final = 60.0
"""A rate counts for so long after the last queue of the large lane. Messages that are too short to
rise from it would not find out that the path carries more since. With a longer time each of them is
slow; with a shorter one more of them overrun a link that is still narrow."""

HOLD_RATIO: Final = 0.1
"""The pace is above the delivery rate by at most this part of it, with the shortest queue."""

RISES: Final = (1.05, 1.1, 1.25, 1.5, 2.0)
"""Factors by which the pace grows without a queue, one after the other, the last one repeated. A
link that is still narrow is hardly overrun, and twenty times the rate is reached in eight steps,
half a second with a round trip of 40 ms."""

BINDING_RATIO: Final = 0.8
"""Where less than this part of the pace is delivered, something else limits the rate, and the pace
stays."""

RATES: Final = 5
"""The largest delivery rate of so many looks counts. Where the network or a machine stalls for a
moment, a few are low, and those after a low pace are low because of it."""

_SRTT_KEEPS: Final = 7 / 8
"""The part of its smoothed round trip that the kernel keeps at each acknowledgement (RFC 6298)."""


class Pacing:
    """The pace of one connection, by what the kernel tells of it.

    Attributes:
        pace: bytes per second at which it may send; None for full rate.
        has_yielded: whether the lane has yielded since the last `rest`.
    """

    def __init__(self) -> None:
        self.pace: float | None = None
        self.has_yielded = False
        self._least = math.inf
        self._srtt = 0.0
        self._segs_in = 0
        self._rate: float | None = None
        self._queued_at = 0.0
        self._acked = 0
        self._acked_at = 0.0
        self._old_rate = -1
        self._n_rises = 0
        self._next_at = -math.inf
        self._looked_at = 0.0
        self._rates: deque[float] = deque(maxlen=RATES)
        self._queue_before = 0.0
        self._drained = 0.0

    def rest(self, info: TcpInfo, now: float) -> float | None:
        """Choose the pace at which the next message begins: nothing is on its way.

        To be called again when it has begun, as the path may have changed meanwhile, and as what
        was acknowledged before tells nothing of the rate.

        Returns:
            Bytes per second; None for full rate.
        """
        self._round_trip(info)
        self._looked_at = now
        self.has_yielded = False
        self._acked = info.bytes_acked
        if now - self._queued_at > KNOWN_SECONDS:
            self._rate = None
        self.pace = self._rate
        if self.pace is not None and info.rtt:
            self.pace = max(self.pace, LEAST_SEGMENTS * info.mss / info.rtt)
        self._old_rate = info.delivery_rate
        self._rates.clear()
        self._queue_before = 0.0
        self._n_rises = 0
        return self.pace

    def look(self, info: TcpInfo, now: float) -> float | None:
        """Choose the pace from here on.

        Returns:
            Bytes per second; None for full rate.
        """
        rate = self._delivered(info, now - self._looked_at)
        self._looked_at = now
        rtt = self._round_trip(info)
        if rtt is None:
            return self.pace
        if rate is not None:
            self._rates.append(rate)
        self._least = min(self._least, rtt)
        queue = rtt - self._least
        since, self._acked_at = min(now - self._acked_at, rtt), now
        is_calm = queue <= CALM_SECONDS
        if queue > QUEUE_SECONDS:
            self._queued_at = now
            if info.unacked <= LEAST_SEGMENTS:
                self._forget(queue)
            else:
                self._yield(queue, since)
        else:
            self._queue_before = 0.0
            self._go_on(1 - queue / QUEUE_SECONDS, rate, now, is_calm=is_calm)
            if now >= self._next_at:
                self._next_at = now + rtt
        if self.pace is not None:
            self.pace = max(self.pace, LEAST_SEGMENTS * info.mss / rtt)
        return self.pace

    def _round_trip(self, info: TcpInfo) -> float | None:
        """Return the mean round trip since the last look; None where nothing was acknowledged.

        The kernel's mean moves by an eighth with each acknowledgement. On a narrow link, where few
        come, it would show a queue only when that is full.
        """
        before, self._srtt = self._srtt, info.rtt
        n_acks = info.segs_in - self._segs_in
        self._segs_in = info.segs_in
        if n_acks <= 0 or not info.rtt:
            return None
        if not before:
            return info.rtt
        return max(before + (info.rtt - before) / (1 - _SRTT_KEEPS**n_acks), info.rtt / 2)

    def _delivered(self, info: TcpInfo, seconds: float) -> float | None:
        """Return the rate at which the path delivers; None where there is too little to tell.

        Until a round trip of a message is over, the kernel tells the rate of the one before it: the
        path may have carried more then.
        """
        n_bytes, self._acked = info.bytes_acked - self._acked, info.bytes_acked
        if info.delivery_rate == self._old_rate:
            return n_bytes / seconds if n_bytes and info.notsent_bytes else None
        self._old_rate = -1
        return None if info.is_app_limited else float(info.delivery_rate) or None

    def _forget(self, queue: float) -> None:
        """Send at full rate, as the round trip is no longer by a queue of this connection's."""
        self._least += queue
        self._queue_before = 0.0
        self._rates.clear()
        self.pace = self._rate = None

    def _yield(self, queue: float, seconds: float) -> None:
        """Send less than the path delivers, unless that has not helped."""
        self._rate = max(self._rates, default=self._rate)
        if self._rate is None:
            return
        if not SHRUNK_RATIO < queue / (self._queue_before or math.inf) < 1 / SHRUNK_RATIO:
            self._queue_before = queue
            self._drained = 0.0
        elif self.pace is not None:
            self._drained += seconds * max(1 - self.pace / self._rate, 0.0)
        if self._drained > DRAINED_TIMES * queue:
            self._forget(queue)
            return
        excess = queue - QUEUE_SECONDS + self._drained
        self.pace = self._rate * max(LEAST_RATIO, YIELD_RATIO - excess / DRAIN_SECONDS)
        self.has_yielded = True
        self._n_rises = 0

    def _go_on(self, room: float, rate: float | None, now: float, *, is_calm: bool) -> None:
        """Send at what the path delivers, or try whether it carries more.

        The queue may hold `room`, 0 to 1, more. The rate is None where there was too little to send
        to tell.
        """
        if self.pace is None or self._rate is None or now < self._next_at:
            return
        if rate is not None:
            self._rate = max(self._rate, rate)
        if not is_calm:
            self._n_rises = 0
            self.pace = self._rate * (1 + HOLD_RATIO * room)
        elif rate is not None and rate > BINDING_RATIO * self.pace:
            self.pace *= RISES[min(self._n_rises, len(RISES) - 1)]
            self._n_rises += 1
