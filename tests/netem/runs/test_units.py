from __future__ import annotations

from penstock.netem.runs.bulk_flows import BulkFlow
from penstock.netem.runs.impairments import Impairment, OnOffPlan
from penstock.netem.runs.scenario import HostPlan, LinkPlan, Subscriber, Topology
from penstock.netem.runs.units import units
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
SUBSCRIBERS = {name: Subscriber(name, ["#"]) for name in ("a", "b", "c", "d", "cloud")}


def test_subscribers_whose_ways_share_a_link_are_one_unit() -> None:
    """Named by the link that stands first; who is beside the broker is alone."""
    plan = scenario(topology=TOPOLOGY, subscribers=SUBSCRIBERS, impairments=[])
    assert units(plan) == {
        "a": "hub-a",
        "b": "hub-a",
        "c": "cloud-c",
        "d": "cloud-d",
        "cloud": "cloud",
    }


def test_links_with_common_times_are_one_unit() -> None:
    """Their bad times are one draw of chance."""
    links = ("cloud-c", "cloud-d")
    for is_common in (True, False):
        impairments = [Impairment(name, on_off=PLAN, common_times=is_common) for name in links]
        plan = scenario(topology=TOPOLOGY, subscribers=SUBSCRIBERS, impairments=impairments)
        assert (units(plan)["c"] == units(plan)["d"]) is is_common


def test_links_that_a_bulk_flow_joins_are_one_unit() -> None:
    """It fills the queues of both at the same times."""
    flows = {"backup": BulkFlow(("c", "d"))}
    plan = scenario(topology=TOPOLOGY, subscribers=SUBSCRIBERS, impairments=[], bulk_flows=flows)
    assert units(plan)["c"] == units(plan)["d"] == "cloud-c"
