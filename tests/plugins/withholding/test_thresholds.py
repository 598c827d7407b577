from __future__ import annotations

from broker.link import Link
from plugins.withholding.thresholds import Thresholds


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
