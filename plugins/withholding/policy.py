"""The input and output of every withholding policy.

Notation (paper 002): L_now is the expected one-way latency of the message if it is sent now,
`RTT_latest / 2` (equation 1); ΔS the sojourn, T_Q the `probe_period`, D `max_withhold`, λ
`congestion_rate`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from penstock.plugins.withholding.history import CongestionHistory


class Situation(NamedTuple):
    """The input of a policy; times are in seconds.

    Attributes:
        l_now: L_now, scaled to the message's size.
        threshold_l: RTT of the uncongested path, scaled to the message's size.
        sojourn: ΔS, how long the message has been withheld so far.
        probe_period: T_Q, time until the next RTT estimate.
        now: monotonic seconds.
        size_ratio: latency of the message over that of the packets in `history`.
        overdue: least RTT of a packet of `history` at present, from the age of what is unanswered;
            0 where that is not above threshold_l.
        n_bytes: of the message and of unsent data before it; 0 where nothing is known of the
            connection, as in a simulation.
        small_per_second: small messages that come for this subscriber, 1/s.
        history: this subscriber's congestion, for policies that learn.
    """

    l_now: float
    threshold_l: float
    sojourn: float
    probe_period: float
    now: float = 0.0
    size_ratio: float = 1.0
    overdue: float = 0.0
    n_bytes: int = 0
    small_per_second: float = 0.0
    history: CongestionHistory | None = None


class Judgement(NamedTuple):
    """A policy's answer; all times in seconds.

    Attributes:
        delivers: whether the message is delivered now.
        latency: expected latency of a message sent now.
        limit: what `latency` was compared with.
        release_sojourn: ΔS above which a withheld message is delivered, unless a new RTT estimate
            causes an earlier decision.
    """

    delivers: bool
    latency: float
    limit: float
    release_sojourn: float


@dataclass(frozen=True)
class Policy(ABC):
    """Common to all policies: deliver if a latency is below a limit or ``ΔS > D``.

    A policy is a frozen object: the broker, the proxy and the simulation ask the same one. All
    inequalities are strict.

    Attributes:
        name: in policy files.
        max_withhold: D, seconds; infinite for policies without it.
    """

    name: ClassVar[str]
    compares: ClassVar[str] = "L_now"
    """What `Judgement.latency` is, for reports."""
    learns: ClassVar[bool] = False
    """Whether `judge` reads `Situation.history`."""
    max_withhold: float = math.inf

    @abstractmethod
    def judge(self, situation: Situation) -> Judgement:
        """Decide whether a large message is delivered now, and why."""
