from __future__ import annotations

import pytest

from penstock.models.papers.fabric.store import StoreCosts


def test_the_costs_give_the_rates_that_they_are_of() -> None:
    """A round of 90 µs, shared by those under way, and 10 µs a message."""
    costs = StoreCosts.of_rates(10_000, 9, 50_000)
    assert costs.round_seconds == pytest.approx(90e-6)
    assert costs.message_seconds == pytest.approx(10e-6)
    assert costs.rate(1) == pytest.approx(10_000)
    assert costs.rate(9) == pytest.approx(50_000)
    assert costs.rate(3) == pytest.approx(25_000)
    assert costs.rate(10**9) == pytest.approx(100_000)
