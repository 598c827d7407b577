"""What does a decision about a large message cost, and what does a subscriber cost?

Rerun: ``python -m benchmarks.decision_cost``; a look in seconds with ``--quick``.

The very gate of the plugin is asked about a 1 MB message in this process, for one subscriber on a
good path, one on a bad path of which it is known what a message takes there, and one with another
message on its way. What policies that learn are told is timed too: an RTT estimate, and that a
message leaves and is acknowledged. Times are of the processor, and the least of some repetitions
counts. Memory is what the gate holds for each of many subscribers, their `Link` apart, which every
session has.
"""

from __future__ import annotations

import sys
import time
import timeit
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.program import Program, Quick, describe_run, tell
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate

POLICIES: Final = ("none", "conservative", "probabilistic", "historic", "adaptive")
MESSAGE: Final = Message("pictures/1", bytes(1_000_000), is_large=True)
DECISIONS: Final = ("good", "bad", "on the way")
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
        self.now = 1000.0
        self._gate = gate

    def estimate(self, rtt: float) -> None:
        """A sampler has a new RTT."""
        self.now += 1.0
        self.link.rtt_latest, self.link.rtt_updated_at = rtt, self.now
        self._gate.observe(self.link)

    def send(self) -> None:
        """A large message leaves."""
        self._gate.large_sent(self.link, MESSAGE.payload_bytes, self.now)

    def let_one_pass(self) -> None:
        """A large message takes 8 s."""
        self.send()
        self.now += 8.0
        self._gate.large_acknowledged(self.link, self.now)


def subscribers_of(gate: WithholdingGate) -> dict[str, Subscriber]:
    """Return one for each situation that is timed."""
    found = {name: Subscriber(gate, name) for name in DECISIONS}
    for subscriber in found.values():
        subscriber.estimate(CALM_RTT)
    bad = found["bad"]
    bad.estimate(CONGESTED_RTT)
    bad.let_one_pass()
    for _ in range(8):  # the pause is over
        bad.estimate(CONGESTED_RTT)
    found["on the way"].send()
    return found


def _microseconds(call: Callable[[], Any], effort: Effort) -> float:
    times = timeit.repeat(
        call, timer=time.process_time, number=effort.decisions, repeat=effort.repetitions
    )
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
    bad = found["bad"]
    taken["estimate"] = _microseconds(lambda: bad.estimate(CONGESTED_RTT), effort)
    taken["sent and acknowledged"] = _microseconds(bad.let_one_pass, effort)
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
        subscriber.let_one_pass()
        subscriber.send()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / effort.subscribers


def to_markdown(
    decisions: Mapping[str, Mapping[str, float]], memory: Mapping[str, float]
) -> list[str]:
    """Return the conclusion in a line, and a table."""
    slowest = max(
        taken for times in decisions.values() for name, taken in times.items() if name in DECISIONS
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
