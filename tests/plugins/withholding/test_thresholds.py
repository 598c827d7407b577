from __future__ import annotations

import math
from collections import UserDict
from collections.abc import ItemsView

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.link import Link
from penstock.plugins.withholding.thresholds import (
    LONGEST_KNOWN,
    MAX_ASKED_SECONDS,
    MAX_KNOWN,
    Thresholds,
    read_asked,
)


def link_with(client_id: str = "site-7", *, average: float = 0.4, least: float = 0.1) -> Link:
    """Return the link of a subscriber whose sampler has learned something."""
    link = Link(client_id)
    link.threshold_l = average
    link.rtt_min = least
    return link


def test_fixed_threshold_overrides_what_was_learned() -> None:
    """threshold_l of the policy file holds for each subscriber, margin and floor apart."""
    thresholds = Thresholds(fixed=0.02, margin_ratio=3.0, floor_seconds=0.05)
    assert thresholds.threshold_l(link_with()) == 0.02


def test_first_client_pattern_decides() -> None:
    """A pattern overrides the general threshold; the first that matches wins; case counts."""
    thresholds = Thresholds(fixed=0.5, by_client={"site-?": 1.0, "site-*": 2.0})
    assert thresholds.threshold_l(link_with("site-7")) == 1.0
    assert thresholds.threshold_l(link_with("site-77")) == 2.0
    assert thresholds.threshold_l(link_with("Site-7")) == 0.5


def test_learned_from_minimum_takes_the_least_rtt_with_margin() -> None:
    """The least recent RTT times the margin is the threshold."""
    thresholds = Thresholds(learned_from="minimum", margin_ratio=3.0)
    assert thresholds.threshold_l(link_with(least=0.125)) == 0.375


def test_learned_from_average_takes_the_moving_average_with_margin() -> None:
    """The moving average of recent RTTs, as in paper 002."""
    thresholds = Thresholds(learned_from="average", margin_ratio=1.5)
    assert thresholds.threshold_l(link_with(average=0.5)) == 0.75


def test_learned_threshold_has_a_floor() -> None:
    """Jitter of a local network is no congestion."""
    thresholds = Thresholds(margin_ratio=3.0, floor_seconds=0.05)
    assert thresholds.threshold_l(link_with(least=0.0001)) == 0.05


def test_nothing_learned_yet_gives_the_floor() -> None:
    """Before the first estimate only the floor is known."""
    assert Thresholds(floor_seconds=0.05).threshold_l(Link("new")) == 0.05
    assert Thresholds(floor_seconds=0.05, learned_from="average").threshold_l(Link("new")) == 0.05


EVERYTHING = Thresholds(
    fixed=1.0,
    by_client={"pump-*": 2.0, "learn-*": None},
    by_user={"ann": 3.0, "guest*": None},
    by_listener={"field": 4.0, "lan": None},
    floor_seconds=0.05,
)


@pytest.mark.parametrize(
    ("client_id", "username", "asked", "listener", "threshold_l"),
    [
        ("site", None, None, "default", 1.0),
        ("site", None, None, "field", 4.0),
        ("site", None, None, "lan", 0.05),
        ("site", None, 5.0, "field", 5.0),
        ("site", None, 5.0, "lan", 5.0),
        ("site", "bob", 5.0, "field", 5.0),
        ("site", "ann", 5.0, "field", 3.0),
        ("site", "guest7", 5.0, "field", 0.05),
        ("pump-1", "ann", 5.0, "field", 2.0),
        ("learn-1", "ann", 5.0, "field", 0.05),
    ],
)
def test_client_pattern_then_user_then_subscriber_then_listener_then_general(
    client_id: str, username: str | None, asked: float | None, listener: str, threshold_l: float
) -> None:
    """Who speaks of one subscriber is heard before who speaks of many; auto is an answer, too."""
    link = Link(client_id, username)
    link.asked_threshold_l = asked
    link.listener = listener
    assert EVERYTHING.threshold_l(link) == threshold_l


def test_user_pattern_needs_a_user_name() -> None:
    """A subscriber that has none is not the one whose name is anything."""
    thresholds = Thresholds(fixed=1.0, by_user={"*": 2.0})
    assert thresholds.threshold_l(Link("c")) == 1.0
    assert thresholds.threshold_l(Link("c", "")) == 2.0


class Counted(UserDict[str, float | None]):
    """Patterns that count how often somebody looks through them."""

    n_looks = 0

    def items(self) -> ItemsView[str, float | None]:
        """Count one more look."""
        self.n_looks += 1
        return super().items()


