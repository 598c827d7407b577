"""Predicted beside measured, of the same scaled fleet."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from penstock.models.planner import delivery, load
from penstock.models.planner.costs import Costs
from penstock.models.planner.fleet import Fleet
from penstock.models.planner.scaled import Scaled, scale
from penstock.models.planner.trial import PROMPT_SECONDS, Measured, Share, run
from penstock.models.reported import agrees
from penstock.netem.figures.estimates import (
    Estimate,
    Statistic,
    bootstrap,
    mean_of,
    ratio,
    sum_of,
)
from penstock.netem.figures.figure_file import Table

SECONDS: Final = 60.0
"""In which messages are created."""
TOLERANCE: Final = 0.15
"""Share of a prediction by which what is measured may differ from it."""


def validate(fleet: Fleet, tell: Callable[[str], None]) -> dict[str, Table]:
    """Run a fleet scaled to this machine, and return what was predicted and measured.

    Args:
        fleet: of a plan; it has subscribers.
        tell: gets a line about each step.

    Raises:
        NetemError: the broker does not run.
    """
    scaled = scale(fleet, SECONDS)
    tell(describe(scaled))
    return compare(scaled, run(scaled, SECONDS, random.Random(0)))  # noqa: S311


def describe(scaled: Scaled) -> str:
    """Return what is run, in words."""
    fleet = scaled.fleet
    kinds = [f"{each.count} {name}" for name, each in fleet.devices.items()]
    kinds += [f"{each.count} {name}" for name, each in fleet.subscribers.items()]
    return (
        f"validation: {', '.join(kinds)}, {scaled.time_ratio:.3g} times as fast, on this machine's"
        f" loopback for {SECONDS:g} s; back ends and links are left out"
    )


def compare(scaled: Scaled, measured: Measured) -> dict[str, Table]:
    """Return a table of what was predicted for a scaled fleet, and measured of it."""
    costs = Costs().faster(scaled.fleet.machine.speed_ratio)
    rows = []
    for (source, name), shares in measured.shares.items():
        variant = next(delivery.variants(scaled.fleet, source, name))
        predicted = delivery.predict(scaled.fleet, costs, source, name, variant)
        for what, ours, theirs in (
            ("delivered", predicted.success, _over(shares, "arrived", "created")),
            (
                f"within {PROMPT_SECONDS:g} s",
                _prompt(predicted),
                _over(shares, "prompt", "created"),
            ),
        ):
            rows.append(_row(f"{source} to {name}: {what}", ours, theirs))
    of_core = _exactly(load.core_ratio(scaled.fleet, costs))
    rows.append(_row("broker, of a core", of_core, _exactly(measured.core_ratio)))
    columns = ["figure", "predicted", "measured", "deviation", "verdict"]
    return {
        "validation": Table(columns, rows),
        "validated": Table(
            ["what was run"],
            [
                [describe(scaled)],
                [
                    (
                        f"clients were up to {measured.late_seconds:.2g} s late in 99 of 100 cases,"
                        " because of this machine"
                    )
                ],
            ],
        ),
    }


def _row(what: str, predicted: Estimate, measured: Estimate) -> list[str]:
    return [
        what,
        predicted.show("{:.3g}".format),
        measured.show("{:.3g}".format),
        f"{measured.value / predicted.value - 1:+.1%}",
        str(agrees(measured, predicted.value, TOLERANCE)),
    ]


def _exactly(value: float) -> Estimate:
    return Estimate(value, float("nan"), float("nan"), 1)


def _over(shares: Sequence[Share], one: str, other: str) -> Estimate:
    def total(name: str) -> Statistic:
        return sum_of([getattr(each, name) for each in shares])

    return bootstrap(len(shares), ratio(total(one), total(other)))


def _prompt(predicted: delivery.Delivery) -> Estimate:
    limit = PROMPT_SECONDS - predicted.wire_seconds
    values = [one.success_ratio * one.within(limit) for one in predicted.outcomes]
    return bootstrap(len(values), mean_of(values))
