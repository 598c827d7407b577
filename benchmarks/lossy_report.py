"""What `benchmarks.lossy_links` has found: each policy's latencies, and what of it is chance.

A few bad phases make most of each figure, and one message that such a phase catches on its way
makes a difference of many seconds. So a ratio comes with an interval: the runs are cut into pieces,
each from the beginning of one bad phase to that of the next, and drawn anew with replacement (a
bootstrap), all brokers' the same, since their links are bad at the same times.
"""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from benchmarks.loads.lossy_load import LARGE, SMALL, STREAMS, Arrival
from penstock.netem.links.profiles import GOOD

THE_PAPERS: Final = ("conservative", "probabilistic", "historic")
OURS: Final = "adaptive"

MOST_RATIO: Final = 1.05
"""Ours over the best of the paper's."""

LEAST_SECONDS: Final = 0.05
"""A difference below this is none, whatever its ratio: half of what a lossy packet is under way."""

N_DRAWS: Final = 400
FEW_PIECES: Final = 6
"""Of fewer pieces than these, draws are too much alike to tell what is chance."""

COVERED: Final = 0.9
"""Share of the draws that an interval holds; as many are below it as above."""

MEASURES: Final[dict[str, tuple[str, Callable[[list[float]], float]]]] = {
    "small p50": (SMALL.name, lambda values: quantile(values, 0.5)),
    "small p90": (SMALL.name, lambda values: quantile(values, 0.9)),
    "small p99": (SMALL.name, lambda values: quantile(values, 0.99)),
    "large mean": (LARGE.name, statistics.fmean),
    "large p90": (LARGE.name, lambda values: quantile(values, 0.9)),
}

Latencies: TypeAlias = Mapping[str, Mapping[str, list[float]]]
"""Seconds of each message, by broker and stream."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that at least such a share of all does not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else math.nan


@dataclass(slots=True)
class Outcome:
    """What one broker did on one seed.

    Attributes:
        broker: name of the policy, or mosquitto.
        seed: of the link's times.
        arrivals: in the order of their arrival.
        lost: messages that did not arrive.
        link_log: (monotonic seconds, name of the profile) of each change.
        packets: what became of the link's packets, by direction.
    """

    broker: str
    seed: int
    arrivals: list[Arrival]
    lost: int
    link_log: list[tuple[float, str]]
    packets: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All outcomes of one measure, by broker.

    Attributes:
        measure: key of `MEASURES`.
        values: seconds over all seeds' messages.
        interval: what `ratio` may as well have been, by chance; None where nothing tells.
    """

    measure: str
    values: dict[str, float]
    interval: tuple[float, float] | None = None

    @property
    def best_of_the_papers(self) -> float | None:
        """The least of the three policies of paper 002; None where none was run."""
        return min((self.values[name] for name in THE_PAPERS if name in self.values), default=None)

    @property
    def ratio(self) -> float | None:
        """Ours over the best of the paper's; None where one was not run."""
        best = self.best_of_the_papers
        return None if best is None or OURS not in self.values else self.values[OURS] / best

    @property
    def is_worse(self) -> bool:
        """Whether ours is worse than the best of the paper's, by more than is allowed."""
        best, ratio = self.best_of_the_papers, self.ratio
        if best is None or ratio is None:
            return False
        return not (ratio <= MOST_RATIO or self.values[OURS] - best < LEAST_SECONDS)

    @property
    def may_be_chance(self) -> bool:
        """Whether it may as well not be worse."""
        return self.interval is not None and self.interval[0] <= MOST_RATIO


def compare(outcomes: Sequence[Outcome]) -> list[Comparison]:
    """Return each measure over the messages of all seeds."""
    pieces = cut(outcomes)
    comparisons = _measure(_join(pieces))
    intervals: dict[str, tuple[float, float]] = {}
    if len(pieces) >= FEW_PIECES and all(each.ratio is not None for each in comparisons):
        intervals = _draw(pieces)
    return [
        Comparison(each.measure, each.values, intervals.get(each.measure)) for each in comparisons
    ]


