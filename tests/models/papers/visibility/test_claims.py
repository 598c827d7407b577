from __future__ import annotations

from dataclasses import replace

from penstock.models.kernels.lease_setting import Setting
from penstock.models.papers.visibility.claims import claims, numbers
from penstock.models.papers.visibility.sweep import Results
from penstock.netem.figures.estimates import Standing
from tests.models.papers.visibility.small_results import small_results


def test_the_numbers_of_the_paper_agree_with_themselves() -> None:
    """Order costs half as much again, and three messages wait for it."""
    rows = list(numbers(small_results()))
    assert [row.standing for row in rows[:3]] == [Standing.MET] * 3
    assert [row.standing for row in numbers(small_results(extra=0.02))] == [Standing.MISSED] * 4


def test_what_the_paper_says_is_judged() -> None:
    """Where outcomes are those of the analytic network, all of it agrees with them."""
    found = {claim: standing for claim, standing, _ in claims(small_results())}
    assert found["figure 11: analytic and out of order agree on delivery"] is Standing.MET
    assert found["figure 12: analytic and out of order agree on waiting"] is Standing.MET
    assert found["figure 11: both curves are nearly equidistant, q 0.99"] is Standing.MET
    plateau = "figure 14: utilisation stays around 47% over some service times"
    assert found[plateau] is Standing.MISSED
    assert len(found) == 22


def test_leases_that_decide_otherwise_are_told() -> None:
    """The claim that stands on the product's own object."""
    results = small_results()
    other = {
        setting: [replace(one, figures=replace(one.figures, delivery=9.0)) for one in outcomes]
        for setting, outcomes in results.leased.items()
    }
    claim = "in order, the queue's own leases give what the simulation's queue gives"

    def standing(of: Results) -> Standing:
        return {each: found for each, found, _ in claims(of)}[claim]

    assert standing(results) is Standing.MET
    assert standing(replace(results, leased=other)) is Standing.MISSED
    assert Setting() not in other
