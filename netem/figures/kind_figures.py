"""Figures of kinds of links: the latency of each broker, and its share of the possible gain.

A *cell* is a kind with a congestion control and a way to the broker. A cell with a seed has random
values of its own and is an independent unit. The reference is the broker `BASELINE`, which
withholds nothing; the measure is `ORACLE`, which knows what the links carry. The oracle *gains* 1
less the ratio of its mean latency of small messages to the reference's. A policy *closes* a share
of this gain: 0 is no better than the reference, 1 as good as the oracle.

Latencies are as in `penstock.netem.figures.measures`; sizes are what counts, not streams: small
messages are those of up to `SMALL_BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from statistics import median
from typing import Final, Literal, NamedTuple

from penstock.netem.clients.publisher import SMALL_BYTES
from penstock.netem.figures.estimates import (
    LEAST_UNITS,
    Estimate,
    Standing,
    Statistic,
    all_of,
    at_least,
    at_most,
    bootstrap,
    difference,
    pooled_mean,
    pooled_quantile,
    ratio,
)
from penstock.netem.figures.measures import Measures, TargetVerdict, Unit, show_estimate, show_ratio
from penstock.netem.runs.kinds import Cell

BASELINE: Final = "none"
ORACLE: Final = "oracle"
FOCUS: Final = "adaptive"
PEER: Final = "mosquitto"
LANES: Final = "lanes"
"""The names of the brokers that figures and targets are about."""

GAIN_THAT_COUNTS: Final = 0.2
"""The least gain of the oracle that is judged: a share of less is random noise."""

LEAST_SHARE: Final = 0.7
MOST_P90: Final = 1.1
MOST_LARGE_MEDIAN: Final = 1.5
MOST_LARGE: Final = 2.0
MOST_LARGE_WITHOUT_GAIN: Final = 1.2
"""Targets of the default policy. It closes at least the share. The p90 of small messages over the
reference's is at most the p90. The mean of large messages over the reference's is at most the
median over the cells, and at most the two others on a cell where small messages gain over half, and
on one where they gain less than a fifth."""

MUCH_GAIN, LITTLE_GAIN = 0.5, 0.2

MOST_LANES: Final = 0.1
MOST_LANES_P99_SECONDS: Final = 3.0
MOST_LANES_LARGE: Final = 1.05
"""Targets of two lanes against mosquitto with one connection."""

ALL: Final = "all"
"""The congestion control and the way of a row about all cells of a kind."""

Size = Literal["small", "large"]


class KindRow(NamedTuple):
    """The cells that a row of a table is about.

    Attributes:
        words: its kind, congestion control and way, as text.
    """

    words: tuple[str, str, str]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class KindFigures:
    """Figures of the cells of a run."""

    measures: Measures

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that ran."""
        return self.measures.scenario.cells()

    @cached_property
    def rows(self) -> list[KindRow]:
        """The cells; before those of a kind, if there are several, a row for all of them."""
        found = []
        for kind in self.measures.scenario.kinds:
            cells = [cell for cell in self.cells if cell.kind == kind]
            if len(cells) > 1:
                found.append(KindRow((kind, ALL, ALL), tuple(cells)))
            found += [KindRow((kind, cell.congestion_control, cell.way), (cell,)) for cell in cells]
        return found

    @cached_property
    def judged(self) -> list[KindRow]:
        """The rows that targets are about: each cell by itself, if seeds are enough for intervals.

        Otherwise each kind, whose cells together may have as many units as it takes.
        """
        if len(self.measures.scenario.seeds) >= LEAST_UNITS:
            return [row for row in self.rows if len(row.cells) == 1]
        firsts: dict[str, KindRow] = {}
        for row in self.rows:
            firsts.setdefault(row.words[0], row)
        return list(firsts.values())

    @cached_property
    def brokers(self) -> list[str]:
        """Names of the brokers that ran."""
        return list(self.measures.scenario.brokers)

    @cached_property
    def policies(self) -> list[str]:
        """Brokers with one connection whose policies the oracle is the measure of."""
        others = (BASELINE, ORACLE)
        return [
            name
            for name, plan in self.measures.scenario.brokers.items()
            if plan.is_penstock and plan.lanes is None and name not in others
        ]

    @cached_property
    def _samples(self) -> dict[tuple[str, str, Size], dict[Unit, list[float]]]:
        """Latencies by host of a cell, broker and size, and by unit."""
        cell_of = {receiver: cell.name for cell in self.cells for receiver in cell.receivers}
        found: dict[tuple[str, str, Size], dict[Unit, list[float]]] = {}
        for (broker, seed), outcomes in self.measures.outcomes.items():
            for each in outcomes:
                name = cell_of[each.subscriber]
                size: Size = "small" if each.message.payload_bytes <= SMALL_BYTES else "large"
                of_cell = found.setdefault((name, broker, size), {})
                of_cell.setdefault((name, seed), []).append(each.latency)
        return found

    def samples(self, cells: Sequence[Cell], broker: str, size: Size) -> list[list[float]]:
        """Return the latencies of some cells, a list for each unit.

        Units are the same for all brokers, in the same order: by seed, then by cell. The list is
        empty where the broker was not measured on one of them.
        """
        units = [(cell.name, seed) for seed in self.measures.scenario.seeds for cell in cells]
        found = [self._samples.get((unit[0], broker, size), {}).get(unit) for unit in units]
        known = [each for each in found if each is not None]
        return known if len(known) == len(units) else []

    def mean(self, cells: Sequence[Cell], broker: str, size: Size) -> Statistic | None:
        """Return the mean latency as a statistic; None where the broker was not measured."""
        samples = self.samples(cells, broker, size)
        return cache(pooled_mean(samples)) if samples else None

    def quantile(
        self, cells: Sequence[Cell], broker: str, size: Size, share: float
    ) -> Statistic | None:
        """Return a quantile of the latencies as a statistic, likewise."""
        samples = self.samples(cells, broker, size)
        return cache(pooled_quantile(samples, share)) if samples else None

    def gain(self, cells: Sequence[Cell], broker: str) -> Statistic | None:
        """Return 1 less the mean latency of small messages over the reference's."""
        over = self.over(cells, broker, BASELINE, "small")
        return None if over is None else lambda units: 1 - over(units)

    def share(self, cells: Sequence[Cell], broker: str) -> Statistic | None:
        """Return which share of the oracle's gain a broker closes."""
        ours, none, oracle = (
            self.mean(cells, each, "small") for each in (broker, BASELINE, ORACLE)
        )
        if ours is None or none is None or oracle is None:
            return None
        return ratio(difference(none, ours), difference(none, oracle))

    def over(self, cells: Sequence[Cell], broker: str, other: str, size: Size) -> Statistic | None:
        """Return a broker's mean latency over another's."""
        ours, theirs = (self.mean(cells, each, size) for each in (broker, other))
        return None if ours is None or theirs is None else ratio(ours, theirs)

    def p90_over(self, cells: Sequence[Cell], broker: str, other: str) -> Statistic | None:
        """Return the p90 of small messages over another broker's."""
        ours, theirs = (self.quantile(cells, each, "small", 0.9) for each in (broker, other))
        return None if ours is None or theirs is None else ratio(ours, theirs)

    def n_units(self, cells: Sequence[Cell]) -> int:
        """Return the number of independent units of some cells."""
        return len(cells) * len(self.measures.scenario.seeds)

    def estimate(self, cells: Sequence[Cell], statistic: Statistic | None) -> Estimate:
        """Return a statistic of some cells, with its interval where it has one."""
        if statistic is None:
            return Estimate(math.nan, math.nan, math.nan, 0)
        return bootstrap(self.n_units(cells), statistic)

    def median_over(self, broker: str, other: str, size: Size) -> Estimate:
        """Return the median over the cells of a broker's mean latency over another's.

        A seed is a unit here: it is a unit of each cell.
        """
        found = [self.over([cell], broker, other, size) for cell in self.cells]
        known = [each for each in found if each is not None]
        if not known:
            return Estimate(math.nan, math.nan, math.nan, 0)
        n_seeds = len(self.measures.scenario.seeds)
        return bootstrap(n_seeds, lambda units: _median([each(units) for each in known]))


