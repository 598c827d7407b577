from __future__ import annotations

import math

import pytest

from penstock.models.withholding.estimates import Estimate, estimate, t_quantile


@pytest.mark.parametrize(
    ("freedom", "tabled"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (19, 2.093), (100, 1.984)],
)
def test_quantile_is_that_of_the_tables(freedom: int, tabled: float) -> None:
    """97.5 % of Student's t."""
    assert t_quantile(freedom) == pytest.approx(tabled, rel=0.01)


def test_interval_is_the_hand_computed_one() -> None:
    """Mean 3, deviation sqrt(2.5) of five values: 2.776 * sqrt(2.5 / 5)."""
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.margin == pytest.approx(1.963, rel=0.01)
    assert (found.low, found.high) == (found.mean - found.margin, found.mean + found.margin)
    assert str(found) == "3.00 ±1.96"


def test_one_value_has_no_interval() -> None:
    """A trace from a file stands alone."""
    found = estimate([3.0])
    assert math.isnan(found.margin)
    assert str(found) == "3.00"
    assert str(Estimate(1.0, 0.0)) == "1.00 ±0.00"
