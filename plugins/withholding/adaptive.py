"""Our own policy: wait as long as this subscriber's past shows that waiting pays.

Theory of operation. A large message meets congestion at RTT level R. Sent now it takes ``L = R /
2``. Sent once the path is seen to be calm it takes ``C``, half the RTT that this subscriber has
shown after a calm sample. In between lies an unknown time, for which the lengths of earlier
congestion are the best evidence: each of them that is longer than the present congestion has lasted
is equally likely to be its length.

A plan is a time w: "send when a sample shows calm, and after w at the latest". For each remaining
length, which ends in r seconds, a plan costs

* ``r + lag + C`` where the end is seen by then, ``lag`` being the delay of samples;
* ``w + C`` where congestion has ended by then, unseen;
* ``w + L`` where it goes on.

The plan with the least mean cost is chosen; ``w = 0`` means to send now. While the level stays, no
rule can do better than some w: until calm is seen, waiting teaches only that congestion still
lasts, and each plan has counted that in. Only the ends are tried as w, since between two of them a
plan's cost rises.

Samples within one congestion differ. Of the newest sample's distance d from the level, the part p
is left a second later, the persistence. So L is ``(R + p ** a * d) / 2`` for a message that is sent
a seconds after that sample: a message is sent in a moment that is better than the level, where such
moments last, and waits in a worse one.

Where few lengths are left, one more is added: the time that congestion has lasted so far, again. It
stands for congestion unlike any before. It decides alone once all lengths are exceeded, and makes
waiting pay ever less.

L and C are larger where the kernel has evidence (TCP_INFO). A lost packet does not show in its RTT,
but a transfer of B bytes waits for each one. So L is at least B times the seconds for a byte, taken
from the delivery rate of what is being sent, or, where little is being sent, from its
retransmissions, RTT and RTT variance by the TCP throughput equation. C is at least B times the
seconds for a byte in calm: where the path is never faster, there is nothing to wait for. Unsent
bytes before the message count with it; as they are kept few, they weigh little. None of these shows
whether there *is* congestion: samples above threshold_l do.

No parameter describes the network. The bound on the hold is a fuse, not a part of the rule.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import ClassVar

from penstock.plugins.withholding.history import CongestionHistory
from penstock.plugins.withholding.policy import Judgement, Policy, Situation

MAX_ENDS = 16
"""Of more lengths than these, only every second or third is used: a decision takes some
microseconds, and the middle ones of many lengths add little to their neighbours."""

FEW_ENDS = 8
"""With fewer lengths left than these, congestion may well be of a new kind."""

_NO_LAG = 1e-6
"""Seconds; with it, an end that is seen at once is seen after the plan that sends at that time."""

_NO_DIFFERENCE = 1e-3
"""Seconds; what is left of a distance from the level is not followed below it."""

OVERDUE_RATIO = 2.0
"""Expected RTT of a packet over the time for which it has been unanswered: on average, half of its
wait is over."""

FUSE_RATIO = 2.0
"""Longest hold over the user's `max_withhold`. A wait should end because the lengths say so. Cut at
D, as long as common congestion lasts, it would often end just before the path is calm, or as a
second congestion follows the first."""


@dataclass(frozen=True)
class AdaptivePolicy(Policy):
    """Deliver if no wait has a smaller expected end-to-end latency, or ``ΔS > D``.

    Where the path is calm, or nothing is known of it, it delivers.
    """

    name: ClassVar[str] = "adaptive"
    learns: ClassVar[bool] = True

    def judge(self, situation: Situation) -> Judgement:
        """Compare the latency of sending now with that of the best wait."""
        history, overdue = situation.history, situation.overdue
        if history is None or (history.began_at is None and not overdue):
            return Judgement(
                delivers=True, latency=situation.l_now, limit=math.inf, release_sojourn=0.0
            )
        level, persistence = history.level, 0.0
        recent_seconds = situation.probe_period
        if not overdue:
            persistence = history.persistence()
        else:
            level = max(level, overdue)
            if history.began_at is None or history.is_off_level(level):
                # This is a new congestion: only the overdue packet shows how bad it is.
                level = max(level, OVERDUE_RATIO * overdue)
                recent_seconds = min(recent_seconds, overdue)
        to_latency = situation.size_ratio / 2
        congested, off_level = to_latency * level, 0.0
        if persistence:
            age = situation.now - (history.sampled_at or situation.now)
            off_level = to_latency * persistence**age * (history.latest - level)
        if situation.n_bytes:
            least = situation.n_bytes * history.slowness(situation.now, recent_seconds, level)
            if off_level:
                off_level = max(congested + off_level, least) - max(congested, least)
            congested = max(congested, least)
        calm = situation.threshold_l / 2
        if history.after_calm is not None:
            calm = to_latency * history.after_calm
        calm = max(calm, situation.n_bytes * history.calm_slowness())
        ends = _ends(history, situation)
        at_once, waiting, wait = best_wait(
            ends, history.lag_seconds, congested, calm, off_level, persistence
        )
        delivers = at_once < waiting or situation.sojourn > self.max_withhold
        return Judgement(
            delivers, at_once, waiting, min(situation.sojourn + wait, self.max_withhold)
        )


def _ends(history: CongestionHistory, situation: Situation) -> list[float]:
    """Return when congestion may end, in seconds from now, ascending; each equally likely.

    An end before now is one that no sample has shown yet.
    """
    now = situation.now
    began_at, known_until = history.began_at, history.sampled_at
    if situation.overdue:
        began_at = now - situation.overdue if began_at is None else began_at
        known_until = now
    if began_at is None or known_until is None:
        return [0.0]
    lasted = known_until - began_at
    lengths = history.lengths
    n_shorter = bisect_right(lengths, lasted)
    step = 1 + (len(lengths) - n_shorter) // MAX_ENDS
    from_now = began_at - now
    ends = [length + from_now for length in lengths[n_shorter + step // 2 :: step]]
    if len(ends) < FEW_ENDS:
        insort(ends, lasted + max(lasted, situation.probe_period) + from_now)
    return ends


def best_wait(
    ends: list[float],
    lag: float,
    congested: float,
    calm: float,
    off_level: float = 0.0,
    persistence: float = 0.0,
) -> tuple[float, float, float]:
    """Return the mean latency of sending now, that of the best wait, and that wait.

    Args:
        ends: when congestion ends, in seconds from now, ascending, each equally likely; an end
            below 0 has passed unseen.
        lag: seconds from an end until it is seen.
        congested: latency of a message sent in congestion, seconds.
        calm: latency of a message sent after it, seconds.
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
