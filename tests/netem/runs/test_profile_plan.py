from __future__ import annotations

import random
from statistics import median

import pytest

from penstock.netem.checked_yaml import MistakesError, fit
from penstock.netem.links.profiles import Bursts, Direction
from penstock.netem.runs.profile_plan import ProfilePlan

WAYS = ProfilePlan(
    Direction(0.02, 1e6),
    Direction(0.02, 1e6, jitter=0.01, loss=Bursts(0.1, 0.5)),
    {"delay": (0.1, 0.2), "downstream.rate": (1e4, 1e6), "downstream.loss.begin": (0.2, 0.4)},
)


def chance() -> random.Random:
    """Return chance that is the same each time."""
    return random.Random(1)  # noqa: S311 - no secret


def test_a_parameter_is_drawn_for_both_directions_or_for_one() -> None:
    """Both have the same draw; all else stays."""
    profile = WAYS.draw("bad", chance())
    assert profile.name == "bad"
    assert profile.upstream == Direction(profile.downstream.delay, 1e6)
    downstream = profile.downstream
    assert 0.1 <= downstream.delay <= 0.2
    assert downstream.jitter == 0.01
    assert isinstance(downstream.loss, Bursts)
    assert 0.2 <= downstream.loss.begin <= 0.4
    assert downstream.loss.end == 0.5


def test_rates_are_drawn_evenly_by_their_logarithm() -> None:
    """Half are below the geometric mean of the ends; half of the delays are below the mean."""
    rng = chance()
    drawn = [WAYS.draw("bad", rng).downstream for _ in range(2000)]
    assert median(each.rate or 0.0 for each in drawn) == pytest.approx(1e5, rel=0.15)
    assert median(each.delay for each in drawn) == pytest.approx(0.15, abs=0.005)


def test_a_profile_without_draws_is_as_it_is_written() -> None:
    """Whatever the seed."""
    ways = ProfilePlan(Direction(0.02), Direction(0.1, 1e6))
    assert ways.draw("x", chance()) == ways.profile("x")


@pytest.mark.parametrize(
    ("drawn", "line"),
    [
        ({"speed": [1, 2]}, "drawn: read 'speed'; allowed: delay, upstream.delay, "),
        ({"delay": [0.2, 0.1]}, "drawn: read delay from 0.2 to 0.1; allowed: the least value"),
        ({"delay": [0.1, 0.1]}, "drawn: read delay from 0.1 to 0.1; allowed: the least value"),
        ({"rate": [0, 10]}, "drawn: read rate from 0; allowed: above 0"),
        ({"loss": [0.5, 1.5]}, "drawn: read loss of 1.5: loss: read 1.5; allowed: 0 to 1"),
        ({"jitter": [0.1, 0.2]}, "drawn: read jitter of 0.1: jitter: read 0.1; allowed: "),
        (
            {"loss.begin": [0.1, 0.2]},
            "drawn: read loss.begin of 0.1: loss: read no bursts; allowed: bursts",
        ),
        ({"rate": ["a", "b"]}, "drawn.rate.0: read 'a'; allowed: a whole number of bytes, or"),
    ],
)
def test_what_cannot_be_drawn_is_named(drawn: dict[str, object], line: str) -> None:
    """With what was read and what is allowed; a value of the range that cannot be, too."""
    file = {"downstream": {"delay": 0.05, "rate": 1000}, "drawn": drawn}
    with pytest.raises(MistakesError) as raised:
        fit(ProfilePlan, file)
    assert str(raised.value).startswith(line)


def test_rates_may_have_units() -> None:
    """As elsewhere in a file."""
    assert fit(ProfilePlan, {"drawn": {"rate": ["50 kB", "2.5 MB"]}}).drawn == {
        "rate": (5e4, 2.5e6)
    }
