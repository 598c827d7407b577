from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.models.papers.withholding.clairvoyant import least_latencies
from penstock.models.papers.withholding.rtt_trace import generate_trace
from penstock.models.papers.withholding.simulation import Setting, simulate
from penstock.plugins.withholding.policies import make_policy

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
        found = simulate(policy, trace, Setting())
        assert all(low <= high for low, high in zip(least, found, strict=True)), name
