"""The runs of paper 004's figures 11 to 15."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.models.kernels.closed_forms import UnstableError
from penstock.models.kernels.lease_messages import LeasedMessages, VisibleMessages
from penstock.models.kernels.lease_setting import LeaseSetting, Order, analytic
from penstock.models.kernels.lease_simulation import (
    LeaseOutcome,
    LeaseRuns,
    Measure,
    broker_utilisation,
    delivery,
    duplicates,
    sender_utilisation,
    waiting,
)
from penstock.models.papers.paired_runs import PairedRuns
from penstock.netem.figures.estimates import Estimate, mean_estimate
from penstock.netem.figures.figure_file import Table

THREADS: Final = (4, 5, 6, 7, 8, 9, 10)
RELIABILITIES: Final = (0.99, 0.88)
"""The values of q, the share of deliveries that succeed."""
FIXED_THREADS: Final = 6
"""The number of threads of the other stage in figure 12."""
SOME_THREADS: Final = (5, 7)
"""The values of n1 = n2 in figures 14 and 15 that the text names."""
SERVICE_TIMES: Final = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)
"""The service times of figure 14, seconds; there lambda is 30 and q is 0.99."""
ARRIVAL_RATES: Final = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
"""Lambda of figure 15; there q is 0.88."""
TIMEOUTS: Final = (None, 0.2, 0.5, 1.0, 5.0)
"""Visibility timeouts, seconds; the paper gives none."""
IN_ORDER: Final[Order] = "arrived"
ORDERS: Final[Mapping[Order, str]] = {"any": "out of order", IN_ORDER: "in order"}
"""The orders that are compared, and what the paper calls them."""

UNSTABLE: Final = "overflows"


@dataclass(frozen=True)
class VisibilityResults(PairedRuns[LeaseSetting, LeaseOutcome]):
    """The outcomes of each point.

    Attributes:
        leased: outcomes of the points of figure 11 in order, on the queue's own leases.
    """

    leased: Mapping[LeaseSetting, Sequence[LeaseOutcome]]


def equal(order: Order, threads: int, reliability: float) -> LeaseSetting:
    """Return a point of figures 11 and 13."""
    return LeaseSetting(order, threads, threads, reliability)


def unequal(order: Order, senders: int, brokers: int, reliability: float = 0.99) -> LeaseSetting:
    """Return a point of figure 12."""
    return LeaseSetting(order, senders, brokers, reliability)


def slow(threads: int, service_time: float) -> LeaseSetting | None:
    """Return a point of figure 14; None where a stage overflows."""
    rate = 1 / round(service_time, 6)  # 0.1 + 0.04 is the point 0.14
    try:
        return LeaseSetting("any", threads, threads, 0.99, 30.0, rate, rate)
    except UnstableError:
        return None


def busy(threads: int, arrival_rate: float) -> LeaseSetting | None:
    """Return a point of figure 15; None where a stage overflows."""
    try:
        return LeaseSetting("any", threads, threads, 0.88, arrival_rate)
    except UnstableError:
        return None


def timed(order: Order, timeout: float | None) -> LeaseSetting:
    """Return a point of the table of visibility timeouts."""
    return LeaseSetting(order, 7, 7, 0.88, visibility_timeout=timeout)


def settings() -> Iterator[LeaseSetting]:
    """Yield every point, some more than once."""
    for order in ORDERS:
        for reliability in RELIABILITIES:
            for threads in THREADS:
                yield equal(order, threads, reliability)
                yield unequal(order, FIXED_THREADS, threads, reliability)
                yield unequal(order, threads, FIXED_THREADS, reliability)
        for timeout in TIMEOUTS:
            yield timed(order, timeout)
    for threads in SOME_THREADS:
        found = [slow(threads, each) for each in SERVICE_TIMES]
        found += [busy(threads, each) for each in ARRIVAL_RATES]
        yield from (each for each in found if each is not None)


_POINTS_A_STEP: Final = 10
N_STEPS: Final = math.ceil(len(set(settings())) / _POINTS_A_STEP) + len(RELIABILITIES)
"""The number of steps that `run` reports."""


def run(runs: LeaseRuns, tell: Callable[[str], None]) -> VisibilityResults:
    """Simulate every point."""
    todo = list(dict.fromkeys(settings()))
    by_setting = {}
    for number, setting in enumerate(todo, 1):
        by_setting[setting] = runs.run(setting, VisibleMessages)
        if number % _POINTS_A_STEP == 0 or number == len(todo):
            tell(f"{number} of {len(todo)} points")
    leased = {}
    for reliability in RELIABILITIES:
        for threads in THREADS:
            setting = equal(IN_ORDER, threads, reliability)
            leased[setting] = runs.run(setting, LeasedMessages)
        tell(f"on the queue's leases, q {reliability:g}")
    return VisibilityResults(by_setting, leased)


def tables(results: VisibilityResults) -> dict[str, Table]:
    """Return the figures as tables."""
    return {
        "figure 11": _by_threads(results, "figure 11: delivery time, s", delivery, "delivery"),
        **{
            name: _waiting(results, title, swap=swap)
            for name, title, swap in (
                ("figure 12a", f"figure 12a: waiting, n1 = {FIXED_THREADS}", False),
                ("figure 12b", f"figure 12b: waiting, n2 = {FIXED_THREADS}", True),
            )
        },
        "figure 13": _utilisation(results),
        "figure 14": _sweep(results, "figure 14: service time", SERVICE_TIMES, slow, " s"),
        "figure 15": _sweep(results, "figure 15: lambda", ARRIVAL_RATES, busy, "/s"),
        "visibility timeout": _timeouts(results),
    }


def _by_threads(results: VisibilityResults, title: str, measure: Measure, name: str) -> Table:
    rows = []
    for reliability in RELIABILITIES:
        calm = [equal("any", threads, reliability) for threads in THREADS]
        ordered = [equal(IN_ORDER, threads, reliability) for threads in THREADS]
        q = f"q {reliability:g}"
        rows += [
            [f"{q}, analytic", *(_put(getattr(analytic(each), name)) for each in calm)],
            [f"{q}, out of order", *(_shown(results.found(each, measure)) for each in calm)],
            [f"{q}, in order", *(_shown(results.found(each, measure)) for each in ordered)],
            [
                f"{q}, in order, the queue's leases",
                *(
                    _shown(mean_estimate(list(map(measure, results.leased[each]))))
                    for each in ordered
                ),
            ],
        ]
    return Table([title, *(f"n1 = n2 = {threads}" for threads in THREADS)], rows)


def _waiting(results: VisibilityResults, title: str, *, swap: bool) -> Table:
    rows = []
    for reliability in RELIABILITIES:
        pairs = [(FIXED_THREADS, threads) for threads in THREADS]
        if swap:
            pairs = [(brokers, senders) for senders, brokers in pairs]
        calm = [unequal("any", *pair, reliability) for pair in pairs]
        ordered = [unequal(IN_ORDER, *pair, reliability) for pair in pairs]
        q = f"q {reliability:g}"
        rows += [
            [f"{q}, analytic", *(_put(analytic(each).waiting) for each in calm)],
            [f"{q}, out of order", *(_shown(results.found(each, waiting)) for each in calm)],
            [f"{q}, in order", *(_shown(results.found(each, waiting)) for each in ordered)],
        ]
    changed = "n1" if swap else "n2"
    return Table([title, *(f"{changed} = {threads}" for threads in THREADS)], rows)


def _utilisation(results: VisibilityResults) -> Table:
    rows = []
    for reliability in RELIABILITIES:
        for order, says in ORDERS.items():
            points = [equal(order, threads, reliability) for threads in THREADS]
            for who, measure in (("sender", sender_utilisation), ("broker", broker_utilisation)):
                found = [_shown(results.found(each, measure)) for each in points]
                rows.append([f"{who}, q {reliability:g}, {says}", *found])
    columns = [f"n1 = n2 = {threads}" for threads in THREADS]
    return Table(["figure 13: utilisation", *columns], rows)


def _sweep(
    results: VisibilityResults,
    title: str,
    values: Sequence[float],
    point: Callable[[int, float], LeaseSetting | None],
    unit: str,
) -> Table:
    names: tuple[tuple[str, str, Measure], ...] = (
        ("delivery", "delivery time, s", delivery),
        ("waiting", "waiting", waiting),
        ("sender_utilisation", "sender's utilisation", sender_utilisation),
        ("broker_utilisation", "broker's utilisation", broker_utilisation),
    )
    rows = []
    for threads in SOME_THREADS:
        points = [point(threads, value) for value in values]
        for name, says, measure in names:
            what = f"n {threads}, {says}"
            rows += [
                [
                    f"{what}, analytic",
                    *(
                        UNSTABLE if each is None else _put(getattr(analytic(each), name))
                        for each in points
                    ),
                ],
                [
                    what,
                    *(
                        UNSTABLE if each is None else _shown(results.found(each, measure))
                        for each in points
                    ),
                ],
            ]
    return Table([title, *(f"{value:g}{unit}" for value in values)], rows)


def _timeouts(results: VisibilityResults) -> Table:
    columns = [
        "visibility timeout",
        "delivery time, s",
        "in order, s",
        "twice delivered, of 100",
        "in order, of 100",
    ]
    rows = []
    for timeout in TIMEOUTS:
        calm, ordered = timed("any", timeout), timed(IN_ORDER, timeout)
        rows.append(
            [
                "at the end of a failed delivery" if timeout is None else f"{timeout:g} s",
                _shown(results.found(calm, delivery)),
                _shown(results.found(ordered, delivery)),
                _shown(results.found(calm, duplicates)),
                _shown(results.found(ordered, duplicates)),
            ]
        )
    return Table(columns, rows)


def _put(value: float) -> str:
    return f"{value:.3g}"


def _shown(found: Estimate) -> str:
    return format(found, ".3g")
