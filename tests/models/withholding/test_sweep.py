from __future__ import annotations

from statistics import mean

import pytest

from penstock.models.withholding.clairvoyant import least_latencies
from penstock.models.withholding.simulation import Setting, simulate
from penstock.models.withholding.sweep import ADAPTIVE_EARLY, CLAIRVOYANT, POLICIES, Results, Sweep
from tests.models.withholding.small_sweep import TRACES, small_results


def test_each_policy_is_run_on_each_trace() -> None:
    """A cell is what the simulation says of one policy, T_Q and threshold_l, trace by trace."""
    results = small_results()
    setting = Setting(threshold_l=2.0, probe_period=5)
    expected = [mean(simulate(POLICIES["historic"], trace, setting)) for trace in TRACES]
    assert results.of("historic", 5, 2.0) == expected
    assert results.of(CLAIRVOYANT, 5, 2.0) == [mean(least_latencies(trace)) for trace in TRACES]


def test_adaptive_learns_its_own_threshold_l() -> None:
    """It is run once, whatever threshold_l the others are given."""
    results = small_results()
    assert results.of("adaptive", 1, 0.2) is results.of("adaptive", 1, 2.0)
    learned = simulate(POLICIES["adaptive"], TRACES[0], Setting(threshold_l=None))
    assert results.of("adaptive", 1, 0.2)[0] == mean(learned)


def test_adaptive_that_sees_the_unanswered_query_is_a_row_of_its_own() -> None:
    """The others, and adaptive beside them, know an RTT when T_Q has passed."""
    setting = Setting(threshold_l=None, probe_period=5, answers="arrival")
    early = simulate(POLICIES["adaptive"], TRACES[0], setting)
    results = small_results()
    assert results.of(ADAPTIVE_EARLY, 5, 0.2)[0] == mean(early)
    assert results.of("adaptive", 5, 0.2) != results.of(ADAPTIVE_EARLY, 5, 0.2)
    assert results.of("adaptive", 1, 0.2) == results.of(ADAPTIVE_EARLY, 1, 0.2)


def test_gain_is_paired() -> None:
    """What both policies owe to a trace cancels out: the interval is that of the differences."""
    results = Results(Sweep([[0.2]] * 2))
    results.means["historic", 1, 0.5] = [8.0, 18.0]
    results.means["adaptive", 1, None] = [7.0, 16.9]
    results.means[CLAIRVOYANT, 0, None] = [5.0, 15.0]
    gain = results.gain("adaptive", "historic", 1, 0.5)
    assert gain.mean == pytest.approx(1.05)
    assert gain.margin == pytest.approx(12.706 * 0.05, rel=0.01)
    # Of 3 s from historic's 13 s to clairvoyant's 10 s, 1.05 s are gained.
    assert results.closed("adaptive", 1, 0.5) == pytest.approx(0.35)


def test_nothing_is_closed_where_there_is_no_distance() -> None:
    """A path without congestion leaves nothing to gain."""
    results = Results(Sweep([[0.2]]))
    for key in (("historic", 1, 0.5), ("adaptive", 1, None), (CLAIRVOYANT, 0, None)):
        results.means[key] = [1.0]
    assert results.closed("adaptive", 1, 0.5) == 0.0
