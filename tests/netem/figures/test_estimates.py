from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.netem.figures.estimates import (
    LEAST_UNITS,
    Estimate,
    Standing,
    agrees,
    all_of,
    at_least,
    at_most,
    bootstrap,
    difference,
    exact,
    mean_of,
    opposite,
    pooled_mean,
    pooled_quantile,
    ratio,
)

MET, MISSED, NOT_SHOWN = Standing.MET, Standing.MISSED, Standing.NOT_SHOWN

T_QUANTILES = {6: 2.571, 10: 2.262, 20: 2.093, 60: 2.001}
"""Number of values to the 97.5 % quantile of Student's t with one degree of freedom less."""

samples_of_units = st.lists(st.lists(st.floats(0, 100), max_size=8), min_size=1, max_size=8)


@pytest.mark.parametrize("n_values", T_QUANTILES)
def test_interval_of_a_mean_is_as_wide_as_students(n_values: int) -> None:
    """Few values have it, too: percentiles alone are narrower by a third for six."""
    rng = random.Random(1)  # noqa: S311 (no secrets)
    values = [rng.gauss(10, 2) for _ in range(n_values)]
    found = bootstrap(n_values, mean_of(values))
    assert found.value == pytest.approx(statistics.mean(values))
    assert found.n_units == n_values
    margin = T_QUANTILES[n_values] * statistics.stdev(values) / math.sqrt(n_values)
    assert found.high - found.low == pytest.approx(2 * margin, rel=0.12)


def test_most_intervals_hold_what_the_values_were_drawn_around() -> None:
    """About 95 % of them, here of the mean of 8 values."""
    rng = random.Random(2)  # noqa: S311 (no secrets)
    n_held = 0
    for _ in range(60):
        found = bootstrap(8, mean_of([rng.gauss(0, 1) for _ in range(8)]))
        n_held += found.low <= 0 <= found.high
    assert 54 <= n_held <= 60


def test_interval_of_values_that_are_all_the_same_has_no_width() -> None:
    """Chance had no part in them."""
    found = bootstrap(8, mean_of([3.0] * 8))
    assert found == exact(3.0, 8)
    assert str(found) == "3.00 (3.00 to 3.00)"


def test_ratios_and_differences_are_paired() -> None:
    """A ratio of two values that are proportional in each unit has no width."""
    own = [1.0, 5.0, 9.0, 2.0, 4.0, 7.0]
    doubled, more = [2 * each for each in own], [each + 1 for each in own]
    assert bootstrap(6, ratio(mean_of(own), mean_of(doubled))) == (0.5, 0.5, 0.5, 6)
    assert bootstrap(6, difference(mean_of(more), mean_of(own))) == pytest.approx(
        (1.0, 1.0, 1.0, 6)
    )


def test_the_same_values_have_the_same_interval() -> None:
    """A report that is made again says the same."""
    values = [1.0, 2.0, 7.0, 4.0, 4.0, 3.0]
    assert bootstrap(6, mean_of(values)) == bootstrap(6, mean_of(list(values)))


def test_few_units_have_no_interval() -> None:
    """A trace from a file stands alone, and five are too few for 95 %."""
    few = bootstrap(LEAST_UNITS - 1, mean_of([1.0] * (LEAST_UNITS - 1)))
    assert (few.value, math.isnan(few.low), math.isnan(few.high)) == (1.0, True, True)
    assert str(few) == "1.00"
    assert at_most(few, 2.0) == at_least(few, 2.0) == NOT_SHOWN


def test_messages_of_a_unit_are_drawn_together() -> None:
    """The interval of ten units is the same, however often each says its value."""
    values = [1.0, 5.0, 9.0, 2.0, 4.0, 7.0, 3.0, 8.0, 6.0, 5.0]
    once = bootstrap(10, mean_of(values))
    assert bootstrap(10, pooled_mean([[each] * 50 for each in values])) == pytest.approx(once)


@given(samples_of_units, st.floats(0.01, 1), st.randoms(use_true_random=False))
def test_pooled_statistics_are_those_of_all_values_of_the_units(
    samples: list[list[float]], share: float, rng: random.Random
) -> None:
    """A unit that is drawn twice counts twice; of no values there is none."""
    units = rng.choices(range(len(samples)), k=len(samples))
    pooled = sorted(value for unit in units for value in samples[unit])
    quantile, average = pooled_quantile(samples, share)(units), pooled_mean(samples)(units)
    if not pooled:
        assert math.isnan(quantile)
        assert math.isnan(average)
        return
    assert quantile == pooled[math.ceil(share * len(pooled)) - 1]
    assert average == pytest.approx(statistics.fmean(pooled))


def test_what_never_came_is_infinite_and_not_left_out() -> None:
    """The median of units of which one lost most is still a number; their mean is none."""
    samples = [[1.0, 2.0, 3.0]] * 5 + [[1.0, math.inf, math.inf]]
    assert pooled_quantile(samples, 0.5)(range(6)) == 2.0
    assert bootstrap(6, pooled_mean(samples)).high == math.inf


def test_what_is_no_number_for_some_units_has_no_interval() -> None:
    """A resample of units without any value says nothing, and so nothing is shown."""
    found = bootstrap(6, pooled_mean([[]] * 5 + [[1.0]]))
    assert found.value == 1.0
    assert math.isnan(found.low)
    assert at_most(found, 2.0) == NOT_SHOWN


def test_ratio_to_nothing() -> None:
    """It is infinite, and of nothing to nothing it is none."""
    nothing = mean_of([0.0])
    assert ratio(mean_of([2.0]), nothing)([0]) == math.inf
    assert math.isnan(ratio(nothing, nothing)([0]))


@pytest.mark.parametrize(
    ("low", "high", "most", "least"),
    [
        (0.3, 0.4, MET, MISSED),
        (0.6, 0.7, MISSED, MET),
        (0.4, 0.6, NOT_SHOWN, NOT_SHOWN),
        (0.5, 0.5, MET, MET),
        (0.4, 0.5, MET, NOT_SHOWN),
        (0.5, 0.6, NOT_SHOWN, MET),
        (math.nan, math.nan, NOT_SHOWN, NOT_SHOWN),
        (0.6, math.inf, MISSED, MET),
    ],
)
def test_target_is_met_where_the_whole_interval_is_on_its_side(
    low: float, high: float, most: Standing, least: Standing
) -> None:
    """Bounds of 0.5; the bound itself is allowed."""
    found = Estimate(0.5, low, high, 20)
    assert (at_most(found, 0.5), at_least(found, 0.5)) == (most, least)


def test_opposite_of_at_most_is_above() -> None:
    """What is not shown is not shown of either."""
    assert [opposite(each) for each in (MET, MISSED, NOT_SHOWN)] == [MISSED, MET, NOT_SHOWN]


def test_all_are_met_or_one_tells_why_not() -> None:
    """A miss weighs more than what is not shown."""
    assert all_of([MET, MET]) == MET
    assert all_of([MET, NOT_SHOWN]) == NOT_SHOWN
    assert all_of([NOT_SHOWN, MISSED, MET]) == MISSED


def test_figures_are_shown_in_their_unit() -> None:
    """The caller writes numbers; without an interval there are no brackets."""
    found = Estimate(0.25, 0.2, 0.3, 12)
    assert found.show("{:.0%}".format) == "25% (20% to 30%)"
    assert found._replace(low=math.nan).show("{:.0%}".format) == "25%"
    assert found._replace(value=math.nan).show("{:.0%}".format) == "-"


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
