"""Tables of the policies on kinds of bad links, and of each constant's effect in `adaptive`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Final, NamedTuple

from penstock.broker.extensions import DeliveryGate
from penstock.models.kernels.link_simulation import Bottleneck, Latencies, simulate
from penstock.models.papers.withholding.link_kinds import KINDS, CongestionControl
from penstock.models.papers.withholding.oracle_gates import LateGate, OracleGate
from penstock.netem.figures.estimates import (
    Estimate,
    Statistic,
    bootstrap,
    pooled_mean,
    pooled_quantile,
    ratio,
)
from penstock.netem.figures.figure_file import Table
from penstock.plugins.withholding import policies, policy, thresholds
from penstock.plugins.withholding.config import PolicyName, WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate

MakeGate = Callable[[Bottleneck], DeliveryGate]

BASELINE: Final = "none"
ORACLE: Final = "oracle"

LEAST_GAIN: Final = 0.2
"""The least gain of the oracle over `none` of which a share is shown; a share of less is noise."""


def _gate(config: WithholdingConfig, _: Bottleneck) -> DeliveryGate:
    return WithholdingGate(config)


def policy_gate(name: PolicyName) -> MakeGate:
    """Return what makes the broker's own gate with a policy."""
    return partial(_gate, WithholdingConfig(policy=name))


GATES: Final[Mapping[str, MakeGate]] = {
    BASELINE: policy_gate("none"),
    ORACLE: OracleGate,
    "late": LateGate,
    "conservative": policy_gate("conservative"),
    "probabilistic": policy_gate("probabilistic"),
    "historic": policy_gate("historic"),
    "adaptive": policy_gate("adaptive"),
}
"""The gates that decide, by name."""


class LinkCell(NamedTuple):
    """A kind of link, seen from a broker.

    Attributes:
        congestion_control: the congestion control of the connection.
        is_relayed: whether a load balancer is between the broker and the link.
    """

    kind: str
    congestion_control: CongestionControl
    is_relayed: bool

    def __str__(self) -> str:
        words = [self.kind]
        if KINDS[self.kind].by_congestion_control:
            words.append(self.congestion_control)
        return ", ".join([*words, *(["relay"] if self.is_relayed else [])])


CELLS: Final = tuple(
    LinkCell(name, congestion_control, is_relayed)
    for name, kind in KINDS.items()
    for congestion_control in (("cubic", "bbr") if kind.by_congestion_control else ("cubic",))
    for is_relayed in (False, True)
)


class VariedConstant(NamedTuple):
    """A constant of the rule, and the values that are tried for it.

    Attributes:
        values: the values in place of the constant's own.
    """

    module: ModuleType
    name: str
    values: tuple[float, float]


CONSTANTS: Final = (
    VariedConstant(policies, "WAIT_RATIO", (1.0, 4.0)),
    VariedConstant(policies, "GIVE_UP_SECONDS", (30.0, 120.0)),
    VariedConstant(policy, "PAUSE_RATIO", (0.5, 2.0)),
    VariedConstant(policy, "MOST_PAUSE_SECONDS", (2.5, 10.0)),
    VariedConstant(policy, "RECENT_SECONDS", (5.0, 20.0)),
    VariedConstant(thresholds, "MARGIN_SECONDS", (0.025, 0.1)),
)
"""The constants of the rule that are varied. Its options `exposure` and `max_withhold` are varied
as well."""

OPTIONS: Final[Mapping[str, tuple[float, float]]] = {
    "exposure": (1.0, 4.0),
    "max_withhold": (10.0, 40.0),
}


@dataclass(frozen=True)
class LinkRuns:
    """The independent links of each cell's simulation.

    Attributes:
        links: the number of links of each cell, which are its independent units.
        seconds: the length of each link's run.
    """

    links: int
    seconds: float


def run(cell: LinkCell, make_gate: MakeGate, runs: LinkRuns) -> list[Latencies]:
    """Return what each link of a cell gave."""
    kind = KINDS[cell.kind]
    found = []
    for seed in range(runs.links):
        rng = random.Random(f"{cell.kind} {cell.congestion_control} {seed}")  # noqa: S311 (a simulation)
        changes = kind.changes(rng, runs.seconds, cell.congestion_control)
        found.append(
            simulate(
                changes,
                make_gate,
                kind.traffic,
                seed,
                runs.seconds,
                n_subscribers=kind.n_subscribers,
                is_relayed=cell.is_relayed,
            )
        )
    return found


def small_mean(found: Sequence[Latencies]) -> Statistic:
    """Return the mean latency of small messages, seconds."""
    return pooled_mean([each.small for each in found])


