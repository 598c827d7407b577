from __future__ import annotations

import pytest

from netem.profiles import BAD, OPEN, PROFILES, Direction


@pytest.mark.parametrize(("delay", "rate"), [(-0.1, None), (0.0, 0.0), (0.0, -5.0)])
def test_a_direction_that_cannot_be_is_refused(delay: float, rate: float | None) -> None:
    """No time is negative, and a link that carries nothing is no link."""
    with pytest.raises(ValueError, match=r"read .*; allowed: "):
        Direction(delay, rate)


def test_profiles_are_found_by_their_own_name() -> None:
    """The table's keys are the names that profiles say of themselves."""
    assert {name: profile.name for name, profile in PROFILES.items()} == {
        name: name for name in PROFILES
    }


def test_a_profile_says_what_it_is_in_units() -> None:
    """What is printed of a link gives its round trip and its rate."""
    assert str(BAD) == "bad: 2,000 ms round trip, 125 kB/s"
    assert str(OPEN) == "open: 0 ms round trip, any rate"
