"""Statistics of independent units, their confidence intervals, and their comparison with bounds.

A unit is the smallest part of a run with random values of its own: a link of a seed, a run, a trace
of a simulation. The messages of a unit are not independent of each other. A statistic is a function
of units that are given by number, so that a bootstrap can draw them again::

    ours = pooled_quantile(latencies_of_adaptive, 0.9)  # seconds, a list for each unit
    peers = pooled_quantile(latencies_of_mosquitto, 0.9)  # the same units in the same order
    found = bootstrap(len(latencies_of_adaptive), ratio(ours, peers))
    format(found, ".2f")  # 0.44 (0.31 to 0.52)
    at_most(found, 0.5)  # not shown

Both sides of a ratio or a difference see the same units in each resample: comparisons are paired.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from itertools import chain
from statistics import NormalDist
from typing import Final, NamedTuple, TypeAlias

N_RESAMPLES: Final = 2000
"""The number of resamples of a bootstrap. Another 2,000 would move the ends of an interval by
some 2 % of its width."""

LEAST_UNITS: Final = 6
"""The fewest units that have an interval. The least and the greatest of five values do not have the
median between them in 1 of 16 cases, so no resampling of five gives 95 %."""

TOLERANCE: Final = 0.1
"""Our figure agrees with another source's if it differs by at most this share."""

MOST_LATE_SECONDS: Final = 0.05
"""The most lateness of 99 of 100 actions of a run's clients, seconds. It is a fortieth of the
shortest lifetime in a run and a quarter of a service; a run with later actions has measured the
machine."""

BUSY: Final = "not shown: busy machine"
"""The verdict on a run whose clients were late."""

Units: TypeAlias = Sequence[int]
"""Numbers of units, from 0 on; in a resample the same unit may come more than once."""

Statistic: TypeAlias = Callable[[Units], float]
"""A function that returns a figure of some units; nan where these have none."""


class Estimate(NamedTuple):
    """A figure and its 95 % confidence interval.

    Attributes:
        low: the lower end of the interval; nan where there is none.
    """

    value: float
    low: float
    high: float
    n_units: int

    def show(self, put: Callable[[float], str]) -> str:
        """Return the value and, in brackets, its interval, if it has one; a dash for no number."""
        if math.isnan(self.value):
            return "-"
        if math.isnan(self.low):
            return put(self.value)
        return f"{put(self.value)} ({put(self.low)} to {put(self.high)})"

    def __format__(self, form: str) -> str:
        return self.show(f"{{:{form or '.2f'}}}".format)

    def __str__(self) -> str:
        return format(self, ".2f")


class Standing(StrEnum):
    """The standing of a figure against a bound: an interval that straddles it shows nothing."""

    MET = "met"
    MISSED = "missed"
    NOT_SHOWN = "not shown"


def at_most(found: Estimate, bound: float) -> Standing:
    """Say whether a figure is at most a bound."""
    if found.high <= bound:
        return Standing.MET
    return Standing.MISSED if found.low > bound else Standing.NOT_SHOWN


def at_least(found: Estimate, bound: float) -> Standing:
    """Say whether a figure is at least a bound."""
    if found.low >= bound:
        return Standing.MET
    return Standing.MISSED if found.high < bound else Standing.NOT_SHOWN


def opposite(standing: Standing) -> Standing:
    """Return how the same figure stands to the opposite claim: above, for at most."""
    if standing is Standing.NOT_SHOWN:
        return standing
    return Standing.MISSED if standing is Standing.MET else Standing.MET


def all_of(standings: Iterable[Standing]) -> Standing:
    """Say whether all of several bounds are met; one that is missed decides."""
    found = set(standings)
    for standing in (Standing.MISSED, Standing.NOT_SHOWN):
        if standing in found:
            return standing
    return Standing.MET


def agrees(found: Estimate, value: float, tolerance: float = TOLERANCE) -> Standing:
    """Say whether a figure agrees with the one of another source.

    It agrees where its interval holds the other figure, or lies within the tolerance around it.
    """
    if math.isnan(found.low):
        found = Estimate(found.value, found.value, found.value, found.n_units)
    low, high = value - tolerance * abs(value), value + tolerance * abs(value)
    if found.low <= value <= found.high or low <= found.low <= found.high <= high:
        return Standing.MET
    if found.high < low or found.low > high:
        return Standing.MISSED
    return Standing.NOT_SHOWN


