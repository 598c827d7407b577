"""What does a decision about a large message cost, and what does a subscriber cost?

Rerun: ``python -m benchmarks.decision_cost``; a look in seconds with ``--quick``.

The very gate of the plugin is asked about a 1 MB message in this process, for one subscriber on a
calm path, one in congestion and one whose 48 last congestions are remembered, the most there are;
an RTT estimate, that policies which learn are told, is timed too. The least of some repetitions
counts: what is above it was the machine's other work. Memory is what the gate holds for each of
many subscribers, their `Link` apart, which every session has.
"""

from __future__ import annotations

import random
import sys
import timeit
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.program import Program, Quick, describe_run, tell
from penstock.broker.link import Link, TcpLook
from penstock.broker.message import Message
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from penstock.plugins.withholding.history import MAX_LENGTHS

POLICIES: Final = ("none", "conservative", "probabilistic", "historic", "adaptive")
MESSAGE: Final = Message("pictures/1", bytes(1_000_000), is_large=True)
TARGET_MICROSECONDS: Final = 10.0
CALM_RTT: Final = 0.04
CONGESTED_RTT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        decisions: of one repetition.
        repetitions: of which the least counts.
        subscribers: whose memory is measured.
    """

    decisions: int = 5_000
    repetitions: int = 7
    subscribers: int = 5_000


FULL_EFFORT: Final = Effort()
QUICK_EFFORT: Final = Effort(decisions=500, repetitions=3, subscribers=500)


class Subscriber:
    """A subscriber as samplers see it, and a clock.

    Attributes:
        link: to be asked about.
        now: monotonic seconds.
    """

    def __init__(self, gate: WithholdingGate, name: str) -> None:
        self.link = Link(name)
        self.link.rtt_min = CALM_RTT
        self.link.tcp = TcpLook(0.0, congestion_control="cubic")
        self.now = 1000.0
        self._gate = gate

    def estimate(self, rtt: float) -> None:
        """A sampler has a new RTT."""
        self.now += 1.0
        link = self.link
        link.small_messages += 2
        link.rtt_latest, link.rtt_updated_at = rtt, self.now
        if link.tcp is not None:
            link.tcp.looked_at = self.now
            link.tcp.rtt, link.tcp.rttvar = rtt, rtt / 4
            link.tcp.segments += 100
            link.tcp.retransmissions += rtt > CALM_RTT
        self._gate.observe(link)

    def congestion(self, seconds: int) -> None:
        """There is congestion for so long, and calm after it."""
        for _ in range(seconds):
            self.estimate(CONGESTED_RTT)
        self.estimate(CALM_RTT)


def subscribers_of(gate: WithholdingGate) -> dict[str, Subscriber]:
    """Return one for each situation that is timed."""
    found = {}
    for name, n_congestions in (("calm", 0), ("congested", 0), ("congested often", MAX_LENGTHS)):
        subscriber = found[name] = Subscriber(gate, name)
        rng = random.Random(1)  # noqa: S311 - no secret
        subscriber.estimate(CALM_RTT)
        for _ in range(n_congestions):
            subscriber.congestion(rng.randint(3, 60))
        if name != "calm":
            subscriber.estimate(CONGESTED_RTT)
    return found


def _microseconds(call: Callable[[], Any], effort: Effort) -> float:
    times = timeit.repeat(call, number=effort.decisions, repeat=effort.repetitions)
    return 1e6 * min(times) / effort.decisions


def measure_decisions(policy: str, effort: Effort) -> dict[str, float]:
    """Return microseconds of a decision by situation, and of an estimate."""
    gate = WithholdingGate(WithholdingConfig(policy=policy))  # type: ignore[arg-type]
    found = subscribers_of(gate)
    taken = {
        name: _microseconds(
            lambda each=each: gate.decide(MESSAGE, each.link, 1.0, each.now),  # type: ignore[misc]
            effort,
        )
        for name, each in found.items()
    }
    often = found["congested often"]
    taken["estimate"] = _microseconds(lambda: often.estimate(CONGESTED_RTT), effort)
    return taken


def measure_memory(policy: str, effort: Effort) -> float:
    """Return the bytes for each subscriber that a gate holds, and its link for new numbers."""
    gate = WithholdingGate(WithholdingConfig(policy=policy))  # type: ignore[arg-type]
    subscribers = [Subscriber(gate, str(number)) for number in range(effort.subscribers)]
    for subscriber in subscribers:
        subscriber.estimate(CALM_RTT)  # what belongs to the link is there
    for subscriber in subscribers:
        gate.forget(subscriber.link)
    tracemalloc.start()
    for subscriber in subscribers:
        gate.observe(subscriber.link)
        for _ in range(MAX_LENGTHS):
            subscriber.congestion(2)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / effort.subscribers


def to_markdown(
    decisions: Mapping[str, Mapping[str, float]], memory: Mapping[str, float]
) -> list[str]:
    """Return the conclusion in a line, and a table."""
    slowest = max(
        taken for times in decisions.values() for name, taken in times.items() if name != "estimate"
    )
    is_met = slowest < TARGET_MICROSECONDS
    situations = list(next(iter(decisions.values())))
    lines = [
        f"{'Met' if is_met else 'Missed'}: a decision takes {slowest:.1f} µs at most.",
        "",
        f"| policy | {' | '.join(f'{name}, µs' for name in situations)} | B a subscriber |",
        f"|---|{'---:|' * (len(situations) + 1)}",
    ]
    for policy, times in decisions.items():
        cells = " | ".join(f"{times[name]:.2f}" for name in situations)
        lines.append(f"| {policy} | {cells} | {memory[policy]:,.0f} |")
    return lines


def run(*, quick: Quick = False) -> None:
    """Measure decisions and memory."""
    effort = QUICK_EFFORT if quick else FULL_EFFORT
    decisions = {policy: measure_decisions(policy, effort) for policy in POLICIES}
    of_links = measure_memory("none", effort)
    memory = {policy: measure_memory(policy, effort) - of_links for policy in POLICIES}
    tell(to_markdown(decisions, memory), describe_run([]))


main: Final = Program(run, "python -m benchmarks.decision_cost")


if __name__ == "__main__":
    sys.exit(main())
