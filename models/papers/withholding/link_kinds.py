"""Kinds of bad links for the simulation of links: those of `penstock netem run links`.

A link of a kind is good and bad in turn, for exponentially distributed times, unless its kind says
otherwise. Its properties in a bad phase are drawn by seed, so that no constant of a policy can be
fitted to them.

The throughput of TCP on a path that loses packets depends on its congestion control. With cubic it
is the rate of the throughput equation (RFC 5348, section 3.1), with bbr a large part of the link's
rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from penstock.models.kernels.link_simulation import (
    GOOD,
    BadPhase,
    LinkChange,
    LinkState,
    Traffic,
    in_turn,
)

CongestionControl = Literal["cubic", "bbr"]

SEGMENT_BYTES: Final = 1448
LEAST_RTO_SECONDS: Final = 0.2


class SimulatedKind(NamedTuple):
    """A kind of bad link.

    Attributes:
        changes: a function that makes the changes of a link from random values, the length of the
            run in seconds and the congestion control.
        n_subscribers: the number of subscribers that share a link.
        by_congestion_control: whether the congestion control makes a difference in this
            approximation.
    """

    changes: Callable[[random.Random, float, CongestionControl], list[LinkChange]]
    traffic: Traffic = Traffic()
    n_subscribers: int = 1
    by_congestion_control: bool = False


def lossy_rate(rtt: float, loss: float) -> float:
    """Return bytes a second of loss-based congestion control, by the throughput equation of TFRC.

    ``R * sqrt(2p / 3)`` for windows that are halved,
    ``t_RTO * 3 * sqrt(3p / 8) * p * (1 + 32p**2)`` for time-outs, each for a segment (RFC 5348,
    3.1, with b = 1).
    """
    waiting = max(2 * rtt, rtt + LEAST_RTO_SECONDS) * 9 / 4 * loss * (1 + 32 * loss * loss)
    return SEGMENT_BYTES / ((rtt + waiting) * math.sqrt(2 * loss / 3))


def _always(state: LinkState) -> BadPhase:
    return lambda at, _end: [LinkChange(at, state)]


def _loss(
    rng: random.Random, seconds: float, congestion_control: CongestionControl
) -> list[LinkChange]:
    loss, rtt = rng.uniform(0.08, 0.25), rng.uniform(0.08, 0.3)
    rate = lossy_rate(rtt, loss)
    if congestion_control == "bbr":
        rate = GOOD.rate * (1 - loss) * rng.uniform(0.3, 0.9)

    def bad(at: float, end: float) -> list[LinkChange]:
        changes = []
        while at < end:  # a window more or less, from second to second
            factor = math.exp(rng.gauss(-0.25, 0.7))
            changes.append(LinkChange(at, LinkState(rate * factor, rtt, loss)))
            at += rng.expovariate(1.0)
        return changes

    return in_turn(rng, seconds, bad)


def _cliff(rng: random.Random, seconds: float, _: CongestionControl) -> list[LinkChange]:
    state = LinkState(GOOD.rate / rng.uniform(8, 30), GOOD.rtt)
    return in_turn(rng, seconds, _always(state))


def _far_and_narrow(rng: random.Random, seconds: float, _: CongestionControl) -> list[LinkChange]:
    state = LinkState(rng.uniform(80_000, 250_000), rng.uniform(0.5, 2.0))
    return in_turn(rng, seconds, _always(state))


def _changing(rng: random.Random, seconds: float, _: CongestionControl) -> list[LinkChange]:
    changes, at = [], 0.0
    while at < seconds:
        rate = math.exp(rng.uniform(math.log(50_000), math.log(2_500_000)))
        changes.append(LinkChange(at, LinkState(rate, GOOD.rtt)))
        at += rng.uniform(1, 6)
    return [*changes, LinkChange(seconds, GOOD)]


def _outages(rng: random.Random, seconds: float, _: CongestionControl) -> list[LinkChange]:
    mean_bad_seconds = rng.uniform(3, 15)

    bad = _always(LinkState(0.0, GOOD.rtt))
    return in_turn(rng, seconds, bad, mean_bad_seconds=mean_bad_seconds)


def _shared(rng: random.Random, seconds: float, _: CongestionControl) -> list[LinkChange]:
    state = LinkState(rng.uniform(250_000, 600_000), 0.05)
    return in_turn(rng, seconds, _always(state))


def _bursts(
    rng: random.Random, seconds: float, congestion_control: CongestionControl
) -> list[LinkChange]:
    loss = rng.uniform(0.3, 0.6)

    def bad(at: float, end: float) -> list[LinkChange]:
        changes = []
        while at < end:
            rate = rng.uniform(5_000, 60_000) if congestion_control == "cubic" else 150_000.0
            changes.append(LinkChange(at, LinkState(rate, 0.06, loss)))
            at += rng.expovariate(1 / 0.7)
            if at < end:
                changes.append(LinkChange(at, LinkState(800_000, 0.05, 0.01)))
                at += rng.expovariate(1 / 1.5)
        return changes

    return in_turn(rng, seconds, bad)


def _idle(
    rng: random.Random, seconds: float, congestion_control: CongestionControl
) -> list[LinkChange]:
    draw = _loss if rng.random() < 0.5 else _far_and_narrow
    return draw(rng, seconds, congestion_control)


KINDS: Final = {
    # Packets are lost, and the RTT is longer.
    "loss": SimulatedKind(_loss, by_congestion_control=True),
    # The rate falls to an 8th to a 30th, the RTT stays.
    "cliff": SimulatedKind(_cliff),
    # Far and narrow: an RTT of 0.5 to 2 s, 80 to 250 kB/s.
    "far": SimulatedKind(_far_and_narrow),
    # Another rate of 50 kB/s to 2.5 MB/s every 1 to 6 s.
    "changing": SimulatedKind(_changing),
    # Nothing passes, for 3 to 15 s in the mean.
    "outages": SimulatedKind(_outages),
    # Two receivers behind one link that narrows.
    "shared": SimulatedKind(_shared, n_subscribers=2),
    # Bursts of loss, as on Wi-Fi.
    "bursts": SimulatedKind(_bursts, by_congestion_control=True),
    # Lossy or far, and a small message in 15 s.
    "idle": SimulatedKind(
        _idle, Traffic(small_seconds=15.0, is_random=True), by_congestion_control=True
    ),
}
