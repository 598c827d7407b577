"""The tables of a report about kinds of links: a row for each cell, and one for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from penstock.netem.figures.estimates import Estimate, Statistic
from penstock.netem.figures.kind_figures import (
    BASELINE,
    FOCUS,
    LANES,
    ORACLE,
    PEER,
    KindFigures,
    Size,
)
from penstock.netem.figures.measures import Measures, percent, show_estimate, show_ratio
from penstock.netem.figures.sections import Section
from penstock.netem.runs.kinds import Cell

Column: TypeAlias = tuple[Callable[[Sequence[Cell]], Statistic | None], Callable[[Estimate], str]]
"""A column of a table: the statistic of some cells, which is None where its brokers did not run,
and the format of its cells."""


def kind_sections(measures: Measures) -> list[Section]:
    """Return the tables about kinds; none where the scenario has none."""
    if not measures.scenario.kinds:
        return []
    figures = KindFigures(measures)
    found = []
    if {BASELINE, ORACLE} <= set(figures.brokers):
        found += [_policies(figures), _prices(figures)]
    if PEER in figures.brokers:
        found.append(_lanes(figures))
    return [*found, _latencies(figures)]


def _percent(found: Estimate) -> str:
    return found.show(lambda share: f"{percent(share):.0f} %")


def _seconds(found: Estimate) -> str:
    return show_estimate("small mean", found)


def _section(
    figures: KindFigures, name: str, heading: str, columns: Mapping[str, Column]
) -> Section:
    rows = []
    for words, cells in figures.rows:
        told = [put(figures.estimate(cells, of(cells))) for of, put in columns.values()]
        rows.append([*words, *told, str(figures.n_units(cells))])
    head = ["kind", "congestion control", "way", *columns, "units"]
    return Section(name, heading, head, rows, words=3)


def _policies(figures: KindFigures) -> Section:
    """Return the oracle's gain on one connection, and the share of it that each policy closes."""
    columns: dict[str, Column] = {
        f"{BASELINE}, small mean": (lambda cells: figures.mean(cells, BASELINE, "small"), _seconds),
        f"{ORACLE} gains": (lambda cells: figures.gain(cells, ORACLE), _percent),
    }
    for policy in figures.policies:
        columns[f"{policy} closes"] = (partial(_share, figures, policy), show_ratio)
    columns[f"{FOCUS}, small p90"] = (
        lambda cells: figures.p90_over(cells, FOCUS, BASELINE),
        show_ratio,
    )
    for broker in (ORACLE, FOCUS):
        columns[f"{broker}, large mean"] = (partial(_over, figures, broker, "large"), show_ratio)
    heading = f"What {ORACLE} gains, and the share of it that policies close; over {BASELINE}'s"
    return _section(figures, "kinds", heading, columns)


def _share(figures: KindFigures, broker: str, cells: Sequence[Cell]) -> Statistic | None:
    return figures.share(cells, broker)


def _over(
    figures: KindFigures, broker: str, size: Size, cells: Sequence[Cell], other: str = BASELINE
) -> Statistic | None:
    return figures.over(cells, broker, other, size)


def _prices(figures: KindFigures) -> Section:
    """Return what large messages pay for the gain of small ones."""
    columns: dict[str, Column] = {
        f"{BASELINE}": (lambda cells: figures.mean(cells, BASELINE, "large"), _seconds)
    }
    for broker in (ORACLE, *figures.policies):
        columns[broker] = (partial(_over, figures, broker, "large"), show_ratio)
    heading = f"What large messages pay: their mean over {BASELINE}'s"
    return _section(figures, "kinds large", heading, columns)


def _lanes(figures: KindFigures) -> Section:
    """Return what a second connection gains."""
    columns: dict[str, Column] = {
        f"{PEER}, small mean": (lambda cells: figures.mean(cells, PEER, "small"), _seconds)
    }
    with_two = [
        name for name, plan in figures.measures.scenario.brokers.items() if plan.lanes is not None
    ]
    for broker in (BASELINE, *with_two):
        columns[f"{broker}, small mean"] = (
            partial(_over, figures, broker, "small", other=PEER),
            show_ratio,
        )
    columns[f"{LANES}, small p99"] = (
        lambda cells: figures.quantile(cells, LANES, "small", 0.99),
        _seconds,
    )
    for broker in with_two:
        columns[f"{broker}, large mean"] = (
            partial(_over, figures, broker, "large", other=PEER),
            show_ratio,
        )
    heading = f"What a second connection gains, over {PEER}'s with one"
    return _section(figures, "kinds lanes", heading, columns)


def _latencies(figures: KindFigures) -> Section:
    """Return the latencies of each broker on each cell, in seconds."""
    rows = []
    for words, cells in figures.rows:
        for broker in figures.brokers:
            statistics = [
                figures.mean(cells, broker, "small"),
                figures.quantile(cells, broker, "small", 0.9),
                figures.quantile(cells, broker, "small", 0.99),
                figures.mean(cells, broker, "large"),
            ]
            if any(each is None for each in statistics):
                continue
            told = [_seconds(figures.estimate(cells, each)) for each in statistics]
            rows.append([*words, broker, *told, str(figures.n_units(cells))])
    columns = ["kind", "congestion control", "way", "broker"]
    columns += ["small mean", "small p90", "small p99", "large mean", "units"]
    return Section("kinds latency", "Latencies by kind", columns, rows, words=4)
