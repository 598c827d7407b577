"""The claims of paper 002 about figures 8 and 9, checked on results.

A claim holds where the 95 % confidence interval of the result is clear of its bound, does not hold
where the interval is clear of it on the other side, and is not shown in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.models.papers.paper_figures import Claim, ReportedNumber
from penstock.models.papers.withholding.sweep import (
    BASELINE,
    CLAIRVOYANT,
    WRONG_RATE,
    WithholdingResults,
)
from penstock.netem.figures.estimates import (
    Estimate,
    Standing,
    Units,
    all_of,
    at_least,
    at_most,
    bootstrap,
    exact,
    mean_of,
    opposite,
)

FIGURE_8_PROBE_PERIOD = 1
"""T_Q of figure 8, seconds."""

FIGURE_9_PROBE_PERIOD = 5
"""The T_Q of figure 9 that the paper speaks about, seconds."""

REPORTED_GAIN = 3.5
"""The latency that historic saves over the baseline in the paper, seconds."""

GAIN_TOLERANCE = 1.0
"""The most that a mean over other traces may differ from the paper's, which is of one run,
seconds."""

FLAT_SECONDS = 0.5
"""The least movement of historic over threshold_l that would show in the paper's figure 8,
seconds."""

FIGURE_8 = "fig. 8"
FIGURE_9 = "fig. 9"

WORDS: Final = {
    Standing.MET: "holds",
    Standing.MISSED: "does not hold",
    Standing.NOT_SHOWN: "not shown",
}
"""The words of a verdict by how the claim stands."""


class CheckedClaim(NamedTuple):
    """A claim and whether it holds.

    Attributes:
        standing: `MET` where the results support the claim.
        subject: the figure of the paper that the claim is about, as in `FIGURE_8`.
    """

    claim: str
    standing: Standing
    found: str
    short: str
    brief: str
    subject: str


def above(found: Estimate, bound: float) -> Standing:
    """Say whether a figure is above a bound."""
    return opposite(at_most(found, bound))


def below(found: Estimate, bound: float) -> Standing:
    """Say whether a figure is below a bound."""
    return opposite(at_least(found, bound))


def most_of(standings: Sequence[Standing]) -> Standing:
    """Say whether more than half of several claims hold."""
    if standings.count(Standing.MET) * 2 > len(standings):
        return Standing.MET
    if standings.count(Standing.MISSED) * 2 >= len(standings):
        return Standing.MISSED
    return Standing.NOT_SHOWN


def verdicts(results: WithholdingResults) -> list[CheckedClaim]:
    """Check every claim whose T_Q was run, and whose threshold_l where it compares several."""
    found: list[CheckedClaim] = []
    if FIGURE_8_PROBE_PERIOD in results.sweep.probe_periods:
        found += _figure_8(results)
    found.append(_clairvoyant_is_lowest(results))
    if FIGURE_9_PROBE_PERIOD in results.sweep.probe_periods:
        found += _figure_9(results)
    return found


def claims(results: WithholdingResults) -> Iterator[Claim]:
    """Yield what paper 002 says, whether it holds here, and what was found."""
    for each in verdicts(results):
        yield each.claim, each.standing, each.found


def numbers(results: WithholdingResults) -> Iterator[ReportedNumber]:
    """Yield each number of the paper's text, for each threshold_l where T_Q is figure 8's."""
    if FIGURE_8_PROBE_PERIOD not in results.sweep.probe_periods:
        return
    gains = _gains(results, "historic", BASELINE, FIGURE_8_PROBE_PERIOD)
    for threshold_l, gain in zip(results.sweep.thresholds, gains, strict=True):
        yield ReportedNumber(
            f"{FIGURE_8}: what historic saves over the baseline, threshold_l {threshold_l:g} s",
            REPORTED_GAIN,
            gain,
            "a burst adds one amount for its whole length; the paper has one run and one number for"
            " all threshold_l",
            unit=" s",
        )


def _per_threshold(results: WithholdingResults, value: Callable[[float], str]) -> str:
    return ", ".join(
        f"{threshold_l:g} s: {value(threshold_l)}" for threshold_l in results.sweep.thresholds
    )


def _gains(results: WithholdingResults, label: str, over: str, probe_period: int) -> list[Estimate]:
    return [
        results.gain(label, over, probe_period, threshold_l)
        for threshold_l in results.sweep.thresholds
    ]


def _gains_verdict(
    results: WithholdingResults,
    claim: str,
    figure: str,
    gains: Sequence[Estimate],
    standing: Standing,
) -> CheckedClaim:
    """Return a verdict on gains by threshold_l."""
    by_threshold = dict(zip(results.sweep.thresholds, gains, strict=True))
    least, most = (extreme(gain.value for gain in gains) for extreme in (min, max))
    return CheckedClaim(
        f"{claim} ({figure})",
        standing,
        f"gain in s by threshold_l: {_per_threshold(results, lambda t: str(by_threshold[t]))}",
        claim,
        f"gains {least:+.1f} to {most:+.1f} s",
        figure,
    )


def _figure_8(results: WithholdingResults) -> Iterator[CheckedClaim]:
    """Check what each policy gains, over threshold_l."""

    def check(
        claim: str, label: str, over: str, stand: Callable[[Sequence[Estimate]], Standing]
    ) -> CheckedClaim:
        gains = _gains(results, label, over, FIGURE_8_PROBE_PERIOD)
        return _gains_verdict(results, claim, FIGURE_8, gains, stand(gains))

    has_thresholds = len(results.sweep.thresholds) > 1
    if has_thresholds:
        yield check(
            "Conservative beats the baseline only where threshold_l is large",
            "conservative",
            BASELINE,
            lambda gains: all_of((below(gains[0], 0), above(gains[-1], 0))),
        )
    yield check(
        "Probabilistic with the right λ beats conservative at most values of threshold_l",
        "probabilistic",
        "conservative",
        lambda gains: most_of([above(gain, 0) for gain in gains]),
    )
    yield check(
        "Probabilistic with the wrong λ loses to itself with the right one",
        WRONG_RATE,
        "probabilistic",
        lambda gains: all_of(below(gain, 0) for gain in gains),
    )
    least, most = REPORTED_GAIN - GAIN_TOLERANCE, REPORTED_GAIN + GAIN_TOLERANCE
    yield check(
        f"Historic saves about {REPORTED_GAIN} s over the baseline at any threshold_l",
        "historic",
        BASELINE,
        lambda gains: all_of(
            each for gain in gains for each in (above(gain, least), below(gain, most))
        ),
    )
    if has_thresholds:
        yield _historic_is_flat(results)


def _historic_is_flat(results: WithholdingResults) -> CheckedClaim:
    """Check how far the mean moves over threshold_l, on the same traces."""
    by_threshold = [
        mean_of(results.of("historic", FIGURE_8_PROBE_PERIOD, threshold_l))
        for threshold_l in results.sweep.thresholds
    ]

    def spread(units: Units) -> float:
        means = [mean(units) for mean in by_threshold]
        return max(means) - min(means)

    moved = bootstrap(len(results.sweep.traces), spread)
    claim = f"Historic moves less than {FLAT_SECONDS} s over threshold_l"
    return CheckedClaim(
        f"{claim} ({FIGURE_8})",
        below(moved, FLAT_SECONDS),
        f"it moves by {moved} s",
        claim,
        f"by {moved.value:.2f} s",
        FIGURE_8,
    )


def _clairvoyant_is_lowest(results: WithholdingResults) -> CheckedClaim:
    """Check each trace on its own; chance has no part in this claim."""
    sweep = results.sweep
    distance, label = min(
        (own - least, label)
        for label, probe_period, threshold_l in sweep.cells()
        for own, least in zip(
            results.means[label, probe_period, threshold_l],
            results.means[CLAIRVOYANT, 0, None],
            strict=True,
        )
    )
    claim = "Clairvoyant is the lowest on each trace"
    return CheckedClaim(
        f"{claim} ({FIGURE_8})",
        at_least(exact(distance, len(sweep.traces)), 0),
        f"least distance {distance:.2f} s, of {label}",
        claim,
        f"least distance {distance:.1f} s",
        FIGURE_8,
    )


def _figure_9(results: WithholdingResults) -> Iterator[CheckedClaim]:
    """Check what is left of the gains where the policies ask every 5 s."""
    gains = _gains(results, "conservative", BASELINE, FIGURE_9_PROBE_PERIOD)
    # Figure 9 is drawn at one threshold_l. With the largest, few messages are withheld.
    middle = results.sweep.middle_threshold()
    claim = f"Conservative at T_Q = 5 s and threshold_l {middle:g} s is no better than the baseline"
    standing = at_most(gains[results.sweep.thresholds.index(middle)], 0)
    yield _gains_verdict(results, claim, FIGURE_9, gains, standing)
    gains = _gains(results, "historic", BASELINE, FIGURE_9_PROBE_PERIOD)
    over_conservative = _gains(results, "historic", "conservative", FIGURE_9_PROBE_PERIOD)
    claim = "Historic stays better than the baseline and than conservative at T_Q = 5 s"
    standing = all_of(above(gain, 0) for gain in (*gains, *over_conservative))
    yield _gains_verdict(results, claim, FIGURE_9, gains, standing)
