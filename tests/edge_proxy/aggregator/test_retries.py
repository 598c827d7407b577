"""When an uplink connects again."""

from __future__ import annotations

import random

from penstock.edge_proxy.aggregator.config import ReconnectKeys
from penstock.edge_proxy.aggregator.retries import Retries


class Longest(random.Random):
    """Shortens no wait."""

    def uniform(self, a: float, b: float) -> float:
        """Return the upper bound."""
        del a
        return b


def test_waits_double_up_to_the_longest_and_begin_anew() -> None:
    """After a success, the first one again."""
    retries = Retries(ReconnectKeys(1.0, 6.0, 30.0), Longest())
    assert [retries.wait_seconds(is_suspicious=False) for _ in range(5)] == [1, 2, 4, 6, 6]
    retries.succeeded()
    assert retries.wait_seconds(is_suspicious=False) == 1


def test_waits_stay_short_while_the_uplink_finds_out_what_is_refused() -> None:
    """Nothing passes meanwhile."""
    retries = Retries(ReconnectKeys(1.0, 60.0, 30.0), Longest())
    assert [retries.wait_seconds(is_suspicious=True) for _ in range(4)] == [1, 2, 2, 2]


def test_a_connection_that_has_stood_for_long_is_stable() -> None:
    """An attempt that was not accepted is not, however long it has taken."""
    retries = Retries(ReconnectKeys(1.0, 60.0, 30.0), Longest())
    assert retries.is_stable(30.0, was_accepted=True)
    assert not retries.is_stable(29.0, was_accepted=True)
    assert not retries.is_stable(30.0, was_accepted=False)


def test_short_connections_are_counted_until_one_is_not() -> None:
    """Attempts that fail are no connections."""
    retries = Retries(ReconnectKeys(), Longest())
    for _ in range(3):
        retries.ended(9.0, was_accepted=True)
    assert retries.n_short == 3
    retries.ended(9.0, was_accepted=False)
    assert retries.n_short == 0
