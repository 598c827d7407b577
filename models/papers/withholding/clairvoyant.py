"""The policy that knows the future: an upper bound for every policy (paper 002)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.models.papers.withholding.rtt_trace import Arrival, periodic


def least_latencies(
    trace: Sequence[float],
    arrivals: Sequence[Arrival] | None = None,
    *,
    message_period: int = 5,
    size_scale: float = 10.0,
) -> list[float]:
    """Return the least end-to-end latency of each message, by search over every second of sending.

    The search for one message ends where the sojourn alone is no better than the best so far.

    Args:
        trace: RTT of the query in each second, seconds; after its end the last value applies.
        arrivals: the arrivals of the large messages, as in `simulate`; the others do not count
            then.
        message_period: the whole seconds between two large messages.
        size_scale: the ratio of a large message's latency to the query's.
    """
    if arrivals is None:
        arrivals = periodic(len(trace), message_period, size_scale)
    return [_least(trace, second, scale / 2) for second, scale in arrivals]


def _least(trace: Sequence[float], arrival: int, to_latency: float) -> float:
    least = to_latency * trace[arrival]
    for second in range(arrival + 1, len(trace)):
        sojourn = second - arrival
        if sojourn >= least:
            break
        least = min(least, sojourn + to_latency * trace[second])
    return least
