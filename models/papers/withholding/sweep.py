"""The runs of paper 002's figures 8 and 9: all policies on the same traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

from penstock.models.papers.withholding.clairvoyant import least_latencies
from penstock.models.papers.withholding.rtt_trace import Arrival
from penstock.models.papers.withholding.simulation import Answers, WithholdingSetting, simulate
from penstock.netem.figures.estimates import (
    Estimate,
    Statistic,
    bootstrap,
    difference,
    mean_of,
    ratio,
)
from penstock.plugins.withholding.config import DEFAULT_CONGESTION_RATE, DEFAULT_MAX_WITHHOLD
from penstock.plugins.withholding.policies import make_policy
from penstock.plugins.withholding.policy import Policy

WRONG_CONGESTION_RATE = 1 / 60
"""The wrong λ of the paper's bad case, as if congestion lasted 60 s on average."""

BASELINE = "none"
CLAIRVOYANT = "clairvoyant"
WRONG_RATE = "probabilistic, wrong λ"
POLICIES: Final[dict[str, Policy]] = {
    BASELINE: make_policy("none", max_withhold=DEFAULT_MAX_WITHHOLD, congestion_rate=1.0),
    "conservative": make_policy(
        "conservative", max_withhold=DEFAULT_MAX_WITHHOLD, congestion_rate=1.0
    ),
    "probabilistic": make_policy(
        "probabilistic", max_withhold=DEFAULT_MAX_WITHHOLD, congestion_rate=DEFAULT_CONGESTION_RATE
    ),
    WRONG_RATE: make_policy(
        "probabilistic", max_withhold=DEFAULT_MAX_WITHHOLD, congestion_rate=WRONG_CONGESTION_RATE
    ),
    "historic": make_policy("historic", max_withhold=DEFAULT_MAX_WITHHOLD, congestion_rate=1.0),
}
"""The policies by label, with the paper's parameters where it has any. `adaptive` is not among
them: it decides by acknowledgements of large messages, which the paper's simulation does not
have."""

GIVEN_THRESHOLD_L: Final = ("conservative", "probabilistic", WRONG_RATE, "historic")
"""The policies that are run for every threshold_l; the baseline needs none."""


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep.

    Attributes:
        traces: RTT of the query in each second, seconds.
        thresholds: threshold_l, seconds.
        probe_periods: T_Q, whole seconds.
        answers: the time at which all policies know a query's RTT, as in `WithholdingSetting`.
        arrivals: the arrivals of each trace's large messages; None, or None for one of them, for
            those of paper 002.
    """

    traces: Sequence[Sequence[float]]
    thresholds: Sequence[float] = (0.2, 0.3, 0.5, 1.0, 2.0)
    probe_periods: Sequence[int] = (1, 2, 3, 5, 10)
    answers: Answers = "period"
    arrivals: Sequence[Sequence[Arrival] | None] | None = None

    def loads(self) -> Sequence[tuple[Sequence[float], Sequence[Arrival] | None]]:
        """Return each trace with the arrivals of its large messages."""
        return list(zip(self.traces, self.arrivals or [None] * len(self.traces), strict=True))

    def middle_threshold(self) -> float:
        """Return the threshold_l of figure 9, seconds; by default that of the field run."""
        return self.thresholds[len(self.thresholds) // 2]

    def cells(self) -> Iterator[tuple[str, int, float | None]]:
        """Yield (label, T_Q, threshold_l or None where it has no effect)."""
        for probe_period in self.probe_periods:
            for label in POLICIES:
                for threshold_l in self.thresholds if label in GIVEN_THRESHOLD_L else (None,):
                    yield label, probe_period, threshold_l


@dataclass(frozen=True)
class WithholdingResults:
    """The mean latency of each policy on each trace.

    Attributes:
        means: (label, T_Q, threshold_l or None) to one mean latency in seconds for each trace.
    """

    sweep: Sweep
    means: dict[tuple[str, int, float | None], list[float]] = field(default_factory=dict)

    def of(self, label: str, probe_period: int, threshold_l: float) -> list[float]:
        """Return the mean latency on each trace, seconds."""
        if label == CLAIRVOYANT:
            probe_period = 0
        is_given = label in GIVEN_THRESHOLD_L
        return self.means[label, probe_period, threshold_l if is_given else None]

    def latency(self, label: str, probe_period: int, threshold_l: float) -> Estimate:
        """Return the mean latency over all traces, seconds."""
        return self._estimate(self._mean(label, probe_period, threshold_l))

    def gain(self, label: str, over: str, probe_period: int, threshold_l: float) -> Estimate:
        """Return by how much less the mean latency is than another policy's, seconds."""
        own, other = (self._mean(name, probe_period, threshold_l) for name in (label, over))
        return self._estimate(difference(other, own))

    def closed(self, label: str, probe_period: int, threshold_l: float) -> Estimate:
        """Return the part of the gap from the baseline to clairvoyant that a policy closes."""
        own, baseline, least = (
            self._mean(name, probe_period, threshold_l) for name in (label, BASELINE, CLAIRVOYANT)
        )
        return self._estimate(ratio(difference(baseline, own), difference(baseline, least)))

    def _mean(self, label: str, probe_period: int, threshold_l: float) -> Statistic:
        return mean_of(self.of(label, probe_period, threshold_l))

    def _estimate(self, statistic: Statistic) -> Estimate:
        return bootstrap(len(self.sweep.traces), statistic)


def run(sweep: Sweep) -> WithholdingResults:
    """Run every policy on every trace."""
    results = WithholdingResults(sweep)
    results.means[CLAIRVOYANT, 0, None] = [mean(least_latencies(*load)) for load in sweep.loads()]
    for label, probe_period, threshold_l in sweep.cells():
        setting = WithholdingSetting(
            threshold_l=WithholdingSetting.threshold_l if threshold_l is None else threshold_l,
            probe_period=probe_period,
            answers=sweep.answers,
        )
        results.means[label, probe_period, threshold_l] = [
            mean(simulate(POLICIES[label], trace, setting, arrivals))
            for trace, arrivals in sweep.loads()
        ]
    return results
