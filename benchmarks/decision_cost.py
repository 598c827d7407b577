"""What does withholding cost: for a large message, for a subscriber, and where nothing is large?

Rerun: ``python -m benchmarks.decision_cost``; a look in half a minute with ``--quick``.

Decisions: the very gate of the plugin is asked about a 1 MB message in this process, for one
subscriber on a calm path, one in congestion and one whose 48 last congestions are remembered, the
most there are; an RTT estimate, that policies which learn are told, is timed too. The least of
some repetitions counts: what is above it was the machine's other work. Memory is what the gate
holds for each of many subscribers, their `Link` apart, which every session has.

Nothing large: the messages of rows of ``penstock bench``, to two brokers in turn, with the example
policy file and with the same without the plugins `withholding` and `probing`. What counts is the
broker's processor time; how it is compared says `benchmarks.paired`. ``--of puback`` compares the
example policy with ``puback_spacing_seconds: 0`` to it as it is.
"""

from __future__ import annotations

import random
import sys
import timeit
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.loads.load import Load
from benchmarks.loads.stream import Shape
from benchmarks.loads.windowed import Plan, WindowedLoad
from benchmarks.paired import Bursts, Interval, interval_of, measure_start
from benchmarks.peers import (
    PEERS,
    Peer,
    RunningPeer,
    penstock_peer,
)
from benchmarks.program import Program, Quick, choose, describe_run, tell
from benchmarks.rows import throughput
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES
from penstock.broker.link import Link, TcpLook
from penstock.broker.message import Message
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from penstock.plugins.withholding.history import MAX_LENGTHS

POLICIES: Final = ("none", "conservative", "probabilistic", "historic", "adaptive")
MESSAGE: Final = Message("pictures/1", bytes(1_000_000), is_large=True)
TARGET_MICROSECONDS: Final = 10.0
TARGET_RATIO: Final = 0.03
CALM_RTT: Final = 0.04
CONGESTED_RTT: Final = 2.0


def _of_shape(shape: Shape, burst: int) -> Bursts:
    """Return bursts of a row at QoS 0, of so many messages of each publisher."""
    return Bursts(partial(Load, shape=shape), burst * shape.publishers)


def _of_plan(plan: Plan) -> Bursts:
    """Return bursts of a row with acknowledgements: each a whole window."""

    def connect(broker: RunningPeer) -> WindowedLoad:
        return WindowedLoad(broker.port, replace(plan, wake_up_packets=plan.window))

    return Bursts(connect, plan.window * plan.pairs, inflight_messages=INFLIGHT_MESSAGES)


ROWS: Final = {
    "qos0_1to1": _of_shape(throughput.UNIFORM, 1_000),
    "qos0_1to10": _of_shape(replace(throughput.UNIFORM, subscribers=10), 200),
    "qos0_mixed": _of_shape(throughput.MIXED, 1_000),
    "qos0_pairs": _of_shape(throughput.PAIRS, 50),
    "qos1_1to1": _of_plan(Plan(1, 100, 64, qos=1)),
    "qos1_pairs": _of_plan(Plan(20, 20, 256, qos=1)),
}
"""By the row of ``penstock bench`` whose messages they are."""

QUICK_ROWS: Final = "qos1_1to1"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        decisions: of one repetition.
        repetitions: of which the least counts.
        subscribers: whose memory is measured.
        ratios: of each start of two brokers.
    """

    decisions: int = 5_000
    repetitions: int = 7
    subscribers: int = 5_000
    ratios: int = 50


FULL_EFFORT: Final = Effort()
QUICK_EFFORT: Final = Effort(decisions=500, repetitions=3, subscribers=500, ratios=5)


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


def _leave_out(policy: dict[str, Any], _directory: Path) -> None:
    del policy["plugins"]["withholding"], policy["plugins"]["probing"]


def _time_every(policy: dict[str, Any], _directory: Path) -> None:
    policy["plugins"]["probing"]["puback_spacing_seconds"] = 0


EXAMPLE: Final = PEERS["penstock"]
WITHOUT: Final = penstock_peer(
    "without", "the example policy without withholding and probing", _leave_out
)
EVERY: Final = penstock_peer("every", "the example policy, every packet timed", _time_every)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two brokers.

    Attributes:
        one: what is asked about.
        other: what it is compared with.
        what: of which the cost is, in words.
        target: below which it is to be; None where there is none.
    """

    one: Peer
    other: Peer
    what: str
    target: float | None = None


