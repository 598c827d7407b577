"""Our own policy: hold a large message while that costs less than to send it, by what is known.

Theory of operation. A decision weighs two costs, both in seconds:

* the expected latency of the large message, from now to its last byte at the subscriber;
* the expected delay that it causes to small messages. On one connection nothing overtakes a message
  that has begun. A message that takes T seconds delays the small ones that come in these T seconds,
  each by half of T on average: ``small_weight * rate * T**2 / 2`` for ``rate`` small messages a
  second.

So a message that takes T costs ``T + small_weight * rate * T**2 / 2``. Where no small message
comes, only its own latency counts. Where many come, the sum would be least if large messages waited
for every end of congestion, although the path carries them in a few seconds. So a plan counts only
if the message's own expected latency is at most ``1 + small_weight / 4`` times that of sending now.
Under a congestion control that is not loss-based, as BBR, it is ``1 + (small_weight - 1) / 4``: by
default none is held there. Without the kernel's figures there is no such bound.

Congestion lasts for an unknown time. The best evidence is the lengths of earlier congestion on this
path: those that are longer than the present one has lasted are, equally likely, its length. A plan
is a time w: "send when a sample shows calm, and after w at the latest". Where congestion ends in r
seconds, a plan costs

* ``r + lag + cost(C)`` if the end is seen by then. C is what the message takes in calm, ``lag`` how
  late samples are;
* ``w + cost(C)`` if it has ended by then, unseen;
* ``w`` and the cost of sending in congestion, if it goes on.

The plan with the least mean cost is taken; ``w = 0`` is to send now. While nothing changes, no rule
does better than some w: a sample that shows congestion only shows that it lasts, which each plan
has counted in. Only ends are tried as w: between two of them, the cost of a plan rises.

What a message takes in congestion depends on what is known.

* Without the kernel's figures: ``L = R / 2`` at RTT level R, scaled to its size, by the moment in
  which it is sent (paper 002). Samples within one congestion differ. The part p of the newest
  sample's distance d from the level is left a second later, the persistence. So L is
  ``(R + p ** a * d) / 2`` for a message that is sent a seconds after that sample: a message is sent
  in a moment that is better than the level, where such moments last, and waits in a worse one.
* With them: a transfer takes L seconds at the rate of congestion, and goes on at the rate of calm
  when congestion ends before that. If it ends in r < L seconds, the transfer takes
  ``C + r * (1 - C / L)``. So a large message never gains by being held, and small ones are the only
  reason to hold it. The lag is that of a sample and the time until the next one: where small
  messages are rare, calm is seen late.

The rate is measured where it can be: by the full-pipe rate of a transfer in this congestion. A
measured rate counts for as long as the message would take at it. Then a message goes and measures
again, so exploring takes at most half of the time. Before the first measurement, loss-based
congestion control is expected to be as slow as the TCP throughput equation says, corrected by what
transfers in earlier congestion took, and any other as fast as in calm. Where the kernel sees
nothing of the congestion, it is beyond the connection's end, such as a relay: there, L and C are
those of the RTT.

Where few lengths are left, one more is added: as long again as it has lasted so far. It stands for
congestion unlike any before. A hold ends after twice `max_withhold`, so that large messages pass
where a path stays bad, however many small ones come.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import ClassVar

from penstock.plugins.withholding.history import MAX_LENGTHS, CongestionHistory
from penstock.plugins.withholding.policy import Judgement, Policy, Situation

MAX_ENDS = MAX_LENGTHS // 4
"""Of more lengths than these, every second or third is taken: a decision costs some microseconds,
and of many lengths the middle ones say little that their neighbours do not. With fewer left,
congestion may well be of a kind not met before."""

FUSE_RATIO = 2.0
"""Longest hold over the user's `max_withhold`. Cut at D, as long as a common congestion, a hold
would often end just before the path is calm, or as a second congestion follows the first. Without
it, a large message would wait for as long as a path is bad and small messages come."""

PRICE_RATIO = 0.25
"""By how much of itself a hold may raise the large message's own expected latency, for each unit of
`small_weight`. Where losses stop a transfer, holding raises it by some 5 %. Where a path carries
the message in a fraction of the congestion, holding multiplies it. A congestion control that is
not loss-based goes on carrying it: there, only what `small_weight` exceeds 1 by counts."""

_NO_LAG = 1e-6
"""Seconds; with it, an end that is seen at once is seen after the plan that sends at that time."""

_NO_DIFFERENCE = 1e-3
"""Seconds; what is left of a distance from the level is not followed below it."""

OVERDUE_RATIO = 2.0
"""Expected RTT of a packet over the time for which it has been unanswered: on average, half of its
wait is over."""


@dataclass(frozen=True)
class AdaptivePolicy(Policy):
    """Deliver if no wait has a smaller expected cost, or if ΔS is above its bound.

    Where the path is calm, or nothing is known of it, it delivers.

    Attributes:
        small_weight: seconds of a large message's latency that are worth one second of a small
            one's delay.
    """

    name: ClassVar[str] = "adaptive"
    compares: ClassVar[str] = "cost"
    learns: ClassVar[bool] = True
    small_weight: float = 1.0

    def judge(self, situation: Situation) -> Judgement:
        """Compare the cost of sending now with that of the best wait."""
        l_now, _, sojourn, _, _, _, overdue, n_bytes, small_per_second, history = situation
        small_weight = self.small_weight
        half_rate = small_weight * small_per_second / 2
        if (
            history is None
            or (history.began_at is None and not overdue)
            or (n_bytes and not half_rate)
        ):
            return Judgement(delivers=True, latency=l_now, limit=math.inf, release_sojourn=0.0)
        level = history.level
        if overdue:
            level = max(level, overdue)
            if history.began_at is None or history.is_off_level(level):
                # Another congestion than the last: how bad it is, only this packet tells.
                level = max(level, OVERDUE_RATIO * overdue)
        ends = _ends(history, situation)
        if n_bytes:
            congested, calm = _transfer(history, situation, level)
            lag = history.lag_seconds + history.until_next_sample()
            # Beyond a relay, this connection's congestion control says nothing.
            is_carried = history.is_seen_by_kernel and not history.is_loss_based
            paying_weight = max(0.0, small_weight - 1) if is_carried else small_weight
            most_slower = 1 + PRICE_RATIO * paying_weight
            at_once, waiting, wait = best_hold(ends, lag, congested, calm, half_rate, most_slower)
        else:
            at_once, waiting, wait = _best_wait_by_rtt(history, situation, ends, level, half_rate)
        if waiting == math.inf:  # no wait counts, or none gains anything
            return Judgement(delivers=True, latency=l_now, limit=math.inf, release_sojourn=0.0)
        bound = self.max_withhold
        delivers = at_once < waiting or sojourn > bound
        return Judgement(delivers, at_once, waiting, min(sojourn + wait, bound))


def _transfer(
    history: CongestionHistory, situation: Situation, level: float
) -> tuple[float, float]:
    """Return what a message takes in congestion and in calm, by the kernel's figures, seconds."""
    n_bytes, calm = situation.n_bytes, _calm(history, situation)
    slowness = 0.0
    if history.is_seen_by_kernel:
        slowness = history.calm_slowness()
        if slowness:
            calm = max(calm, n_bytes * slowness)
        slowness = history.measured_slowness(situation.now, n_bytes)
        slowness = slowness or history.assumed_slowness(level)
    # Without a rate of this path, as by the RTT alone.
    congested = level / 2 + n_bytes * slowness if slowness else situation.size_ratio / 2 * level
    return congested, calm


