from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.link import Link
from penstock.plugins.withholding.thresholds import MAX_ASKED_SECONDS, Thresholds, read_asked


def link_with(client_id: str = "site-7", *, average: float = 0.4, least: float = 0.1) -> Link:
    """Return the link of a subscriber whose sampler has learned something."""
    link = Link(client_id)
    link.threshold_l = average
    link.rtt_min = least
    return link


def test_fixed_threshold_overrides_what_was_learned() -> None:
    """threshold_l of the policy file holds for each subscriber, margin and floor apart."""
    thresholds = Thresholds(fixed=0.02)
    assert thresholds.threshold_l(link_with()) == 0.02


def test_first_client_pattern_decides() -> None:
    """A pattern overrides the general threshold; the first that matches wins; case counts."""
    thresholds = Thresholds(fixed=0.5, by_client={"site-?": 1.0, "site-*": 2.0})
    assert thresholds.threshold_l(link_with("site-7")) == 1.0
    assert thresholds.threshold_l(link_with("site-77")) == 2.0
    assert thresholds.threshold_l(link_with("Site-7")) == 0.5


def test_learned_from_minimum_is_50_ms_above_the_least_rtt() -> None:
    """On a near and on a far path."""
    thresholds = Thresholds(learned_from="minimum")
    assert thresholds.threshold_l(link_with(least=0.02)) == pytest.approx(0.07)
    assert thresholds.threshold_l(link_with(least=0.5)) == pytest.approx(0.55)


def test_learned_from_average_takes_the_moving_average() -> None:
    """The average is that of recent RTTs, as in paper 002."""
    assert Thresholds(learned_from="average").threshold_l(link_with(average=0.5)) == 0.5


def test_learned_threshold_has_a_floor() -> None:
    """Jitter of a local network is no congestion."""
    thresholds = Thresholds()
    assert thresholds.threshold_l(link_with(least=0.0001)) > 0.05
    assert Thresholds(learned_from="average").threshold_l(link_with(average=0.001)) == 0.05


def test_nothing_learned_yet_gives_the_floor() -> None:
    """Before the first estimate only the floor is known."""
    assert Thresholds().threshold_l(Link("new")) == 0.05
    assert Thresholds(learned_from="average").threshold_l(Link("new")) == 0.05


EVERYTHING = Thresholds(
    fixed=1.0, by_client={"pump-*": 2.0, "learn-*": None}, by_listener={"field": 4.0, "lan": None}
)


@pytest.mark.parametrize(
    ("client_id", "asked", "listener", "threshold_l"),
    [
        ("site", None, "default", 1.0),
        ("site", None, "field", 4.0),
        ("site", None, "lan", 0.05),
        ("site", 5.0, "field", 5.0),
        ("site", 5.0, "lan", 5.0),
        ("pump-1", 5.0, "field", 2.0),
        ("learn-1", 5.0, "field", 0.05),
    ],
)
def test_client_pattern_then_subscriber_then_listener_then_general(
    client_id: str, asked: float | None, listener: str, threshold_l: float
) -> None:
    """Who speaks of one subscriber is heard before who speaks of many; auto is an answer, too."""
    link = Link(client_id)
    link.asked_threshold_l = asked
    link.listener = listener
    assert EVERYTHING.threshold_l(link) == threshold_l


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
