from __future__ import annotations

from statistics import mean

import pytest

from penstock.models.papers.withholding.claims import above, below, most_of, numbers, verdicts
from penstock.models.papers.withholding.clairvoyant import least_latencies
from penstock.models.papers.withholding.simulation import WithholdingSetting, simulate
from penstock.models.papers.withholding.sweep import (
    BASELINE,
    CLAIRVOYANT,
    GIVEN_THRESHOLD_L,
    POLICIES,
    WRONG_RATE,
    Sweep,
    WithholdingResults,
    run,
)
from penstock.netem.figures.estimates import Standing, exact
from tests.models.papers.withholding.small_sweep import TRACES, small_results


def test_each_policy_is_run_on_each_trace() -> None:
    """A cell is what the simulation says of one policy, T_Q and threshold_l, trace by trace."""
    results = small_results()
    setting = WithholdingSetting(threshold_l=2.0, probe_period=5)
    expected = [mean(simulate(POLICIES["historic"], trace, setting)) for trace in TRACES]
    assert results.of("historic", 5, 2.0) == expected
    assert results.of(CLAIRVOYANT, 5, 2.0) == [mean(least_latencies(trace)) for trace in TRACES]


def test_all_policies_have_the_same_information() -> None:
    """How answers become known is a setting of the sweep, for each policy alike."""
    results = run(Sweep(TRACES[:1], (0.5,), (5,), "arrival"))
    for label in ("historic", "none"):
        setting = WithholdingSetting(threshold_l=0.5, probe_period=5, answers="arrival")
        expected = mean(simulate(POLICIES[label], TRACES[0], setting))
        assert results.of(label, 5, 0.5) == [expected]


def test_gain_is_paired() -> None:
    """What both policies owe to a trace cancels out: the interval is that of the differences."""
    results = WithholdingResults(Sweep([[0.2]] * 6))
    results.means["conservative", 1, 0.5] = [8.0, 18.0] * 3
    results.means["historic", 1, 0.5] = [7.0, 16.9] * 3
    results.means["none", 1, None] = [10.0, 20.0] * 3
    results.means[CLAIRVOYANT, 0, None] = [5.0, 15.0] * 3
    gain = results.gain("historic", "conservative", 1, 0.5)
    assert gain == pytest.approx((1.05, 1.0, 1.1, 6))
    # Of the baseline's 5 s to clairvoyant, 3.05 s are gained.
    assert results.closed("historic", 1, 0.5).value == pytest.approx(0.61)


def test_nothing_is_closed_where_there_is_no_distance() -> None:
    """A path without congestion leaves nothing to gain, and the share is no number."""
    results = WithholdingResults(Sweep([[0.2]]))
    for key in (("none", 1, None), ("historic", 1, 0.5), (CLAIRVOYANT, 0, None)):
        results.means[key] = [1.0]
    assert str(results.closed("historic", 1, 0.5)) == "-"


HOLDS, FAILS, NOT_SHOWN = Standing.MET, Standing.MISSED, Standing.NOT_SHOWN

AS_REPORTED = {
    (BASELINE, 1): (12.0, 12.0),
    ("conservative", 1): (20.0, 8.5),
    ("probabilistic", 1): (8.0, 8.4),
    (WRONG_RATE, 1): (11.0, 11.0),
    ("historic", 1): (8.5, 8.6),
    (BASELINE, 5): (12.0, 12.0),
    ("conservative", 5): (29.0, 13.0),
    ("probabilistic", 5): (11.0, 11.0),
    (WRONG_RATE, 5): (11.5, 11.5),
    ("historic", 5): (11.8, 11.0),
}
"""Policy and T_Q to its latency at the lower and the higher threshold_l, seconds."""


def results_with(**changed: tuple[float, float]) -> WithholdingResults:
    """Return results that bear out every claim, but for those of ``policy_T_Q``."""
    results = WithholdingResults(Sweep([[0.2]] * 6, thresholds=(0.2, 2.0), probe_periods=(1, 5)))
    results.means[CLAIRVOYANT, 0, None] = [6.0] * 6
    for (label, period), latencies in AS_REPORTED.items():
        given = changed.get(f"{label}_{period}", latencies)
        keys = results.sweep.thresholds if label in GIVEN_THRESHOLD_L else (None, None)
        for key, latency in zip(keys, given, strict=True):
            results.means[label, period, key] = [latency] * 6
    return results


