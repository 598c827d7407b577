from __future__ import annotations

import pytest

from penstock.models.papers.withholding.claims import above, below, most_of, numbers, verdicts
from penstock.models.papers.withholding.sweep import (
    BASELINE,
    CLAIRVOYANT,
    GIVEN_THRESHOLD_L,
    WRONG_RATE,
    Results,
    Sweep,
)
from penstock.netem.figures.estimates import Standing, exact
from tests.models.papers.withholding.small_sweep import small_results

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


def results_with(**changed: tuple[float, float]) -> Results:
    """Return results that bear out every claim, but for those of ``policy_T_Q``."""
    results = Results(Sweep([[0.2]] * 6, thresholds=(0.2, 2.0), probe_periods=(1, 5)))
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
    results = Results(Sweep([[0.2]] * 6, (0.2,), probe_periods=(1, 5)), results.means)
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
    assert not any("closes" in each.claim for each in verdicts(Results(sweep, results.means)))


def test_claims_of_a_t_q_that_was_not_run_are_left_out() -> None:
    """What was not simulated is not judged."""
    results = results_with()
    del results.means["none", 1, None]
    results = Results(Sweep([[0.2]] * 6, (0.2, 2.0), probe_periods=(5,)), results.means)
    claims = [verdict.claim for verdict in verdicts(results)]
    assert not any("Historic saves" in claim or "T_Q = 1 s" in claim for claim in claims)


def test_numbers_of_the_text_stand_for_each_threshold() -> None:
    """What historic saves, where figure 8's T_Q was run (paper 002)."""
    found = list(numbers(small_results()))
    assert [each.value for each in found] == [3.5, 3.5]
    assert [each.what[-5:] for each in found] == ["0.2 s", "l 2 s"]
    assert list(numbers(small_results(probe_periods=(5,)))) == []