COMPARISONS: Final = {
    "plugins": Comparison(EXAMPLE, WITHOUT, "withholding and probing take", TARGET_RATIO),
    "puback": Comparison(EVERY, EXAMPLE, "timing every packet takes"),
}


def measure_overhead(name: str, comparison: Comparison, starts: int, effort: Effort) -> Interval:
    """Return how much more processor time a row's messages take.

    Raises:
        BenchmarkError: a broker did not work.
    """
    figures: list[float] = []
    for number in range(starts):
        figures.append(
            measure_start(
                comparison.one,
                comparison.other,
                ROWS[name],
                effort.ratios,
                is_reversed=bool(number % 2),
            )
        )
        typer.echo(f"{name} {number + 1}/{starts}: {figures[-1]:+.1%}", err=True)
    return interval_of(figures)


def to_markdown(
    decisions: Mapping[str, Mapping[str, float]],
    memory: Mapping[str, float],
    overhead: Mapping[str, Interval],
    comparison: Comparison,
) -> list[str]:
    """Return the conclusions in a line each, and a table of each part."""
    slowest = max(
        taken for times in decisions.values() for name, taken in times.items() if name != "estimate"
    )
    is_met = slowest < TARGET_MICROSECONDS
    lines = [f"{'Met' if is_met else 'Missed'}: a decision takes {slowest:.1f} µs at most."]
    target = comparison.target
    for name, found in overhead.items():
        verdict = "No target" if target is None else found.verdict(target)
        lines.append(
            f"{verdict}: where nothing is large, {comparison.what} {found}"
            f" of processor time ({name})."
        )
    situations = list(next(iter(decisions.values())))
    lines += [
        "",
        f"| policy | {' | '.join(f'{name}, µs' for name in situations)} | B a subscriber |",
        f"|---|{'---:|' * (len(situations) + 1)}",
    ]
    for policy, times in decisions.items():
        cells = " | ".join(f"{times[name]:.2f}" for name in situations)
        lines.append(f"| {policy} | {cells} | {memory[policy]:,.0f} |")
    if overhead:
        lines += ["", "| row | processor time a message, median | of 95 %, from | to |"]
        lines.append("|---|---:|---:|---:|")
    for name, found in overhead.items():
        lines.append(f"| {name} | {found.median:+.1%} | {found.low:+.1%} | {found.high:+.1%} |")
    return lines


def run(
    rows: Annotated[
        str | None, typer.Option(help=f"Of {', '.join(ROWS)}; or all, or none.")
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Of two brokers, for each row.")] = 20,
    *,
    of: Annotated[str, typer.Option(help=f"Whose cost: {' or '.join(COMPARISONS)}.")] = "plugins",
    quick: Quick = False,
) -> None:
    """Measure decisions, memory and what withholding costs where nothing is large."""
    named = rows or (QUICK_ROWS if quick else "all")
    chosen = [] if named == "none" else choose("row", named, {name: name for name in ROWS})
    [comparison] = choose("cost of", of, COMPARISONS)
    effort = QUICK_EFFORT if quick else FULL_EFFORT
    decisions = {policy: measure_decisions(policy, effort) for policy in POLICIES}
    of_links = measure_memory("none", effort)
    memory = {policy: measure_memory(policy, effort) - of_links for policy in POLICIES}
    overhead = {name: measure_overhead(name, comparison, starts, effort) for name in chosen}
    peers = [comparison.one, comparison.other] if chosen else []
    tell(to_markdown(decisions, memory, overhead, comparison), describe_run(peers))


main: Final = Program(run, "python -m benchmarks.decision_cost")


if __name__ == "__main__":
    sys.exit(main())
