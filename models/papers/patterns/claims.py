"""The numbers and statements of paper 003 on figures 7 to 11, beside the simulation's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Final

from penstock.models.kernels.delivery_simulation import DeliveryOutcome
from penstock.models.papers.paper_figures import Claim, Relation, ReportedNumber
from penstock.models.papers.patterns.sweep import (
    ARRIVAL_RATES,
    LIFETIMES,
    LIMITS,
    PUBLISHER_ON,
    SUBSCRIBER_ON,
    PatternPoint,
    PatternResults,
    response,
    success,
)
from penstock.netem.figures.estimates import Estimate, all_of, at_least, at_most

CONTRADICTION: Final = (
    "0.32 contradicts the paper's own 60 % within 1 s: a quarter of all messages come while both"
    " peers are on and are there at once, which is 78 % of 0.32; with 0.42, both figures hold"
)
SERVED: Final = (
    "expired messages are served; where they leave at once (reneging) congestion costs much less"
)
CAP: Final = "with a lifetime of 60 s, the cap is the subscriber's share of time on"
LEAST_GAIN: Final = -0.005
"""A point counts as equally good if its success rate is less by at most this: some lifetimes
hardly differ."""
MOST_DIFFERENCE: Final = 0.1
"""The most that the success rates of reliable and unreliable subscribers differ by at a lifetime of
10 s in the paper."""


def numbers(results: PatternResults) -> Iterator[ReportedNumber]:
    """Yield each number of the paper's text."""
    yield from _reliable(results)
    yield from _unreliable(results)
    yield from _traffic(results)


def _success(
    results: PatternResults,
    cell: PatternPoint,
    value: float,
    reading: str = "",
    relation: Relation = "about",
) -> ReportedNumber:
    kind = "reliable" if cell.is_reliable else "unreliable"
    limit = f"lifetime {cell.lifetime:g} s" if cell.capacity is None else f"K {cell.capacity}"
    light = None if cell.arrival_rate > ARRIVAL_RATES[0] else cell.path().light_load()
    closed = math.nan if light is None else light.within(cell.lifetime)
    return ReportedNumber(
        f"success, {kind} subscriber, lambda {cell.arrival_rate:g}, on"
        f" {cell.publisher_on:g}/{cell.subscriber_on:g} s, {limit}",
        value,
        results.found(cell, success),
        reading,
        relation,
        closed_form=closed,
    )


def _within(
    results: PatternResults, cell: PatternPoint, seconds: float, value: float
) -> ReportedNumber:
    def figure(outcome: DeliveryOutcome) -> float:
        return outcome.within(seconds)

    light = cell.path().light_load()
    closed = math.nan if light is None else light.within(seconds) / light.within(cell.lifetime)
    return ReportedNumber(
        f"- of these within {seconds:g} s", value, results.found(cell, figure), closed_form=closed
    )


def _reliable(results: PatternResults) -> Iterator[ReportedNumber]:
    equal = PatternPoint(True, 40.0, 15.0)
    yield _success(results, equal._replace(lifetime=10.0), 0.32, CONTRADICTION)
    yield _within(results, equal._replace(lifetime=10.0), 1.0, 0.60)
    yield _success(results, equal._replace(lifetime=30.0), 0.65)
    yield _within(results, equal._replace(lifetime=30.0), 10.0, 0.58)
    yield _success(results, PatternPoint(True, 50.0, 20.0, 30.0), 0.73, relation="at least")


def _unreliable(results: PatternResults) -> Iterator[ReportedNumber]:
    equal = PatternPoint(False, 40.0, 15.0)
    yield _success(results, equal._replace(lifetime=10.0), 0.30)
    yield _within(results, equal._replace(lifetime=10.0), 1.0, 0.80)
    yield _success(results, equal._replace(lifetime=30.0), 0.38)
    yield _within(results, equal._replace(lifetime=30.0), 10.0, 0.78)
    yield _success(results, PatternPoint(False, 50.0, 20.0, 30.0), 0.55, relation="at least")
    for subscriber_on, cap in ((20.0, 0.64), (15.0, 0.50), (10.0, 0.33)):
        yield _success(results, PatternPoint(False, 70.0, subscriber_on, 60.0), cap, CAP)