def _median(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else median(values)


def kind_verdicts(measures: Measures, length: str) -> list[TargetVerdict]:
    """Return what came out for the targets about kinds, those whose brokers ran."""
    if not measures.scenario.kinds:
        return []
    figures = KindFigures(measures)
    is_judged = length != "short"
    ran = set(figures.brokers)
    found: list[TargetVerdict] = []
    if {LANES, PEER} <= ran:
        found += _lanes_verdicts(figures, is_judged=is_judged)
    if {FOCUS, BASELINE} <= ran:
        found += _policy_verdicts(figures, is_judged=is_judged)
    return found


def _lanes_verdicts(figures: KindFigures, *, is_judged: bool) -> list[TargetVerdict]:
    found = []
    bounds_of: dict[Size, float] = {"small": MOST_LANES, "large": MOST_LANES_LARGE}
    for size, bound in bounds_of.items():
        over = figures.median_over(LANES, PEER, size)
        words = f"{show_ratio(over)}, {over.n_units} seeds"
        standing = at_most(over, bound)
        title = f"{LANES}: {size} mean over {PEER}'s, median of the cells"
        found.append(TargetVerdict(title, words, f"at most {bound:g}", standing, is_judged))
    p99s = [
        (row, figures.estimate(row.cells, figures.quantile(row.cells, LANES, "small", 0.99)))
        for row in figures.judged
        if not _has_outages(figures, row.cells[0])
    ]
    found.append(
        _each(
            f"{LANES}: small p99",
            [(row, p99, at_most(p99, MOST_LANES_P99_SECONDS)) for row, p99 in p99s],
            f"at most {MOST_LANES_P99_SECONDS:g} s on each kind but outages",
            partial(show_estimate, "small p99"),
            is_judged=is_judged,
        )
    )
    return found


def _policy_verdicts(figures: KindFigures, *, is_judged: bool) -> list[TargetVerdict]:
    found = []
    if ORACLE in figures.brokers:
        gains = _estimates(figures, lambda cells: figures.gain(cells, ORACLE))
        judged = [row for row, gain in gains if gain.value > GAIN_THAT_COUNTS]
        shares = _estimates(figures, lambda cells: figures.share(cells, FOCUS))
        found.append(
            _each(
                f"{FOCUS}: share of the oracle's gain, where that is over {GAIN_THAT_COUNTS:g}",
                [(row, each, at_least(each, LEAST_SHARE)) for row, each in shares if row in judged],
                f"at least {LEAST_SHARE:g}",
                show_ratio,
                is_judged=is_judged,
                most_is_worst=False,
            )
        )
    p90s = _estimates(figures, lambda cells: figures.p90_over(cells, FOCUS, BASELINE))
    found.append(
        _each(
            f"{FOCUS}: small p90 over {BASELINE}'s",
            [(row, p90, at_most(p90, MOST_P90)) for row, p90 in p90s],
            f"at most {MOST_P90:g}",
            show_ratio,
            is_judged=is_judged,
        )
    )
    over = figures.median_over(FOCUS, BASELINE, "large")
    found.append(
        TargetVerdict(
            f"{FOCUS}: large mean over {BASELINE}'s, median of the cells",
            f"{show_ratio(over)}, {over.n_units} seeds",
            f"at most {MOST_LARGE_MEDIAN:g}",
            at_most(over, MOST_LARGE_MEDIAN),
            is_judged,
        )
    )
    own = {
        row: gain.value
        for row, gain in _estimates(figures, lambda cells: figures.gain(cells, FOCUS))
    }
    overs = _estimates(figures, lambda cells: figures.over(cells, FOCUS, BASELINE, "large"))
    for words, bound, rows in (
        ("gain over half", MOST_LARGE, [row for row in own if own[row] > MUCH_GAIN]),
        (
            "gain less than a fifth",
            MOST_LARGE_WITHOUT_GAIN,
            [row for row in own if own[row] < LITTLE_GAIN],
        ),
    ):
        found.append(
            _each(
                f"{FOCUS}: large mean over {BASELINE}'s, where small messages {words}",
                [(row, each, at_most(each, bound)) for row, each in overs if row in rows],
                f"at most {bound:g}",
                show_ratio,
                is_judged=is_judged,
            )
        )
    return found


def _estimates(
    figures: KindFigures, of: Callable[[Sequence[Cell]], Statistic | None]
) -> list[tuple[KindRow, Estimate]]:
    """Return a figure of each row that is judged."""
    return [(row, figures.estimate(row.cells, of(row.cells))) for row in figures.judged]


def _has_outages(figures: KindFigures, cell: Cell) -> bool:
    """Say whether nothing passes the link of a cell in a bad phase."""
    scenario = figures.measures.scenario
    link = f"{scenario.broker_host}-{cell.name}"
    (impairment,) = (each for each in scenario.impairments if each.link == link)
    profiles = scenario.changes_of(impairment, scenario.seeds[0]).profiles
    return any(profile.downstream.mean_loss == 1 for profile in profiles)


def _each(
    figure: str,
    found: Sequence[tuple[KindRow, Estimate, Standing]],
    bounds: str,
    put: Callable[[Estimate], str],
    *,
    is_judged: bool,
    most_is_worst: bool = True,
) -> TargetVerdict:
    """Return the verdict about each of several rows: how many keep the bound, and the worst."""
    if not found:
        return TargetVerdict(figure, "there is no such kind", bounds, Standing.NOT_SHOWN, is_judged)
    standings = [standing for _, _, standing in found]
    counts = [f"{standings.count(each)} {each}" for each in Standing if each in standings]
    words = f"of {len(found)}, {', '.join(counts)}"
    known = [each for each in found if not math.isnan(each[1].value)]
    if known:
        worst = (max if most_is_worst else min)(known, key=lambda each: each[1].value)
        words += f"; worst {put(worst[1])}: {', '.join(worst[0].words)}"
    return TargetVerdict(figure, words, bounds, all_of(standings), is_judged)
