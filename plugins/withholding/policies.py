"""When to deliver a large message: the policies of paper 002, "Large message scheduling"."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from penstock.plugins.withholding.adaptive import DEFAULT_EXPOSURE, AdaptivePolicy
from penstock.plugins.withholding.policy import Judgement, Policy, Situation


@dataclass(frozen=True)
class PaperPolicy(Policy):
    """Common to the paper's policies: deliver if ``L_now < limit`` or ``ΔS > D``."""

    @abstractmethod
    def latency_limit(self, situation: Situation) -> float:
        """Return the latency in seconds that L_now must be below."""

    def release_sojourn(self, situation: Situation) -> float:  # noqa: ARG002 (subclasses use it)
        """Return the ΔS in seconds above which a withheld message is delivered."""
        return self.max_withhold

    def judge(self, situation: Situation) -> Judgement:
        """Compare L_now with the limit."""
        l_now, limit, sojourn = situation.l_now, self.latency_limit(situation), situation.sojourn
        if l_now < limit:
            is_calm = l_now <= situation.threshold_l / 2
            if limit == math.inf:
                why, cause = f"L_now {l_now:.4g} s, no limit", "no_limit"
            else:
                why, cause = f"L_now {l_now:.4g} s < {limit:.4g} s", "cost"
            return Judgement(delivers=True, cause="calm" if is_calm else cause, why=why)
        if sojourn > self.max_withhold:
            why = f"withheld {sojourn:.4g} s > {self.max_withhold:.4g} s; L_now {l_now:.4g} s"
            return Judgement(delivers=True, cause="bound", why=why)
        why = f"L_now {l_now:.4g} s >= {limit:.4g} s"
        cause = "overdue" if situation.is_overdue else "congested"
        return Judgement(False, cause, why, self.release_sojourn(situation))


@dataclass(frozen=True)
class NonePolicy(PaperPolicy):
    """The baseline: always deliver."""

    name: ClassVar[str] = "none"

    def latency_limit(self, situation: Situation) -> float:  # noqa: ARG002 (any latency is below the limit)
        """Return infinity."""
        return math.inf


@dataclass(frozen=True)
class ConservativePolicy(PaperPolicy):
    """Deliver if ``L_now < threshold_l / 2`` or ``ΔS > D`` (equation 2).

    At ``RTT_latest = threshold_l`` the equation withholds, and we follow it; the paper's sentence
    about it, "if RTT_latest > threshold_l", would deliver.
    """

    name: ClassVar[str] = "conservative"

    def latency_limit(self, situation: Situation) -> float:
        """Return ``threshold_l / 2``."""
        return situation.threshold_l / 2


@dataclass(frozen=True)
class ProbabilisticPolicy(PaperPolicy):
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
        l_now, threshold_l, sojourn, probe_period = situation[:4]
        p = math.exp(-self.congestion_rate * (sojourn + probe_period))
        return probe_period + p * l_now + (1 - p) * threshold_l / 2


@dataclass(frozen=True)
class HistoricPolicy(PaperPolicy):
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


def make_policy(
    name: str, *, max_withhold: float, congestion_rate: float, exposure: float = DEFAULT_EXPOSURE
) -> Policy:
    """Return the policy of that name; raise ValueError where there is none.

    Args:
        name: ``none``, ``conservative``, ``probabilistic``, ``historic`` or ``adaptive``.
        max_withhold: D in seconds, for those that have it.
        congestion_rate: λ in 1/s, for `probabilistic`.
        exposure: seconds, for `adaptive`.
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
        case AdaptivePolicy.name:
            return AdaptivePolicy(max_withhold, exposure)
    raise ValueError(
        f"policy {name!r}; allowed: none, conservative, probabilistic, historic or adaptive"
    )
