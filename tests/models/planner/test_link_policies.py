from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.models.kernels.link_simulation import Latencies
from penstock.models.planner import link_policies
from penstock.models.planner.link_policies import (
    PolicyResults,
    choose,
    config,
    figures_of,
    make_case,
    threshold,
)
from tests.models.planner.small_plan import make_fleet, small_plan


@pytest.mark.parametrize(
    ("cameras", "sensors", "threshold_s"),
    [
        ("100 kB", "100", 10_000),
        ("9 kB", "100", 949),
        ("200 kB", "50 kB", 100_000),
        ("300", "100", None),
    ],
)
def test_the_threshold_parts_small_from_large(
    cameras: str, sensors: str, threshold_s: int | None
) -> None:
    """At the product's default where that does, else in the widest gap; without a gap, none."""
    fleet = make_fleet(
        ("payload_bytes: 100 kB", f"payload_bytes: {cameras}"),
        ("payload_bytes: 100\n", f"payload_bytes: {sensors}\n"),
    )
    assert threshold(fleet).threshold_s == threshold_s


def test_a_case_is_what_one_subscriber_meets() -> None:
    """Its link and phases, and messages of two sizes."""
    found = make_case(make_fleet(), "operators", 10_000)
    assert found is not None
    case, small_ratio = found
    assert small_ratio == 1.0
    assert (case.good.rate, case.bad.rate, case.bad.loss) == (500_000, 10_000, 0.1)
    assert case.mean_seconds == (20, 10)
    traffic = case.traffic
    assert (traffic.small_seconds, traffic.large_seconds) == pytest.approx((0.5, 5))
    assert (traffic.small_bytes, traffic.large_bytes) == (220, 100_120)


def test_of_many_small_messages_a_part_is_simulated() -> None:
    """Each is as long as those in its place, so that the link is as full."""
    fleet = make_fleet(("messages_per_second: 0.1", "messages_per_second: 5"))
    found = make_case(fleet, "operators", 10_000)
    assert found is not None
    case, small_ratio = found
    assert small_ratio == 0.2
    assert case.traffic.small_bytes / case.traffic.small_seconds == pytest.approx(100 * 220)


def test_there_is_no_case_without_bad_phases_or_two_sizes() -> None:
    """Nothing is withheld then."""
    assert make_case(make_fleet(("link: mobile", "link: wired")), "operators", 10_000) is None
    assert make_case(make_fleet(), "operators", None) is None
    assert make_case(make_fleet(), "operators", 50) is None


def test_d_and_lambda_follow_from_bad_phases() -> None:
    """As 20 s and 1 / 17.5 s do in paper 002."""
    found = config("probabilistic", 35.0, 10_000)
    assert (found.max_withhold, found.congestion_rate) == (40.0, 1 / 35)


def test_every_policy_and_two_connections_are_simulated() -> None:
    """On the same links; small messages alone are never slower."""
    held = small_plan().held["operators"]
    assert list(held.by_policy) == [*link_policies.POLICIES, link_policies.TWO_LANES]
    assert {len(each) for each in held.by_policy.values()} == {6}
    alone, together = (
        held.small(name, 0.99).value for name in (link_policies.TWO_LANES, link_policies.NONE)
    )
    assert alone < together
    numbers = [len(each.small) for each in held.by_policy[link_policies.NONE]]
    assert numbers == [len(each.small) for each in held.by_policy[link_policies.TWO_LANES]]


def held_with(**small: float) -> PolicyResults:
    """Return results in which each small message takes so long under a policy, a large one 10 s."""
    case = small_plan().held["operators"].case
    found: dict[str, Sequence[Latencies]] = {
        name: [Latencies([small.get(name, 4.0) + unit / 100], [10.0]) for unit in range(6)]
        for name in (*link_policies.POLICIES, link_policies.TWO_LANES)
    }
    figures = {name: figures_of(each) for name, each in found.items()}
    return PolicyResults(case, found, figures, 1.0, 60.0)


def test_the_default_is_kept_unless_another_is_shown_to_be_better() -> None:
    """For all subscribers, and at little cost to large messages."""
    assert choose([]) == "adaptive"
    assert choose([held_with()]) == "adaptive"
    assert choose([held_with(historic=2.0)]) == "historic"
    assert choose([held_with(historic=2.0), held_with()]) == "adaptive"
    slow = held_with(historic=2.0)
    late = [Latencies(each.small, [12.0]) for each in slow.by_policy["historic"]]
    figures = {**slow.figures, "historic": figures_of(late)}
    assert choose([replace(slow, figures=figures)]) == "adaptive"
