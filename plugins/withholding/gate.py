"""The delivery gate: asks the policy about one message, one subscriber, now.

Theory of operation. The gate keeps nothing: what is known of a subscriber stands in its `Link`,
how long a message waits is the outbox's to know, and both come with the question.

L_now is half the RTT (paper 002, equation 1), scaled by the latency profile from the size of the
packet that was timed to the size of the message; threshold_l is scaled from the profile's first
row to the size of the message. Where the paper and the methods page are silent:

* No RTT estimate, or none that is recent: deliver. There is no evidence of congestion, and the
  delivery itself brings the next estimate; withholding would bring none.
* A packet that is overdue: its RTT is at least as long as it has been unanswered, so that
  `max(rtt_latest, now - outstanding_since)` stands for the RTT. Estimates dry up exactly when a
  path fails, and the newest one would still be good. Because this bound grows without end where
  a client never answers, and `historic` has no D, it counts up to `max_withhold`: every hold
  has a bound.
* ΔS must be greater than what releases a message, not equal, so the gate asks to be asked
  again a little after that.
"""

from __future__ import annotations

from broker.extensions import Plugin, PluginContext, Verdict
from broker.link import Link
from broker.message import Message
from plugins.withholding.classes import SizeClasses
from plugins.withholding.config import WithholdingConfig
from plugins.withholding.policies import Policy, Situation, make_policy
from plugins.withholding.profile import LatencyProfile

STRICTLY_AFTER_SECONDS = 0.001
"""Added to a release time; far above the rounding of clocks, far below any RTT that matters."""


class WithholdingGate:
    """The `DeliveryGate` of this plugin.

    Attributes:
        policy: the object that decides; it has no state, so a simulation may ask it too.
    """

    def __init__(self, config: WithholdingConfig) -> None:
        self.policy: Policy = make_policy(
            config.policy,
            max_withhold=config.max_withhold,
            congestion_rate=config.congestion_rate,
        )
        self._classes = SizeClasses(config.threshold_s, config.threshold_s_by_topic)
        self._thresholds = config.thresholds()
        self._profile = LatencyProfile(config.profile)
        self._probe_period = config.probe_period
        self._max_overdue = config.max_withhold

    def threshold_s(self, topic: str) -> int | None:
        """Return the payload bytes above which messages of `topic` are large."""
        return self._classes.threshold_s(topic)

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Ask the policy; small messages always go."""
        if not self._classes.is_large(message.topic, message.payload_bytes):
            return Verdict(deliver=True, reason="small")
        rtt = self._rtt(link, now)
        if rtt is None:
            return Verdict(deliver=True, reason="no recent RTT estimate")
        scale = self._profile.relative(message.payload_bytes)
        situation = Situation(
            l_now=scale * rtt / 2,
            threshold_l=scale * self._thresholds.threshold_l(link),
            sojourn=sojourn,
            probe_period=self._probe_period,
        )
        return self._verdict(situation, now)

    def forget(self, link: Link) -> None:
        """Keep nothing for any subscriber, so forget nothing."""

    def _rtt(self, link: Link, now: float) -> float | None:
        """Return the RTT now of a packet of the profile's first row, seconds, or None."""
        rtt = None
        if link.rtt_latest is not None:
            rtt = link.rtt_latest / self._profile.relative(link.rtt_bytes)
        if link.outstanding_since is not None:
            overdue = min(now - link.outstanding_since, self._max_overdue)
            least = overdue / self._profile.relative(link.outstanding_bytes)
            rtt = least if rtt is None else max(rtt, least)
        return rtt

    def _verdict(self, situation: Situation, now: float) -> Verdict:
        policy, l_now = self.policy, situation.l_now
        limit = policy.latency_limit(situation)
        if not policy.decide(situation):
            release_in = max(0.0, policy.release_sojourn(situation) - situation.sojourn)
            return Verdict(
                deliver=False,
                look_again_at=now + release_in + STRICTLY_AFTER_SECONDS,
                reason=f"{policy.name}: L_now {l_now:.4g} s >= {limit:.4g} s",
            )
        if l_now < limit:
            reason = f"{policy.name}: L_now {l_now:.4g} s < {limit:.4g} s"
        else:
            waited, bound = situation.sojourn, policy.max_withhold
            reason = f"{policy.name}: withheld {waited:.4g} s > {bound:.4g} s"
        return Verdict(deliver=True, reason=reason)


class WithholdingPlugin(Plugin):
    """`withholding` in a policy file."""

    Config = WithholdingConfig
    gate: WithholdingGate

    def __init__(self, config: WithholdingConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self.gate = WithholdingGate(config)
