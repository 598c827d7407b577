"""The validation of a plan: predicted figures beside measured ones of the same scaled fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from penstock.models.planner import delivery, load
from penstock.models.planner.costs import Costs
from penstock.models.planner.fleet import Fleet
from penstock.models.planner.live_run import (
    PROMPT_SECONDS,
    LiveRunResult,
    SubscriberShare,
    has_links,
    run,
)
from penstock.models.planner.scaled_fleet import ScaledFleet, scale
from penstock.netem.figures.estimates import (
    BUSY,
    MOST_LATE_SECONDS,
    Estimate,
    Standing,
    Statistic,
    agrees,
    all_of,
    at_least,
    at_most,
    bootstrap,
    mean_estimate,
    ratio,
    sum_of,
)
from penstock.netem.figures.figure_file import Table

SECONDS: Final = 60.0
"""The time for which messages are created in a run, seconds."""
TOLERANCE: Final = 0.15
"""The share of a prediction by which the measured figure may differ from it."""


def validate(fleet: Fleet, tell: Callable[[str], None]) -> dict[str, Table]:
    """Run a fleet scaled to this machine, and return the predicted and the measured figures.

    Raises:
        NetemError: the broker, clients or links do not run.
    """
    scaled = scale(fleet, SECONDS, has_links=has_links())
    tell(describe(scaled))
    return compare(scaled, run(scaled, SECONDS, np.random.default_rng(0)))


def describe(scaled: ScaledFleet) -> str:
    """Return what is run, in words."""
    fleet = scaled.fleet
    kinds = [f"{each.count} {name}" for name, each in fleet.devices.items()]
    kinds += [f"{each.count} {name}" for name, each in fleet.subscribers.items()]
    on, without = "this machine's loopback", "back ends and links are"
    if scaled.has_links:
        on, without = "links as they are while good, one each,", "back ends and bad phases are"
    return (
        f"validation: {', '.join(kinds)}, {scaled.time_ratio:.3g} times as fast, on {on}"
        f" for {SECONDS:g} s; {without} left out"
    )


def compare(scaled: ScaledFleet, measured: LiveRunResult) -> dict[str, Table]:
    """Return a table of what was predicted for a scaled fleet, and measured of it.

    The verdict is of what was measured over what the same stages say of the run's own schedule,
    of the same subscribers: the outages of a minute differ from the mean by chance.
    """
    costs = Costs().faster(scaled.fleet.machine.speed_ratio)
    is_busy = measured.late_seconds > MOST_LATE_SECONDS
    rows = []
    for (source, name), shares in measured.shares.items():
        variant = next(delivery.variants(scaled.fleet, source, name))
        predicted = delivery.predict(scaled.fleet, costs, source, name, variant)
        replayed = measured.replayed[source, name]
        for what, ours, one, other in (
            ("delivered", predicted.success, "arrived", "created"),
            (f"within {PROMPT_SECONDS:g} s", _prompt(predicted), "prompt", "created"),
            ("mean time to delivery, s", _mean_seconds(predicted), "seconds", "arrived"),
        ):
            statistics = [_over(each, one, other) for each in (replayed, shares)]
            n_units = len(shares)
            over = bootstrap(n_units, ratio(statistics[1], statistics[0]))
            rows.append(
                [
                    f"{source} to {name}: {what}",
                    ours.show(_put),
                    *(bootstrap(n_units, each).show(_put) for each in statistics),
                    format(over, ".3f"),
                    BUSY if is_busy else str(_within(over)),
                ]
            )
    of_core = load.core_ratio(scaled.fleet, costs)
    over = _exactly(measured.core_ratio / of_core)
    rows.append(
        [
            "broker, of a core",
            _put(of_core),
            "-",
            _put(measured.core_ratio),
            format(over, ".3f"),
            BUSY if is_busy else str(agrees(over, 1.0, TOLERANCE)),
        ]
    )
    columns = ["figure", "predicted", "for this schedule", "measured", "over the latter", "verdict"]
    return {
        "validation": Table(columns, rows),
        "validated": Table(
            ["what was run"], [[describe(scaled)], [_told_lateness(measured.late_seconds)]]
        ),
    }


def _told_lateness(seconds: float) -> str:
    told = f"clients were up to {seconds:.2g} s late in 99 of 100 cases, because of this machine"
    if seconds > MOST_LATE_SECONDS:
        told += ": **it was busy, and the figures are of it as much as of the broker**"
    return told


def _within(over: Estimate) -> Standing:
    """Say whether all of the interval of a ratio is within the tolerance of 1."""
    return all_of((at_least(over, 1 - TOLERANCE), at_most(over, 1 + TOLERANCE)))


def _put(value: float) -> str:
    return f"{value:.3g}"


def _exactly(value: float) -> Estimate:
    return Estimate(value, float("nan"), float("nan"), 1)


def _over(shares: Sequence[SubscriberShare], one: str, other: str) -> Statistic:
    def total(name: str) -> Statistic:
        return sum_of([getattr(each, name) for each in shares])

    return ratio(total(one), total(other))


def _prompt(predicted: delivery.Delivery) -> Estimate:
    limit = PROMPT_SECONDS - predicted.wire_seconds
    values = [one.success_ratio * one.within(limit) for one in predicted.outcomes]
    return mean_estimate(values)


def _mean_seconds(predicted: delivery.Delivery) -> Estimate:
    values = [one.response + predicted.wire_seconds for one in predicted.outcomes]
    return mean_estimate(values)
