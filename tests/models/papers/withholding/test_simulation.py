from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.models.papers.withholding.simulation
import penstock.plugins.withholding.policy
from penstock.models.papers.withholding.clairvoyant import least_latencies
from penstock.models.papers.withholding.rtt_trace import generate_trace
from penstock.models.papers.withholding.simulation import WithholdingSetting, simulate
from penstock.plugins.withholding.policies import (
    ConservativePolicy,
    HistoricPolicy,
    NonePolicy,
    make_policy,
)
from penstock.plugins.withholding.policy import Policy

N_SECONDS = 5_000
SEEDS = range(6)
THRESHOLDS = (0.2, 1.0, 4.0)


def seeded(seed: int) -> random.Random:
    """Return the source of chance for one trace."""
    return random.Random(seed)  # noqa: S311 (a simulation has no secrets)


def gains(policy: Policy, *, threshold_l: float, probe_period: int = 1) -> list[float]:
    """Return for each seed how much less the mean latency is than the baseline's, seconds."""
    found = []
    for seed in SEEDS:
        trace = generate_trace(seeded(seed), N_SECONDS)
        means = [
            mean(
                simulate(
                    p, trace, WithholdingSetting(threshold_l=threshold_l, probe_period=probe_period)
                )
            )
            for p in (NonePolicy(), policy)
        ]
        found.append(means[0] - means[1])
    return found


def test_model_runs_the_policies_of_the_broker() -> None:
    """One implementation, two clocks: the same class object, not a copy of the formula."""
    assert (
        vars(penstock.models.papers.withholding.simulation)["Policy"]
        is penstock.plugins.withholding.policy.Policy
    )


def test_baseline_pays_ten_times_half_the_rtt() -> None:
    """A 1 MB message costs ten times the one-way latency of the 10 KB query; nothing waits."""
    assert simulate(NonePolicy(), [0.2, 9, 9, 9, 9, 0.4], WithholdingSetting()) == [1.0, 2.0]


def test_decision_sees_the_second_before() -> None:
    """With T_Q = 1 s the sample of second t - 1 is known at t, not the RTT of t."""
    # Arrival at 5 sees second 4 (calm) and delivers into the burst; at 6 it would have waited.
    trace = [0.2] * 5 + [4.0] * 5
    assert simulate(ConservativePolicy(20.0), trace, WithholdingSetting())[1] == 20.0


def test_withheld_message_goes_when_the_next_estimate_is_good() -> None:
    """Sojourn and network latency add up."""
    # Arrival at 5 sees second 4 (bad); seconds 4 to 6 are bad, seen until 7; at 8 second 7.
    trace = [0.2] * 4 + [4.0] * 3 + [0.2] * 3
    assert simulate(ConservativePolicy(20.0), trace, WithholdingSetting())[1] == 3 + 1.0


def test_longer_probe_period_sees_older_samples() -> None:
    """With T_Q = 5 s the message of second 5 knows second 4 and waits for second 10."""
    trace = [0.2] * 4 + [4.0] + [0.2] * 15
    latencies = simulate(
        ConservativePolicy(20.0), trace, WithholdingSetting(threshold_l=0.5, probe_period=5)
    )
    assert latencies[1] == 5 + 1.0
    # At second 8 the newest sample is still that of second 4, at T_Q = 4 s that of second 7.
    late = [WithholdingSetting(probe_period=period, message_period=8) for period in (5, 4)]
    found = [simulate(ConservativePolicy(20.0), trace, setting)[1] for setting in late]
    assert found == [2 + 1.0, 1.0]


def test_starvation_is_bounded_by_d() -> None:
    """On a path that never recovers the message goes in the first second after D."""
    latencies = simulate(ConservativePolicy(20.0), [4.0] * 50, WithholdingSetting())
    assert latencies[1] == 21 + 20.0


def test_historic_is_released_by_its_own_wait() -> None:
    """L_now = 20 s < 1 + 2.5 + sojourn holds first at a sojourn of 17 s."""
    latencies = simulate(HistoricPolicy(), [4.0] * 50, WithholdingSetting())
    assert latencies[1] == 17 + 20.0


@pytest.mark.parametrize("threshold_l", THRESHOLDS)
def test_historic_gains_seconds_whatever_threshold_l_is(threshold_l: float) -> None:
    """Figure 8: about 3.5 s less than the baseline, at small and large threshold_l alike."""
    found = gains(HistoricPolicy(), threshold_l=threshold_l)
    assert all(gain > 1.5 for gain in found)
    assert mean(found) > 2.5


def test_conservative_needs_a_large_threshold_l() -> None:
    """Figure 8: with a small one it withholds without need and loses to the baseline."""
    assert mean(gains(ConservativePolicy(20.0), threshold_l=0.2)) < 0
    assert mean(gains(ConservativePolicy(20.0), threshold_l=4.0)) > 2


def test_conservative_gains_nothing_with_rare_queries() -> None:
    """Figure 9: at T_Q = 5 s its latency is no better than the baseline's."""
    assert mean(gains(ConservativePolicy(20.0), threshold_l=0.5, probe_period=5)) < 0.5


def test_answer_on_arrival_is_known_an_rtt_after_its_query() -> None:
    """A query of second 6, answered in 0.2 s, releases at 7 what T_Q later would release at 8."""
    trace = [0.2] * 3 + [4.0] * 3 + [0.2] * 9
    setting = WithholdingSetting(answers="arrival")
    # At 5 the query of 4 is a second old without an answer, which is twice threshold_l.
    assert simulate(ConservativePolicy(20.0), trace, setting)[1] == 2 + 1.0


def test_overdue_query_counts_as_its_age() -> None:
    """With the answers of seconds 0 to 2 good, those that stay away make the message wait."""
    trace = [0.2] * 3 + [9.0] * 40
    latencies = simulate(ConservativePolicy(20.0), trace, WithholdingSetting(answers="arrival"))
    assert latencies[1] == 21 + 45.0


NAMES = ("none", "conservative", "probabilistic", "historic")


def test_sends_in_the_best_second() -> None:
    """The message of second 0 waits 3 s for 1 s; that of 5 goes at once, for 6 is no better."""
    assert least_latencies([4.0, 3.0, 2.0, 0.2, 0.2, 0.4, 0.2]) == [4.0, 2.0]


def test_ties_and_the_end_of_the_trace() -> None:
    """A trace keeps its last value after its end, so there is nothing to wait for there."""
    assert least_latencies([9.0]) == [45.0]
    assert least_latencies([9.0, 8.8]) == [45.0]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.integers(1, 5))
def test_is_what_exhaustive_search_finds(trace: list[float], message_period: int) -> None:
    """Ending the search early loses nothing."""
    expected = [
        min(second - arrival + 5.0 * trace[second] for second in range(arrival, len(trace)))
        for arrival in range(0, len(trace), message_period)
    ]
    assert least_latencies(trace, message_period=message_period) == expected


def test_no_policy_passes_it() -> None:
    """Message by message it is the lower bound of every policy (paper 002, figure 8)."""
    trace = generate_trace(random.Random(3), 500)  # noqa: S311 (a simulation has no secrets)
    least = least_latencies(trace)
    for name in NAMES:
        policy = make_policy(name, max_withhold=20.0, congestion_rate=1 / 17.5)
        found = simulate(policy, trace, WithholdingSetting())
        assert all(low <= high for low, high in zip(least, found, strict=True)), name
