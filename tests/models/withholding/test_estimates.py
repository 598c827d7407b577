from __future__ import annotations

import math
import random
from statistics import mean

import pytest

from penstock.models.withholding.estimates import bootstrap, estimate, mean_of


def test_interval_of_a_mean_is_that_of_theory() -> None:
    """Of 60 values from a normal distribution it is the mean and 1.96 standard errors."""
    rng = random.Random(1)  # noqa: S311 (no secrets)
    values = [rng.gauss(10, 2) for _ in range(60)]
    found = estimate(values)
    assert found.value == mean(values)
    margin = 1.96 * 2 / math.sqrt(60)
    assert found.low == pytest.approx(found.value - margin, abs=0.15)
    assert found.high == pytest.approx(found.value + margin, abs=0.15)


def test_interval_of_values_that_are_all_the_same_has_no_width() -> None:
    """Chance had no part in them."""
    found = estimate([3.0] * 5)
    assert found == (3.0, 3.0, 3.0)
    assert str(found) == "3.00 (3.00 to 3.00)"


def test_units_are_resampled_together() -> None:
    """A ratio of two values that are proportional in each unit has no width."""
    own, other = [1.0, 5.0, 9.0], [2.0, 10.0, 18.0]
    found = bootstrap(3, lambda units: mean_of(own, units) / mean_of(other, units))
    assert found == (0.5, 0.5, 0.5)


def test_the_same_values_have_the_same_interval() -> None:
    """A report that is made again says the same."""
    assert estimate([1.0, 2.0, 7.0]) == estimate([1.0, 2.0, 7.0])


def test_one_value_has_no_interval() -> None:
    """A trace from a file stands alone."""
    found = estimate([3.0])
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert str(found) == "3.00"
