"""The runs of paper 000's figures 9 to 12, and the paper's statements on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.models.kernels.dequeue_simulation import DequeueOutcome, DequeueSetting, simulate
from penstock.models.papers.paper_figures import Claim, ReportedNumber, paper_tables
from penstock.netem.figures.estimates import (
    Estimate,
    Units,
    all_of,
    at_least,
    at_most,
    bootstrap,
    mean_estimate,
    mean_of,
    ratio,
)
from penstock.netem.figures.figure_file import Table

CONVENTIONAL: Final = "conventional"
PMS: Final = "pms"
RDS: Final = "rds"
SLEEP_TIME: Final = 5.0
"""The sleep time of RDS that is the best in the paper's simulation, seconds."""
POLL_SECONDS: Final = 1.0
"""The period of PMS, which the paper does not give. With 0.1 s, polls and the misses that they lead
to cost more than they save."""
SLEEP_TIMES: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)

RUNS: Final[Mapping[str, tuple[str, float, int, int]]] = {
    CONVENTIONAL: (CONVENTIONAL, SLEEP_TIME, 10, 1),
    PMS: (PMS, POLL_SECONDS, 10, 1),
    "pms, one controller": (PMS, POLL_SECONDS, 1, 1),
    RDS: (RDS, SLEEP_TIME, 10, 1),
    "rds+wake": ("rds+wake", SLEEP_TIME, 10, 1),
    "rds+wake, at least 50": ("rds+wake", SLEEP_TIME, 10, 50),
}
"""The compared runs, by label: the strategy, the sleep time, the number of dequeue controllers,
and the messages that a request waits for. A group of the queue has one controller for all back
ends."""

FIGURES: Final[Mapping[str, tuple[str, str]]] = {
    "messages_per_second": ("figure 9: messages/s", ",.0f"),
    "hit_ratio": ("figure 10: hit dequeues of all", ".2f"),
    "messages_per_hit": ("figure 11: messages a hit dequeue", ".1f"),
}
"""The title of each figure, and the format of its numbers, by attribute of an outcome."""

TARGET_RATIO: Final = 1.8
"""How much more RDS receives than conventional at the highest lambda, on the paper's servers
(figure 14)."""
FLAT_RATIO: Final = 0.9
"""RDS counts as flat if it receives at least this share at the highest lambda of what it receives
at the lowest."""
EQUAL_RATIO: Final = 0.99
"""Two strategies count as equal from this ratio on, where both store all that devices send."""
BUSY_RATE: Final = 100
"""The least lambda at which PMS is better than conventional in the paper."""


@dataclass(frozen=True, slots=True)
class DequeueResults:
    """The outcomes of the runs; those of equal places had equal seeds.

    Attributes:
        by_rate: the outcomes by label of `RUNS` and lambda.
        by_sleep_time: the outcomes of RDS at the highest lambda, by sleep time.
    """

    rates: Sequence[int]
    by_rate: Mapping[str, Mapping[int, Sequence[DequeueOutcome]]]
    by_sleep_time: Mapping[float, Sequence[DequeueOutcome]]

    def found(self, label: str, rate: int, name: str) -> Estimate:
        """Return an attribute of outcomes, with its interval."""
        return mean_estimate(_values(self.by_rate[label][rate], name))

    def over(
        self, label: str, rate: int, other: str, other_rate: int, name: str = "messages_per_second"
    ) -> Estimate:
        """Return an attribute of outcomes over that of others, with its interval."""
        return _over(self.by_rate[label][rate], self.by_rate[other][other_rate], name)


def _values(outcomes: Sequence[DequeueOutcome], name: str) -> list[float]:
    return [getattr(one, name) for one in outcomes]


def _over(some: Sequence[DequeueOutcome], others: Sequence[DequeueOutcome], name: str) -> Estimate:
    ours, theirs = mean_of(_values(some, name)), mean_of(_values(others, name))
    return bootstrap(len(some), ratio(ours, theirs))


def run(
    rates: Sequence[int], seeds: Sequence[int], seconds: float, tell: Callable[[str], None]
) -> DequeueResults:
    """Simulate every strategy with every seed."""

    def outcomes(
        strategy: str, rate: int, sleep_time: float, controllers: int = 10, min_messages: int = 1
    ) -> list[DequeueOutcome]:
        setting = DequeueSetting(
            strategy,
            rate,
            sleep_time,
            controllers=controllers,
            min_messages=min_messages,
            seconds=seconds,
            warm_up=seconds / 2,
        )
        found = [simulate(setting, Random(seed)) for seed in seeds]  # noqa: S311 (a simulation)
        tell(f"{strategy}, lambda {rate}, {sleep_time:g} s, {controllers} controllers")
        return found

    by_rate = {
        label: {rate: outcomes(strategy, rate, sleep_time, n, least) for rate in rates}
        for label, (strategy, sleep_time, n, least) in RUNS.items()
    }
    by_sleep_time = {
        sleep_time: by_rate[RDS][rates[-1]]
        if sleep_time == SLEEP_TIME
        else outcomes(RDS, rates[-1], sleep_time)
        for sleep_time in SLEEP_TIMES
    }
    return DequeueResults(rates, by_rate, by_sleep_time)