def bootstrap(n_units: int, statistic: Statistic) -> Estimate:
    """Return a statistic of independent units, with its interval.

    The units of a resample are hashable, so a statistic that several figures need may be cached.
    The interval is the expanded percentile interval over `N_RESAMPLES` resamples of the units
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"): percentiles alone are too
    narrow for few units. The resamples of a number of units are always the same, so equal results
    have equal intervals, and figures of the same units are paired.

    Returns:
        The estimate. It has no interval with fewer units than `LEAST_UNITS`, and where the
        statistic is not a number for some resample.
    """
    value = statistic(range(n_units))
    no_interval = Estimate(value, math.nan, math.nan, n_units)
    if n_units < LEAST_UNITS:
        return no_interval
    found = [statistic(units) for units in _resamples(n_units)]
    if any(map(math.isnan, found)):
        return no_interval
    found.sort()
    n_beyond = math.floor(_tail(n_units) * N_RESAMPLES)
    return Estimate(value, found[n_beyond], found[-1 - n_beyond], n_units)


def exact(value: float, n_units: int) -> Estimate:
    """Return a figure that leaves nothing to chance, such as a count of what must never happen."""
    return Estimate(value, value, value, n_units)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of one value for each independent unit, with its interval."""
    return bootstrap(len(values), mean_of(values))


def sum_of(values: Sequence[float]) -> Statistic:
    """Return the statistic: sum of one value for each unit."""
    return lambda units: math.fsum([values[unit] for unit in units])


def mean_of(values: Sequence[float]) -> Statistic:
    """Return the statistic: mean of one value for each unit."""
    return lambda units: math.fsum([values[unit] for unit in units]) / len(units)


def pooled_mean(samples: Sequence[Sequence[float]]) -> Statistic:
    """Return the statistic: mean over all values of the units, of which each has any number."""
    sums, counts = [math.fsum(each) for each in samples], [len(each) for each in samples]

    def statistic(units: Units) -> float:
        n_values = sum(counts[unit] for unit in units)
        return math.fsum([sums[unit] for unit in units]) / n_values if n_values else math.nan

    return statistic


def pooled_quantile(samples: Sequence[Sequence[float]], share: float) -> Statistic:
    """Return the statistic: least value that a share of all values of the units do not exceed.

    Args:
        samples: values of each unit; infinite for what never came.
        share: above 0, up to 1; 0.5 for the median.
    """
    ascending = [sorted(each) for each in samples]
    pooled = sorted(chain.from_iterable(ascending))

    def statistic(units: Units) -> float:
        chosen = [ascending[unit] for unit in units]
        rank = math.ceil(share * sum(map(len, chosen)))

        def n_up_to(value: float) -> int:
            return sum([bisect_right(each, value) for each in chosen])

        return pooled[bisect_left(pooled, rank, key=n_up_to)] if rank else math.nan

    return statistic


def ratio(one: Statistic, other: Statistic) -> Statistic:
    """Return the statistic: one over the other; nan for 0 over 0 and for infinite over infinite."""

    def statistic(units: Units) -> float:
        dividend, divisor = one(units), other(units)
        if divisor:
            return dividend / divisor
        return math.copysign(math.inf, dividend) if dividend else math.nan

    return statistic


def difference(one: Statistic, other: Statistic) -> Statistic:
    """Return the statistic: one less the other."""
    return lambda units: one(units) - other(units)


@cache
def _resamples(n_units: int) -> list[tuple[int, ...]]:
    rng = random.Random(n_units)  # noqa: S311 - no secret
    return [tuple(rng.choices(range(n_units), k=n_units)) for _ in range(N_RESAMPLES)]


@cache
def _tail(n_units: int) -> float:
    """Return the share of resamples beyond each end of an interval.

    For the mean of n values, percentiles with this tail give the width of Student's interval: its
    quantile of n - 1 degrees of freedom, and n - 1 in place of n in the variance.
    """
    freedom = n_units - 1
    return NormalDist().cdf(-math.sqrt(n_units / freedom) * _t_quantile(freedom))


def _t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, from 5 degrees of freedom on within 0.1 %.

    By the expansion about the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    z, n = NormalDist().inv_cdf(0.975), freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
