"""When to deliver a large message: the policies of paper 002, "Large message scheduling".

Each policy is a frozen object: the broker, the proxy and the simulation ask the same one. All
inequalities are strict.

Notation: L_now is the expected one-way latency of the message if it is sent now, `RTT_latest / 2`
(equation 1); ΔS the sojourn, T_Q the `probe_period`, D `max_withhold`, λ `congestion_rate`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple


class Situation(NamedTuple):
    """What a policy decides on; all in seconds.

    Attributes:
        l_now: L_now, scaled to the message's size.
        threshold_l: RTT of the uncongested path, scaled to the message's size.
        sojourn: ΔS, how long the message has been withheld so far.
        probe_period: T_Q, time until the next RTT estimate.
    """

    l_now: float
    threshold_l: float
    sojourn: float
    probe_period: float


@dataclass(frozen=True)
class Policy(ABC):
    """What all policies share: deliver if L_now is below a limit or ``ΔS > D``.

    Attributes:
        name: as policy files spell it.
        max_withhold: D, seconds; infinite for policies without it.
    """

    name: ClassVar[str]
    max_withhold: float = math.inf

    @abstractmethod
    def latency_limit(self, situation: Situation) -> float:
        """Return the latency in seconds that L_now must be below."""

    def decide(self, situation: Situation) -> bool:
        """Say whether a large message is delivered now."""
        return (
            situation.l_now < self.latency_limit(situation) or situation.sojourn > self.max_withhold
        )

    def release_sojourn(self, situation: Situation) -> float:  # noqa: ARG002 (others use it)
        """Return the ΔS in seconds above which a message that `decide` withholds is delivered.

        It holds while L_now and threshold_l stay as they are: a new RTT estimate is a reason
        to decide again earlier.
        """
        return self.max_withhold


@dataclass(frozen=True)
class NonePolicy(Policy):
    """The baseline: always deliver."""

    name: ClassVar[str] = "none"

    def latency_limit(self, situation: Situation) -> float:  # noqa: ARG002 (any is low enough)
        """Return infinity."""
        return math.inf


@dataclass(frozen=True)
class ConservativePolicy(Policy):
    """Deliver if ``L_now < threshold_l / 2`` or ``ΔS > D`` (equation 2)."""

    name: ClassVar[str] = "conservative"

    def latency_limit(self, situation: Situation) -> float:
        """Return ``threshold_l / 2``."""
        return situation.threshold_l / 2


@dataclass(frozen=True)
class ProbabilisticPolicy(Policy):
    """Deliver if ``L_now < T_Q + L_next`` or ``ΔS > D`` (equation 3).

    ``L_next = p * L_now + (1 - p) * threshold_l / 2`` (equation 4), where ``p = exp(-λ * t)``
    with ``t = ΔS + T_Q`` is the probability that congestion lasts until the next decision
    (equation 5).

    A message is withheld only while L_now is above threshold_l / 2. There L_next falls as ΔS
    grows, so the first inequality cannot come true by waiting, and D ends the wait.

    Attributes:
        congestion_rate: λ, one over the mean duration of congestion, 1/s.
    """

    name: ClassVar[str] = "probabilistic"
    congestion_rate: float = 1 / 17.5

    def latency_limit(self, situation: Situation) -> float:
        """Return ``T_Q + L_next``."""
        l_now, threshold_l, sojourn, probe_period = situation
        p = math.exp(-self.congestion_rate * (sojourn + probe_period))
        return probe_period + p * l_now + (1 - p) * threshold_l / 2


@dataclass(frozen=True)
class HistoricPolicy(Policy):
    """Deliver if ``L_now < T_Q + L_next + ΔS``, with ``L_next = threshold_l / 2`` (equation 6).

    The growing ΔS ends every wait, so there is no D.
    """

    name: ClassVar[str] = "historic"

    def latency_limit(self, situation: Situation) -> float:
        """Return ``T_Q + threshold_l / 2 + ΔS``."""
        return situation.probe_period + situation.threshold_l / 2 + situation.sojourn

    def release_sojourn(self, situation: Situation) -> float:
        """Return ``L_now - T_Q - threshold_l / 2``: equation 6 solved for ΔS."""
        return situation.l_now - situation.probe_period - situation.threshold_l / 2


def make_policy(name: str, *, max_withhold: float, congestion_rate: float) -> Policy:
    """Return the policy of that name.

    Args:
        name: ``none``, ``conservative``, ``probabilistic`` or ``historic``.
        max_withhold: D in seconds, for those that have it.
        congestion_rate: λ in 1/s, for those that have it.

    Raises:
        ValueError: there is no such policy.
    """
    match name:
        case NonePolicy.name:
            return NonePolicy()
        case ConservativePolicy.name:
            return ConservativePolicy(max_withhold)
        case ProbabilisticPolicy.name:
            return ProbabilisticPolicy(max_withhold, congestion_rate)
        case HistoricPolicy.name:
            return HistoricPolicy()
    raise ValueError(f"policy {name!r}; allowed: none, conservative, probabilistic or historic")
