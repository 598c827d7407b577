"""The large messages of one outbox, and the messages that wait behind them on their topics.

Theory of operation. For each topic with a large message, its messages form a *chain*, the oldest
large one first; with `ordering: none` the chain has only the large ones. The first messages of all
chains, sorted by arrival, may be offered to the gate.

A chain may be *parked*: its first message, large or small, waits for the other lane
(`penstock.broker.outbox.lane_order`), and the gate is not asked about it.

Each large message has a sojourn of its own, from the first time that the gate refused it or another
one before it. So the bound of a policy applies to each, however many wait. The sojourn stops while
the subscriber is away.

Each large message is sent at once, or held and released later. The `WithholdingRecord` of all
outboxes counts each of these decisions by its outcome and its cause, one of `CAUSES`; a hold or
release is a debug line of the log. Causes are words of a closed set, so that they may be labels of
a counter; the reason in full is a text of the gate's and stands in the log and in reports.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import DEBUG, Logger
from typing import Final, Literal

from penstock.broker.counters import Histogram, Metric, Sample, count
from penstock.broker.extensions import Decision, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message, SizeClass
from penstock.broker.outbox.delivery import NO_QUEUE, NOTHING_BEFORE, Delivery, by_sequence

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
    "operator": "an operator released or dropped it",
    "on_way": "another large message was on its way and not acknowledged",
    "other": "a gate that names no cause",
    "overdue": "as `congested`; the RTT is the time for which a packet has been unanswered so far",
    "pause": "the large message before it was slow",
}
"""Every cause of a decision, and its meaning."""

Outcome = Literal["at_once", "held", "released", "gone"]
"""What becomes of a large message: it is sent without a hold, held, sent after a hold, or it leaves
unsent while it is held."""

Until = Literal["acknowledged", "sent"]
"""The end of a latency: at the PUBACK or PUBCOMP, or when a QoS 0 message is handed to the
connection."""

Path = Literal["calm", "congested"]
"""Whether the subscriber's RTT was above `threshold_l` as a message was acknowledged."""

SOJOURN_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
"""Seconds; several messages that are held one after the other wait longer than `max_withhold`."""