def n_steps(rates: Sequence[int]) -> int:
    """Return how many times `run` tells of a step."""
    return len(RUNS) * len(rates) + len(SLEEP_TIMES) - 1


def tables(results: DequeueResults) -> dict[str, Table]:
    """Return the figures as tables, and the claims."""
    found = {
        title.partition(":")[0]: Table(
            [title, *(f"lambda {rate}" for rate in results.rates)],
            [
                [label, *(format(results.found(label, rate, name), form) for rate in results.rates)]
                for label in RUNS
            ],
        )
        for name, (title, form) in FIGURES.items()
    }
    name, (_, form) = next(iter(FIGURES.items()))
    received = [_values(outcomes, name) for outcomes in results.by_sleep_time.values()]
    found["figure 12"] = Table(
        ["figure 12: sleep time", *(f"{seconds:g} s" for seconds in results.by_sleep_time)],
        [[RDS, *(format(mean_estimate(each), form) for each in received)]],
    )
    return found | paper_tables(numbers(results), claims(results))


def numbers(results: DequeueResults) -> Iterator[ReportedNumber]:
    """Yield each number of the paper's text that a run without servers has."""
    top = results.rates[-1]
    yield ReportedNumber(
        f"RDS over conventional, messages/s at lambda {top}",
        TARGET_RATIO,
        results.over(RDS, top, CONVENTIONAL, top),
        "the paper's is of its servers, at a sleep time of 0.1 s (figure 14); of figure 9, its"
        " simulation, it gives no number",
    )
    received = {
        seconds: _values(outcomes, "messages_per_second")
        for seconds, outcomes in results.by_sleep_time.items()
    }

    def best(units: Units) -> float:
        return max(received, key=lambda seconds: sum(received[seconds][unit] for unit in units))

    yield ReportedNumber(
        "figure 12: sleep time of RDS with the most messages/s",
        SLEEP_TIME,
        bootstrap(len(results.by_sleep_time[SLEEP_TIME]), best),
        "each missed dequeue that a longer sleep saves is time for enqueues, until RDS receives all"
        " that devices send: 500/s in our reading. The paper does not say how fast they send",
        unit=" s",
    )


def claims(results: DequeueResults) -> Iterator[Claim]:
    """Yield what paper 000 says, whether it holds here, and what was found."""
    low, top = results.rates[0], results.rates[-1]
    busy = [rate for rate in results.rates if rate >= BUSY_RATE] or [top]

    fall = results.over(CONVENTIONAL, top, CONVENTIONAL, low)
    yield f"conventional: less at lambda {top} than at {low}", at_most(fall, 1.0), str(fall)

    more = [results.over(PMS, rate, CONVENTIONAL, rate) for rate in busy]
    yield (
        f"PMS receives more than conventional from lambda {busy[0]} on",
        all_of(at_least(one, 1.0) for one in more),
        _all(more),
    )
    calm = results.over(PMS, low, CONVENTIONAL, low)
    yield f"PMS receives no more than conventional at {low}", at_most(calm, 1.0), str(calm)
    hits = [results.over(PMS, rate, CONVENTIONAL, rate, "hit_ratio") for rate in busy]
    yield (
        f"PMS has a lower hit rate than conventional from {busy[0]} on",
        all_of(at_most(one, 1.0) for one in hits),
        _all(hits),
    )
    batch = [results.over(PMS, rate, CONVENTIONAL, rate, "messages_per_hit") for rate in busy]
    yield (
        f"PMS gets more messages a hit than conventional from {busy[0]} on",
        all_of(at_least(one, 1.0) for one in batch),
        _all(batch),
    )
    for other in (CONVENTIONAL, PMS):
        best = [results.over(RDS, rate, other, rate) for rate in results.rates]
        yield (
            f"RDS receives at least as much as {other} at every lambda",
            all_of(at_least(one, EQUAL_RATIO) for one in best),
            _all(best),
        )
    flat = results.over(RDS, top, RDS, low)
    yield (
        f"RDS is flat: at least {FLAT_RATIO:g} at {top} of what it is at {low}",
        at_least(flat, FLAT_RATIO),
        str(flat),
    )
    gain = results.over(RDS, top, CONVENTIONAL, top)
    yield (
        f"RDS is at least {TARGET_RATIO:g} of conventional at {top}",
        at_least(gain, TARGET_RATIO),
        str(gain),
    )
    by_sleep_time = results.by_sleep_time
    for which, others in (
        ("shorter", [one for one in by_sleep_time if one < SLEEP_TIME]),
        ("longer", [one for one in by_sleep_time if one > SLEEP_TIME]),
    ):
        best_time = by_sleep_time[SLEEP_TIME]
        found = [_over(by_sleep_time[one], best_time, "messages_per_second") for one in others]
        yield (
            f"RDS with a {which} sleep time than {SLEEP_TIME:g} s receives less",
            all_of(at_most(one, 1.0) for one in found),
            _all(found),
        )


def _all(found: Sequence[Estimate]) -> str:
    return "; ".join(map(str, found))
