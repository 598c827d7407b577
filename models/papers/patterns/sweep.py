"""The runs of paper 003's figures 7 to 11, and single queues beside their closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.models.kernels.closed_forms import OnOff
from penstock.models.kernels.delivery_path import PUBLISHER, SUBSCRIBER, Path, Stage, compose
from penstock.models.kernels.delivery_simulation import DeliveryOutcome, DeliveryRuns
from penstock.models.papers.paired_runs import PairedRuns
from penstock.netem.figures.estimates import Estimate, agrees, mean_estimate
from penstock.netem.figures.figure_file import Table

PUBLISHER_CYCLE: Final = 80.0
"""T_ON + T_OFF of the publisher, seconds."""
SUBSCRIBER_CYCLE: Final = 30.0
PUBLISHER_ON: Final = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)
"""T_ON of the publisher, seconds."""
SUBSCRIBER_ON: Final = (10.0, 15.0, 20.0)
LIFETIMES: Final = (10.0, 30.0, 60.0)
ARRIVAL_RATES: Final = (2.0, 5.0, 10.0, 15.0, 20.0)
"""Lambda of figure 11, messages a second; the text has the first and the last."""
CLOSED_FORM_TOLERANCE: Final = 0.02


class PatternPoint(NamedTuple):
    """A point of a figure.

    Attributes:
        is_reliable: whether the subscriber is; the publisher always is.
        publisher_on: T_ON of the publisher, seconds.
        subscriber_on: T_ON of the subscriber, seconds.
        lifetime: the lifetime of a message, seconds.
        arrival_rate: lambda, messages a second.
        capacity: K of each stage; None for no limit.
        serves_expired: whether expired messages are served, as in `Path`.
    """

    is_reliable: bool
    publisher_on: float
    subscriber_on: float
    lifetime: float = math.inf
    arrival_rate: float = 2.0
    capacity: int | None = None
    serves_expired: bool = False

    def path(self) -> Path:
        """Return the path of the point."""
        return compose(
            publisher_is_reliable=True,
            subscriber_is_reliable=self.is_reliable,
            arrival_rate=self.arrival_rate,
            lifetime=self.lifetime,
            capacity=self.capacity,
            serves_expired=self.serves_expired,
            peers={
                PUBLISHER: OnOff(self.publisher_on, PUBLISHER_CYCLE - self.publisher_on),
                SUBSCRIBER: OnOff(self.subscriber_on, SUBSCRIBER_CYCLE - self.subscriber_on),
            },
        )


class Limit(NamedTuple):
    """A limit of messages in figure 11.

    Attributes:
        lifetime: the lifetime of a message, seconds.
        capacity: K of each stage; None for no limit.
        serves_expired: whether expired messages are served, as in `Path`.
    """

    label: str
    lifetime: float
    capacity: int | None = None
    serves_expired: bool = False

    def cell(self, arrival_rate: float) -> PatternPoint:
        """Return the point of figure 11 at a lambda."""
        return PatternPoint(
            False, 50.0, 20.0, self.lifetime, arrival_rate, self.capacity, self.serves_expired
        )


LIMITS: Final = (
    Limit("lifetime 10 s", 10.0),
    Limit("lifetime 30 s", 30.0),
    Limit("K 10", math.inf, 10),
    Limit("K 50", math.inf, 50),
    Limit("lifetime 10 s, expired are served", 10.0, None, True),
    Limit("lifetime 30 s, expired are served", 30.0, None, True),
)
"""The limits of figure 11. The last two are the other reading of expiry."""


@dataclass(frozen=True, slots=True)
class ClosedFormCheck:
    """A closed form beside the simulation of the same queue."""

    what: str
    closed_form: float
    found: Estimate


@dataclass(frozen=True)
class PatternResults(PairedRuns[PatternPoint, DeliveryOutcome]):
    """The outcomes of each point, and single queues beside their closed forms."""

    checks: Sequence[ClosedFormCheck]


def success(outcome: DeliveryOutcome) -> float:
    """Return the success rate."""
    return outcome.success_ratio


def response(outcome: DeliveryOutcome) -> float:
    """Return the mean response time of successes, seconds."""
    return outcome.response


def cells() -> Iterator[PatternPoint]:
    """Yield the points of figures 7 to 10, then those of figure 11."""
    for is_reliable in (True, False):
        for subscriber_on in SUBSCRIBER_ON:
            for lifetime in LIFETIMES:
                for publisher_on in PUBLISHER_ON:
                    yield PatternPoint(is_reliable, publisher_on, subscriber_on, lifetime)
    for limit in LIMITS:
        for arrival_rate in ARRIVAL_RATES:
            yield limit.cell(arrival_rate)


N_STEPS: Final = math.ceil(len(set(cells())) / len(PUBLISHER_ON)) + 1
"""The number of steps that `run` reports."""


def run(runs: DeliveryRuns, tell: Callable[[str], None]) -> PatternResults:
    """Simulate every point."""
    by_cell: dict[PatternPoint, list[DeliveryOutcome]] = {}
    todo = list(dict.fromkeys(cells()))
    for number, cell in enumerate(todo, 1):
        by_cell[cell] = runs.run(cell.path())
        if number % len(PUBLISHER_ON) == 0 or number == len(todo):
            tell(f"{number} of {len(todo)} points")
    checks = list(_checks(runs))
    tell("closed forms")
    return PatternResults(by_cell, checks)


def _checks(runs: DeliveryRuns) -> Iterator[ClosedFormCheck]:
    """Simulate single queues that have closed forms."""
    publisher, subscriber = OnOff(50.0, 30.0), OnOff(15.0, 15.0)
    transmission = Stage("transmission", 32.0)
    busy = Stage("transmission", 32.0, (PUBLISHER,))
    paths = {
        "M/M/1, rho 0.9": Path(28.8, (transmission,), {}),
        "M/M/1/10, rho 0.625": Path(20.0, (Stage("transmission", 32.0, capacity=10),), {}),
        "M/M/1/10, rho 1.25": Path(40.0, (Stage("transmission", 32.0, capacity=10),), {}),
        "M/M/1, rho 0.9, lifetime 0.5 s": Path(28.8, (transmission,), {}, 0.5),
        "M/M/1, rho 0.9, lifetime 0.5 s, expired are served": Path(
            28.8, (transmission,), {}, 0.5, serves_expired=True
        ),
        "ON/OFF 50/30 s, rho 0.1": Path(2.0, (busy,), {PUBLISHER: publisher}),
        "ON/OFF 15/15 s, rho 0.5": Path(8.0, (busy,), {PUBLISHER: subscriber}),
        "ON/OFF 15/15 s, K 10, lambda 20": Path(
            20.0, (Stage("transmission", 32.0, (PUBLISHER,), capacity=10),), {PUBLISHER: subscriber}
        ),
    }
    for name, path in paths.items():
        outcomes = runs.run(path)
        closed = path.closed_form(0)
        assert closed is not None, name  # noqa: S101 - each of the paths above has one
        if closed.loss_ratio:
            losses = [1 - one.success_ratio for one in outcomes]
            yield ClosedFormCheck(f"{name}: share lost", closed.loss_ratio, mean_estimate(losses))
        if not math.isnan(closed.response):
            times = [one.response for one in outcomes]
            yield ClosedFormCheck(f"{name}: response, s", closed.response, mean_estimate(times))


def tables(results: PatternResults) -> dict[str, Table]:
    """Return the figures as tables, and the closed forms."""
    found: dict[str, Table] = {}
    for figure, is_reliable in (("7", True), ("9", False)):
        columns = [f"T_ON of the publisher {on:g} s" for on in PUBLISHER_ON]
        rows = []
        for subscriber_on in SUBSCRIBER_ON:
            for lifetime in LIFETIMES:
                points = [
                    PatternPoint(is_reliable, on, subscriber_on, lifetime) for on in PUBLISHER_ON
                ]
                rows.append([f"{subscriber_on:g} s, lifetime {lifetime:g} s"])
                rows[-1] += [format(results.found(each, success), ".2f") for each in points]
        title = f"figure {figure}: success, T_ON of the subscriber"
        found[f"figure {figure}"] = Table([title, *columns], rows)
    for part, title, figure_of in (("11a", "success", success), ("11b", "response, s", response)):
        rows = [
            [
                limit.label,
                *(
                    format(results.found(limit.cell(rate), figure_of), ".2f")
                    for rate in ARRIVAL_RATES
                ),
            ]
            for limit in LIMITS
        ]
        columns = [f"lambda {rate:g}" for rate in ARRIVAL_RATES]
        found[f"figure {part}"] = Table([f"figure {part}: {title}", *columns], rows)
    found["closed forms"] = Table(
        ["queue", "closed form", "simulated", "verdict"],
        [
            [
                check.what,
                f"{check.closed_form:.3g}",
                format(check.found, ".3g"),
                str(agrees(check.found, check.closed_form, CLOSED_FORM_TOLERANCE)),
            ]
            for check in results.checks
        ],
    )
    return found
