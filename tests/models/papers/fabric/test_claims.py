from __future__ import annotations

from penstock.models.papers.fabric.claims import claims, numbers
from penstock.netem.figures.estimates import Standing
from tests.models.papers.fabric.small_results import small_results

STORED = "repeated elsewhere: every message of a live controller is stored, with one fault or two"


def test_numbers_of_the_paper_stand_beside_ours() -> None:
    """Without errors, consistent hashing's are missed; exclusion has as many as it has here."""
    found = {row.what: row for row in numbers(small_results(n_failed=214))}
    assert found["error responses with consistent hashing"].standing is Standing.MISSED
    exclusion = found["error responses with slowdown exclusion, two of three copies"]
    assert (exclusion.found.value, exclusion.standing) == (214, Standing.MET)
    assert found["- of consistent hashing's, fewer, two of three copies"].found.value == 0


def test_what_the_paper_says_is_judged() -> None:
    """Where nothing happens, throughput is stable and nothing is lost."""
    results = small_results()
    found = {claim: standing for claim, standing, _ in claims(results)}
    assert found["and is flat from 0.4 s on"] is Standing.NOT_SHOWN  # two runs have no interval
    assert found[STORED] is Standing.MET
    assert found["one node has the physical queues of three, or two have those of two"] is (
        Standing.MET
    )
    assert len(found) == 14


def test_a_message_that_is_not_stored_is_told() -> None:
    """The claim that stands for the product: one error is too many."""
    found = {claim: standing for claim, standing, _ in claims(small_results(n_failed=1))}
    assert found[STORED] is Standing.MISSED
