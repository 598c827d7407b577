"""The numbers and statements of paper 004 on figures 11 to 15, beside the simulation's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.models.kernels.closed_forms import in_turn_response
from penstock.models.kernels.lease_setting import LeaseSetting, analytic
from penstock.models.kernels.lease_simulation import (
    Measure,
    broker_utilisation,
    delivery,
    figure_of,
    sender_utilisation,
    waiting,
)
from penstock.models.papers.paper_figures import Claim, ReportedNumber
from penstock.models.papers.visibility.sweep import (
    ARRIVAL_RATES,
    FIXED_THREADS,
    IN_ORDER,
    RELIABILITIES,
    SOME_THREADS,
    THREADS,
    VisibilityResults,
    busy,
    equal,
    slow,
    unequal,
)
from penstock.netem.figures.estimates import (
    TOLERANCE,
    Estimate,
    Standing,
    agrees,
    all_of,
    at_least,
    at_most,
    bootstrap,
    difference,
    mean_of,
    ratio,
)

THOUSANDTHS: Final = (
    'the paper has "around 3000 per second" and 4000. By Little\'s law, 3,000 waiting messages are'
    " 99 s of waiting; its clock counts milliseconds, so it is read as thousandths"
)
FLOOR: Final = 0.05
"""The least tolerance: two sources may differ by this many waiting messages where 10 % would be
less. With many threads, a hundredth of a message waits."""
FLAT_RATIO: Final = 0.15
"""Waiting counts as flat behind 7 threads if at most this share of its fall from 4 to 10 threads is
left there."""
LINEAR_RATIO: Final = 1.15
"""Delivery time counts as linear up to this ratio to two service times."""
LITTLE_WAITING: Final = 0.5
"""The service time counts as without effect up to this many waiting messages."""
SHARP_RATIO: Final = 3.0
"""A rise counts as sharp if waiting grows by this factor within 40 ms of service time."""
PLATEAU: Final = 0.47


def numbers(results: VisibilityResults) -> Iterator[ReportedNumber]:
    """Yield each number of the paper's text."""
    most = THREADS[-1]
    for reliability in RELIABILITIES:
        ordered, calm = (equal(order, most, reliability) for order in (IN_ORDER, "any"))
        settled = calm.deliveries / calm.arrival_rate / calm.broker_rate
        closed = in_turn_response(calm.arrival_rate, calm.sender_rate) + settled
        yield ReportedNumber(
            f"delivery time in order over out of order, n1 = n2 = {most}, q {reliability:g}",
            1.5,
            results.over(ordered, calm, delivery),
            "a message waits until all before it have arrived, not until they are settled",
            closed_form=closed / analytic(calm).delivery,
        )
    pairs = ((FIXED_THREADS, most, 3.0), (most, FIXED_THREADS, 4.0))
    for senders, brokers, value in pairs:
        yield ReportedNumber(
            f"waiting in order, n1 = {senders}, n2 = {brokers}, q 0.99",
            value,
            results.found(unequal(IN_ORDER, senders, brokers), waiting),
            THOUSANDTHS,
        )


def claims(results: VisibilityResults) -> Iterator[Claim]:
    """Yield what paper 004 says, whether it holds here, and what was found."""
    calm = [equal("any", each, q) for q in RELIABILITIES for each in THREADS]
    yield _agree(results, "figure 11: analytic and out of order agree on delivery", calm, delivery)
    pairs = [(FIXED_THREADS, each) for each in THREADS] + [
        (each, FIXED_THREADS) for each in THREADS
    ]
    unlike = [unequal("any", *pair, q) for q in RELIABILITIES for pair in pairs]
    yield _agree(
        results, "figure 12: analytic and out of order agree on waiting", unlike, waiting, FLOOR
    )
    yield from _order(results)
    yield from _threads(results)
    yield from _utilisation(results)
    yield from _service_times(results)
    yield from _arrival_rates(results)


