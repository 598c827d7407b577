"""The numbers and statements of paper 001, sections 3.3.2 and 3.4, beside the simulation's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from penstock.models.papers.fabric.rings import COUNTER_ROTATING
from penstock.models.papers.fabric.setting import FabricSetting
from penstock.models.papers.fabric.sweep import (
    COPY_NAMES,
    DETECTION_TIMES,
    FAILS_AT,
    FAULTS,
    SAME_DIRECTION,
    SECOND_FAILS_AT,
    SHORT_DETECTION,
    STOPPED,
    TWO_FAILURE_RATE,
    FabricResults,
    Measure,
    busiest,
    errors,
    faulty,
    kept,
    low_seconds,
    most_masters,
    not_stored,
    one_failure,
    throughput,
    two_failures,
    variance,
    with_pauses,
)
from penstock.models.papers.paper_figures import Claim, ReportedNumber
from penstock.netem.figures.estimates import Estimate, Standing, all_of, at_least, at_most, exact

STEADY: Final = 0.95
"""Throughput counts as stable if at least this share of the rate is stored."""
FLAT: Final = 0.98
"""Throughput counts as flat if a longer detection time leaves at least this share of that with 0.4
s."""
BEST: Final = 0.4
"""The slowdown detection time that the paper chooses, seconds."""
LOWERED: Final = 0.9
"""Throughput counts as lowered below this share of the rate."""


def numbers(results: FabricResults) -> Iterator[ReportedNumber]:
    """Yield each number of the paper's text."""
    hashing = one_failure("hashing", needs_all_copies=False)
    yield ReportedNumber(
        "error responses with consistent hashing",
        2379,
        results.found(hashing, errors),
        "a fifth of 1200 messages/s for the 10 s until the failure is detected, and what comes to"
        " the dead server's controller until the balancer knows (1 s)",
    )
    yield ReportedNumber(
        "seconds of lower throughput with consistent hashing",
        15,
        results.found(hashing, low_seconds(LOWERED, hashing.rate)),
        "with 15 s of detection there would be 3,600 errors: the errors and the 15 s do not go"
        " together, and the errors are the count",
        unit=" s",
    )
    for copies, reading in (
        (False, "two of three copies, as with Paxos: only the dead server's queues stop"),
        (True, "all three copies: six of ten physical queues stop until the failure is detected"),
    ):
        exclusion = one_failure("exclusion", needs_all_copies=copies)
        yield ReportedNumber(
            f"error responses with slowdown exclusion, {COPY_NAMES[copies]}",
            214,
            results.found(exclusion, errors),
            reading,
        )
        left = results.over(exclusion, hashing, errors)
        fewer = Estimate(1 - left.value, 1 - left.high, 1 - left.low, left.n_units)
        yield ReportedNumber(f"- of consistent hashing's, fewer, {COPY_NAMES[copies]}", 0.92, fewer)
    yield ReportedNumber(
        "throughput with 0.1 s of detection over that with 0.4 s",
        0.91,
        results.over(with_pauses(0.1), with_pauses(BEST), throughput),
        "pauses of 0.1 to 0.3 s a second; the paper does not give their length",
    )
    for copies in COPY_NAMES:
        same, counter = (
            two_failures(directions, "exclusion", needs_all_copies=copies)
            for directions in (SAME_DIRECTION, COUNTER_ROTATING)
        )
        yield ReportedNumber(
            f"stop after the second failure, same direction, {COPY_NAMES[copies]}",
            5,
            results.found(same, low_seconds(STOPPED, TWO_FAILURE_RATE)),
            "counted are seconds with less than a tenth of the rate; in the first of the 5 s until"
            " the failure is detected, a third is stored"
            if copies
            else "the copies that are left of three are enough: nothing stops",
            unit=" s",
        )
        yield ReportedNumber(
            f"kept after the second failure, counter-rotating, {COPY_NAMES[copies]}",
            0.8,
            results.found(counter, kept(SECOND_FAILS_AT, TWO_FAILURE_RATE)),
            "7 of 10 physical queues wait for E, and the others are sent more than they can serve"
            if copies
            else "",
        )


