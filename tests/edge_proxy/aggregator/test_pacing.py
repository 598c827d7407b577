from __future__ import annotations

import pytest

from penstock.edge_proxy.aggregator.pacing import (
    CALM_WINDOW_SECONDS,
    FIRST_RATIO,
    FRESH_SECONDS,
    LEAST_RATIO,
    LOOK_SECONDS,
    Pacing,
)

CALM = 0.1
DELAYED = 0.5
RATE = 1_000_000.0


def timed(pacing: Pacing, seconds: float, now: float) -> float:
    """Time a message of the small lane; return when it is acknowledged."""
    pacing.sent(now)
    pacing.acknowledged(now + seconds)
    return now + seconds


def delayed() -> tuple[Pacing, float]:
    """Return a pacing whose small lane was calm and is delayed, and the time."""
    pacing = Pacing()
    now = timed(pacing, CALM, 0.0)
    assert pacing.rate(RATE, now) is None
    return pacing, timed(pacing, DELAYED, now)


def test_the_large_lane_runs_at_full_rate_while_small_messages_are_in_time() -> None:
    """Jitter within the slack is no delay."""
    pacing = Pacing()
    now = 0.0
    for seconds in (CALM, 1.4 * CALM, CALM):
        now = timed(pacing, seconds, now)
        assert pacing.rate(RATE, now) is None


def test_delayed_small_messages_pace_the_large_lane_below_its_delivery_rate() -> None:
    """Step by step down to the least, and back to full rate with the first one in time."""
    pacing, now = delayed()
    assert pacing.rate(RATE, now) == FIRST_RATIO * RATE
    assert pacing.rate(0.5 * RATE, now + LOOK_SECONDS) == FIRST_RATIO * RATE
    rates = []
    for _ in range(10):
        now = timed(pacing, DELAYED, now)
        rates.append(pacing.rate(None, now))
    assert rates == sorted(rates, key=float, reverse=True)  # type: ignore[arg-type]
    assert rates[-1] == LEAST_RATIO * RATE
    now = timed(pacing, CALM, now)
    assert pacing.rate(None, now) is None


def test_an_acknowledgement_that_is_overdue_counts_at_once() -> None:
    """There may be none for long."""
    pacing = Pacing()
    now = timed(pacing, CALM, 0.0)
    pacing.rate(RATE, now)
    pacing.sent(now)
    assert pacing.rate(RATE, now + CALM) is None
    assert pacing.rate(RATE, now + DELAYED) is not None


def test_a_delay_counts_for_a_while() -> None:
    """Without small messages there is nothing to yield to."""
    pacing, now = delayed()
    assert pacing.rate(RATE, now + FRESH_SECONDS - LOOK_SECONDS) is not None
    assert pacing.rate(RATE, now + FRESH_SECONDS) is None


@pytest.mark.parametrize("has_calm", [True, False])
def test_nothing_is_paced_without_measurements(has_calm: bool) -> None:  # noqa: FBT001 (a parameter)
    """Neither without a delivery rate, nor without a calm level."""
    pacing = Pacing()
    now = timed(pacing, CALM, 0.0) if has_calm else 0.0
    pacing.sent(now)
    assert pacing.rate(None if has_calm else RATE, now + DELAYED) is None


def test_a_path_that_has_become_longer_is_calm_in_the_end() -> None:
    """The least of the last two windows counts."""
    pacing, now = delayed()
    while now < 2.5 * CALM_WINDOW_SECONDS:
        now = timed(pacing, DELAYED, now + 1.0)
    assert pacing.rate(RATE, now) is None


def test_a_new_connection_has_a_calm_level_of_its_own() -> None:
    """It may take another path."""
    pacing, now = delayed()
    pacing.connection_lost()
    assert pacing.rate(RATE, now) is None
    now = timed(pacing, DELAYED, now)
    assert pacing.rate(RATE, now) is None
