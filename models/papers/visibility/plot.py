"""Plots of figures 11 to 15 of paper 004."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.models.kernels.lease_setting import LeaseSetting, Order, analytic
from penstock.models.kernels.lease_simulation import (
    Measure,
    broker_utilisation,
    delivery,
    figure_of,
    waiting,
)
from penstock.models.papers.pictures import draw_curve, panels
from penstock.models.papers.visibility.sweep import (
    ARRIVAL_RATES,
    FIXED_THREADS,
    ORDERS,
    RELIABILITIES,
    SERVICE_TIMES,
    SOME_THREADS,
    THREADS,
    VisibilityResults,
    busy,
    equal,
    slow,
    unequal,
)

Point = Callable[[Order, int, float], LeaseSetting]
"""A function that returns a point of a figure by order, threads and q."""


def draw(results: VisibilityResults, file: Path) -> None:
    """Draw the figures: the analytic network as marks, the simulation as lines with intervals."""
    by_threads: tuple[tuple[str, Measure, Point], ...] = (
        ("figure 11: delivery time, s", delivery, equal),
        (f"figure 12a: waiting, n1 = {FIXED_THREADS}", waiting, _broker_varies),
        (f"figure 12b: waiting, n2 = {FIXED_THREADS}", waiting, _sender_varies),
        ("figure 13: utilisation of the broker", broker_utilisation, equal),
    )
    with panels(file, 2, 4, (20, 10)) as grid:
        for axes, (title, measure, point) in zip(grid[0], by_threads, strict=True):
            for order, style in zip(ORDERS, ("-", "--"), strict=True):
                for place, reliability in enumerate(RELIABILITIES):
                    points = [point(order, each, reliability) for each in THREADS]
                    label = f"{ORDERS[order]}, q {reliability:g}"
                    marks = order == "any"
                    _line(results, axes, THREADS, points, measure, label, f"C{place}", style, marks)
            axes.set(title=title, xlabel="threads", ylim=(0, None))
            axes.legend(fontsize=7)
        for row, (axes, measure) in enumerate(zip(grid[1], (delivery, waiting) * 2, strict=True)):
            is_slow = row < len(grid[1]) / 2
            number, values, make = (
                ("14", SERVICE_TIMES, slow) if is_slow else ("15", ARRIVAL_RATES, busy)
            )
            for place, threads in enumerate(SOME_THREADS):
                found = [(value, make(threads, value)) for value in values]
                stable = [(value, each) for value, each in found if each is not None]
                places, points = [value for value, _ in stable], [each for _, each in stable]
                _line(
                    results,
                    axes,
                    places,
                    points,
                    measure,
                    f"{threads} threads",
                    f"C{place}",
                    "-",
                    True,
                )
            name = "delivery time, s" if measure is delivery else "waiting"
            axis = "service time, s" if is_slow else "lambda, messages/s"
            axes.set(title=f"figure {number}: {name}", xlabel=axis, ylim=(0, None))
            axes.legend(fontsize=7)


def _broker_varies(order: Order, threads: int, reliability: float) -> LeaseSetting:
    return unequal(order, FIXED_THREADS, threads, reliability)


def _sender_varies(order: Order, threads: int, reliability: float) -> LeaseSetting:
    return unequal(order, threads, FIXED_THREADS, reliability)


def _line(
    results: VisibilityResults,
    axes: Any,
    places: Sequence[float],
    points: Sequence[LeaseSetting],
    measure: Measure,
    label: str,
    colour: str,
    style: str,
    has_marks: bool,  # noqa: FBT001 - of each caller's own
) -> None:
    """Draw a curve, and the analytic network where it knows the order."""
    found = [results.found(each, measure) for each in points]
    draw_curve(axes, places, found, style, color=colour, label=label)
    if has_marks:
        expected = [figure_of(analytic(each), measure) for each in points]
        axes.plot(places, expected, "x", color=colour, label=f"{label}, analytic")
