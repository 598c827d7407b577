"""The rate of TCP on a path that loses packets: the equation of TFRC (RFC 5348, section 3.1)."""

from __future__ import annotations

import math

SEGMENT_BYTES = 1448
"""Of a full segment: a packet of 1,500 bytes without the headers of IPv4 and TCP (RFC 7323)."""

LEAST_RTO_SECONDS = 0.2
"""Linux waits at least this much longer than an RTT before it regards a segment as lost."""


def seconds_per_byte(rtt: float, rttvar: float, loss_ratio: float) -> float:
    """Return the time that TCP needs for a byte of a long transfer, seconds.

    ``1 / X_Bps`` with b = 1 (RFC 5348, 3.1): ``R * sqrt(2p / 3)`` for windows that are halved,
    ``t_RTO * 3 * sqrt(3p / 8) * p * (1 + 32p**2)`` for time-outs, each for a segment. The second
    root is 3/4 of the first.

    Args:
        rtt: R, smoothed, seconds.
        rttvar: its mean deviation, seconds; t_RTO is R and four of these, as in RFC 6298.
        loss_ratio: p, fraction of lost segments, 0 to 1. 0 gives 0: no limit.
    """
    p = loss_ratio
    rto = rtt + max(4 * rttvar, LEAST_RTO_SECONDS)
    waiting = rto * (9 / 4) * p * (1 + 32 * p * p)
    return (rtt + waiting) * math.sqrt(2 * p / 3) / SEGMENT_BYTES
