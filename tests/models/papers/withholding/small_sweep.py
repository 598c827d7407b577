"""A sweep that takes no time, for the tests of what is done with one."""

from __future__ import annotations

import random

from penstock.models.papers.withholding.rtt_trace import generate_trace
from penstock.models.papers.withholding.sweep import Sweep, WithholdingResults, run

TRACES = [
    generate_trace(random.Random(seed), 300)  # noqa: S311 (a simulation has no secrets)
    for seed in range(6)
]


def small_results(*, probe_periods: tuple[int, ...] = (1, 5)) -> WithholdingResults:
    """Return the results of six short traces and two values of threshold_l."""
    return run(Sweep(TRACES, thresholds=(0.2, 2.0), probe_periods=probe_periods))
