"""Plots of figures 7 to 11 of paper 003."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from penstock.models.kernels.delivery_simulation import N_QUANTILES, DeliveryOutcome
from penstock.models.papers.patterns.sweep import (
    ARRIVAL_RATES,
    LIFETIMES,
    LIMITS,
    PUBLISHER_ON,
    SUBSCRIBER_ON,
    PatternPoint,
    PatternResults,
    response,
    success,
)
from penstock.models.papers.pictures import draw_curve, panels


def draw(results: PatternResults, file: Path) -> None:
    """Draw the figures, with intervals."""
    with panels(file, 2, 3, (17, 10)) as ((seventh, ninth, share), (eighth, tenth, times)):
        _draw_success(results, seventh, "7", is_reliable=True)
        _draw_success(results, ninth, "9", is_reliable=False)
        _draw_responses(results, eighth, "8", is_reliable=True)
        _draw_responses(results, tenth, "10", is_reliable=False)
        _draw_limits(results, share, "figure 11a: success", success)
        _draw_limits(results, times, "figure 11b: mean response, s", response)


def _draw_success(results: PatternResults, axes: Any, number: str, *, is_reliable: bool) -> None:
    for lifetime, style in zip(LIFETIMES, ("-", "--", ":"), strict=True):
        for place, subscriber_on in enumerate(SUBSCRIBER_ON):
            cells = [PatternPoint(is_reliable, on, subscriber_on, lifetime) for on in PUBLISHER_ON]
            found = [results.found(cell, success) for cell in cells]
            label = f"on {subscriber_on:g} s, lifetime {lifetime:g} s"
            draw_curve(axes, PUBLISHER_ON, found, style, label=label, color=f"C{place}", marker="o")
    kind = "reliable" if is_reliable else "unreliable"
    axes.set(
        title=f"figure {number}: success, {kind} subscriber",
        xlabel="T_ON of the publisher of 80 s",
        ylim=(0, 1),
    )
    axes.legend(fontsize=7)


def _draw_responses(results: PatternResults, axes: Any, number: str, *, is_reliable: bool) -> None:
    shares = np.linspace(0, 1, N_QUANTILES)
    for lifetime, style in zip(LIFETIMES, ("-", "--", ":"), strict=True):
        for place, publisher_on in enumerate((30.0, 40.0, 50.0)):
            outcomes = results.by_point[PatternPoint(is_reliable, publisher_on, 15.0, lifetime)]
            mean = np.mean([one.quantiles for one in outcomes], axis=0)
            label = f"publisher on {publisher_on:g} s, lifetime {lifetime:g} s"
            axes.plot(mean, shares, label=label, color=f"C{place}", linestyle=style)
    kind = "reliable" if is_reliable else "unreliable"
    axes.set(
        title=f"figure {number}: successes within, {kind} subscriber on 15 s",
        xlabel="response time, s",
        ylim=(0, 1),
    )
    axes.legend(fontsize=7)


def _draw_limits(
    results: PatternResults, axes: Any, title: str, figure: Callable[[DeliveryOutcome], float]
) -> None:
    for limit in LIMITS:
        found = [results.found(limit.cell(rate), figure) for rate in ARRIVAL_RATES]
        draw_curve(axes, ARRIVAL_RATES, found, label=limit.label, marker="o")
    axes.set(title=title, xlabel="lambda, messages/s", ylim=(0, None))
    axes.legend(fontsize=7)
