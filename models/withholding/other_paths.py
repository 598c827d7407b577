"""Paths unlike the paper's, to check that a policy does not only fit the paper's generator.

All have the paper's calm RTT and, unless stated otherwise, its bursts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final, NamedTuple

from penstock.models.withholding.simulation import Answers, Setting, simulate
from penstock.models.withholding.sweep import ADAPTIVE, BASELINE, POLICIES
from penstock.models.withholding.trace import PAPER_TRACE
from penstock.netem.figures.estimates import (
    Estimate,
    Standing,
    at_most,
    bootstrap,
    mean_of,
    ratio,
)

HISTORIC: Final = "historic"

PAPERS: Final = ("conservative", "probabilistic", HISTORIC)
"""The paper's policies."""

MOST_RATIO: Final = 1.05
"""Latency of `adaptive` over historic's, at most, on paths that neither was made for."""

ENDLESS = 1e9
"""Seconds."""


def _paper_length(rng: random.Random) -> float:
    return rng.randint(*PAPER_TRACE.burst_seconds)


def _paper_amount(rng: random.Random) -> float:
    return rng.expovariate(PAPER_TRACE.burst_rate)


@dataclass(frozen=True)
class Path:
    """A generator of RTTs.

    Attributes:
        length: of a burst, seconds.
        amount: that a burst adds to the RTT, seconds.
        burst_probability: that a burst begins in a calm second.
        is_fresh: whether each second of a burst has its own amount.
        drift: how far the calm RTT rises and falls over 25 minutes, as a ratio.
        calm_seconds: exact time between two bursts; None for a random time.
        overlaps: whether bursts begin in each second, also during others; their amounts add up.
    """

    length: Callable[[random.Random], float] = _paper_length
    amount: Callable[[random.Random], float] = _paper_amount
    burst_probability: float = PAPER_TRACE.burst_probability
    is_fresh: bool = False
    drift: float = 0.0
    calm_seconds: int | None = None
    overlaps: bool = False

    def generate(self, rng: random.Random, n_seconds: int) -> list[float]:
        """Return the RTT of the query in each second: (n_seconds,) floats, seconds."""
        trace: list[float] = []
        bursts: list[tuple[int, float]] = []  # second of its end, what it adds
        ended_at = 0
        for second in range(n_seconds):
            going_on = [burst for burst in bursts if second < burst[0]]
            if bursts and not going_on:
                ended_at = second
            bursts = going_on
            if self.overlaps or not bursts:
                if self._begins(rng, second - ended_at):
                    bursts.append((second + max(1, int(self.length(rng))), self.amount(rng)))
            elif self.is_fresh:
                bursts = [(ends_at, self.amount(rng)) for ends_at, _ in bursts]
            added = sum(amount for _, amount in bursts)
            drifted = 1 + self.drift * (1 + math.sin(second * 2 * math.pi / 1500))
            trace.append(rng.uniform(*PAPER_TRACE.calm_rtt) * drifted + added)
        return trace

    def _begins(self, rng: random.Random, calm_seconds: int) -> bool:
        if self.calm_seconds is not None:
            return calm_seconds >= self.calm_seconds
        return rng.random() < self.burst_probability


OTHER_PATHS: Final[dict[str, Path]] = {
    "lengths exponential, mean 17.5 s": Path(length=lambda rng: rng.expovariate(1 / 17.5)),
    "lengths exponential, mean 5 s": Path(length=lambda rng: rng.expovariate(1 / 5)),
    "lengths exponential, mean 60 s": Path(length=lambda rng: rng.expovariate(1 / 60)),
    "lengths heavy-tailed": Path(length=lambda rng: 3 * rng.paretovariate(1.3)),
    "periodic: 8 of 30 s": Path(length=lambda _: 8, calm_seconds=22),
    "amounts drawn each second": Path(is_fresh=True),
    "amounts heavy-tailed": Path(amount=lambda rng: rng.paretovariate(1.2)),
    "calm RTT drifts to threefold": Path(drift=1.0),
    "no congestion": Path(burst_probability=0.0),
    "permanent congestion": Path(length=lambda _: ENDLESS, burst_probability=1.0),
    "permanent, amounts drawn each second": Path(
        length=lambda _: ENDLESS, burst_probability=1.0, is_fresh=True
    ),
    "rare and long": Path(length=lambda rng: rng.uniform(100, 200), burst_probability=0.005),
    "rare and short": Path(length=lambda rng: rng.uniform(2, 5), burst_probability=0.02),
    "bursts overlap": Path(overlaps=True),
    "bursts overlap, fewer": Path(overlaps=True, burst_probability=0.03),
}


class PathResult(NamedTuple):
    """Mean latency on one kind of path.

    Attributes:
        path: its name.
        probe_period: T_Q, whole seconds.
        means: policy to its mean latency on each trace, seconds.
    """

    path: str
    probe_period: int
    means: dict[str, list[float]]

    def ratio(self, over: str) -> Estimate:
        """Return the latency of `adaptive` over that of another policy, on the same traces."""
        own, other = self.means[ADAPTIVE], self.means[over]
        return bootstrap(len(own), ratio(mean_of(own), mean_of(other)))

    def best_of_the_paper(self) -> str:
        """Return which of the paper's policies has the least latency."""
        return min(PAPERS, key=lambda name: mean(self.means[name]))

    def standing(self) -> Standing:
        """Say whether `adaptive` is within `MOST_RATIO` of historic."""
        return at_most(self.ratio(HISTORIC), MOST_RATIO)


def run_paths(
    rngs: Callable[[], Sequence[random.Random]],
    n_seconds: int,
    probe_periods: Sequence[int],
    answers: Answers = "period",
) -> list[PathResult]:
    """Run the paper's policies and `adaptive` on every kind of path.

    Args:
        rngs: returns new random generators for each kind of path, one for each trace.
        n_seconds: length of each trace.
        probe_periods: T_Q, whole seconds.
        answers: when a query's RTT is known.
    """
    found = []
    for name, path in OTHER_PATHS.items():
        traces = [path.generate(rng, n_seconds) for rng in rngs()]
        for probe_period in probe_periods:
            means = {}
            for label in (BASELINE, *PAPERS, ADAPTIVE):
                threshold_l = None if label == ADAPTIVE else Setting.threshold_l
                setting = Setting(threshold_l, probe_period, answers=answers)
                means[label] = [mean(simulate(POLICIES[label], trace, setting)) for trace in traces]
            found.append(PathResult(name, probe_period, means))
    return found
