"""The tables of ``penstock plan delivery``: what became of messages, stage by stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from penstock.models.kernels.delivery_path import Path
from penstock.models.kernels.delivery_simulation import DeliveryOutcome
from penstock.netem.figures.estimates import mean_estimate
from penstock.netem.figures.figure_file import Table

SHARES: Final = (0.5, 0.9, 0.99)


def path_tables(path: Path, outcomes: Sequence[DeliveryOutcome]) -> dict[str, Table]:
    """Return what independent runs of a path found, beside the closed forms."""
    light = path.light_load()
    closed = math.nan if light is None else light.within(path.lifetime)
    rows = [
        ["success", _shown([one.success_ratio for one in outcomes], ".3f"), _number(closed)],
        ["mean response, s", _shown([one.response for one in outcomes], ".3g"), "-"],
    ]
    for share in SHARES:
        times = [one.quantile(share) for one in outcomes]
        rows.append([f"response at {share:g}, s", _shown(times, ".3g"), "-"])
    columns = ["path", "simulated", "if services took no time"]
    return {"path": Table(columns, rows), "stages": _stages(path, outcomes)}


def _stages(path: Path, outcomes: Sequence[DeliveryOutcome]) -> Table:
    rows = []
    for number, stage in enumerate(path.stages):
        found = [one.stages[number] for one in outcomes]
        served_per_second = stage.service_rate * path.on_ratio(*stage.works_with)
        offered = path.arrival_rate / served_per_second
        closed = path.closed_form(number)
        rows.append(
            [
                stage.name,
                _shown([offered * one.arrived_ratio for one in found], ".3f"),
                _shown([one.dropped_ratio for one in found], ".3f"),
                _shown([one.expired_ratio for one in found], ".3f"),
                _shown([one.lost_ratio for one in found], ".3f"),
                _shown([one.response for one in found], ".3g"),
                "-" if closed is None else _number(closed.response),
                "-" if closed is None else _number(closed.loss_ratio),
            ]
        )
    return Table(
        [
            "stage",
            "rho",
            "dropped",
            "expired",
            "lost",
            "seconds in it",
            "closed form",
            "dropped or expired, closed form",
        ],
        rows,
    )


def _shown(values: Sequence[float], form: str) -> str:
    """Return the mean of one value for each run, with its interval."""
    return format(mean_estimate(values), form)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"
