"""The policy simulation of paper 002 (figures 8 and 9), on the policies that the broker runs.

Reading of the trace generator. Each second has one RTT of the 10 KB query: uniform in 0.15 to
0.45 s, and in a burst of congestion more. In each calm second a burst begins with probability
0.1; it lasts a whole number of seconds, uniform in 10 to 25, and adds one amount to the RTT for
its whole length, exponential with rate 0.3 /s. Readings in which the amount is drawn afresh each
second, or in which only the base is scaled to 1 MB, contradict the paper's text.

A large message costs half the RTT of the second in which it is delivered, times ten. A decision
at second t knows the query sent at t - T_Q or before; queries are sent at multiples of T_Q.
Decisions fall on arrival, on each second that brings a new estimate, and on the first second
after the policy's own release time, as the broker's gate asks for. Messages do not queue behind
each other.

Policies differ less than traces do: compare them on the same traces, over many seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from plugins.withholding.policies import Policy, Situation


@dataclass(frozen=True)
class TraceParameters:
    """What a trace is drawn from; the defaults are the paper's.

    Attributes:
        calm_rtt: least and largest RTT without congestion, seconds.
        burst_probability: of a burst to begin in a calm second.
        burst_seconds: least and largest length of a burst.
        burst_rate: one over the mean RTT that a burst adds, 1/s.
    """

    calm_rtt: tuple[float, float] = (0.15, 0.45)
    burst_probability: float = 0.1
    burst_seconds: tuple[int, int] = (10, 25)
    burst_rate: float = 0.3


PAPER_TRACE = TraceParameters()


def generate_trace(
    rng: random.Random, n_seconds: int, parameters: TraceParameters = PAPER_TRACE
) -> list[float]:
    """Return the RTT of the 10 KB query in each second: (n_seconds,) floats, seconds."""
    trace: list[float] = []
    added, burst_ends_at = 0.0, 0
    for second in range(n_seconds):
        if second >= burst_ends_at:
            added = 0.0
            if rng.random() < parameters.burst_probability:
                burst_ends_at = second + rng.randint(*parameters.burst_seconds)
                added = rng.expovariate(parameters.burst_rate)
        trace.append(rng.uniform(*parameters.calm_rtt) + added)
    return trace


def simulate(
    policy: Policy,
    trace: Sequence[float],
    *,
    threshold_l: float,
    probe_period: int = 1,
    message_period: int = 5,
    size_scale: float = 10.0,
) -> list[float]:
    """Return the end-to-end latency of each large message: network latency plus sojourn.

    Args:
        policy: the very object that a gate asks.
        trace: RTT of the query in each second, seconds; delivery after its end sees its last
            value.
        threshold_l: RTT of the query on the uncongested path, seconds.
        probe_period: T_Q, whole seconds.
        message_period: whole seconds between two large messages.
        size_scale: latency of the large message over that of the query.

    Returns:
        One latency in seconds for each message, in order of arrival.
    """
    return [
        _delivery_latency(
            policy,
            trace,
            arrival,
            threshold_l=threshold_l,
            probe_period=probe_period,
            size_scale=size_scale,
        )
        for arrival in range(0, len(trace), message_period)
    ]


def _delivery_latency(
    policy: Policy,
    trace: Sequence[float],
    arrival: int,
    *,
    threshold_l: float,
    probe_period: int,
    size_scale: float,
) -> float:
    """Return the end-to-end latency of the message that arrives at second `arrival`."""
    now = arrival
    while True:
        # Before the first query is answered nothing is known but the path's own RTT.
        queried_at = (now // probe_period - 1) * probe_period
        rtt = _at(trace, queried_at) if queried_at >= 0 else threshold_l
        situation = Situation(
            l_now=size_scale * rtt / 2,
            threshold_l=size_scale * threshold_l,
            sojourn=now - arrival,
            probe_period=probe_period,
        )
        if policy.decide(situation):
            return now - arrival + size_scale * _at(trace, now) / 2
        released_at = arrival + math.floor(policy.release_sojourn(situation)) + 1
        next_estimate_at = (now // probe_period + 1) * probe_period
        now = min(max(released_at, now + 1), next_estimate_at)


def _at(trace: Sequence[float], second: int) -> float:
    return trace[min(second, len(trace) - 1)]
