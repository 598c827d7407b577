from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config import key_types
from penstock.netem.links.profiles import (
    BAD,
    GOOD,
    LOSSY,
    OPEN,
    PROFILES,
    STRICT,
    Bursts,
    Direction,
)


def test_a_link_is_read_as_strictly_as_any_file() -> None:
    """The setting is written twice, as one of both loads pydantic."""
    assert STRICT == key_types.STRICT


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("delay", {"delay": -0.1}),
        ("delay", {"delay": float("inf")}),
        ("rate", {"rate": 0.0}),
        ("rate", {"rate": -5.0}),
        ("jitter", {"delay": 0.1, "jitter": 0.2}),
        ("jitter", {"delay": 0.1, "jitter": -0.1}),
        ("loss", {"loss": 1.1}),
        ("queue_bytes", {"queue_bytes": 100}),
        ("queue_bytes", {"rate": 100.0, "queue_bytes": 0}),
        ("reorder", {"reorder": 0.1}),
        ("reorder", {"delay": 0.1, "reorder": -0.1}),
        ("duplicate", {"duplicate": 2.0}),
    ],
)
def test_a_direction_that_cannot_be_is_refused(key: str, values: dict[str, Any]) -> None:
    """No time is negative, no share above all, and a link that carries nothing is no link."""
    with pytest.raises(ValueError, match=rf"{key}: read .*; allowed: "):
        Direction(**values)


@pytest.mark.parametrize(
    ("key", "values"),
    [("begin", (-0.1, 0.5)), ("end", (0.1, 0.0)), ("inside", (0.1, 0.5, 2.0))],
)
def test_bursts_that_cannot_be_are_refused(key: str, values: tuple[float, ...]) -> None:
    """Probabilities are such, and a burst ends some time."""
    with pytest.raises(ValueError, match=rf"{key}: read .*; allowed: "):
        Bursts(*values)


def test_the_queue_before_a_rate_has_a_bound_of_its_own_or_of_time() -> None:
    """0.2 s at the rate, at least ten packets, or what was asked for."""
    assert Direction(rate=1e6).max_queue_bytes == 200_000
    assert Direction(rate=1e3).max_queue_bytes == 15_000
    assert Direction(rate=1e6, queue_bytes=5_000).max_queue_bytes == 5_000
    assert Direction().max_queue_bytes == float("inf")


def test_what_needs_packets_is_told_from_delay_and_rate() -> None:
    """The relay can do without; a queue's bound, loss and the like it cannot do."""
    assert not GOOD.upstream.acts_on_packets
    assert LOSSY.upstream.acts_on_packets
    assert Direction(rate=1e6, queue_bytes=5_000).acts_on_packets


def test_profiles_are_found_by_their_own_name() -> None:
    """The table's keys are the names that profiles say of themselves."""
    assert {name: profile.name for name, profile in PROFILES.items()} == {
        name: name for name in PROFILES
    }


def test_a_profile_says_what_it_is_in_units() -> None:
    """What is printed of a link gives its round trip and its rate."""
    assert str(BAD) == "bad: 2,000 ms round trip, 125 kB/s"
    assert str(OPEN) == "open: 0 ms round trip, any rate"
    assert str(LOSSY) == "lossy: 200 ms round trip, 2,500 kB/s, 20 % lost"


def test_bursts_have_a_mean() -> None:
    """A tenth of the time in bursts that lose half, else a hundredth: 5.9 % in all."""
    bursts = Bursts(begin=0.1, end=0.9, inside=0.5, outside=0.01)
    assert bursts.mean_loss == pytest.approx(0.1 * 0.5 + 0.9 * 0.01)
    assert Direction(loss=bursts).mean_loss == bursts.mean_loss