def _agree(
    results: VisibilityResults,
    claim: str,
    points: Iterable[LeaseSetting],
    measure: Measure,
    floor: float = 0.0,
) -> Claim:
    found = [(results.found(each, measure), figure_of(analytic(each), measure)) for each in points]
    standings = [agrees(one, value, max(TOLERANCE, floor / value)) for one, value in found]
    n_met = standings.count(Standing.MET)
    apart = max(abs(one.value - value) for one, value in found)
    return claim, all_of(standings), f"{n_met} of {len(found)} points; at most {apart:.3f} apart"


def _order(results: VisibilityResults) -> Iterator[Claim]:
    gains = [
        results.over(equal(IN_ORDER, each, q), equal("any", each, q), delivery)
        for q in RELIABILITIES
        for each in THREADS
    ]
    least, most = (extreme(each.value for each in gains) for extreme in (min, max))
    said = f"{least:.2f} to {most:.2f} times"
    claim = "figure 11: in order takes longer than out of order at any number of threads"
    yield claim, all_of(at_least(each, 1.0) for each in gains), said
    for reliability in RELIABILITIES:
        apart = [
            results.gain(equal(IN_ORDER, n, reliability), equal("any", n, reliability), delivery)
            for n in THREADS
        ]
        middle = sum(each.value for each in apart) / len(apart)
        yield (
            f"figure 11: both curves are nearly equidistant, q {reliability:g}",
            all_of(agrees(each, middle, 0.25) for each in apart),
            (
                f"apart by {min(each.value for each in apart):.3f} to"
                f" {max(each.value for each in apart):.3f} s"
            ),
        )
    same = all(
        [one.figures for one in results.by_point[setting]] == [one.figures for one in outcomes]
        for setting, outcomes in results.leased.items()
    )
    yield (
        "in order, the queue's own leases give what the simulation's queue gives",
        Standing.MET if same else Standing.MISSED,
        f"equal in each of {len(results.leased)} points and each replication" if same else "unlike",
    )


def _threads(results: VisibilityResults) -> Iterator[Claim]:
    for name, swap in (("12a", False), ("12b", True)):
        points = [(FIXED_THREADS, each) for each in (THREADS[0], 7, THREADS[-1])]
        if swap:
            points = [(brokers, senders) for senders, brokers in points]
        few, middle, many = (
            mean_of(results.values(unequal("any", *each), waiting)) for each in points
        )
        n_runs = len(results.by_point[unequal("any", *points[0])])
        left = bootstrap(n_runs, ratio(difference(middle, many), difference(few, many)))
        yield (
            f"figure {name}: waiting falls sharply up to 7 threads, then hardly, q 0.99",
            at_most(left, FLAT_RATIO),
            f"{left} of the fall is left at 7",
        )
    most = THREADS[-1]
    for reliability in RELIABILITIES:
        fewer = results.gain(
            unequal(IN_ORDER, most, FIXED_THREADS, reliability),
            unequal(IN_ORDER, FIXED_THREADS, most, reliability),
            waiting,
        )
        yield (
            (
                "figure 12: in order, more threads of the broker help more than of the sender,"
                f" q {reliability:g}"
            ),
            at_least(fewer, 0.0),
            f"{fewer} more messages wait with {most} and {FIXED_THREADS} than the other way round",
        )


def _utilisation(results: VisibilityResults) -> Iterator[Claim]:
    apart = [
        results.gain(equal(order, n, q), equal("any", n, RELIABILITIES[0]), sender_utilisation)
        for order in ("any", IN_ORDER)
        for q in RELIABILITIES
        for n in THREADS
    ]
    yield (
        "figure 13: the sender's utilisation depends on neither order nor q",
        all_of(at_most(each, 1e-9) for each in apart),
        f"at most {max(abs(each.value) for each in apart):.3f} apart",
    )
    above = [
        _above(results, equal("any", n, 0.88), broker_utilisation, sender_utilisation)
        for n in THREADS
    ]
    yield (
        "figure 13: at q 0.88, the broker's utilisation is above the sender's",
        all_of(at_least(each, 0.0) for each in above),
        _span(above),
    )
    lower = [
        results.gain(equal("any", n, q), equal(IN_ORDER, n, q), broker_utilisation)
        for q in RELIABILITIES
        for n in THREADS
    ]
    yield (
        "figure 13: in order, the broker's utilisation is lower than out of order",
        all_of(at_least(each, 0.005) for each in lower),
        (
            f"lower by {_span(lower)}; each order has the same deliveries to do, so no stable queue"
            " can work less"
        ),
    )


