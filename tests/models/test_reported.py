from __future__ import annotations

import math

import pytest

from penstock.models.reported import Reported, agrees, reported_table
from penstock.netem.figures.estimates import Estimate, Standing


@pytest.mark.parametrize(
    ("value", "low", "high", "standing"),
    [
        (1.05, 1.02, 1.08, Standing.MET),  # all of it within 10 %
        (1.3, 0.9, 1.7, Standing.MET),  # the paper's figure is inside
        (1.3, 1.2, 1.4, Standing.MISSED),
        (0.5, 0.4, 0.6, Standing.MISSED),
        (1.08, 1.01, 1.15, Standing.NOT_SHOWN),
        (1.05, math.nan, math.nan, Standing.MET),  # too few runs for an interval
        (1.2, math.nan, math.nan, Standing.MISSED),
    ],
)
def test_a_figure_agrees_within_a_tenth_or_inside_its_interval(
    value: float, low: float, high: float, standing: Standing
) -> None:
    """An interval that straddles the tolerance shows nothing (M1)."""
    assert agrees(Estimate(value, low, high, 8), 1.0) is standing


def test_a_row_has_deviation_reading_and_closed_form() -> None:
    """A reported bound is judged as a bound."""
    found = Estimate(0.8, 0.78, 0.82, 8)
    rows = [
        Reported("success", 0.73, found, "as it is", "at least", 0.83),
        Reported("response", 0.7, found, unit=" s"),
        Reported("cap", 0.7, found, relation="at most"),
        Reported("wait", 2.0, Estimate(math.nan, math.nan, math.nan, 8), unit=" s"),
    ]
    assert reported_table(rows).rows == [
        ["success", "at least 0.73", "0.8 (0.78 to 0.82)", "+9.6%", "0.83", "met", "as it is"],
        ["response", "0.7 s", "0.8 (0.78 to 0.82) s", "+14.3%", "-", "missed", ""],
        ["cap", "at most 0.7", "0.8 (0.78 to 0.82)", "+14.3%", "-", "missed", ""],
        ["wait", "2 s", "-", "-", "-", "not shown", ""],
    ]