def test_results_as_reported_bear_out_every_claim() -> None:
    """Eight claims of the paper."""
    found = verdicts(results_with())
    assert len(found) == 8
    assert [verdict.claim for verdict in found if verdict.standing != HOLDS] == []


@pytest.mark.parametrize(
    ("changed", "latencies", "claim"),
    [
        ("conservative_1", (11.0, 8.5), "Conservative beats the baseline only"),
        ("probabilistic_1", (21.0, 10.0), "Probabilistic with the right"),
        (f"{WRONG_RATE}_1", (11.0, 8.3), "Probabilistic with the wrong"),
        ("none_1", (9.0, 9.0), "Historic saves about 3.5 s"),
        ("historic_1", (8.0, 8.6), "Historic moves less than 0.5 s"),
        ("probabilistic_5", (11.0, 5.9), "Clairvoyant is the lowest"),
        ("conservative_5", (29.0, 11.0), "Conservative at T_Q = 5 s and threshold_l 2 s"),
        ("historic_5", (12.5, 11.0), "Historic stays better"),
    ],
)
def test_claim_falls_where_results_speak_against_it(
    changed: str, latencies: tuple[float, float], claim: str
) -> None:
    """Each verdict can be a no."""
    found = verdicts(results_with(**{changed: latencies}))
    assert claim in " / ".join(verdict.claim for verdict in found if verdict.standing == FAILS)


def test_claim_whose_interval_straddles_its_bound_is_not_shown() -> None:
    """A mean on the right side of a bound is not enough where the traces disagree."""
    results = results_with()
    results.means["historic", 5, 2.0] = [8.0, 14.0] * 3
    standings = {verdict.short: verdict.standing for verdict in verdicts(results)}
    claim = "Historic stays better than the baseline and than conservative at T_Q = 5 s"
    assert standings[claim] == NOT_SHOWN


def test_the_bound_itself_is_neither_above_nor_below() -> None:
    """A policy that gains nothing does not beat another."""
    assert above(exact(0.0, 6), 0.0) == below(exact(0.0, 6), 0.0) == FAILS


def test_claim_about_most_needs_more_than_half() -> None:
    """What is not shown counts for neither side."""
    assert most_of([HOLDS, HOLDS, FAILS]) == HOLDS
    assert most_of([HOLDS, NOT_SHOWN, FAILS]) == NOT_SHOWN
    assert most_of([HOLDS, FAILS]) == FAILS


def test_claims_about_several_thresholds_need_several() -> None:
    """One threshold_l shows neither what a large one does nor how far a curve moves."""
    results = results_with()
    claims = [verdict.claim for verdict in verdicts(results)]
    results = WithholdingResults(Sweep([[0.2]] * 6, (0.2,), probe_periods=(1, 5)), results.means)
    left_out = set(claims) - {verdict.claim for verdict in verdicts(results)}
    assert {claim.partition(" (")[0] for claim in left_out} == {
        "Conservative beats the baseline only where threshold_l is large",
        "Historic moves less than 0.5 s over threshold_l",
        "Conservative at T_Q = 5 s and threshold_l 2 s is no better than the baseline",
    }


def test_targets_are_those_of_one_reading() -> None:
    """Where RTTs are known on arrival, a policy that knows the law closes another part."""
    results = results_with()
    sweep = Sweep([[0.2]] * 6, (0.2, 2.0), probe_periods=(1, 5), answers="arrival")
    assert not any(
        "closes" in each.claim for each in verdicts(WithholdingResults(sweep, results.means))
    )


def test_claims_of_a_t_q_that_was_not_run_are_left_out() -> None:
    """What was not simulated is not judged."""
    results = results_with()
    del results.means["none", 1, None]
    results = WithholdingResults(Sweep([[0.2]] * 6, (0.2, 2.0), probe_periods=(5,)), results.means)
    claims = [verdict.claim for verdict in verdicts(results)]
    assert not any("Historic saves" in claim or "T_Q = 1 s" in claim for claim in claims)


def test_numbers_of_the_text_stand_for_each_threshold() -> None:
    """What historic saves, where figure 8's T_Q was run (paper 002)."""
    found = list(numbers(small_results()))
    assert [each.value for each in found] == [3.5, 3.5]
    assert [each.what[-5:] for each in found] == ["0.2 s", "l 2 s"]
    assert list(numbers(small_results(probe_periods=(5,)))) == []
