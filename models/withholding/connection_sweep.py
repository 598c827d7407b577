"""Policies on the connections of `connection`, and what each constant of `adaptive` does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, NamedTuple

from penstock.models.withholding.connection import CASES, Latencies, simulate_connection
from penstock.netem.figures.estimates import (
    Estimate,
    Standing,
    Statistic,
    at_most,
    bootstrap,
    pooled_mean,
    pooled_quantile,
    ratio,
)
from penstock.netem.figures.figure_file import Table
from penstock.plugins.probing import estimators
from penstock.plugins.withholding import adaptive, history, policies, thresholds
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
    Target("lossy", "small p99", 0.7),
    Target("bbr", "large mean", 1.05),
    Target("no small", "large mean", 1.05),
    Target("rare small", "large mean", 1.05),
    Target("busy", "small p99", 1.1),
    Target("busy", "large mean", 1.05),
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
    Varied(adaptive, "MAX_ENDS", (6, 24)),
    Varied(adaptive, "OVERDUE_RATIO", (1.0, 4.0)),
    Varied(policies, "FUSE_RATIO", (1.0, 1e6)),
    Varied(history, "MAX_LENGTHS", (12, 192)),
    Varied(history, "PRIOR_LENGTHS", ((1.0, 2.0, 4.0), (4.0, 8.0, 16.0, 32.0, 64.0, 128.0))),
    Varied(history, "GAIN", (1 / 16, 1 / 4)),
    Varied(history, "FAR_DEVIATIONS", (2.0, 8.0)),
    Varied(history, "NEAR_RATIO", (1 / 16, 1 / 4)),
    Varied(history, "SUPPOSED_CALM", (2, 32)),
    Varied(history, "LOOK_SEGMENTS", (5.0, 20.0)),
    Varied(history, "SUPPOSED_LOST", (0.1, 1.0)),
    Varied(history, "REMEMBERED_SEGMENTS", (25.0, 100.0)),
    Varied(history, "AFTER_CALM_GAIN", (1 / 512, 1 / 128)),
    Varied(history, "RATE_SECONDS", (60.0, 1500.0)),
    Varied(history, "SUPPOSED_SECONDS", (3.0, 30.0)),
    Varied(history, "CALM_RATE_RATIO", (1 / 4, 3 / 4)),
    Varied(thresholds, "SPREAD_RATIO", (4.0, 16.0)),
    Varied(estimators, "QUARTILE_GAIN", (0.02, 0.1)),
)

SENSITIVE_CASES: Final = ("lossy", "bbr", "cliff")
"""In which constants are varied."""


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

    Args:
        effort: for each case and value.
        tell: is told what is run.
    """
    config = WithholdingConfig(policy="adaptive")
    baselines = {
        case: run(case, WithholdingConfig(policy=BASELINE), effort) for case in SENSITIVE_CASES
    }
    shown = [("lossy", "small p90"), ("lossy", "large mean"), ("bbr", "large mean")]
    shown += [("cliff", "small p90"), ("cliff", "large mean")]
    header = ["constant", "value", *(f"{case}: {figure}" for case, figure in shown)]

    def row(name: str, value: str) -> list[str]:
        tell(f"{name} {value}")
        found = {case: run(case, config, effort) for case in SENSITIVE_CASES}
        cells = [
            f"{compare(figure, found[case], baselines[case]).value:.2f}" for case, figure in shown
        ]
        return [name, value, *cells]

    rows = [row("as they are", "")]
    for module, name, values in CONSTANTS:
        for value in values:
            with _set(module, name, value):
                rows.append(row(f"`{name}`", _shown(value)))
    return {"sensitivity": Table(header, rows)}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@contextmanager
def _set(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Let a module have another constant."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
