"""The delivery gate: asks the policy about one message for one subscriber at one time.

Theory of operation. What is known of a subscriber is in its `Link`; how long a message has waited
is known to the outbox. Both come with the question. Where the policy learns, the gate keeps one
`CongestionHistory` for each link that has had an estimate, until the broker forgets the link.

L_now is half the RTT (paper 002, equation 1), scaled by the latency profile from the size of the
packet that was timed to the size of the message. threshold_l is scaled from the profile's first row
to the size of the message. Where the paper and the methods page are silent:

* No RTT estimate, or no recent one: deliver. There is no evidence of congestion, and the delivery
  itself brings the next estimate; withholding would bring none.
* A packet that is overdue: its RTT is at least as long as it has been unanswered, so
  `max(rtt_latest, now - outstanding_since)` stands for the RTT. Estimates stop exactly when a path
  fails, and the newest one would still be good. As this bound grows without end where a client
  never answers, and `historic` has no D, it counts up to `max_withhold`: every hold has a bound.
* ΔS must be greater than the value that releases a message, not equal, so the gate asks for the
  next look a little later than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.broker.config.checked_yaml import check_listeners
from penstock.broker.extensions import DeliveryGate, Plugin, PluginContext, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.plugins.withholding.classes import FirstTopics
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.history import CongestionHistory
from penstock.plugins.withholding.policies import make_policy
from penstock.plugins.withholding.policy import Policy, Situation
from penstock.plugins.withholding.profile import LatencyProfile
from penstock.plugins.withholding.thresholds import read_asked

STRICTLY_AFTER_SECONDS = 0.001
"""Added to a release time; far above the rounding of clocks, far below any RTT that matters."""

_NOTHING_KNOWN = CongestionHistory()
"""The history of a subscriber without estimates; never changed."""


class WithholdingGate(DeliveryGate):
    """The `DeliveryGate` of this plugin.

    Attributes:
        policy: the object that decides; it has no state, so that a simulation can ask it, too.
        histories: what the policy learns from, by link; empty where it does not learn.
    """

    def __init__(self, config: WithholdingConfig) -> None:
        self.policy: Policy = make_policy(
            config.policy,
            max_withhold=config.max_withhold,
            congestion_rate=config.congestion_rate,
            small_weight=config.small_weight,
        )
        self.policy_name = config.policy
        self.keeps_topics = config.ordering == "topic"
        self.supersedes = config.supersede
        if config.priority:  # without priorities the broker must not call it
            self.is_first = FirstTopics(config.priority).has  # type: ignore[method-assign]
        self._classes = config.size_classes()
        self._thresholds = config.thresholds()
        self._profile = LatencyProfile(config.profile)
        self._max_overdue = config.max_withhold
        self.histories: dict[Link, CongestionHistory] = {}

    def threshold_s(self, topic: str) -> int | None:
        """Return the least threshold_s of `topic` for any subscriber; None for never large."""
        return self._classes.least_threshold_s(topic)

    def is_large(self, message: Message, link: Link) -> bool:
        """Say whether a message is large for subscribers of this link's listener."""
        if message.is_large and not self._classes.has_listeners:
            return True  # for every subscriber
        return self._classes.is_large(message.topic, message.payload_bytes, link.listener)

    def connected(self, link: Link, user_properties: Sequence[tuple[str, str]]) -> str:
        """Take the threshold_l in the subscriber's newest CONNECT."""
        link.asked_threshold_l, problem = read_asked(user_properties)
        return problem

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Ask the policy; small messages are always delivered."""
        if not self.is_large(message, link):
            return Verdict(deliver=True, reason="small")
        rtt = self._rtt(link)
        history = self.histories.get(link, _NOTHING_KNOWN)
        overdue = self._overdue(link, now, history)
        if rtt is None and not overdue:
            return Verdict(deliver=True, reason="no recent RTT estimate", cause="no_estimate")
        threshold_l = self._thresholds.threshold_l(link)
        scale = self._profile.relative(message.payload_bytes)
        counted = max(rtt or 0.0, overdue)
        situation = Situation(  # by position, which is faster than by name
            scale * counted / 2,
            scale * threshold_l,
            sojourn,
            self.probe_period,
            now,
            scale,
            overdue if overdue > threshold_l else 0.0,
            _bytes_to_send(message, link),
            history.small_per_second,
            history,
        )
        unanswered = " so far" if overdue and overdue == counted else ""
        return self._verdict(
            situation, f"RTT {counted:.4g} s{unanswered}, threshold_l {threshold_l:.4g} s"
        )

    def threshold_l(self, link: Link) -> float:
        """Return threshold_l of this subscriber, for a packet of the profile's first row."""
        return self._thresholds.threshold_l(link)

    def observe(self, link: Link) -> None:
        """Add a new RTT estimate to the subscriber's history, if the policy learns."""
        if not self.policy.learns:
            return
        history = self.histories.get(link)
        rtt = self._rtt(link)
        if rtt is None or link.rtt_latest is None or link.rtt_updated_at is None:
            if history is not None:
                history.lose_sight()
            return
        if history is None:
            history = self.histories[link] = CongestionHistory()
            if not link.gets_small:
                history.small_per_second = 0.0
        known_at = link.rtt_updated_at
        if history.sampled_at is None or known_at > history.known_at:
            sent_at = known_at - link.rtt_latest
            self._observe_large(link, history)
            rtt = max(link.rtt_min or 0.0, rtt - history.own_seconds(sent_at))
            history.observe(rtt, sent_at, known_at, self._thresholds.threshold_l(link))
            history.observe_small(link.small_messages, known_at)
        if link.tcp is not None:
            history.observe_look(link.tcp)

    def forget(self, link: Link) -> None:
        """Drop what was learned of the subscriber."""
        self.histories.pop(link, None)

    def _rtt(self, link: Link) -> float | None:
        """Return the newest RTT of a packet of the profile's first row, seconds, or None."""
        if link.rtt_latest is None:
            return None
        return link.rtt_latest / self._profile.relative(link.rtt_bytes)

    def _overdue(self, link: Link, now: float, history: CongestionHistory) -> float:
        """Return a lower bound of the RTT from what is unanswered, seconds; 0 for nothing.

        The time for which it waits for the connection's own large messages does not count.
        """
        since = link.outstanding_since
        if since is None:
            return 0.0
        if history is not _NOTHING_KNOWN:
            self._observe_large(link, history)
        age = min(now - since - history.own_seconds(since), self._max_overdue)
        return max(0.0, age) / self._profile.relative(link.outstanding_bytes)

    def _observe_large(self, link: Link, history: CongestionHistory) -> None:
        """Note what large messages have left since the last time."""
        n_new = link.large_bytes - history.large_bytes
        if n_new:
            history.large_bytes = link.large_bytes
            least_seconds = self._profile.relative(n_new) * (link.rtt_min or 0.0) / 2
            history.observe_large(n_new, least_seconds, link.large_sent_at)

    def _verdict(self, situation: Situation, measured: str) -> Verdict:
        """Ask the policy.

        Args:
            situation: what it decides on.
            measured: RTT and threshold_l before they were scaled, in words.
        """
        policy = self.policy
        l_now, threshold_l, sojourn, probe_period, now, size_ratio, overdue, _, _, _ = situation
        delivers, latency, limit, release_sojourn = policy.judge(situation)
        if limit == math.inf:
            why = f"L_now {latency:.4g} s, no limit"
            cause = "calm" if l_now <= threshold_l / 2 else "no_limit"
        elif latency < limit:
            why = f"{policy.compares} {latency:.4g} s < {limit:.4g} s"
            cause = "calm" if l_now <= threshold_l / 2 else "cost"
        elif delivers:
            why = (
                f"withheld {sojourn:.4g} s > {policy.max_withhold:.4g} s; "
                f"{policy.compares} {latency:.4g} s"
            )
            cause = "bound"
        else:
            why = f"{policy.compares} {latency:.4g} s >= {limit:.4g} s"
            cause = "overdue" if overdue else "congested"
        reason = (
            f"{policy.name}: {why} ({measured}, size x{size_ratio:.4g}, "
            f"withheld {sojourn:.4g} s, T_Q {probe_period:.4g} s)"
        )
        if delivers:
            return Verdict(True, None, reason, cause)
        release_in = max(0.0, release_sojourn - sojourn)
        return Verdict(False, now + release_in + STRICTLY_AFTER_SECONDS, reason, cause)


def _bytes_to_send(message: Message, link: Link) -> int:
    """Return the bytes of a message and of those before it; 0 where the kernel gives none."""
    if link.tcp is None:
        return 0
    return message.payload_bytes + link.unsent_bytes + link.tcp.unsent_bytes


class WithholdingPlugin(Plugin):
    """`withholding` in a policy file."""

    Config = WithholdingConfig
    config: WithholdingConfig
    gate: WithholdingGate

    def __init__(self, config: WithholdingConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        path, file = "plugins.withholding.listeners", context.policy_file
        check_listeners(path, config.listeners, context.listeners, file)
        self.gate = WithholdingGate(config)