def claims(results: FabricResults) -> Iterator[Claim]:
    """Yield what the paper says, whether it holds here, and what was found."""
    yield from _one_failure(results)
    yield from _detection(results)
    yield from _two_failures(results)
    yield from _products(results)


def _one_failure(results: FabricResults) -> Iterator[Claim]:
    for copies, name in COPY_NAMES.items():
        setting = one_failure("exclusion", needs_all_copies=copies)
        found = [
            results.found(setting, kept(begins, setting.rate))
            for begins in (FAILS_AT, FAILS_AT + SHORT_DETECTION)
        ]
        yield (
            f"with exclusion, throughput is stable when a server fails, {name}",
            all_of(at_least(each, STEADY) for each in found),
            f"{_all(found)} of the rate in the first and in the next 5 s",
        )


def _detection(results: FabricResults) -> Iterator[Claim]:
    short = [time for time in DETECTION_TIMES if time <= BEST]
    long = [time for time in DETECTION_TIMES if time > BEST]

    def steps(measure: Measure) -> list[Estimate]:
        return [
            results.over(with_pauses(more), with_pauses(less), measure)
            for less, more in pairwise(short)
        ]

    grows, shrinks = steps(throughput), steps(variance)
    yield (
        "throughput grows with the slowdown detection time from 0.1 to 0.4 s",
        all_of(at_least(each, 1.0) for each in grows),
        f"{_all(grows)} times from each to the next",
    )
    flat = [results.over(with_pauses(time), with_pauses(BEST), throughput) for time in long]
    yield (
        "and is flat from 0.4 s on",
        all_of(at_least(each, FLAT) for each in flat),
        f"{_all(flat)} of that with 0.4 s",
    )
    yield (
        "its variance falls from 0.1 to 0.4 s",
        all_of(at_most(each, 1.0) for each in shrinks),
        f"{_all(shrinks)} times from each to the next",
    )


def _two_failures(results: FabricResults) -> Iterator[Claim]:
    for copies, name in COPY_NAMES.items():
        same, counter = (
            two_failures(directions, "exclusion", needs_all_copies=copies)
            for directions in (SAME_DIRECTION, COUNTER_ROTATING)
        )
        if not copies:
            masters = most_masters(same), most_masters(counter)
            yield (
                "one node has the physical queues of three, or two have those of two",
                Standing.MET if masters == (6, 4) else Standing.MISSED,
                f"{masters[0]} of ten on a node in the same direction, else {masters[1]}",
            )
        calm = results.found(same, kept(FAILS_AT, TWO_FAILURE_RATE))
        yield (
            f"same direction: throughput is stable when the first server fails, {name}",
            at_least(calm, STEADY),
            f"{calm} of the rate in 5 s",
        )
        more = results.over(counter, same, kept(SECOND_FAILS_AT, TWO_FAILURE_RATE))
        yield (
            f"counter-rotating rings keep more when the second server fails, {name}",
            at_least(more, 1.0),
            f"{more} times what the same direction keeps in 5 s",
        )
        less = results.over(counter, same, busiest)
        yield (
            f"and the node that is busiest after it is less so, {name}",
            at_most(less, 1.0),
            f"{less} of the busiest node's load in the same direction",
        )


def _products(results: FabricResults) -> Iterator[Claim]:
    """Yield what repeats elsewhere add to the paper's method."""
    every: list[FabricSetting] = [faulty(name, "repeat") for name in FAULTS]
    every += [
        two_failures(COUNTER_ROTATING, "repeat", needs_all_copies=copies) for copies in COPY_NAMES
    ]
    failed = sum(not_stored(outcome) for each in every for outcome in results.by_point[each])
    n_runs = sum(len(results.by_point[each]) for each in every)
    yield (
        "repeated elsewhere: every message of a live controller is stored, with one fault or two",
        at_most(exact(failed, n_runs), 0.0),
        f"{failed:,.0f} errors in {n_runs} runs",
    )
    stops = [results.found(each, low_seconds(STOPPED, each.rate)) for each in every]
    yield (
        "and no interval of 5 s is without throughput",
        all_of(at_most(each, 4.0) for each in stops),
        f"the longest stop is {max(each.value for each in stops):.1f} s on average",
    )


def _all(found: Sequence[Estimate]) -> str:
    return "; ".join(map(str, found))
