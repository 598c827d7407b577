from __future__ import annotations

import pytest

from penstock.models.withholding.claims import verdicts
from penstock.models.withholding.sweep import (
    ADAPTIVE,
    ADAPTIVE_EARLY,
    BASELINE,
    CLAIRVOYANT,
    GIVEN_THRESHOLD_L,
    WRONG_RATE,
    Results,
    Sweep,
)

AS_REPORTED = {
    (BASELINE, 1): (12.0, 12.0),
    ("conservative", 1): (20.0, 8.5),
    ("probabilistic", 1): (8.0, 8.4),
    (WRONG_RATE, 1): (11.0, 11.0),
    ("historic", 1): (8.5, 8.6),
    (ADAPTIVE, 1): (7.0, 7.0),
    (ADAPTIVE_EARLY, 1): (7.0, 7.0),
    (BASELINE, 5): (12.0, 12.0),
    ("conservative", 5): (29.0, 13.0),
    ("probabilistic", 5): (11.0, 11.0),
    (WRONG_RATE, 5): (11.5, 11.5),
    ("historic", 5): (11.8, 11.0),
    (ADAPTIVE, 5): (9.9, 9.9),
    (ADAPTIVE_EARLY, 5): (9.9, 9.9),
}
"""Policy and T_Q to its latency at the lower and the higher threshold_l, seconds."""


def results_with(**changed: tuple[float, float]) -> Results:
    """Return results that bear out every claim, but for those of ``policy_T_Q``."""
    results = Results(Sweep([[0.2]] * 2, thresholds=(0.2, 2.0), probe_periods=(1, 5)))
    results.means[CLAIRVOYANT, 0, None] = [6.0, 6.0]
    for (label, period), latencies in AS_REPORTED.items():
        given = changed.get(f"{label}_{period}", latencies)
        keys = results.sweep.thresholds if label in GIVEN_THRESHOLD_L else (None, None)
        for key, latency in zip(keys, given, strict=True):
            results.means[label, period, key] = [latency, latency]
    return results


def test_results_as_reported_bear_out_every_claim() -> None:
    """Six claims of the paper, and ours: two comparisons and two targets at each of two T_Q."""
    found = verdicts(results_with())
    assert len(found) == 6 + 2 + 2 * 2
    assert [verdict.claim for verdict in found if not verdict.holds] == []


@pytest.mark.parametrize(
    ("changed", "latencies", "claim"),
    [
        ("conservative_1", (11.0, 8.5), "Conservative beats the baseline only"),
        ("probabilistic_1", (21.0, 10.0), "Probabilistic with the right"),
        ("none_1", (9.0, 9.0), "Historic saves about 3.5 s"),
        ("conservative_5", (29.0, 11.0), "Conservative at T_Q = 5 s"),
        ("historic_5", (12.5, 11.0), "Historic stays better"),
        ("adaptive_5", (11.5, 11.5), "Adaptive, knowing no more, beats probabilistic"),
        ("adaptive_5", (11.2, 11.2), "Adaptive, knowing no more, beats historic"),
        (f"{ADAPTIVE_EARLY}_1", (7.9, 7.9), "Adaptive closes 40%"),
        (f"{ADAPTIVE_EARLY}_5", (10.8, 10.8), "Adaptive closes 25%"),
    ],
)
def test_claim_falls_where_results_speak_against_it(
    changed: str, latencies: tuple[float, float], claim: str
) -> None:
    """Each verdict can be a no."""
    found = verdicts(results_with(**{changed: latencies}))
    assert claim in " / ".join(verdict.claim for verdict in found if not verdict.holds)


def test_part_that_is_due_to_the_unanswered_query_is_told_apart() -> None:
    """With its age the target is met, without it is not: two verdicts."""
    found = verdicts(results_with(adaptive_5=(10.8, 10.8)))
    [(claim, told)] = [(verdict.claim, verdict.found) for verdict in found if not verdict.holds]
    assert claim.endswith("T_Q = 5 s, mean over threshold_l, seeing no more than the others")
    assert told == "10.6% (0.2 s: 17%, 2 s: 4%)"


def test_wrong_rate_has_to_lose_at_every_threshold() -> None:
    """The claim of figure 8 is about all of them."""
    found = verdicts(results_with(**{f"{WRONG_RATE}_1": (11.0, 8.3)}))
    assert [v.claim[:33] for v in found if not v.holds] == ["Probabilistic with the wrong λ lo"]


def test_gain_within_its_own_interval_is_doubted() -> None:
    """A mean above 0 whose interval reaches below it may be chance, and the report says so."""
    results = results_with()
    assert "chance" not in verdicts(results)[7].found
    results.means[ADAPTIVE, 5, None] = [9.0, 12.8]
    verdict = verdicts(results)[7]
    assert verdict.holds
    assert verdict.found.endswith("chance alone could be the cause")


def test_claims_of_a_t_q_that_was_not_run_are_left_out() -> None:
    """What was not simulated is not judged."""
    results = results_with()
    results = Results(Sweep([[0.2]] * 2, (0.2, 2.0), probe_periods=(5,)), results.means)
    assert not any("fig. 8" in verdict.claim for verdict in verdicts(results))