def test_patterns_are_looked_through_once_for_each_subscriber() -> None:
    """Not for each estimate of its path; and no stranger with a long name is remembered."""
    patterns = Counted({"pump-*": 2.0})
    thresholds = Thresholds(fixed=1.0, by_client=patterns)
    pump, other = Link("pump-1"), Link("site", "ann")
    for n_looks in (2, 2):
        assert [thresholds.threshold_l(link) for link in (pump, other, pump)] == [2.0, 1.0, 2.0]
        assert patterns.n_looks == n_looks
    assert thresholds.threshold_l(Link("site", "bob")) == 1.0
    assert patterns.n_looks == 3  # a user name may have a pattern of its own
    for n_looks in (4, 5):
        assert thresholds.threshold_l(Link("pump-" + "x" * LONGEST_KNOWN)) == 2.0
        assert patterns.n_looks == n_looks
    for number in range(MAX_KNOWN):
        thresholds.threshold_l(Link(f"pump {number}"))
    patterns.n_looks = 0
    assert thresholds.threshold_l(pump) == 2.0
    assert patterns.n_looks == 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.5", 0.5), ("2", 2.0), ("2.", 2.0), (".25", 0.25), ("900", 900.0)]
)
def test_subscriber_gives_its_threshold_in_seconds(text: str, seconds: float) -> None:
    """As a decimal number; other user properties are not ours."""
    assert read_asked([("a", "b"), ("threshold_l", text)]) == (seconds, "")


def test_subscriber_that_says_nothing_asks_for_nothing() -> None:
    """No such user property is no mistake; its name is case sensitive."""
    assert read_asked([]) == (None, "")
    assert read_asked([("Threshold_L", "0.5"), ("threshold_s", "x")]) == (None, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "auto",
        "-1",
        "0",
        "0.0",
        "nan",
        "inf",
        "Infinity",
        "1e3",
        "0x1",
        "1_0",
        " 1",
        "1 ",
        "1\n",
        "+1",
        ".",
        "0,5",
        "\u0661",
        "900.1",
        "1" + "0" * 400,
        "9" * 65_000,
        "0." + "0" * 12,
    ],
)
def test_nonsense_is_none_and_said(text: str) -> None:
    """Whatever it is, it becomes a short line of printable characters, and no threshold."""
    asked, problem = read_asked([("threshold_l", text)])
    assert asked is None
    assert problem.startswith("user property threshold_l: read '")
    assert problem.endswith("; allowed: seconds above 0, 900 at most, such as 0.5")
    assert len(problem) < 200
    assert "\n" not in problem


def test_several_are_none() -> None:
    """Which of them was meant nobody knows, though they may be alike."""
    assert read_asked([("threshold_l", "1"), ("x", ""), ("threshold_l", "1")]) == (
        None,
        "user property threshold_l: read 2 of them; allowed: one",
    )


@given(st.lists(st.tuples(st.sampled_from(["threshold_l", "other"]), st.text())))
def test_whatever_a_subscriber_sends_gives_a_sound_threshold_or_none(
    user_properties: list[tuple[str, str]],
) -> None:
    """Never an exception, and never a number that no path has."""
    asked, problem = read_asked(user_properties)
    if asked is not None:
        assert math.isfinite(asked)
        assert 0 < asked <= MAX_ASKED_SECONDS
        assert not problem


def test_learned_threshold_follows_how_much_the_path_varies() -> None:
    """A steady path of half a second is congested at 0.55 s; one that varies by itself later."""
    thresholds = Thresholds(margin_ratio=3.0, floor_seconds=0.05)
    link = Link("site-7")
    link.rtt_min = 0.5
    assert thresholds.threshold_l(link) == pytest.approx(1.5)
    link.rtt_quartile = 0.502
    assert thresholds.threshold_l(link) == pytest.approx(0.55)
    link.rtt_quartile = 0.55
    assert thresholds.threshold_l(link) == pytest.approx(0.7)
    link.rtt_quartile = 0.9
    assert thresholds.threshold_l(link) == pytest.approx(1.5)


def test_average_is_taken_times_the_margin_however_much_the_path_varies() -> None:
    """The average includes congestion; the spread above the minimum says nothing of it."""
    thresholds = Thresholds(margin_ratio=2.0, learned_from="average")
    link = Link("site-7")
    link.rtt_min, link.rtt_quartile, link.threshold_l = 0.5, 0.502, 0.6
    assert thresholds.threshold_l(link) == pytest.approx(1.2)