def cut(outcomes: Iterable[Outcome]) -> list[Latencies]:
    """Return the latencies of each piece of each seed.

    A piece is what was due from the beginning of a bad phase to that of the next; the first one
    has what was due before, too. A link that never changes has one piece for each seed.
    """
    begins: dict[int, list[float]] = {}
    pieces: dict[tuple[int, int], dict[str, dict[str, list[float]]]] = {}
    for outcome in outcomes:
        bad_at = [at for at, name in outcome.link_log if name != GOOD.name]
        later = begins.setdefault(outcome.seed, bad_at[1:])
        for arrival in outcome.arrivals:
            piece = pieces.setdefault((outcome.seed, bisect_right(later, arrival.due_at)), {})
            kinds = piece.setdefault(outcome.broker, {name: [] for name in STREAMS})
            kinds[arrival.stream].append(arrival.latency_seconds)
    return list(pieces.values())


def _join(pieces: Iterable[Latencies]) -> Latencies:
    joined: dict[str, dict[str, list[float]]] = {}
    for piece in pieces:
        for broker, kinds in piece.items():
            of_broker = joined.setdefault(broker, {name: [] for name in STREAMS})
            for name, latencies in kinds.items():
                of_broker[name] += latencies
    return joined


def _measure(latencies: Latencies) -> list[Comparison]:
    return [
        Comparison(
            measure,
            {
                broker: summarise(kinds[stream]) if kinds[stream] else math.nan
                for broker, kinds in latencies.items()
            },
        )
        for measure, (stream, summarise) in MEASURES.items()
    ]


def _draw(pieces: Sequence[Latencies]) -> dict[str, tuple[float, float]]:
    """Return the interval of each measure's ratio."""
    rng = random.Random(0)  # noqa: S311 - no secret
    compared = [
        {
            broker: {name: sorted(latencies) for name, latencies in kinds.items()}
            for broker, kinds in piece.items()
            if broker == OURS or broker in THE_PAPERS
        }
        for piece in pieces
    ]
    ratios: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for _ in range(N_DRAWS):
        for each in _measure(_join(rng.choices(compared, k=len(compared)))):
            if each.ratio is not None:
                ratios[each.measure].append(each.ratio)
    tail = (1 - COVERED) / 2
    return {
        measure: (quantile(drawn, tail), quantile(drawn, 1 - tail))
        for measure, drawn in ratios.items()
    }


def verdict(comparisons: Sequence[Comparison]) -> str:
    """Return the conclusion in one line."""
    ratios = {each.measure: each.ratio for each in comparisons if each.ratio is not None}
    if not ratios:
        return f"{OURS} and a policy of the paper were not both run."
    worse = [each for each in comparisons if each.is_worse]
    if worse:
        is_chance = all(each.may_be_chance for each in worse)
        words = ", ".join(
            f"{each.measure} {each.ratio:.2f}" + " (may be chance)" * each.may_be_chance
            for each in worse
        )
        found = "Not shown" if is_chance else "Missed"
        return f"{found}: {OURS} over the best of the paper's three: {words}."
    most = max(ratio for ratio in ratios.values() if ratio <= MOST_RATIO)
    text = f"Met: {OURS} over the best of the paper's three is {most:.2f} at most"
    small = [name for name, ratio in ratios.items() if not ratio <= MOST_RATIO]
    if small:
        text += f", but for {', '.join(small)}: by less than {1000 * LEAST_SECONDS:g} ms"
    return f"{text}."


def to_markdown(outcomes: Sequence[Outcome], comparisons: Sequence[Comparison]) -> list[str]:
    """Return a row for each broker, and those of ours over the best of the paper's."""
    lines = [
        f"| broker | {' | '.join(f'{each.measure}, s' for each in comparisons)} | lost |",
        "|---|" + "---|" * (len(comparisons) + 1),
    ]
    for broker in dict.fromkeys(outcome.broker for outcome in outcomes):
        lost = sum(outcome.lost for outcome in outcomes if outcome.broker == broker)
        cells = " | ".join(f"{each.values[broker]:.2f}" for each in comparisons)
        lines.append(f"| {broker} | {cells} | {lost} |")
    if all(each.ratio is not None for each in comparisons):
        cells = " | ".join(f"{each.ratio:.2f}" for each in comparisons)
        lines.append(f"| {OURS} over the best of {', '.join(THE_PAPERS)} | {cells} | |")
        spreads = [
            "?" if each.interval is None else "{:.2f} to {:.2f}".format(*each.interval)
            for each in comparisons
        ]
        about = f"{100 * COVERED:g} % interval of that, bad phases drawn anew"
        lines.append(f"| {about} | {' | '.join(spreads)} | |")
    return lines
