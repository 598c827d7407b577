from __future__ import annotations

import pytest

from penstock.models.papers.patterns import claims as module
from penstock.models.papers.patterns.claims import claims, numbers
from penstock.netem.figures.estimates import Standing
from tests.models.papers.patterns.small_results import small_results


def test_the_numbers_of_the_paper_agree_with_themselves() -> None:
    """Each is read from the point, and as the figure, that the paper names."""
    rows = list(numbers(small_results()))
    assert [row.what for row in rows if row.standing is not Standing.MET] == []
    assert len(rows) == 29


def test_closed_forms_stand_beside_light_loads() -> None:
    """At lambda 2 alone; the first is 0.44, where the paper has 0.32."""
    rows = list(numbers(small_results()))
    assert rows[0].closed_form == pytest.approx(0.442, abs=0.001)
    assert [row.what for row in rows if "lambda 20" in row.what and row.closed_form > 0] == []


def test_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is met or missed on its own; a subscriber for whom the broker keeps messages gains."""
    monkeypatch.setattr(module, "PUBLISHER_ON", (30.0, 60.0))
    monkeypatch.setattr(module, "SUBSCRIBER_ON", (10.0, 15.0))
    found = {claim: standing for claim, standing, _ in claims(small_results(reliable_at_10=0.2))}
    close = "figures 7, 9: at lifetime 10 s a reliable subscriber has at most 0.1 more success"
    assert found[close] is Standing.MISSED
    assert found["figure 9: a longer lifetime gives more success"] is Standing.MET
    assert found["figure 11: with K, a higher lambda is faster"] is Standing.MET
    assert len(found) == 14
