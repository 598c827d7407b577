"""Statistics of independent units with confidence intervals, and verdicts on bounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple

N_RESAMPLES: Final = 2000
"""Of a bootstrap: the ends of a 95 % interval are then good to a twentieth of its width."""

Indices = Sequence[int]
"""Units of one resample, by number; the same unit may come more than once."""


class Estimate(NamedTuple):
    """A value and its 95 % confidence interval.

    Attributes:
        value: of all units.
        low: lower end of the interval; nan for a single unit.
        high: upper end, likewise.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def bootstrap(n_units: int, statistic: Callable[[Indices], float]) -> Estimate:
    """Return a statistic of independent units, with its interval.

    The interval is that of percentiles over `N_RESAMPLES` resamples of the units (Efron 1979). The
    resamples of a number of units are always the same: equal results have equal intervals, and
    differences are paired.

    Args:
        n_units: how many there are, one at least.
        statistic: of units that are given by number, from 0 on.
    """
    value = statistic(range(n_units))
    if n_units == 1:
        return Estimate(value, math.nan, math.nan)
    found = sorted(map(statistic, _resamples(n_units)))
    tail = N_RESAMPLES // 40
    return Estimate(value, found[tail - 1], found[-tail])


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values, one for each trace, with its interval."""
    return bootstrap(len(values), lambda units: mean_of(values, units))


def mean_of(values: Sequence[float], units: Indices) -> float:
    """Return the mean of some values, given by number."""
    return math.fsum(map(values.__getitem__, units)) / len(units)


@cache
def _resamples(n_units: int) -> list[list[int]]:
    rng = random.Random(n_units)  # noqa: S311 (chance of a simulation)
    return [rng.choices(range(n_units), k=n_units) for _ in range(N_RESAMPLES)]
