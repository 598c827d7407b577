"""Results for tests of what is made of them: runs would take long."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.models.kernels.delivery_simulation import N_QUANTILES, DeliveryOutcome
from penstock.models.papers.patterns.sweep import (
    ClosedFormCheck,
    PatternPoint,
    PatternResults,
    cells,
)
from penstock.netem.figures.estimates import Estimate

PAPER: Final[dict[PatternPoint, tuple[float, float, dict[float, float]]]] = {
    PatternPoint(True, 40.0, 15.0, 10.0): (0.32, 2.0, {0.6: 1.0}),
    PatternPoint(True, 40.0, 15.0, 30.0): (0.65, 8.0, {0.58: 10.0}),
    PatternPoint(True, 50.0, 20.0, 30.0): (0.75, 8.0, {}),
    PatternPoint(False, 40.0, 15.0, 10.0): (0.30, 1.0, {0.8: 1.0}),
    PatternPoint(False, 40.0, 15.0, 30.0): (0.38, 5.0, {0.78: 10.0}),
    PatternPoint(False, 50.0, 20.0, 30.0): (0.58, 4.0, {0.9: 16.0}),
    PatternPoint(False, 50.0, 20.0, 10.0): (0.48, 1.0, {0.9: 3.0}),
    PatternPoint(False, 70.0, 20.0, 60.0): (0.64, 4.0, {}),
    PatternPoint(False, 70.0, 15.0, 60.0): (0.50, 4.0, {}),
    PatternPoint(False, 70.0, 10.0, 60.0): (0.33, 4.0, {}),
    PatternPoint(False, 50.0, 20.0, 10.0, 20.0, None, False): (0.37, 2.1, {}),
    PatternPoint(False, 50.0, 20.0, 10.0, 20.0, None, True): (0.37, 2.1, {}),
    PatternPoint(False, 50.0, 20.0, 30.0, 20.0, None, False): (0.47, 9.49, {}),
    PatternPoint(False, 50.0, 20.0, 30.0, 20.0, None, True): (0.47, 9.49, {}),
    PatternPoint(False, 50.0, 20.0, float("inf"), 20.0, 10, False): (0.42, 0.43, {}),
    PatternPoint(False, 50.0, 20.0, float("inf"), 20.0, 50, False): (0.44, 1.8, {}),
}
"""By point: success, mean response, and response time by share, where the paper has them."""


def small_results(**changes: float) -> PatternResults:
    """Return results of six replications that are as the paper says.

    Args:
        changes: `reliable_at_10` adds success to reliable subscribers at a lifetime of 10 s.
    """
    by_cell = {cell: _outcomes(cell, changes.get("reliable_at_10", 0.0)) for cell in cells()}
    check = ClosedFormCheck("M/M/1", 1.0, Estimate(1.0, 0.99, 1.01, 6))
    return PatternResults(by_cell, [check])


def _outcomes(cell: PatternPoint, more: float) -> list[DeliveryOutcome]:
    light = cell.path().light_load()
    assert light is not None
    share = light.within(min(cell.lifetime, 1e6)) - 0.01 * cell.arrival_rate
    if cell.is_reliable and cell.lifetime == 10.0:
        share = light.within(0) + 0.09 * cell.subscriber_on / 30 + 0.001 * cell.publisher_on
    mean = cell.lifetime / 10 + cell.arrival_rate / 100 + cell.is_reliable
    if cell.capacity is not None:
        share, mean = 0.5 + cell.capacity / 1000, cell.capacity / cell.arrival_rate
    share, mean, by_share = PAPER.get(cell, (share, mean, {}))
    if cell.is_reliable and cell.lifetime == 10.0:
        share += more
    points = sorted([(0.0, 0.0), *by_share.items(), (1.0, 60.0)])
    shares, seconds = np.array(points).T
    quantiles = np.interp(np.linspace(0, 1, N_QUANTILES), shares, seconds)
    return [DeliveryOutcome(100, share, mean, quantiles, ()) for _ in range(6)]
