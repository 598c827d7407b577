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

from penstock.plugins.withholding.passage import Passage


class Situation(NamedTuple):
    """The input of a policy; times are in seconds.

    Attributes:
        l_now: L_now, scaled to the message's size.
        threshold_l: RTT of the uncongested path, scaled to the message's size.
        sojourn: ΔS, how long the message has been withheld so far.
        probe_period: T_Q, time until the next RTT estimate.
        is_overdue: whether L_now is that of a packet that has not been answered so far.
        now: monotonic seconds.
        n_bytes: of the message's payload.
        is_bad: whether the path is bad, by `Passage.is_bad`.
        passage: of the subscriber's large messages, for policies that learn.
    """

    l_now: float
    threshold_l: float
    sojourn: float
    probe_period: float
    is_overdue: bool = False
    now: float = 0.0
    n_bytes: int = 0
    is_bad: bool = False
    passage: Passage | None = None


class Judgement(NamedTuple):
    """A policy's answer.

    Attributes:
        delivers: whether the message is delivered now.
        cause: one of `penstock.broker.outbox.withholding_record.CAUSES`.
        why: the same in words, with what was compared.
        release_sojourn: ΔS in seconds above which a withheld message is delivered, unless news of
            the path causes an earlier decision.
    """

    delivers: bool
    cause: str
    why: str
    release_sojourn: float = 0.0


@dataclass(frozen=True)
class Policy(ABC):
    """Common to all policies.

    A policy is a frozen object: the broker, the proxy and the simulation ask the same one. All
    inequalities are strict.

    Attributes:
        name: in policy files.
        max_withhold: D, seconds; infinite for policies without it.
    """

    name: ClassVar[str]
    learns: ClassVar[bool] = False
    """Whether `judge` reads `Situation.passage`."""
    max_withhold: float = math.inf

    @abstractmethod
    def judge(self, situation: Situation) -> Judgement:
        """Decide whether a large message is delivered now, and why."""
