"""What `benchmarks.lossy_links` has found: each policy's latencies, and what of it is chance.

A few bad phases make most of each figure, and one message that such a phase catches on its way
makes a difference of many seconds. So a ratio comes with a 95 % interval: the runs are cut into
pieces, each from the beginning of one bad phase to that of the next, and drawn anew (a bootstrap),
all brokers' the same, since their links are bad at the same times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeAlias

from benchmarks.loads.lossy_load import LARGE, SMALL, STREAMS, Arrival
from penstock.netem.figures.estimates import (
    Estimate,
    Standing,
    Statistic,
    all_of,
    at_most,
    bootstrap,
    difference,
    pooled_mean,
    pooled_quantile,
    ratio,
)
from penstock.netem.links.profiles import GOOD

THE_PAPERS: Final = ("conservative", "probabilistic", "historic")
OURS: Final = "adaptive"

MOST_RATIO: Final = 1.05
"""Ours over the best of the paper's."""

LEAST_SECONDS: Final = 0.05
"""A difference below this is none, whatever its ratio: half of what a lossy packet is under way."""

MEASURES: Final[dict[str, tuple[str, Callable[[Sequence[Sequence[float]]], Statistic]]]] = {
    "small p50": (SMALL.name, lambda samples: pooled_quantile(samples, 0.5)),
    "small p90": (SMALL.name, lambda samples: pooled_quantile(samples, 0.9)),
    "small p99": (SMALL.name, lambda samples: pooled_quantile(samples, 0.99)),
    "large mean": (LARGE.name, pooled_mean),
    "large p90": (LARGE.name, lambda samples: pooled_quantile(samples, 0.9)),
}

Latencies: TypeAlias = Mapping[str, Mapping[str, list[float]]]
"""Seconds of each message, by broker and stream."""


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
        ratio: ours over the best of the three policies of paper 002; None where one was not run.
        excess: seconds of ours beyond that best; likewise.
    """

    measure: str
    values: dict[str, float]
    ratio: Estimate | None = None
    excess: Estimate | None = None

    @property
    def standing(self) -> Standing | None:
        """How ours stands to the best of the paper's; None where there is nothing to compare."""
        if self.ratio is None or self.excess is None:
            return None
        found = at_most(self.ratio, MOST_RATIO)
        of_seconds = at_most(self.excess, LEAST_SECONDS)
        if Standing.MET in (found, of_seconds):
            return Standing.MET
        return found if found is of_seconds else Standing.NOT_SHOWN


def compare(outcomes: Sequence[Outcome]) -> list[Comparison]:
    """Return each measure over the messages of all seeds."""
    pieces = cut(outcomes)
    brokers = dict.fromkeys(outcome.broker for outcome in outcomes)
    comparisons = []
    for measure, (stream, make) in MEASURES.items():
        # Ratio and difference need the same resamples.
        found: dict[str, Statistic] = {
            broker: cache(
                make([piece[broker][stream] if broker in piece else [] for piece in pieces])
            )
            for broker in brokers
        }
        values = {broker: each(range(len(pieces))) for broker, each in found.items()}
        papers = [found[name] for name in THE_PAPERS if name in found]
        if OURS not in found or not papers:
            comparisons.append(Comparison(measure, values))
            continue
        best = _least(papers)
        both = ratio(found[OURS], best), difference(found[OURS], best)
        estimates = (bootstrap(len(pieces), statistic) for statistic in both)
        comparisons.append(Comparison(measure, values, *estimates))
    return comparisons


def _least(statistics: Sequence[Statistic]) -> Statistic:
    return lambda units: min(each(units) for each in statistics)


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


def verdict(comparisons: Sequence[Comparison]) -> str:
    """Return the conclusion in one line."""
    found = {each.measure: (each.standing, each.ratio) for each in comparisons if each.standing}
    if not found:
        return f"{OURS} and a policy of the paper were not both run."
    standing = all_of(one for one, _ in found.values())
    told = ", ".join(
        f"{measure} {over}" for measure, (one, over) in found.items() if one is standing
    )
    text = f"{standing.value.capitalize()}: {OURS} over the best of the paper's three: {told}"
    if standing is Standing.MET:
        text += f" (at most {MOST_RATIO:g}, or {1000 * LEAST_SECONDS:g} ms more)"
    return f"{text}."


def to_markdown(outcomes: Sequence[Outcome], comparisons: Sequence[Comparison]) -> list[str]:
    """Return a row for each broker, and that of ours over the best of the paper's."""
    lines = [
        f"| broker | {' | '.join(f'{each.measure}, s' for each in comparisons)} | lost |",
        "|---|" + "---|" * (len(comparisons) + 1),
    ]
    for broker in dict.fromkeys(outcome.broker for outcome in outcomes):
        lost = sum(outcome.lost for outcome in outcomes if outcome.broker == broker)
        cells = " | ".join(f"{each.values[broker]:.2f}" for each in comparisons)
        lines.append(f"| {broker} | {cells} | {lost} |")
    ratios = [each.ratio for each in comparisons if each.ratio is not None]
    if ratios:
        about = f"{OURS} over the best of {', '.join(THE_PAPERS)}"
        about += f"; 95 % intervals over {ratios[0].n_units} bad phases"
        lines.append(f"| {about} | {' | '.join(map(str, ratios))} | |")
    return lines
