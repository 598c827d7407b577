"""Means over traces, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, mean, stdev
from typing import NamedTuple

_NORMAL = NormalDist().inv_cdf(0.975)


class Estimate(NamedTuple):
    """A mean and its 95 % confidence interval.

    Attributes:
        mean: of the values.
        margin: half the interval's width; nan for a single value.
    """

    mean: float
    margin: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.margin

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.margin

    def __str__(self) -> str:
        return (
            f"{self.mean:.2f}" if math.isnan(self.margin) else f"{self.mean:.2f} ±{self.margin:.2f}"
        )


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and interval of independent values, one for each trace (Student's t)."""
    if len(values) < 2:
        return Estimate(mean(values), math.nan)
    return Estimate(
        mean(values), t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    )


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    By the expansion about the normal quantile (Abramowitz and Stegun, 26.7.5), within 1 % from 3
    degrees of freedom on; below that from the closed forms.
    """
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, n = _NORMAL, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
