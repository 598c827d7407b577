"""How fast the lane of large messages may send: as fast as the path carries, with a short queue.

Theory of operation. Both lanes of a subscriber share a path. What the large lane sends beyond the
rate of the narrowest link fills the queue before it, and each small message waits in that queue.
The large lane is there while it sends, so its own round trips show the queue long before a small
message has waited in it. The kernel times them; the least is the path without a queue.

* *Begin*: the kernel sends the first ten segments of a message at once, which fills the queue of a
  narrow link. They are spread over one round trip. If no queue has grown then, the rate at which
  the path was last found full is the next pace; none, where that was over a minute ago, or never.
* *Yield*: a round trip above the least by more than `QUEUE_SECONDS` is a queue. The pace is below
  the rate at which the path delivers, the more so the longer the queue is, so that it shrinks.
* *Hold*: with a short queue, the pace is just above that rate: the link is never idle.
* *Rise*: without any queue, the path may carry more. The pace grows with each round trip, by small
  steps first and then by long ones.

What the pace has not shortened, though it should have drained it, is no queue of the large lane's:
the path has become longer, or others fill it. That round trip is the least from then on.

* *Prove*: round trips vary by themselves on many paths, such as those of radio links, and then look
  like queues that come and go. So a pace has to be proven: after a time of yielding the large lane
  sends at twice the rate that it had, for two round trips. If the path delivers more, there was no
  queue, and the large lane is not paced for a while.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from penstock.broker.network.tcp_info import TcpInfo

LOOK_SECONDS: Final = 0.05
"""Between two looks at the large lane while it sends: about a round trip of many paths. A look
takes two system calls."""

QUEUE_SECONDS: Final = 0.025
"""Longer queues make the large lane yield. It is more than the jitter of most paths, and little
beside the 0.2 s that a narrow link often holds."""

QUEUE_RATIO: Final = 0.25
"""Of the least round trip, if that is longer: long paths have more jitter."""

CALM_SECONDS: Final = 0.008
"""A shorter queue is none: what a busy machine adds to a round trip."""

BURST_SEGMENTS: Final = 2
"""Linux sends, and most receivers acknowledge, two segments at a time: on a narrow link, the time
that these take looks like a queue."""

MOST_SEGMENT_SECONDS: Final = 0.03
"""For which a segment counts at most: at a rate that losses limit, one would take long."""

INITIAL_SEGMENTS: Final = 10
"""What Linux sends at once after a pause (RFC 6928)."""

SPREAD_SECONDS: Final = 0.06
"""They are spread over a round trip, and for so long at most, as a path of a longer one would lose
more than the small lane gains."""

DRAIN_SECONDS: Final = 0.2
"""In about so long a queue is to shrink to `QUEUE_SECONDS`."""

YIELD_RATIO: Final = 0.95
LEAST_RATIO: Final = 0.5
"""Of the delivery rate: the most and the least pace while the large lane yields. Half of it drains
the 0.2 s of a full queue in 0.4 s."""

SHRUNK_RATIO: Final = 0.75
DRAINED_TIMES: Final = 2.0
"""A queue that has not shrunk to so much of itself, though the pace should have drained it so many
times, is not there. Twice, as it shrinks a round trip later than the pace. The rates meanwhile tell
nothing of the path: losses may have limited them."""

FEW_SEGMENTS: Final = 4
LOSSY_SECONDS: Final = 5.0
"""A connection that has lost segments within this time, and has had no more than so few on their
way for two round trips, is limited by its losses, not by a link: its window is small, and what it
has delivered tells nothing of the path. No pace at which it begins or yields is below so few in a
round trip, and no other one is below `BURST_SEGMENTS`: what the kernel waits for after a segment is
not shortened by a higher pace that it is given meanwhile."""

KNOWN_SECONDS: Final = 60.0
"""A rate counts for so long after the last queue of the large lane: messages that are too short to
rise from it would not find that the path carries more since. Longer, each of them is slow; shorter,
more of them overrun a link that is as narrow as before."""

HOLD_RATIO: Final = 0.1
"""Above the delivery rate by so much at most, with the shortest queue."""

RISES: Final = (1.05, 1.1, 1.25, 1.5, 2.0)
"""Factors of the pace without a queue, one after the other and the last one repeated: a link that
is as narrow as before is hardly overrun, and twenty times the rate is reached in eight steps, half
a second with a round trip of 40 ms."""

BINDING_RATIO: Final = 0.8
"""Of the pace: where less is delivered, something else limits the rate, and the pace stays."""

RATES: Final = 5
"""Delivery rates of so many looks, of which the largest counts: where the network or a machine
stalls for a moment, a few are low, and those after a low pace are low by that."""

PROVE_AFTER_SECONDS: Final = 0.5
"""Of yielding, after which a pace has to be proven. Each proof that holds doubles the time until
the next one."""

MOST_PROVE_AFTER_SECONDS: Final = 30.0

PROOF_RATIO: Final = 2.0
PROVEN_RATIO: Final = 1.4
"""Of the rate while yielding: what the large lane sends for a proof, and what has to be delivered
for the pace to be wrong."""

PROOF_SECONDS: Final = 0.1
"""Of a proof, beside two round trips: what was sent in it is acknowledged then."""

FREE_SECONDS: Final = 10.0
MOST_FREE_SECONDS: Final = 60.0
"""For which nothing is paced after a proof that has failed: the link may have become wider in that
moment. Each further failure without a proof that holds doubles the time."""

_SRTT_KEEPS: Final = 7 / 8
"""What the kernel keeps of its smoothed round trip at each acknowledgement (RFC 6298)."""


class _Proof(NamedTuple):
    """A higher pace for a moment.

    Attributes:
        rate: bytes per second that were delivered while yielding.
        counts_from: monotonic seconds from which acknowledgements are of what was sent meanwhile.
        until: monotonic seconds.
        acked_at: when counting has begun; None before.
        acked_bytes: of the connection at that time.
    """

    rate: float
    counts_from: float
    until: float
    acked_at: float | None = None
    acked_bytes: int = 0


class Pacing:
    """The pace of one connection, by what the kernel tells of it.

    Attributes:
        pace: bytes per second at which it may send; None for full rate.
        has_yielded: since the last `rest`.
    """

    def __init__(self) -> None:
        self.pace: float | None = None
        self.has_yielded = False
        self._least = math.inf
        self._srtt = 0.0
        self._segs_in = 0
        self._rate: float | None = None
        self._queued_at = 0.0
        self._is_beginning = False
        self._acked = 0
        self._acked_at = 0.0
        self._old_rate = -1
        self._n_rises = 0
        self._next_at = -math.inf
        self._looked_at = 0.0
        self._rates: deque[float] = deque(maxlen=RATES)
        self._queue_before = 0.0
        self._drained = 0.0
        self._many_at = 0.0
        self._retrans = 0
        self._lost_at = -math.inf
        self._yielded_seconds = 0.0
        self._yielded_bytes = 0
        self._prove_after = PROVE_AFTER_SECONDS
        self._proof: _Proof | None = None
        self._free_seconds = FREE_SECONDS
        self._free_until = -math.inf

    def rest(self, info: TcpInfo, now: float) -> float | None:
        """Choose the pace at which the next message begins: nothing is on its way.

        To be called again when it has begun, as the path may have changed meanwhile, and as what
        was acknowledged before tells nothing of the rate.

        Args:
            info: of the connection.
            now: monotonic seconds.

        Returns:
            Bytes per second; None for full rate.
        """
        self._round_trip(info)
        self._looked_at = now
        self.has_yielded = False
        self._acked = info.bytes_acked
        self._proof = None
        if now < self._free_until:
            return self.pace
        if now - self._queued_at > KNOWN_SECONDS:
            self._rate = None
        least = min(self._least, info.rtt or SPREAD_SECONDS)
        seconds = min(least, SPREAD_SECONDS)
        begin = INITIAL_SEGMENTS * info.mss / seconds
        few = FEW_SEGMENTS * info.mss / (info.rtt or SPREAD_SECONDS)
        self.pace = begin if self._rate is None else min(begin, max(self._rate, few))
        self._is_beginning = True
        self._old_rate = info.delivery_rate
        self._rates.clear()
        self._queue_before = 0.0
        self._n_rises = 0
        return self.pace

    def look(self, info: TcpInfo, now: float) -> float | None:
        """Choose the pace from here on.

        Args:
            info: of the connection, which sends.
            now: monotonic seconds.

        Returns:
            Bytes per second; None for full rate.
        """
        seconds, self._looked_at = now - self._looked_at, now
        if now < self._free_until:
            self._round_trip(info)
            return self.pace
        acked = self._acked
        rate = self._delivered(info, seconds)
        if self._proof is not None:
            self._round_trip(info)
            self._prove(self._proof, info.bytes_acked, now)
            return self.pace
        if self.has_yielded and self.pace is not None:
            self._yielded_seconds += seconds
            self._yielded_bytes += info.bytes_acked - acked
        if info.unacked > FEW_SEGMENTS:
            self._many_at = now
        if info.total_retrans != self._retrans:
            self._retrans, self._lost_at = info.total_retrans, now
        rtt = self._round_trip(info)
        if rtt is None:
            return self.pace
        if rate is not None:
            self._rates.append(rate)
        self._least = min(self._least, rtt)
        queue = rtt - self._least
        segment = info.mss / self._rate if self._rate else 0.0
        segment = min(segment, MOST_SEGMENT_SECONDS)
        most = max(QUEUE_SECONDS, QUEUE_RATIO * self._least) + BURST_SEGMENTS * segment
        since, self._acked_at = min(now - self._acked_at, rtt), now
        is_calm = queue <= CALM_SECONDS + segment
        if not is_calm:
            self._queued_at = now
        if queue > most:
            is_lossy = now - self._lost_at < LOSSY_SECONDS
            few = FEW_SEGMENTS * info.mss / rtt
            if is_lossy and now - self._many_at > 2 * rtt + LOOK_SECONDS:
                self._forget(queue)
            else:
                self._yield(queue, queue - most, since, few)
        else:
            self._queue_before = 0.0
            self._go_on(1 - queue / most, rate, now, is_calm=is_calm)
            if self.pace is not None:
                self.pace = max(self.pace, BURST_SEGMENTS * info.mss / rtt)
            if now >= self._next_at:
                self._next_at = now + rtt
        if self.pace is not None and self._yielded_seconds >= self._prove_after:
            rate = self._yielded_bytes / self._yielded_seconds
            self._proof = _Proof(rate, now + rtt, now + 2 * rtt + PROOF_SECONDS)
            self.pace = max(PROOF_RATIO * rate, self.pace)
        return self.pace

    def _prove(self, proof: _Proof, acked_bytes: int, now: float) -> None:
        """See what the path delivers at a higher pace, and take the pace away if that is more."""
        if proof.acked_at is None:
            if now >= proof.counts_from:
                self._proof = proof._replace(acked_at=now, acked_bytes=acked_bytes)
            return
        if now < proof.until:
            return
        delivered = (acked_bytes - proof.acked_bytes) / (now - proof.acked_at)
        self._proof = None
        self._yielded_seconds, self._yielded_bytes = 0.0, 0
        if delivered > PROVEN_RATIO * proof.rate:
            self._free_until = now + self._free_seconds
            self._free_seconds = min(2 * self._free_seconds, MOST_FREE_SECONDS)
            self._prove_after = PROVE_AFTER_SECONDS
            self._least = math.inf
            self._forget(0.0)
        else:
            self._free_seconds = FREE_SECONDS
            self._prove_after = min(2 * self._prove_after, MOST_PROVE_AFTER_SECONDS)

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

    def _yield(self, queue: float, excess: float, seconds: float, few: float) -> None:
        """Send less than the path delivers, unless that has not helped.

        Args:
            queue: seconds.
            excess: of them, those above what is wanted.
            seconds: since the last acknowledgement before this one.
            few: bytes per second of so few segments that they are no queue.
        """
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
        ratio = max(LEAST_RATIO, YIELD_RATIO - (excess + self._drained) / DRAIN_SECONDS)
        self.pace = max(ratio * self._rate, few)
        self.has_yielded = True
        self._is_beginning = False
        self._n_rises = 0

    def _go_on(self, room: float, rate: float | None, now: float, *, is_calm: bool) -> None:
        """Send at what the path delivers, or try whether it carries more.

        Args:
            room: for more in the queue, 0 to 1.
            rate: delivered bytes per second; None where there was too little to send to tell.
            now: monotonic seconds.
            is_calm: there is no queue.
        """
        if self._is_beginning:
            self._is_beginning = False
            self.pace = self._rate
        elif self.pace is not None and self._rate is not None and now >= self._next_at:
            if rate is not None:
                self._rate = max(self._rate, rate)
            if not is_calm:
                self._n_rises = 0
                self.pace = self._rate * (1 + HOLD_RATIO * room)
            elif rate is not None and rate > BINDING_RATIO * self.pace:
                self.pace *= RISES[min(self._n_rises, len(RISES) - 1)]
                self._n_rises += 1
