from __future__ import annotations

import random
from statistics import mean

import pytest

import models.withholding
import plugins.withholding.policies
from models.withholding import TraceParameters, generate_trace, simulate
from plugins.withholding.policies import ConservativePolicy, HistoricPolicy, NonePolicy, Policy

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
            mean(simulate(p, trace, threshold_l=threshold_l, probe_period=probe_period))
            for p in (NonePolicy(), policy)
        ]
        found.append(means[0] - means[1])
    return found


def test_model_runs_the_policies_of_the_broker() -> None:
    """One implementation, two clocks: the same class object, not a copy of the formula."""
    assert vars(models.withholding)["Policy"] is plugins.withholding.policies.Policy


def test_trace_has_bursts_of_one_height() -> None:
    """A burst adds one amount for 10 to 25 s (paper 002, simulation 1)."""
    parameters = TraceParameters(calm_rtt=(0.2, 0.2))
    trace = generate_trace(seeded(1), N_SECONDS, parameters)
    runs: list[tuple[float, int]] = []
    for rtt in trace:
        if runs and runs[-1][0] == rtt:
            runs[-1] = (rtt, runs[-1][1] + 1)
        else:
            runs.append((rtt, 1))
    bursts = [(rtt - 0.2, length) for rtt, length in runs[:-1] if rtt > 0.2]
    assert len(bursts) > 100
    assert {length for _, length in bursts} == set(range(10, 26))
    assert mean(added for added, _ in bursts) == pytest.approx(1 / 0.3, rel=0.2)


def test_calm_rtt_is_uniform_between_its_bounds() -> None:
    """Without bursts the RTT stays between 0.15 and 0.45 s and fills that range."""
    trace = generate_trace(seeded(1), N_SECONDS, TraceParameters(burst_probability=0.0))
    assert 0.15 <= min(trace) < 0.16
    assert 0.44 < max(trace) <= 0.45
    assert mean(trace) == pytest.approx(0.3, abs=0.01)


def test_trace_is_that_of_its_seed() -> None:
    """A seed names one trace, so that policies can be compared on it."""
    first, again, other = (generate_trace(seeded(seed), 100) for seed in (1, 1, 2))
    assert first == again != other


def test_baseline_pays_ten_times_half_the_rtt() -> None:
    """A 1 MB message costs ten times the one-way latency of the 10 KB query; nothing waits."""
    assert simulate(NonePolicy(), [0.2, 9, 9, 9, 9, 0.4], threshold_l=0.5) == [1.0, 2.0]


def test_decision_sees_the_query_of_the_period_before() -> None:
    """At second t the query of t - T_Q is known, not the RTT of t."""
    # Arrival at 5 sees second 4 (calm) and delivers into the burst; at 6 it would have waited.
    trace = [0.2] * 5 + [4.0] * 5
    assert simulate(ConservativePolicy(20.0), trace, threshold_l=0.5)[1] == 20.0


def test_withheld_message_goes_when_the_next_estimate_is_good() -> None:
    """Sojourn and network latency add up."""
    # Arrival at 5 sees second 4 (bad); seconds 4 to 6 are bad, seen until 7; at 8 second 7.
    trace = [0.2] * 4 + [4.0] * 3 + [0.2] * 3
    assert simulate(ConservativePolicy(20.0), trace, threshold_l=0.5)[1] == 3 + 1.0


def test_longer_probe_period_sees_older_queries() -> None:
    """With T_Q = 5 s the message of second 5 knows second 0 and waits for second 10."""
    trace = [4.0] + [0.2] * 19
    latencies = simulate(ConservativePolicy(20.0), trace, threshold_l=0.5, probe_period=5)
    assert latencies[1] == 5 + 1.0


def test_starvation_is_bounded_by_d() -> None:
    """On a path that never recovers the message goes in the first second after D."""
    latencies = simulate(ConservativePolicy(20.0), [4.0] * 50, threshold_l=0.5)
    assert latencies[1] == 21 + 20.0


def test_historic_is_released_by_its_own_wait() -> None:
    """L_now = 20 s < 1 + 2.5 + sojourn holds first at a sojourn of 17 s."""
    latencies = simulate(HistoricPolicy(), [4.0] * 50, threshold_l=0.5)
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
