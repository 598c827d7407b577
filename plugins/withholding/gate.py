"""The delivery gate: asks the policy about one message for one subscriber at one time.

Theory of operation. What is known of a subscriber's path is in its `Link`; how long a message has
waited is known to the outbox. Where the policy learns, the gate keeps one `Passage` for each link.

For the paper's policies, L_now is half the RTT (paper 002, equation 1), scaled by the latency
profile from the size of the packet that was timed to that of the message, and so is threshold_l.
Where the paper is silent:

* No RTT estimate, or no recent one: deliver. There is no evidence of congestion, and the delivery
  itself brings the next estimate; withholding would bring none.
* A packet that is overdue: its RTT is at least as long as it has been unanswered, so that stands
  for the RTT if it is longer. As it grows without end where a client never answers, and `historic`
  has no D, it counts up to `max_withhold`: every hold has a bound.
* ΔS must be greater than the value that releases a message, not equal, so the gate asks for the
  next look a little later than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from penstock.broker.client_report import PassageFigures
from penstock.broker.config.checked_yaml import check_listeners
from penstock.broker.extensions import DeliveryGate, Plugin, PluginContext, Reload, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.policies import make_policy
from penstock.plugins.withholding.policy import Passage, Policy, Situation
from penstock.plugins.withholding.thresholds import FirstTopics, LatencyProfile, read_asked

STRICTLY_AFTER_SECONDS = 0.001
"""Added to a release time; far above the rounding of clocks, far below any RTT that matters."""

KERNEL = "tcp_info"
"""Source of RTTs that end at the next TCP endpoint, such as a load balancer."""

_NO_ESTIMATE = Verdict(deliver=True, reason="no recent RTT estimate", cause="no_estimate")


class WithholdingGate(DeliveryGate):
    """The `DeliveryGate` of this plugin.

    Attributes:
        policy: the object that decides; it has no state, so that a simulation can ask it, too.
        passages: what the policy decides by, by link; empty where it does not learn.
    """

    def __init__(self, config: WithholdingConfig) -> None:
        self.keeps_topics = config.ordering == "topic"
        self.supersedes = config.supersede
        if config.priority:  # without priorities the broker must not call it
            self.is_first = FirstTopics(config.priority).has  # type: ignore[method-assign]
        self.passages: dict[Link, Passage] = {}
        self.change(config)

    def change(self, config: WithholdingConfig) -> None:
        """Decide by other keys from now on, but for those that the broker has asked for once."""
        self.policy: Policy = make_policy(
            config.policy,
            max_withhold=config.max_withhold,
            congestion_rate=config.congestion_rate,
            exposure=config.exposure,
        )
        self.policy_name = config.policy
        self._classes = config.size_classes()
        self._thresholds = config.thresholds()
        self._profile = LatencyProfile(config.profile)
        self._max_overdue = config.max_withhold
        self._exposure = config.exposure
        for passage in self.passages.values():
            passage.exposure = config.exposure

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
        passage = self.passages.get(link)
        if passage is not None:
            passage.connection_lost()
        link.asked_threshold_l, problem = read_asked(user_properties)
        return problem

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Ask the policy; small messages are always delivered."""
        if not self.is_large(message, link):
            return Verdict(deliver=True, reason="small")
        if self.policy.learns:
            return self._decide_by_passage(message, link, sojourn, now)
        rtt, overdue = self._rtt(link), self._overdue(link, now)
        if rtt is None and not overdue:
            return _NO_ESTIMATE
        threshold_l = self._thresholds.threshold_l(link)
        scale = self._profile.relative(message.payload_bytes)
        counted = max(rtt or 0.0, overdue)
        is_overdue = overdue > threshold_l
        situation = Situation(  # by position, which is faster than by name
            scale * counted / 2, scale * threshold_l, sojourn, self.probe_period, is_overdue, now
        )
        unanswered = " so far" if overdue and overdue == counted else ""
        return self._verdict(
            situation,
            f"RTT {counted:.4g} s{unanswered}, threshold_l {threshold_l:.4g} s, size x{scale:.4g}, "
            f"withheld {sojourn:.4g} s, T_Q {self.probe_period:.4g} s",
        )

    def _decide_by_passage(
        self, message: Message, link: Link, sojourn: float, now: float
    ) -> Verdict:
        """Ask a policy that learns."""
        if not link.gets_small:
            return Verdict(
                deliver=True, reason="its subscriptions bring no small message", cause="no_limit"
            )
        passage = self._passage_of(link)
        threshold_l, since = self._thresholds.threshold_l(link), link.outstanding_since
        is_bad = passage.is_bad(threshold_l, since, now)
        n_bytes = message.payload_bytes
        situation = Situation(
            0.0, threshold_l, sojourn, self.probe_period, False, now, n_bytes, is_bad, passage
        )
        measured = "no recent RTT" if link.rtt_latest is None else f"RTT {link.rtt_latest:.4g} s"
        if since is not None:
            measured = f"{measured}, unanswered for {now - since:.4g} s"
        verdict = self._verdict(situation, f"{measured}, threshold_l {threshold_l:.4g} s")
        return _NO_ESTIMATE if verdict.cause == "calm" and link.rtt_latest is None else verdict

    def _verdict(self, situation: Situation, measured: str) -> Verdict:
        """Ask the policy; `measured` is RTT and threshold_l in words."""
        delivers, cause, why, release_sojourn = self.policy.judge(situation)
        reason = f"{self.policy_name}: {why} ({measured})"
        if delivers:
            return Verdict(True, None, reason, cause)
        release_in = max(0.0, release_sojourn - situation.sojourn)
        return Verdict(False, situation.now + release_in + STRICTLY_AFTER_SECONDS, reason, cause)

    def threshold_l(self, link: Link) -> float:
        """Return threshold_l of this subscriber, for a packet of the profile's first row."""
        return self._thresholds.threshold_l(link)

    def observe(self, link: Link) -> None:
        """Show a new RTT estimate to a policy that learns."""
        rtt, known_at = self._rtt(link), link.rtt_updated_at
        if not self.policy.learns or rtt is None or link.rtt_latest is None or known_at is None:
            return
        passage = self._passage_of(link)
        if known_at <= passage.known_at:
            return
        passage.known_at = known_at
        sent_at = known_at - link.rtt_latest
        if link.rtt_source == KERNEL:
            # It is smoothed over what came since the look before.
            passage.observe_hint(rtt, sent_at - self.probe_period, known_at)
        else:
            passage.observe(rtt, sent_at, self._thresholds.threshold_l(link), known_at)

    def large_sent(self, link: Link, payload_bytes: int, now: float) -> None:
        """Show a large message that leaves to a policy that learns."""
        if self.policy.learns:
            passage = self._passage_of(link)
            threshold_l = self._thresholds.threshold_l(link)
            is_bad = passage.is_bad(threshold_l, link.outstanding_since, now)
            passage.sent(payload_bytes, is_bad=is_bad, now=now)

    def large_acknowledged(self, link: Link, now: float) -> bool:
        """Show that a large message has passed; the next one may go."""
        passage = self.passages.get(link)
        if passage is None:
            return False
        passage.acknowledged(now)
        return True

    def passage(self, link: Link, now: float) -> PassageFigures | None:
        """Return what a policy that learns knows of a subscriber's large messages."""
        passage = self.passages.get(link)
        if passage is None:
            return None
        n_bytes = passage.bytes_on_way
        return PassageFigures(
            passage.last_seconds,
            _rate(passage.seconds_per_byte),
            _rate(passage.bad_seconds_per_byte),
            max(0.0, passage.pause_until - now),
            n_bytes,
            now - passage.oldest_at if n_bytes else 0.0,
        )

    def forget(self, link: Link) -> None:
        """Drop what was learned of the subscriber."""
        self.passages.pop(link, None)

    def _passage_of(self, link: Link) -> Passage:
        passage = self.passages.get(link)
        if passage is None:
            passage = self.passages[link] = Passage(self._exposure)
        return passage

    def _rtt(self, link: Link) -> float | None:
        """Return the newest RTT of a packet of the profile's first row, seconds, or None."""
        if link.rtt_latest is None:
            return None
        return link.rtt_latest / self._profile.relative(link.rtt_bytes)

    def _overdue(self, link: Link, now: float) -> float:
        """Return a lower bound of the RTT from what is unanswered, seconds; 0 for nothing."""
        if link.outstanding_since is None:
            return 0.0
        age = min(now - link.outstanding_since, self._max_overdue)
        return max(0.0, age) / self._profile.relative(link.outstanding_bytes)


def _rate(seconds_per_byte: float | None) -> float | None:
    """Return bytes in a second; None where that is not known, or without end."""
    return 1 / seconds_per_byte if seconds_per_byte else None


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

    async def reload(self, config: WithholdingConfig) -> Reload:
        """Take thresholds and policy; see `Plugin`."""
        context = self.context
        path = "plugins.withholding.listeners"
        check_listeners(path, config.listeners, context.listeners, context.policy_file)
        takes = {key.name for key in fields(config)} - {"ordering", "priority", "supersede"}
        return Reload(takes=sorted(takes), apply=lambda: self.gate.change(config))
