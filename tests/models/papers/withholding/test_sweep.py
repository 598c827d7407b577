from __future__ import annotations

from statistics import mean

import pytest

from penstock.models.papers.withholding.clairvoyant import least_latencies
from penstock.models.papers.withholding.simulation import Setting, simulate
from penstock.models.papers.withholding.sweep import (
    CLAIRVOYANT,
    POLICIES,
    Results,
    Sweep,
    run,
)
from tests.models.papers.withholding.small_sweep import TRACES, small_results


def test_each_policy_is_run_on_each_trace() -> None:
    """A cell is what the simulation says of one policy, T_Q and threshold_l, trace by trace."""
    results = small_results()
    setting = Setting(threshold_l=2.0, probe_period=5)
    expected = [mean(simulate(POLICIES["historic"], trace, setting)) for trace in TRACES]
    assert results.of("historic", 5, 2.0) == expected
    assert results.of(CLAIRVOYANT, 5, 2.0) == [mean(least_latencies(trace)) for trace in TRACES]


def test_all_policies_have_the_same_information() -> None:
    """How answers become known is a setting of the sweep, for each policy alike."""
    results = run(Sweep(TRACES[:1], (0.5,), (5,), "arrival"))
    for label in ("historic", "none"):
        setting = Setting(threshold_l=0.5, probe_period=5, answers="arrival")
        expected = mean(simulate(POLICIES[label], TRACES[0], setting))
        assert results.of(label, 5, 0.5) == [expected]


def test_gain_is_paired() -> None:
    """What both policies owe to a trace cancels out: the interval is that of the differences."""
    results = Results(Sweep([[0.2]] * 6))
    results.means["conservative", 1, 0.5] = [8.0, 18.0] * 3
    results.means["historic", 1, 0.5] = [7.0, 16.9] * 3
    results.means["none", 1, None] = [10.0, 20.0] * 3
    results.means[CLAIRVOYANT, 0, None] = [5.0, 15.0] * 3
    gain = results.gain("historic", "conservative", 1, 0.5)
    assert gain == pytest.approx((1.05, 1.0, 1.1, 6))
    # Of the baseline's 5 s to clairvoyant, 3.05 s are gained.
    assert results.closed("historic", 1, 0.5).value == pytest.approx(0.61)


def test_nothing_is_closed_where_there_is_no_distance() -> None:
    """A path without congestion leaves nothing to gain, and the share is no number."""
    results = Results(Sweep([[0.2]]))
    for key in (("none", 1, None), ("historic", 1, 0.5), (CLAIRVOYANT, 0, None)):
        results.means[key] = [1.0]
    assert str(results.closed("historic", 1, 0.5)) == "-"
