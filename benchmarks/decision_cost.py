"""What does withholding cost: for a large message, for a subscriber, and where nothing is large?

Rerun: ``python -m benchmarks.decision_cost``; a look in half a minute with ``--quick``.

Decisions: the very gate of the plugin is asked about a 1 MB message in this process, for one
subscriber on a calm path, one in congestion and one whose 48 last congestions are remembered, the
most there are; an RTT estimate, that policies which learn are told, is timed too. The least of
some repetitions counts: what is above it was the machine's other work. Memory is what the gate
holds for each of many subscribers, their `Link` apart, which every session has.

Nothing large: rows of ``penstock bench`` on two brokers in turn, with the example policy file and
with the same without the plugins `withholding` and `probing`. What counts is the broker's processor
time for each message, the one over the other, pair by pair.
"""

from __future__ import annotations

import random
import statistics
import sys
import timeit
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from benchmarks import acknowledged, throughput
from benchmarks.__main__ import choose, measure
from benchmarks.errors import BenchmarkError
from benchmarks.peers import PEERS, Peer, Setting, example_policy, without_queue_limits
from benchmarks.provenance import describe_run
from benchmarks.rows import FULL, QUICK, Row, Scale
from broker.link import Link, TcpLook
from broker.message import Message
from plugins.withholding.config import WithholdingConfig
from plugins.withholding.gate import WithholdingGate
from plugins.withholding.history import MAX_LENGTHS

POLICIES: Final = ("none", "conservative", "probabilistic", "historic", "adaptive")
MESSAGE: Final = Message("pictures/1", bytes(1_000_000), is_large=True)
TARGET_MICROSECONDS: Final = 10.0
TARGET_RATIO: Final = 0.03
CALM_RTT: Final = 0.04
CONGESTED_RTT: Final = 2.0
PLUGINS: Final = ("withholding", "probing")
ROWS: Final = {row.name: row for row in (*throughput.ROWS, *acknowledged.ROWS) if not row.is_tls}
DEFAULT_ROWS: Final = "qos0_1to1,qos0_1to10,qos0_mixed,qos0_pairs,qos1_1to1,qos1_pairs"
QUICK_ROWS: Final = "qos0_mixed"


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
        self.link.tcp = TcpLook(0.0)
        self.now = 1000.0
        self._gate = gate

    def estimate(self, rtt: float) -> None:
        """A sampler has a new RTT."""
        self.now += 1.0
        link = self.link
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


def _without_plugins(directory: Path, setting: Setting) -> list[str]:
    policy = without_queue_limits(example_policy(setting))
    for name in PLUGINS:
        del policy["plugins"][name]
    file = directory / "broker.yaml"
    file.write_text(yaml.safe_dump(policy))
    return [sys.executable, "-m", "broker", "-c", str(file)]


WITH: Final = PEERS["penstock"]
WITHOUT: Final = Peer(
    "without", "the example policy without withholding and probing", _without_plugins, WITH.version
)


def measure_overhead(row: Row, scale: Scale, repeats: int) -> list[float]:
    """Return the broker's processor time for a message with the plugins over that without.

    Returns:
        One ratio for each pair of measurements, less 1.

    Raises:
        BenchmarkError: a broker did not work.
    """
    ratios = []
    for number in range(repeats):
        rates = {}
        # Who is first changes, so that what warms up meets both.
        for peer in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
            found = measure(row, peer, scale)
            rates[peer.name] = found.details["delivered_per_broker_cpu_second"]
        ratios.append(rates[WITHOUT.name] / rates[WITH.name] - 1)
        typer.echo(f"{row.name} {number + 1}/{repeats}: {ratios[-1]:+.1%}", err=True)
    return ratios


def to_markdown(
    decisions: Mapping[str, Mapping[str, float]],
    memory: Mapping[str, float],
    overhead: Mapping[str, Sequence[float]],
) -> str:
    """Return the conclusion in a line, and a table of each part."""
    slowest = max(
        taken for times in decisions.values() for name, taken in times.items() if name != "estimate"
    )
    is_met = slowest < TARGET_MICROSECONDS
    text = f"{'Met' if is_met else 'Missed'}: a decision takes {slowest:.1f} µs at most"
    if overhead:
        medians = {name: statistics.median(ratios) for name, ratios in overhead.items()}
        worst = max(medians, key=medians.__getitem__)
        is_low = medians[worst] < TARGET_RATIO
        text += f". {'Met' if is_low else 'Missed'}: where nothing is large, withholding and"
        text += f" probing take {medians[worst]:+.1%} of processor time at most ({worst})"
    situations = list(next(iter(decisions.values())))
    lines = [
        f"{text}.",
        "",
        f"| policy | {' | '.join(f'{name}, µs' for name in situations)} | B a subscriber |",
        f"|---|{'---:|' * (len(situations) + 1)}",
    ]
    for policy, times in decisions.items():
        cells = " | ".join(f"{times[name]:.2f}" for name in situations)
        lines.append(f"| {policy} | {cells} | {memory[policy]:,.0f} |")
    if overhead:
        lines += ["", "| row | processor time a message, median | least | most | pairs |"]
        lines.append("|---|---:|---:|---:|---:|")
    for name, ratios in overhead.items():
        figures = (statistics.median(ratios), min(ratios), max(ratios))
        cells = " | ".join(f"{figure:+.1%}" for figure in figures)
        lines.append(f"| {name} | {cells} | {len(ratios)} |")
    return "\n".join(lines)


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def run(
    rows: Annotated[
        str | None, typer.Option(help=f"Of {', '.join(ROWS)}; or all, or none.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Pairs of each row.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each measurement.")] = FULL.seconds,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A look, no claim.")] = False,
) -> None:
    """Measure decisions, memory and what withholding costs where nothing is large."""
    named = rows or (QUICK_ROWS if quick else DEFAULT_ROWS)
    chosen = [] if named == "none" else choose("row", named, ROWS)
    effort = QUICK_EFFORT if quick else FULL_EFFORT
    scale = QUICK if quick else replace(FULL, seconds=seconds)
    decisions = {policy: measure_decisions(policy, effort) for policy in POLICIES}
    of_links = measure_memory("none", effort)
    memory = {policy: measure_memory(policy, effort) - of_links for policy in POLICIES}
    overhead = {row.name: measure_overhead(row, scale, repeats) for row in chosen}
    typer.echo(to_markdown(decisions, memory, overhead) + "\n")
    command = f"python -m benchmarks.decision_cost --rows {named} --repeats {repeats}"
    command += " --quick" if quick else f" --seconds {seconds:g}"
    for key, text in describe_run(command, [WITH, WITHOUT] if chosen else []).items():
        typer.echo(f"- {key}: {text}")


def main(argv: list[str]) -> int:
    """Run the program.

    Returns:
        Exit status: 1 where a broker did not work, 2 for a mistake in the arguments.
    """
    try:
        app(args=argv, prog_name="python -m benchmarks.decision_cost")
    except BenchmarkError as error:
        typer.echo(f"decision_cost: {error}", err=True)
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