def _best_wait_by_rtt(
    history: CongestionHistory,
    situation: Situation,
    ends: list[float],
    level: float,
    half_rate: float,
) -> tuple[float, float, float]:
    """Return what `best_wait` returns, of the costs of a message by the RTT alone."""
    to_latency = situation.size_ratio / 2
    calm = _calm(history, situation)
    congested, off_level = to_latency * level, 0.0
    persistence = 0.0 if situation.overdue else history.persistence()
    if persistence:
        age = situation.now - (history.sampled_at or situation.now)
        off_level = to_latency * persistence**age * (history.latest - level)
    if half_rate:
        now = congested + off_level
        calm += half_rate * calm * calm
        off_level += half_rate * (now * now - congested * congested)
        congested += half_rate * congested * congested
    return best_wait(ends, history.lag_seconds, congested, calm, off_level, persistence)


def _calm(history: CongestionHistory, situation: Situation) -> float:
    """Return what a message takes after a calm sample, by its RTT, seconds."""
    if history.after_calm is None:
        return situation.threshold_l / 2
    return situation.size_ratio / 2 * history.after_calm


def _ends(history: CongestionHistory, situation: Situation) -> list[float]:
    """Return when congestion may end, in seconds from now, ascending; each equally likely.

    An end before now is one that no sample has shown yet.
    """
    _, _, _, probe_period, now, _, overdue, _, _, _ = situation
    began_at, known_until = history.began_at, history.sampled_at
    if overdue:
        began_at = now - overdue if began_at is None else began_at
        known_until = now
    if began_at is None or known_until is None:
        return [0.0]
    lasted = known_until - began_at
    lengths = history.lengths
    n_shorter = bisect_right(lengths, lasted)
    n_left = len(lengths) - n_shorter
    step = 1 + n_left // MAX_ENDS
    from_now = began_at - now
    ends = [length + from_now for length in lengths[n_shorter + step // 2 :: step]]
    if n_left < MAX_ENDS:
        insort(ends, lasted + max(lasted, probe_period) + from_now)
    return ends


def best_wait(
    ends: list[float],
    lag: float,
    congested: float,
    calm: float,
    off_level: float = 0.0,
    persistence: float = 0.0,
) -> tuple[float, float, float]:
    """Return the mean cost of sending now, that of the best wait, and that wait.

    Args:
        ends: when congestion ends, in seconds from now, ascending, each equally likely; an end
            below 0 has passed unseen.
        lag: seconds from an end until it is seen.
        congested: cost of a message sent in congestion, seconds.
        calm: cost of a message sent after it, seconds.
        off_level: how much more it is in congestion if the message is sent now, seconds; what
            makes it less than ``calm`` does not count.
        persistence: part of `off_level` that is left a second later.

    Returns:
        (at once, waiting, wait): three times in seconds; ``waiting`` is infinite where there is no
        end to wait for or nothing to gain.
    """
    n_ends = n_unseen = len(ends)
    gain = congested - calm
    n_over = bisect_right(ends, 0.0)
    if gain <= 0:
        return congested - gain * n_over / n_ends, math.inf, 0.0
    at_once = congested - gain * n_over / n_ends
    if off_level:
        off_level = max(off_level, -gain)
        at_once += off_level * (n_ends - n_over) / n_ends
    lag = max(lag, _NO_LAG)
    least, wait = math.inf, 0.0
    seen_seconds, next_seen = 0.0, ends[0] + lag
    # For each end ahead: the mean over all ends, without the terms that all plans share.
    for latest in ends[n_over:]:
        n_over += 1
        while next_seen <= latest:
            if next_seen > 0:
                seen_seconds += next_seen
            n_unseen -= 1
            next_seen = ends[n_ends - n_unseen] + lag
        cost = seen_seconds + n_unseen * latest - gain * n_over
        if off_level:
            left = off_level * persistence**latest
            cost += left * (n_ends - n_over)
            if -_NO_DIFFERENCE < left < _NO_DIFFERENCE:
                off_level = 0.0
        if cost < least:
            least, wait = cost, latest
    return at_once, congested + least / n_ends, wait


def best_hold(
    ends: list[float],
    lag: float,
    congested: float,
    calm: float,
    half_rate: float,
    most_slower: float,
) -> tuple[float, float, float]:
    """Return what `best_wait` returns, for a transfer that goes on after the end of congestion.

    Two waits are tried: until the last end, and, where ends are further away than the transfer
    takes, until the middle one.

    Args:
        ends: as in `best_wait`.
        lag: as in `best_wait`.
        congested: seconds that the message takes in congestion that does not end.
        calm: seconds that it takes in calm.
        half_rate: half of the weighted rate of small messages, 1/s.
        most_slower: ratio of the message's own expected latency to that of sending now, up to
            which a wait counts.
    """
    calm_cost = calm + half_rate * calm * calm
    if congested <= calm:
        return calm_cost, math.inf, 0.0
    # Sent r seconds before the end, the message takes calm + slope * r. What that costs more than
    # in calm is linear * r + square * r * r, at most that of a transfer in congestion alone.
    slope = 1 - calm / congested
    linear = slope * (1 + 2 * half_rate * calm)
    square = half_rate * slope * slope
    most = (linear + square * congested) * congested
    n_ends = len(ends)
    wait = last = max(0.0, ends[-1])
    # For each plan: the sum over all ends, without the cost in calm that all plans share.
    at_once = waiting = own_at_once = 0.0
    for end in ends:
        if end >= congested:
            at_once += most
            own_at_once += congested
        elif end > 0:
            at_once += (linear + square * end) * end
            own_at_once += end
        seen = end + lag
        if seen >= last:
            waiting += last
        elif seen > 0:
            waiting += seen
    # The sum over all ends of what the message itself may take longer than in calm.
    own_most = most_slower * (n_ends * calm + slope * own_at_once) - n_ends * calm
    if waiting > own_most:
        waiting = math.inf
    middle = ends[n_ends // 2]
    if last - middle > congested and middle > 0:
        giving_up = own = 0.0
        for end in ends:
            left = end - middle
            if left >= congested:
                giving_up += middle + most
                own += middle + slope * congested
            elif left > 0:
                giving_up += middle + (linear + square * left) * left
                own += middle + slope * left
            else:
                seen = max(0.0, min(end + lag, middle))
                giving_up += seen
                own += seen
        if giving_up < waiting and own <= own_most:
            waiting, wait = giving_up, middle
    return calm_cost + at_once / n_ends, calm_cost + waiting / n_ends, wait
