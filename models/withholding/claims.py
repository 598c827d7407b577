"""The claims of paper 002 about figures 8 and 9, and ours about `adaptive`, checked on results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import NamedTuple

from penstock.models.withholding.sweep import (
    ADAPTIVE,
    ADAPTIVE_EARLY,
    BASELINE,
    CLAIRVOYANT,
    WRONG_RATE,
    Results,
)

FIGURE_8_PROBE_PERIOD = 1
"""Seconds."""

REPORTED_GAIN = 3.5
"""Seconds that historic saves over the baseline in the paper."""

GAIN_TOLERANCE = 1.0
"""Seconds by which a mean over other traces may differ from it, as the paper shows one run."""

TARGET_CLOSED = {1: 0.40, 3: 0.25, 5: 0.25}
"""T_Q to the part of the gap between historic and clairvoyant that `adaptive` should close."""

SEES = {
    ADAPTIVE_EARLY: "seeing the age of the unanswered query as in the broker",
    ADAPTIVE: "seeing no more than the others",
}
"""Label to what `adaptive` knows under it. The targets are for the first, whose inputs include the
age of the query; the second shows how much of the result is due to that."""


FIGURE_8 = "fig. 8"
FIGURE_9 = "fig. 9"


class Verdict(NamedTuple):
    """A claim and whether it holds.

    Attributes:
        claim: as a sentence.
        holds: whether the results support it.
        found: the results.
        short: the claim as text beside a plot.
        brief: the results, likewise.
        subject: what the claim is about: a figure of the paper, as in `FIGURE_8`, or a label of
            `adaptive`.
    """

    claim: str
    holds: bool
    found: str
    short: str
    brief: str
    subject: str


def verdicts(results: Results) -> list[Verdict]:
    """Check every claim whose T_Q was run."""
    found: list[Verdict] = []
    periods = results.sweep.probe_periods
    if FIGURE_8_PROBE_PERIOD in periods:
        found += [
            _conservative_needs_a_large_threshold(results),
            _right_rate_beats_conservative(results),
            _wrong_rate_loses(results),
            _historic_gains(results),
        ]
    if 5 in periods:
        found += [_conservative_at_five(results), _historic_at_five(results)]
    found += [_adaptive_beats(results, "historic"), _adaptive_beats(results, "probabilistic")]
    found += [
        _adaptive_closes(results, period, label)
        for period in TARGET_CLOSED
        if period in periods
        for label in SEES
    ]
    return found


def _per_threshold(results: Results, value: Callable[[float], float], form: str = "{:.2f}") -> str:
    return ", ".join(
        f"{threshold_l:g} s: {form.format(value(threshold_l))}"
        for threshold_l in results.sweep.thresholds
    )


def _gains(results: Results, label: str, over: str, probe_period: int) -> list[float]:
    return [
        results.gain(label, over, probe_period, threshold_l).mean
        for threshold_l in results.sweep.thresholds
    ]


def _gain_text(results: Results, gains: Sequence[float]) -> str:
    by_threshold = dict(zip(results.sweep.thresholds, gains, strict=True))
    return f"gain in s by threshold_l: {_per_threshold(results, by_threshold.__getitem__)}"


def _gains_verdict(
    results: Results, claim: str, figure: str, gains: Sequence[float], *, holds: bool
) -> Verdict:
    """Return a verdict on gains by threshold_l."""
    least, most = min(gains), max(gains)
    return Verdict(
        f"{claim} ({figure})",
        holds,
        _gain_text(results, gains),
        claim,
        f"gains {least:+.1f} to {most:+.1f} s",
        figure,
    )


def _conservative_needs_a_large_threshold(results: Results) -> Verdict:
    gains = _gains(results, "conservative", BASELINE, FIGURE_8_PROBE_PERIOD)
    claim = "Conservative beats the baseline only where threshold_l is large"
    return _gains_verdict(results, claim, FIGURE_8, gains, holds=gains[0] < 0 < gains[-1])


def _right_rate_beats_conservative(results: Results) -> Verdict:
    gains = _gains(results, "probabilistic", "conservative", FIGURE_8_PROBE_PERIOD)
    claim = "Probabilistic with the right λ beats conservative at most values of threshold_l"
    is_most = sum(gain > 0 for gain in gains) * 2 > len(gains)
    return _gains_verdict(results, claim, FIGURE_8, gains, holds=is_most)


def _wrong_rate_loses(results: Results) -> Verdict:
    gains = _gains(results, WRONG_RATE, "probabilistic", FIGURE_8_PROBE_PERIOD)
    claim = "Probabilistic with the wrong λ loses to itself with the right one"
    return _gains_verdict(results, claim, FIGURE_8, gains, holds=max(gains) < 0)


def _historic_gains(results: Results) -> Verdict:
    gains = _gains(results, "historic", BASELINE, FIGURE_8_PROBE_PERIOD)
    claim = f"Historic saves about {REPORTED_GAIN} s over the baseline at any threshold_l"
    is_close = all(abs(gain - REPORTED_GAIN) < GAIN_TOLERANCE for gain in gains)
    return _gains_verdict(results, claim, FIGURE_8, gains, holds=is_close)


def _conservative_at_five(results: Results) -> Verdict:
    gains = _gains(results, "conservative", BASELINE, 5)
    claim = "Conservative at T_Q = 5 s is no better than the baseline"
    return _gains_verdict(results, claim, FIGURE_9, gains, holds=max(gains) < 0.5)


def _historic_at_five(results: Results) -> Verdict:
    gains = _gains(results, "historic", BASELINE, 5)
    claim = "Historic stays better than the baseline and than conservative at T_Q = 5 s"
    is_better = min(gains) > 0 and min(_gains(results, "historic", "conservative", 5)) > 0
    return _gains_verdict(results, claim, FIGURE_9, gains, holds=is_better)


def _adaptive_beats(results: Results, other: str) -> Verdict:
    sweep = results.sweep
    least = min(
        (results.gain(ADAPTIVE, other, period, threshold_l), period, threshold_l)
        for period in sweep.probe_periods
        for threshold_l in sweep.thresholds
    )
    gain, period, threshold_l = least
    doubt = "; chance alone could be the cause" if gain.low <= 0 else ""
    return Verdict(
        f"Adaptive, knowing no more, beats {other} at every T_Q and threshold_l",
        gain.mean > 0,
        f"least gain {gain} s, at T_Q {period} s and threshold_l {threshold_l:g} s{doubt}",
        f"Beats {other} at every T_Q and threshold_l",
        f"least gain {gain.mean:+.2f} s" + (", maybe chance" if doubt else ""),
        ADAPTIVE,
    )


def _adaptive_closes(results: Results, probe_period: int, label: str) -> Verdict:
    thresholds = results.sweep.thresholds
    target = TARGET_CLOSED[probe_period]
    closed = {t: results.closed(label, probe_period, t) for t in thresholds}
    return Verdict(
        f"Adaptive closes {target:.0%} of historic's distance to {CLAIRVOYANT} at T_Q ="
        f" {probe_period} s, mean over threshold_l, {SEES[label]}",
        mean(closed.values()) >= target,
        f"{mean(closed.values()):.1%} ({_per_threshold(results, closed.__getitem__, '{:.0%}')})",
        f"Closes {target:.0%} of historic's distance to {CLAIRVOYANT} at T_Q = {probe_period} s",
        f"closes {mean(closed.values()):.0%}",
        label,
    )
