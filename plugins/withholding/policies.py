"""When to deliver a large message: our policy, and those of paper 002.

Those are in its section "Large message scheduling".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from penstock.plugins.withholding.policy import Judgement, Passage, Policy, Situation

DEFAULT_EXPOSURE = 2.0
"""Seconds that an alarm may wait behind a picture without being late for a person who reads it."""

WAIT_RATIO = 2.0
"""Longest wait for a good path over what the message would take on the bad one: however long that
stays bad, a message takes at most three times as long as without a hold."""

GIVE_UP_SECONDS = 60.0
"""A message that is not acknowledged for so long holds up no other: the client may never do it."""


@dataclass(frozen=True)
class AdaptivePolicy(Policy):
    """Deliver unless the path is bad, the last message was slow, or one is on its way.

    The rule, in three sentences:

    1. While the path is bad, a large message waits for at most `WAIT_RATIO` times as long as such a
       message last took there, and for `max_withhold` at most; one that is expected to take no
       longer than `exposure` goes at once.
    2. After a large message that took longer than `exposure`, the next one waits for as long as
       that one took, and for `MOST_PAUSE_SECONDS` at most; one that has waited for `max_withhold`
       goes.
    3. Several are on their way at a time only if all of them are expected to pass within
       `exposure`.

    What a message takes ends with the client's acknowledgement. So the rule knows no congestion
    control, and holds behind a load balancer. What is not known yet is not tried out by sending: on
    a path that loses packets that message could occupy the connection for a minute. What
    `max_withhold` releases is measurement enough.

    Attributes:
        exposure: seconds for which small messages may wait behind a large one.
    """

    name: ClassVar[str] = "adaptive"
    learns: ClassVar[bool] = True
    exposure: float = DEFAULT_EXPOSURE

    def judge(self, situation: Situation) -> Judgement:
        """Apply the three sentences, the last one first."""
        passage, sojourn, now = situation.passage, situation.sojourn, situation.now
        if passage is None:
            return Judgement(delivers=True, cause="no_estimate", why="nothing is known of the path")
        if passage.bytes_on_way:
            return self._judge_another(situation, passage)
        pause = passage.pause_until - now
        if pause > 0 and sojourn <= self.max_withhold:
            why = f"the one before was slow: a pause of {pause:.3g} s more"
            return Judgement(False, "pause", why, min(sojourn + pause, self.max_withhold))
        if not situation.is_bad:
            return Judgement(delivers=True, cause="calm", why="the path is good")
        wait, why = self.max_withhold, "what it would take is not known"
        if passage.bad_seconds_per_byte is not None:
            expected = passage.bad_seconds_per_byte * situation.n_bytes
            why = f"it would take {expected:.3g} s"
            if expected <= self.exposure:
                why = f"{why}, exposure {self.exposure:.3g} s"
                return Judgement(delivers=True, cause="exposure", why=why)
            wait = min(wait, WAIT_RATIO * expected)
        why = f"the path is bad, {why}: withheld {sojourn:.3g} s of {wait:.3g} s"
        if sojourn > wait:
            return Judgement(delivers=True, cause="bound", why=why)
        return Judgement(False, "congested", why, wait)

    def _judge_another(self, situation: Situation, passage: Passage) -> Judgement:
        """Say whether one more may be on its way at a time."""
        age = situation.now - passage.oldest_at
        if not situation.is_bad and passage.seconds_per_byte is not None:
            n_bytes = passage.bytes_on_way + situation.n_bytes
            expected = age + passage.seconds_per_byte * n_bytes
            if expected <= self.exposure:
                why = f"all on their way take {expected:.3g} s, exposure {self.exposure:.3g} s"
                return Judgement(delivers=True, cause="exposure", why=why)
        why = f"another is on its way, for {age:.3g} s"
        if age > GIVE_UP_SECONDS and situation.sojourn > self.max_withhold:
            return Judgement(delivers=True, cause="bound", why=why)
        left = max(GIVE_UP_SECONDS - age, self.max_withhold - situation.sojourn)
        return Judgement(False, "on_way", why, situation.sojourn + left)


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