def large_mean(found: Sequence[Latencies]) -> Statistic:
    """Return the mean latency of large messages, seconds."""
    return pooled_mean([each.large for each in found])


def gain(found: Sequence[Latencies], baseline: Sequence[Latencies]) -> Estimate:
    """Return by how much the mean of small messages is less than without a policy, as a share."""
    over = ratio(small_mean(found), small_mean(baseline))
    return bootstrap(len(found), lambda units: 1 - over(units))


def share(
    found: Sequence[Latencies], oracle: Sequence[Latencies], baseline: Sequence[Latencies]
) -> Estimate:
    """Return the share of the oracle's gain that a policy closes."""
    ours, best, without = map(small_mean, (found, oracle, baseline))

    def closed(units: Sequence[int]) -> float:
        most = without(units) - best(units)
        return (without(units) - ours(units)) / most if most else math.nan

    return bootstrap(len(found), closed)


def small_p90_ratio(found: Sequence[Latencies], baseline: Sequence[Latencies]) -> Estimate:
    """Return the p90 of small messages over that without a policy."""
    ours, without = (
        pooled_quantile([each.small for each in some], 0.9) for some in (found, baseline)
    )
    return bootstrap(len(found), ratio(ours, without))


def large_ratio(found: Sequence[Latencies], baseline: Sequence[Latencies]) -> Estimate:
    """Return the mean of large messages over that without a policy."""
    return bootstrap(len(found), ratio(large_mean(found), large_mean(baseline)))


def links_tables(runs: LinkRuns, tell: Callable[[str], None]) -> dict[str, Table]:
    """Run all cells with all gates; return what each closes of the oracle's gain, and the price."""
    names = [name for name in GATES if name not in (BASELINE, ORACLE)]
    shares, prices = [], []
    for cell in CELLS:
        tell(str(cell))
        found = {name: run(cell, make_gate, runs) for name, make_gate in GATES.items()}
        baseline, oracle = found[BASELINE], found[ORACLE]
        most = gain(oracle, baseline)
        shares.append(
            [
                str(cell),
                str(most),
                *(
                    str(share(found[name], oracle, baseline)) if most.value >= LEAST_GAIN else "-"
                    for name in names
                ),
                str(small_p90_ratio(found["adaptive"], baseline)),
            ]
        )
        prices.append(
            [str(cell), *(str(large_ratio(found[name], baseline)) for name in (ORACLE, *names))]
        )
    return {
        "shares": Table(
            ["link", "the oracle's gain", *names, "small p90, `adaptive` over `none`"], shares
        ),
        "prices": Table(["link", ORACLE, *names], prices),
    }


def sensitivity_tables(runs: LinkRuns, tell: Callable[[str], None]) -> dict[str, Table]:
    """Halve and double each constant and option or so; return what that does to `adaptive`."""
    cells = [cell for cell in CELLS if not (cell.is_relayed and cell.kind in _LIKE_DIRECT)]
    baselines = {cell: run(cell, GATES[BASELINE], runs) for cell in cells}
    oracles = {cell: run(cell, GATES[ORACLE], runs) for cell in cells}

    def row(name: str, value: str, make_gate: MakeGate) -> list[str]:
        tell(f"{name} {value}")
        shown = []
        for cell in cells:
            found = run(cell, make_gate, runs)
            closed = share(found, oracles[cell], baselines[cell]).value
            price = large_ratio(found, baselines[cell]).value
            is_told = gain(oracles[cell], baselines[cell]).value >= LEAST_GAIN
            shown.append(f"{closed:.2f}; {price:.2f}" if is_told else f"-; {price:.2f}")
        return [name, value, *shown]

    rows = [row("as they are", "", GATES["adaptive"])]
    for module, name, values in CONSTANTS:
        for value in values:
            with _set(module, name, value):
                rows.append(row(f"`{name}`", f"{value:g}", GATES["adaptive"]))
    for name, values in OPTIONS.items():
        for value in values:
            config = replace(WithholdingConfig(policy="adaptive"), **{name: value})  # type: ignore[arg-type]
            rows.append(row(f"`{name}`", f"{value:g}", partial(_gate, config)))
    return {"sensitivity": Table(["constant", "value", *map(str, cells)], rows)}


_LIKE_DIRECT: Final = ("loss", "far", "outages", "bursts", "idle")
"""The kinds on which a relay changes little for `adaptive`."""


@contextmanager
def _set(module: ModuleType, name: str, value: float) -> Iterator[None]:
    """Let a module have another constant."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
