from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.netem.runs.bulk_flows import BulkFlow
from penstock.netem.runs.scenario import HostPlan, LinkPlan, Topology
from tests.helpers.experiments import scenario


def test_a_flow_is_on_and_off_for_exponential_times_of_their_means() -> None:
    """Off first; its times end with the traffic, and repeat with the seed."""
    flow = BulkFlow(("cloud", "edge"), mean_on_seconds=2.0, mean_off_seconds=6.0)
    times = flow.times("1 backup", 40_000.0)
    assert sum(end - begin for begin, end in times) / len(times) == pytest.approx(2.0, rel=0.1)
    off = [other[0] - one[1] for one, other in pairwise(times)]
    assert sum(off) / len(off) == pytest.approx(6.0, rel=0.1)
    assert all(begin < end <= 40_000.0 for begin, end in times)
    assert times == flow.times("1 backup", 40_000.0)
    assert times[0] != flow.times("2 backup", 40_000.0)[0]


def test_a_flow_without_means_is_on_all_the_time() -> None:
    """As a download that does not end."""
    assert BulkFlow(("cloud", "edge")).times("1", 30.0) == [(0.0, 30.0)]


def test_flows_of_a_scenario_have_times_of_their_own_and_are_found_on_a_way() -> None:
    """By the seed and the name; a flow beside a way is none on it."""
    topology = Topology(
        {name: HostPlan() for name in ("cloud", "edge", "far")},
        [LinkPlan(("cloud", "edge"), "good"), LinkPlan(("cloud", "far"), "good")],
    )
    flow = BulkFlow(("cloud", "edge"), 2.0, 2.0)
    plan = scenario(
        topology=topology,
        bulk_flows={"one": flow, "two": flow, "far": BulkFlow(("cloud", "far"))},
        duration_seconds=100.0,
    )
    assert plan.flow_times("one", 1) == plan.flow_times("one", 1)
    assert (
        len({str(plan.flow_times(name, seed)) for name in ("one", "two") for seed in (1, 2)}) == 4
    )
    assert plan.flows_on(topology.way("cloud", "edge") or []) == ["one", "two"]