def _above(
    results: VisibilityResults, setting: LeaseSetting, measure: Measure, other: Measure
) -> Estimate:
    return results.gain(setting, setting, measure, other)


def _span(found: Sequence[Estimate]) -> str:
    values = [each.value for each in found]
    return f"{min(values):.3f} to {max(values):.3f}"


def _service_times(results: VisibilityResults) -> Iterator[Claim]:
    for threads, seconds in zip(SOME_THREADS, (0.1, 0.14), strict=True):
        at, behind = (_point(slow(threads, each)) for each in (seconds, seconds + 0.04))
        till, then = (
            _scaled(results.found(each, delivery), 2 / each.sender_rate) for each in (at, behind)
        )
        yield (
            f"figure 14: with {threads} threads, delivery is linear up to {seconds:g} s of service",
            all_of((at_most(till, LINEAR_RATIO), at_least(then, LINEAR_RATIO))),
            f"{till} of two service times there, {then} at {seconds + 0.04:g} s",
        )
    for threads, seconds in zip(SOME_THREADS, (0.08, 0.12), strict=True):
        at, behind = (_point(slow(threads, each)) for each in (seconds, seconds + 0.04))
        few, more = results.found(at, waiting), results.over(behind, at, waiting)
        yield (
            f"figure 14: with {threads} threads, hardly any wait up to {seconds:g} s of service",
            all_of((at_most(few, LITTLE_WAITING), at_least(more, SHARP_RATIO))),
            f"{few} wait there, {more} times as many at {seconds + 0.04:g} s",
        )
    short, long = (_point(slow(SOME_THREADS[0], each)) for each in (0.04, 0.12))
    rise = results.over(long, short, sender_utilisation)
    yield (
        f"figure 14: utilisation stays around {PLATEAU:.0%} over some service times",
        Standing.MET if agrees(rise, 1.0) is Standing.MET else Standing.MISSED,
        (
            f"{rise} times as high at three times the service time: it is lambda times service time"
            " by the number of threads, a line without a plateau"
        ),
    )


def _arrival_rates(results: VisibilityResults) -> Iterator[Claim]:
    for threads in SOME_THREADS:
        points = [busy(threads, each) for each in ARRIVAL_RATES]
        stable = [each for each in points if each is not None]
        early, late = (
            results.gain(more, less, delivery)
            for less, more in ((stable[0], stable[1]), (stable[-2], stable[-1]))
        )
        yield (
            f"figure 15: with {threads} threads, delivery rises slowly, then steeply",
            all_of((at_most(early, 0.02), at_least(late, 0.05))),
            (
                f"{early:.3f} s from lambda {stable[0].arrival_rate:g} to"
                f" {stable[1].arrival_rate:g}, {late:.3f} s to"
                f" {stable[-1].arrival_rate:g}, the last before it overflows"
            ),
        )
        above = [_above(results, each, broker_utilisation, sender_utilisation) for each in stable]
        yield (
            f"figure 15: with {threads} threads, the broker's utilisation is above the sender's",
            all_of(at_least(each, 0.0) for each in above),
            _span(above),
        )


def _point(setting: LeaseSetting | None) -> LeaseSetting:
    assert setting is not None  # noqa: S101 - the text names no point at which a stage overflows
    return setting


def _scaled(found: Estimate, unit: float) -> Estimate:
    return Estimate(found.value / unit, found.low / unit, found.high / unit, found.n_units)
