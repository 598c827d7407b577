"""Policies on the connections of `connection`, and what each constant of `adaptive` does there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any, Final, NamedTuple

from penstock.models.withholding.connection import CASES, Latencies, simulate_connection
from penstock.netem.figures.estimates import (
    Estimate,
    Standing,
    Statistic,
    at_most,
    bootstrap,
    difference,
    pooled_mean,
    pooled_quantile,
    ratio,
)
from penstock.netem.figures.figure_file import Table
from penstock.plugins.withholding import adaptive, passage, thresholds
from penstock.plugins.withholding.config import PolicyName, WithholdingConfig

BASELINE: Final[PolicyName] = "none"
POLICIES: Final[tuple[PolicyName, ...]] = (BASELINE, "conservative", "historic", "adaptive")

Figures: Final[Mapping[str, Callable[[list[Latencies]], Statistic]]] = {
    "small p90": lambda found: pooled_quantile([each.small for each in found], 0.9),
    "small p99": lambda found: pooled_quantile([each.small for each in found], 0.99),
    "large mean": lambda found: pooled_mean([each.large for each in found]),
}
"""Name to the statistic of links."""


class Target(NamedTuple):
    """A bound for `adaptive`.

    Attributes:
        case: of `CASES`.
        figure: of `Figures`.
        most: over that without a policy, at most.
    """

    case: str
    figure: str
    most: float


TARGETS: Final = (
    Target("lossy", "small p90", 0.5),
    Target("lossy", "large mean", 2.0),
    Target("cliff", "small p90", 1.1),
    Target("busy", "small p99", 1.1),
)


class Varied(NamedTuple):
    """A constant and what it is set to.

    Attributes:
        module: by whose name it is used.
        name: of the constant.
        values: in place of its own.
    """

    module: ModuleType
    name: str
    values: tuple[Any, Any]


CONSTANTS: Final = (
    Varied(adaptive, "WAIT_RATIO", (1.0, 4.0)),
    Varied(adaptive, "GIVE_UP_SECONDS", (30.0, 120.0)),
    Varied(passage, "PAUSE_RATIO", (0.5, 2.0)),
    Varied(passage, "MOST_PAUSE_SECONDS", (2.5, 10.0)),
    Varied(passage, "RECENT_SECONDS", (5.0, 20.0)),
    Varied(thresholds, "SPREAD_RATIO", (2.0, 8.0)),
)

SENSITIVE_FIGURES: Final = (
    ("lossy", "small p90"),
    ("lossy", "large mean"),
    ("bbr", "large mean"),
    ("shared", "large mean"),
    ("cliff", "small p90"),
    ("cliff", "large mean"),
    ("no small", "large mean"),
    ("rare small", "large mean"),
    ("busy", "large mean"),
    ("field", "small p90"),
)
"""What is shown where constants are varied: case and figure."""


_MOST_PARTS: Final = 1024
"""Values that have at most so many parts of 1 are shown as fractions: 1/512."""


@dataclass(frozen=True)
class Effort:
    """How much to simulate.

    Attributes:
        links: independent units.
        seconds: of each.
    """

    links: int
    seconds: float


def run(case: str, config: WithholdingConfig, effort: Effort) -> list[Latencies]:
    """Return what each link of a case gave."""
    return [
        simulate_connection(config, CASES[case], 1000 * link, effort.seconds)
        for link in range(effort.links)
    ]


def compare(figure: str, found: list[Latencies], baseline: list[Latencies]) -> Estimate:
    """Return a figure over that of the same links without a policy."""
    statistic = Figures[figure]
    return bootstrap(len(found), ratio(statistic(found), statistic(baseline)))


def connection_tables(effort: Effort, tell: Callable[[str], None]) -> dict[str, Table]:
    """Run all cases with all policies; return figures and verdicts.

    Args:
        effort: for each case and policy.
        tell: is told what is run.
    """
    header = ["connection", "policy", *(f"{figure} over {BASELINE}'s" for figure in Figures)]
    rows, judged = [], []
    for case, about in CASES.items():
        tell(case)
        found = {name: run(case, WithholdingConfig(policy=name), effort) for name in POLICIES}
        baseline = found[BASELINE]
        has_small = bool(baseline[0].small)
        for name in POLICIES[1:]:
            ratios = [
                str(compare(figure, found[name], baseline))
                if has_small or figure.startswith("large")
                else "-"
                for figure in Figures
            ]
            rows.append([f"{case}: {about.about}" if name == POLICIES[1] else "", name, *ratios])
        for target in TARGETS:
            if target.case == case:
                value = compare(target.figure, found["adaptive"], baseline)
                judged.append(_verdict(target, value, at_most(value, target.most)))
    verdict_header = ["`adaptive`", "at most", "found", "verdict"]
    return {"connections": Table(header, rows), "targets": Table(verdict_header, judged)}


def _verdict(target: Target, value: Estimate, standing: Standing) -> list[str]:
    return [f"{target.case}: {target.figure}", f"{target.most:g}", str(value), str(standing)]


def sensitivity_tables(effort: Effort, tell: Callable[[str], None]) -> dict[str, Table]:
    """Set each constant to half and double or so; return what that does to `adaptive`.

    The first rows have the figures with the constants as they are, and half of the width of their
    95 % intervals. All rows are of the same links. A star marks a figure that differs from that of
    the first row by an amount whose 95 % interval is clear of 0.

    Args:
        effort: for each case and value.
        tell: is told what is run.
    """
    config = WithholdingConfig(policy="adaptive")
    cases = list(dict.fromkeys(case for case, _ in SENSITIVE_FIGURES))
    baselines = {case: run(case, WithholdingConfig(policy=BASELINE), effort) for case in cases}
    header = ["constant", "value", *(f"{case}: {figure}" for case, figure in SENSITIVE_FIGURES)]

    def run_all(name: str, value: str) -> dict[str, list[Latencies]]:
        tell(f"{name} {value}")
        return {case: run(case, config, effort) for case in cases}

    as_they_are = run_all("as they are", "")
    first = [
        compare(figure, as_they_are[case], baselines[case]) for case, figure in SENSITIVE_FIGURES
    ]
    rows = [
        ["as they are", "", *(f"{each.value:.2f}" for each in first)],
        ["± (95 %)", "", *map(_half_width, first)],
    ]
    for module, name, values in CONSTANTS:
        for value in values:
            shown = _shown(value)
            with _set(module, name, value):
                found = run_all(name, shown)
            cells = [
                _compared(figure, found[case], as_they_are[case], baselines[case])
                for case, figure in SENSITIVE_FIGURES
            ]
            rows.append([f"`{name}`", shown, *cells])
    return {"sensitivity": Table(header, rows)}


def _compared(
    figure: str, found: list[Latencies], first: list[Latencies], baseline: list[Latencies]
) -> str:
    """Return a figure over that of the baseline, with a star if it is not that of the first row."""
    statistic = Figures[figure]
    ours, theirs = (ratio(statistic(each), statistic(baseline)) for each in (found, first))
    shown = f"{ours(range(len(found))):.2f}"
    if found == first:
        return shown
    apart = bootstrap(len(found), difference(ours, theirs))
    return f"{shown}*" if apart.low > 0 or apart.high < 0 else shown


def _half_width(found: Estimate) -> str:
    return "-" if math.isnan(found.low) else f"{(found.high - found.low) / 2:.2f}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    if not isinstance(value, float):
        return str(value)
    fraction = Fraction(value)
    return str(fraction) if 1 < fraction.denominator <= _MOST_PARTS else f"{value:,.9g}"


@contextmanager
def _set(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Let a module have another constant."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
