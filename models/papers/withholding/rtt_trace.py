"""Traces: the RTT of the 10 KB query in each second, drawn as in paper 002 or read from a file.

Our reading of the paper's generator. Each second has one RTT: uniform in 0.15 to 0.45 s, and more
in a burst of congestion. In each calm second a burst begins with probability 0.1; it lasts a whole
number of seconds, uniform in 10 to 25, and adds one amount to the RTT for its whole length,
exponential with rate 0.3 /s. Readings in which the amount is drawn afresh each second, or in which
only the base is scaled to 1 MB, contradict the paper's text.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MAX_SECONDS = 1_000_000
"""The longest trace that a file may have, so that a wrong time does not fill the memory."""


class Arrival(NamedTuple):
    """A large message of a recording.

    Attributes:
        second: the second of the trace in which it comes.
        size_scale: the ratio of its latency to the query's.
    """

    second: int
    size_scale: float


def periodic(n_seconds: int, message_period: int, size_scale: float) -> list[Arrival]:
    """Return large messages of one size at regular times, as in paper 002."""
    return [Arrival(second, size_scale) for second in range(0, n_seconds, message_period)]


@dataclass(frozen=True)
class TraceParameters:
    """Parameters of the generator; the defaults are the paper's.

    Attributes:
        calm_rtt: least and largest RTT without congestion, seconds.
        burst_probability: the probability that a burst begins in a calm second.
        burst_seconds: least and largest length of a burst.
        burst_rate: the inverse of the mean RTT that a burst adds, 1/s.
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


def read_trace(lines: Iterable[str]) -> list[float]:
    """Return a trace from CSV text: a time and an RTT in a row, both in seconds.

    Times rise and begin anywhere. A second has the RTT of the newest row at its beginning; the last
    row is the last second. A first row without numbers is a header.

    Raises:
        ValueError: a row is not of that form; the message names its line.
    """
    rows: list[tuple[float, float]] = []
    for row in (reader := csv.reader(lines)):
        if not row:
            continue
        numbers = _numbers(row)
        if numbers is None:
            if reader.line_num == 1:
                continue
            raise ValueError(
                f"line {reader.line_num}: read {','.join(row)!r}; allowed: seconds,RTT in seconds"
            )
        at, rtt = numbers
        if rtt < 0:
            raise ValueError(f"line {reader.line_num}: read RTT {rtt:g}; allowed: 0 or above")
        if rows and at <= rows[-1][0]:
            raise ValueError(
                f"line {reader.line_num}: read time {at:g}; allowed: above {rows[-1][0]:g}"
            )
        rows.append((at, rtt))
    if not rows:
        raise ValueError("read no rows; allowed: at least one of seconds,RTT in seconds")
    if rows[-1][0] - rows[0][0] >= MAX_SECONDS:
        raise ValueError(f"read more than {MAX_SECONDS} seconds; allowed: at most that")
    return each_second(rows)


def _numbers(row: Sequence[str]) -> tuple[float, float] | None:
    try:
        at, rtt = map(float, row)
    except ValueError:
        return None
    return (at, rtt) if math.isfinite(at) and math.isfinite(rtt) else None


def each_second(rows: Sequence[tuple[float, float]]) -> list[float]:
    """Return the RTT of each second, from the first row's time on."""
    began_at = rows[0][0]
    trace: list[float] = []
    for (_, rtt), (following, _) in pairwise(rows):
        # The row's value applies to all seconds that begin before the next row.
        trace += [rtt] * (math.ceil(following - began_at) - len(trace))
    return [*trace, rows[-1][1]]
