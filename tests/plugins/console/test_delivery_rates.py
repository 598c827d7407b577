from __future__ import annotations

from penstock.broker.operations_contract import ClientRow
from penstock.plugins.console.delivery_rates import DeliveryRates


def rate(rates: DeliveryRates, now: float, delivered: int) -> float | None:
    """Look at one client; return its rate."""
    rates.begin(now)
    row = ClientRow(
        *("c", None, "", "", "5.0"),
        True,
        1.0,
        None,
        *(0, 0, 0, 0, 0),
        delivered=delivered,
        dropped=0,
    )
    return rates.with_rate(row, now).delivered_per_second


def test_a_rate_is_that_between_two_looks() -> None:
    """However many look in between: what is too close is measured from the look before."""
    rates = DeliveryRates()
    assert rate(rates, 100.0, 10) is None
    assert rate(rates, 102.0, 30) == 10.0
    assert rate(rates, 102.1, 31) == 10.0
    assert rate(rates, 103.0, 32) == 2.0


def test_a_rate_is_of_this_moment_and_never_below_0() -> None:
    """After a pause there is none; a session that began again has counted from 0."""
    rates = DeliveryRates()
    rate(rates, 100.0, 10)
    assert rate(rates, 200.0, 1_000) is None
    assert rate(rates, 201.0, 0) == 0.0
