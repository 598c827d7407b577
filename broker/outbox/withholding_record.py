"""What becomes of the large messages in all outboxes of one broker, or of one proxy.

Each large message is sent at once, or held and released later. Each of these decisions is counted
by its outcome and its cause, one of `CAUSES`, and a hold or release is a debug line of the log.
Causes are words of a closed set, so that they may be labels of a counter; the reason in full is a
text of the gate's and stands in the log and in reports.

Latency counts from the arrival at the broker. That of each large message is measured, at QoS 1 and
2 until its acknowledgement. Of small messages it is that of those that a sampler times: one at a
time for each subscriber.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import DEBUG, Logger
from typing import Final, Literal

from penstock.broker.counters import Histogram, Metric, Sample, count
from penstock.broker.extensions import Decision, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message, SizeClass

CAUSES: Final = {
    "behind": "behind a message that was held, in the order of arrival",
    "bound": "held for as long as the policy holds a message at most",
    "calm": "the RTT was not above `threshold_l`",
    "congested": "the path was bad: its RTT was above `threshold_l`, or an answer was overdue",
    "cost": "the path was congested, and waiting was expected to cost more than sending",
    "exposure": "it was expected to take no longer than `exposure`",
    "expired": "its Message Expiry Interval passed while it was held",
    "gate_failed": "the gate raised an exception",
    "no_estimate": "no recent RTT was known",
    "no_limit": "nothing is gained by holding it: policy `none`, or no small message can come",
    "on_way": "another large message was on its way and not acknowledged",
    "other": "a gate that names no cause",
    "overdue": "as `congested`; the RTT is the time for which a packet has been unanswered so far",
    "pause": "the large message before it was slow",
}
"""Every cause of a decision, and its meaning."""

Outcome = Literal["at_once", "held", "released", "gone"]
"""Sent without a hold; held; sent after a hold; left unsent while it was held."""

Until = Literal["acknowledged", "sent"]
"""Where a latency ends: at the PUBACK or PUBCOMP, or when a QoS 0 message is handed to the
connection."""

SOJOURN_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
"""Seconds; several messages that are held one after the other wait longer than `max_withhold`."""

LATENCY_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: from a small message on a local network to a picture in long congestion."""

MAX_LINES: Final = 50
"""Lines of the log within `WINDOW_SECONDS`: a broker may hold a thousand messages a second."""

WINDOW_SECONDS: Final = 10.0


class WithholdingRecord:
    """Counts the decisions about large messages, and logs holds and releases.

    Attributes:
        policy: name of the gate's policy, a label of the counters.
        decisions: (outcome, cause) to how many.
        sojourn: seconds for which released messages were held.
        latency: (size class, where it ends) to seconds since the arrival.
    """

    def __init__(self, policy: str, logger: Logger) -> None:
        """Begin with nothing.

        Args:
            policy: as the attribute.
            logger: gets the lines.
        """
        self.policy = policy
        self.decisions: dict[tuple[Outcome, str], int] = {}
        self.sojourn = Histogram(SOJOURN_BOUNDS)
        self.latency: dict[tuple[SizeClass, Until], Histogram] = {}
        self._logger = logger
        self._window_at = 0.0
        self._n_lines = 0

    def count(self, outcome: Outcome, cause: str, n_messages: int = 1) -> None:
        """Count what became of messages; "" is a gate's decision without a cause."""
        count(self.decisions, (outcome, cause or "other"), n_messages)

    def held(self, link: Link, decision: Decision) -> None:
        """Count and log a message that begins to be held."""
        self.count("held", decision.verdict.cause)
        self._log(link, "held", decision)

    def held_behind(
        self, link: Link, first: Message, behind: Sequence[Message], now: float
    ) -> None:
        """Count and log large messages that begin to be held behind another one.

        Args:
            link: of the subscriber.
            first: that other one.
            behind: those behind it, of its topic or of others.
            now: monotonic seconds.
        """
        if not behind:
            return
        self.count("held", "behind", len(behind))
        verdict = Verdict(deliver=False, reason=f"behind one on {first.topic}", cause="behind")
        for message in behind:
            self._log(
                link, "held", Decision(verdict, message.topic, message.payload_bytes, 0.0, now)
            )

    def released(self, link: Link, decision: Decision) -> None:
        """Count and log a message that was held and is sent."""
        self.count("released", decision.verdict.cause)
        self.sojourn.observe(decision.sojourn)
        self._log(link, "released", decision)

    def observe_latency(self, size_class: SizeClass, until: Until, seconds: float) -> None:
        """Take the latency of one message.

        Args:
            size_class: of the message, for its subscriber.
            until: where the latency ends.
            seconds: since the message arrived. The time of arrival is known to an eighth of a
                second for a message that has waited.
        """
        histogram = self.latency.get((size_class, until))
        if histogram is None:
            histogram = self.latency[size_class, until] = Histogram(LATENCY_BOUNDS)
        histogram.observe(seconds)

    def metrics(self) -> list[Metric]:
        """Return all figures, as `$SYS`, the console and the proxy's log tell them."""
        policy = {"policy": self.policy}
        return [
            Metric(
                "withholding_decisions_total",
                "counter",
                "Large messages by what became of them and why.",
                [
                    Sample({**policy, "outcome": outcome, "cause": cause}, n_messages)
                    for (outcome, cause), n_messages in sorted(self.decisions.items())
                ],
            ),
            Metric(
                "withholding_sojourn_seconds",
                "histogram",
                "Time for which released messages were held.",
                [Sample(policy, self.sojourn)],
            ),
            Metric(
                "withholding_latency_seconds",
                "histogram",
                "Time since the arrival of a message: each large one, small ones that are timed.",
                [
                    Sample({"size": size_class, "until": until}, histogram)
                    for (size_class, until), histogram in sorted(self.latency.items())
                ],
            ),
        ]

    def _log(self, link: Link, what: str, decision: Decision) -> None:
        """Log a decision, at most `MAX_LINES` in a window.

        Another line says at once that lines are left out, and the first line of a later window
        comes after one that says how many were.
        """
        logger = self._logger
        if not logger.isEnabledFor(DEBUG):
            return
        if not 0 <= decision.at - self._window_at < WINDOW_SECONDS:
            n_left_out = self._n_lines - MAX_LINES
            if n_left_out > 0:
                logger.debug("%d lines about large messages were left out", n_left_out)
            self._window_at, self._n_lines = decision.at, 0
        self._n_lines += 1
        if self._n_lines <= MAX_LINES:
            logger.debug(
                "client %s: %s: %d bytes on %s, withheld for %.3g s: %s",
                link.client_id,
                what,
                decision.payload_bytes,
                decision.topic,
                decision.sojourn,
                decision.verdict.reason,
            )
        elif self._n_lines == MAX_LINES + 1:
            left = self._window_at + WINDOW_SECONDS - decision.at
            logger.debug("lines about large messages are left out for %.3g s", left)