LATENCY_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: from a small message on a local network to a picture in long congestion."""

MAX_LINES: Final = 50
"""Lines of the log within `WINDOW_SECONDS`: a broker may hold a thousand messages a second."""

WINDOW_SECONDS: Final = 10.0


class LargeMessages:
    """The large messages of one outbox.

    Invariants, tested by `check_invariants`: `firsts` and `parked` are the first messages of all
    chains, each in order of arrival; so is each chain, and it has messages of its topic alone.

    Attributes:
        firsts: the oldest large message of each topic that is not parked, in order of arrival.
        parked: the first message of each chain that is.
        chains: topic to its waiting messages: the one that is in `firsts` or `parked`, and those
            after it.
        away_since: monotonic seconds since which the subscriber is away; None while it is
            connected.
    """

    __slots__ = ("_unmarked", "away_since", "chains", "firsts", "parked")

    def __init__(self) -> None:
        self.firsts: list[Delivery] = []
        self.parked: list[Delivery] = []
        self.chains: dict[str, deque[Delivery]] = {}
        self.away_since: float | None = None
        self._unmarked: deque[Delivery] = NO_QUEUE

    @property
    def n_withheld(self) -> int:
        """Messages that wait for the gate."""
        return sum(len(self.chains[topic]) for topic in self.withheld_topics())

    def withheld_topics(self) -> set[str]:
        """Return the topics whose messages wait for the gate."""
        return {large.message.topic for large in self.firsts if large.withheld_since is not None}

    def waiting(self) -> Iterator[Delivery]:
        """Yield every message, in order of arrival."""
        return heapq.merge(*self.chains.values(), key=by_sequence)

    def put_first(self, large: Delivery, chain: deque[Delivery]) -> None:
        """Add a chain with its first message."""
        self.chains[large.message.topic] = chain
        insort(self.firsts, large, key=by_sequence)

    def park(self, chain: deque[Delivery]) -> None:
        """Add a chain whose first message waits for the other lane."""
        self.chains[chain[0].message.topic] = chain
        insort(self.parked, chain[0], key=by_sequence)

    def parked_of(self, topic: str) -> Delivery | None:
        """Return the first message of a topic, if its chain is parked."""
        chain = self.chains.get(topic)
        if not chain or not self.parked:
            return None
        at = bisect_left(self.parked, chain[0].sequence, key=by_sequence)
        is_parked = at < len(self.parked) and self.parked[at] is chain[0]
        return chain[0] if is_parked else None

    def unpark(self, first: Delivery) -> deque[Delivery]:
        """Remove and return a parked chain by its first message."""
        self._forget_first(first)
        return self.chains.pop(first.message.topic)

    def insert(self, delivery: Delivery) -> None:
        """Put a message into the chain of its topic, by its number.

        Where it becomes the first, the chain is parked.
        """
        chain = self.chains[delivery.message.topic]
        first = chain[0]
        insort(chain, delivery, key=by_sequence)
        if chain[0] is delivery:
            self._forget_first(first)
            insort(self.parked, delivery, key=by_sequence)
        if delivery.after is not None:
            self.await_mark(delivery)

    def _forget_first(self, first: Delivery) -> None:
        for heads in (self.firsts, self.parked):
            at = bisect_left(heads, first.sequence, key=by_sequence)
            if at < len(heads) and heads[at] is first:
                del heads[at]
                return

    def await_mark(self, large: Delivery) -> None:
        """Note a large message that has just come: its sojourn has not begun."""
        if self._unmarked is NO_QUEUE:
            self._unmarked = deque()
        self._unmarked.append(large)

    def mark(self, refused: Delivery, now: float) -> list[Message]:
        """Begin the sojourn of each message without one: the gate holds the first of them.

        Returns:
            The messages whose sojourn began, without that first one.
        """
        unmarked = self._unmarked
        behind: list[Message] = []
        while unmarked or refused.withheld_since is None:
            large = unmarked.popleft() if unmarked else refused
            if large.is_waiting and large.withheld_since is None:
                large.withheld_since = now
                if large is not refused:
                    behind.append(large.message)
        return behind

    def count_absence(self, now: float) -> None:
        """Subtract the time for which the subscriber was away from each sojourn."""
        if self.away_since is None:
            return
        for chain in self.chains.values():
            for delivery in chain:
                if delivery.withheld_since is not None:
                    delivery.withheld_since += now - self.away_since
        self.away_since = None

    def release(self, large: Delivery) -> deque[Delivery]:
        """Remove one of `firsts` or `parked`; return the messages behind it."""
        self._forget_first(large)
        unmarked = self._unmarked  # in order of arrival, which is also the order of leaving
        while unmarked and not unmarked[0].is_waiting:
            unmarked.popleft()
        if large.after is not None:
            large.after = NOTHING_BEFORE
        chain = self.chains.pop(large.message.topic)
        chain.popleft()
        return chain

    def take_where(
        self, is_wanted: Callable[[Delivery], bool], n_messages: int
    ) -> tuple[list[Delivery], list[deque[Delivery]]]:
        """Take out messages wherever they are, the oldest first where `n_messages` limits them.

        Without that limit, they are visited topic by topic, beginning with the oldest large
        message.

        Returns:
            (the taken messages, the rests of chains whose first message is gone).
        """
        may_all_go = n_messages >= sum(map(len, self.chains.values()))
        # A client with thousands of chains that reconnects must not cost 30 ms each time.
        heads = itertools.chain(self.firsts, self.parked)
        oldest_first = (self.chains[first.message.topic] for first in heads)
        held = itertools.chain.from_iterable(oldest_first) if may_all_go else self.waiting()
        taken = list(itertools.islice(filter(is_wanted, held), n_messages))
        gone = set(taken)
        rests: list[deque[Delivery]] = []
        for topic, n_gone in Counter(delivery.message.topic for delivery in taken).items():
            chain = self.chains[topic]
            first = chain[0]
            passed: list[Delivery] = []
            n_left = n_gone
            while n_left:
                delivery = chain.popleft()
                if delivery in gone:
                    n_left -= 1
                else:
                    passed.append(delivery)
            chain.extendleft(reversed(passed))
            if first in gone:
                del self.chains[topic]
                rests.append(chain)
        if rests:
            self.firsts = [large for large in self.firsts if large not in gone]
            self.parked = [first for first in self.parked if first not in gone]
        if taken and self._unmarked:
            self._unmarked = deque(large for large in self._unmarked if large not in gone)
        return taken, rests

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        firsts = sorted((chain[0] for chain in self.chains.values()), key=by_sequence)
        heads = list(heapq.merge(self.firsts, self.parked, key=by_sequence))
        assert firsts == heads, "oldest first, one of a topic"  # noqa: S101 (the check)
        for topic, chain in self.chains.items():
            assert {d.message.topic for d in chain} == {topic}, "chains"  # noqa: S101
            sequences = [d.sequence for d in chain]
            assert sequences == sorted(sequences), "order of a topic"  # noqa: S101

    def check_order(self, ready: Iterable[Delivery]) -> None:
        """Raise AssertionError where a ready message came after a held one of its topic."""
        heads = itertools.chain(self.firsts, self.parked)
        since = {first.message.topic: first.sequence for first in heads}
        for delivery in ready:
            first = since.get(delivery.message.topic)
            assert first is None or delivery.sequence < first, "order"  # noqa: S101


class WithholdingRecord:
    """Counts the decisions about large messages in all outboxes, and logs holds and releases.

    Latency counts from the arrival at the broker. That of each large message is measured, at QoS 1
    and 2 until its acknowledgement. Of small messages it is that of those that a sampler times: one
    at a time for each subscriber.

    Attributes:
        policy: name of the gate's policy, a label of the counters.
        sojourn: seconds for which released messages were held.
        watch: called with the link, ``held`` or ``released``, and each such decision; None while
            nobody listens.
        latency: (size class, where it ends, state of the path) to seconds since the arrival.
    """

    def __init__(self, policy: str, logger: Logger) -> None:
        """Begin with nothing."""
        self.policy = policy
        self.decisions: dict[tuple[Outcome, str], int] = {}
        self.sojourn = Histogram(SOJOURN_BOUNDS)
        self.latency: dict[tuple[SizeClass, Until, Path], Histogram] = {}
        self.watch: Callable[[Link, str, Decision], None] | None = None
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
        """Count and log large messages that begin to be held behind another one."""
        if not behind:
            return
        self.count("held", "behind", len(behind))
        verdict = Verdict(deliver=False, reason=f"behind one on {first.topic}", cause="behind")
        for message in behind:
            self._log(
                link, "held", Decision(verdict, message.topic, message.payload_bytes, 0.0, now)
            )

    def gone(self, cause: str, deliveries: Sequence[Delivery]) -> int:
        """Count those of some deliveries that were held and have left unsent; return all."""
        n_held = sum(delivery.withheld_since is not None for delivery in deliveries)
        if n_held:
            self.count("gone", cause, n_held)
        return len(deliveries)

    def released(self, link: Link, decision: Decision) -> None:
        """Count and log a message that was held and is sent."""
        self.count("released", decision.verdict.cause)
        self.sojourn.observe(decision.sojourn)
        self._log(link, "released", decision)

    def observe_latency(
        self, size_class: SizeClass, until: Until, path: Path, seconds: float
    ) -> None:
        """Take the latency of one message.

        Args:
            size_class: of the message, for its subscriber.
            until: where the latency ends.
            path: of the subscriber, at that time.
            seconds: since the message arrived. The time of arrival is known to an eighth of a
                second for a small message that has waited.
        """
        histogram = self.latency.get((size_class, until, path))
        if histogram is None:
            histogram = self.latency[size_class, until, path] = Histogram(LATENCY_BOUNDS)
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
                    Sample({"size": size_class, "until": until, "path": path}, histogram)
                    for (size_class, until, path), histogram in sorted(self.latency.items())
                ],
            ),
        ]

    def _log(self, link: Link, what: str, decision: Decision) -> None:
        """Log a decision, at most `MAX_LINES` in a window.

        Another line says at once that lines are left out, and the first line of a later window
        comes after one that says how many were.
        """
        if self.watch is not None:
            self.watch(link, what, decision)
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
