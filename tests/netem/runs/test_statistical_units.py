from __future__ import annotations

from typing import Any

import pytest

from penstock.netem.runs.impairments import OnOffPlan
from penstock.netem.runs.scenario import (
    HostPlan,
    LinkPlan,
    Measurements,
    Publisher,
    Scenario,
    Stream,
    Subscriber,
    Topology,
)
from penstock.netem.runs.scenario_file import read_scenario
from penstock.netem.runs.statistical_units import units
from tests.helpers.experiments import scenario

PLAN = OnOffPlan("good", "bad", 17.5, 17.5)
TOPOLOGY = Topology(
    {name: HostPlan() for name in ("cloud", "hub", "a", "b", "c", "d")},
    [
        LinkPlan(("hub", "a"), "good"),
        LinkPlan(("hub", "b"), "good"),
        LinkPlan(("cloud", "hub"), "good"),
        LinkPlan(("cloud", "c"), "good"),
        LinkPlan(("cloud", "d"), "good"),
    ],
)
NAMES = ("a", "b", "c", "d", "cloud")
SUBSCRIBERS = {name: Subscriber(name, [f"alarms/{n}"]) for n, name in enumerate(NAMES, 1)}
PUBLISHERS = {"sensor": Publisher("cloud", ["small"], count=len(NAMES))}


def plan_with(**changes: Any) -> Scenario:
    """Return an experiment in which each subscriber has a publisher of its own."""
    fields: dict[str, Any] = {
        "topology": TOPOLOGY,
        "subscribers": SUBSCRIBERS,
        "publishers": PUBLISHERS,
        "traffic": {"small": Stream("alarms/{n}", 100, 0.5, first_seconds="random")},
        "impairments": [],
    }
    return scenario(**fields | changes)


def test_subscribers_whose_ways_share_a_link_are_one_unit() -> None:
    """Named by the link that stands first; who is beside the broker is alone."""
    plan = plan_with()
    assert units(plan) == {
        "a": "hub-a",
        "b": "hub-a",
        "c": "cloud-c",
        "d": "cloud-d",
        "cloud": "cloud",
    }


def test_links_that_share_a_publishers_stream_are_one_unit() -> None:
    """Its phase is one draw of chance for all who get its messages."""
    shared = Subscriber("d", ["alarms/3", "alarms/4"])
    plan = plan_with(subscribers=SUBSCRIBERS | {"d": shared})
    assert units(plan)["c"] == units(plan)["d"] == "cloud-c"
    every = {name: Subscriber(name, ["#"]) for name in NAMES}
    assert set(units(plan_with(subscribers=every)).values()) == {"hub-a"}


def test_links_whose_publishers_share_a_link_are_one_unit() -> None:
    """What delays one publisher's messages delays the other's."""
    publishers = {"sensor": Publisher("d", ["small"], count=len(NAMES))}
    assert set(units(plan_with(publishers=publishers)).values()) == {"hub-a"}


def test_a_whole_run_is_one_unit_where_the_scenario_says_so() -> None:
    """What is asked about is what its links share."""
    plan = plan_with(measurements=Measurements(unit="seed"))
    assert units(plan) == dict.fromkeys(NAMES, "seed")


@pytest.mark.parametrize(
    ("name", "n_units"),
    [
        ("transient-congestion", 120),
        ("policies", 20),
        ("bystanders", 12),
        ("field-run", 6),
        ("site-transient", 32),
        ("site-uplink", 32),
        ("site-cliff", 32),
        ("site-field", 6),
        ("site-firmware", 6),
    ],
)
def test_scenarios_of_penstock_have_enough_units(name: str, n_units: int) -> None:
    """Fewer than six units have no interval; the links of a seed share nothing."""
    plan = read_scenario(name)
    in_focus = {
        unit
        for subscriber, unit in units(plan).items()
        if plan.measurements.focus is None or subscriber in plan.measurements.focus
    }
    assert len(in_focus) * len(plan.seeds) == n_units