def _traffic(results: PatternResults) -> Iterator[ReportedNumber]:
    first, last = ARRIVAL_RATES[0], ARRIVAL_RATES[-1]
    short, long, small, large, short_served, long_served = LIMITS

    def ninety(outcome: DeliveryOutcome) -> float:
        return outcome.quantile(0.9)

    for limit, share, seconds in ((long, 0.58, 16.0), (short, 0.48, 3.0)):
        cell = limit.cell(first)
        yield _success(results, cell, share)
        what = "- response time of these at 0.9"
        yield ReportedNumber(what, seconds, results.found(cell, ninety), unit=" s")
    for limit, share, seconds in (
        (short, 0.37, 2.1),
        (short_served, 0.37, 2.1),
        (long, 0.47, 9.49),
        (long_served, 0.47, 9.49),
        (small, 0.42, 0.43),
        (large, 0.44, 1.8),
    ):
        cell = limit.cell(last)
        reading = SERVED if limit.serves_expired else "reneging" if limit.capacity is None else ""
        yield _success(results, cell, share, reading)
        what = "- mean response time of these"
        yield ReportedNumber(what, seconds, results.found(cell, response), unit=" s")


def claims(results: PatternResults) -> Iterator[Claim]:
    """Yield what paper 003 says of its figures, whether it holds here, and what was found."""
    pairs = {
        "T_ON of the publisher": [
            ((more, on, each), (less, on, each))
            for on, each in product(SUBSCRIBER_ON, LIFETIMES)
            for less, more in pairwise(PUBLISHER_ON)
        ],
        "T_ON of the subscriber": [
            ((on, more, each), (on, less, each))
            for on, each in product(PUBLISHER_ON, LIFETIMES)
            for less, more in pairwise(SUBSCRIBER_ON)
        ],
        "lifetime": [
            ((on, each, more), (on, each, less))
            for on, each in product(PUBLISHER_ON, SUBSCRIBER_ON)
            for less, more in pairwise(LIFETIMES)
        ],
    }
    for figure, is_reliable in (("7", True), ("9", False)):
        for name, points in pairs.items():
            gains = [
                results.gain(
                    PatternPoint(is_reliable, *more), PatternPoint(is_reliable, *less), success
                )
                for more, less in points
            ]
            yield _all(f"figure {figure}: a longer {name} gives more success", gains)
    yield _close_at_ten_seconds(results)
    quicker = [
        results.gain(
            PatternPoint(True, on, each, 10.0), PatternPoint(False, on, each, 10.0), response
        )
        for on in (30.0, 40.0, 50.0)
        for each in SUBSCRIBER_ON
    ]
    yield _all("figures 8, 10: unreliable subscribers respond faster at lifetime 10 s", quicker)
    yield from _limits(results)


def _close_at_ten_seconds(results: PatternResults) -> Claim:
    apart = [
        results.gain(
            PatternPoint(True, on, each, 10.0), PatternPoint(False, on, each, 10.0), success
        )
        for on in PUBLISHER_ON
        for each in SUBSCRIBER_ON
    ]
    most = max(apart, key=lambda each: each.value)
    return (
        "figures 7, 9: at lifetime 10 s a reliable subscriber has at most 0.1 more success",
        all_of(at_most(each, MOST_DIFFERENCE) for each in apart),
        f"up to {most} more, as the broker keeps them for 10 s; agrees with 0.32, not with 0.65",
    )


def _limits(results: PatternResults) -> Iterator[Claim]:
    """Yield the statements on figure 11, for each reading of expiry."""
    short, long, small, large, short_served, long_served = LIMITS
    last = ARRIVAL_RATES[-1]
    gains = [
        results.gain(more.cell(rate), less.cell(rate), success)
        for less, more in ((short, long), (small, large))
        for rate in ARRIVAL_RATES
    ]
    yield _all("figure 11: more lifetime, and more K, give more success at any lambda", gains)
    for limits, says in (
        ((short, long), ""),
        ((short_served, long_served), ", expired are served"),
    ):
        slower = [
            results.gain(limit.cell(more), limit.cell(less), response)
            for limit in limits
            for less, more in pairwise(ARRIVAL_RATES)
        ]
        claim = f"figure 11: with a lifetime, a higher lambda takes longer{says}"
        yield _all(claim, slower, 0.0)
    faster = [
        results.gain(limit.cell(less), limit.cell(more), response)
        for limit in (small, large)
        for less, more in pairwise(ARRIVAL_RATES)
    ]
    yield _all("figure 11: with K, a higher lambda is faster", faster, 0.0)
    for limit in (short, short_served):
        more = results.gain(small.cell(last), limit.cell(last), success)
        quicker = results.gain(limit.cell(last), small.cell(last), response)
        yield (
            f"figure 11: at lambda {last:g}, K 10 gives more success, faster, than {limit.label}",
            all_of((at_least(more, 0.0), at_least(quicker, 0.0))),
            f"success {more} above, response {quicker} s below",
        )


def _all(claim: str, gains: Sequence[Estimate], least: float = LEAST_GAIN) -> Claim:
    lowest = min(gains, key=lambda gain: gain.low)
    said = f"the least of {len(gains)} differences is {lowest}"
    return claim, all_of(at_least(gain, least) for gain in gains), said
