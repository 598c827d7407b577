"""Scenarios: names that follow from others."""

from dataclasses import replace

import pytest

from penstock.netem.links.link_variation import OnOff
from penstock.netem.runs.scenario import Edges, HostPlan, LinkPlan, Topology, client_ids
from penstock.netem.runs.scenario_file import read_scenario
from penstock.netem.runs.statistical_units import units
from tests.helpers.experiments import site_scenario


def test_a_link_is_named_after_its_hosts() -> None:
    """Impairments and results call it by both, the upstream one first."""
    assert LinkPlan(("cloud", "edge"), "good").name == "cloud-edge"


def test_a_way_has_the_fewest_links() -> None:
    """Whatever stands first in the file; it is the same for both directions."""
    hosts = {name: HostPlan() for name in "abcde"}
    pairs = [("a", "b"), ("b", "c"), ("a", "d"), ("c", "d"), ("c", "a")]
    topology = Topology(hosts, [LinkPlan(pair, "good") for pair in pairs])
    assert [link.name for link in topology.way("b", "d") or ()] == ["a-b", "a-d"]
    assert [link.name for link in topology.way("a", "c") or ()] == ["c-a"]
    assert topology.way("c", "c") == []
    assert topology.way("a", "e") is None
    assert topology.hosts_on(topology.way("b", "d") or (), "b") == ["b", "a", "d"]


def test_clients_connect_to_the_first_edge_broker_on_their_way() -> None:
    """Their own host's included; without one to the broker itself."""
    plan = site_scenario(Edges(["site"]))
    hosts = ("cloud", "site", "floor")
    assert [plan.serving_host("edge", host) for host in hosts] == ["cloud", "site", "site"]
    assert {plan.serving_host("direct", host) for host in hosts} == {"cloud"}


def test_bytes_are_counted_on_impaired_links() -> None:
    """On all, where none is impaired."""
    plan = site_scenario(Edges(["site"]))
    assert plan.wan_links() == ["cloud-site"]
    assert replace(plan, impairments=[]).wan_links() == ["cloud-site", "site-floor"]


@pytest.mark.parametrize(
    ("seeds", "side_by_side", "rounds"), [([1], None, 1), ([1, 2], None, 2), ([1, 2], 2, 4)]
)
def test_traffic_runs_for_each_seed_and_group(
    seeds: list[int], side_by_side: int | None, rounds: int
) -> None:
    """Three brokers, two at a time: two rounds for each seed."""
    scenario = read_scenario("transient-congestion")
    brokers = dict(list(scenario.brokers.items())[:3])
    changed = replace(scenario, brokers=brokers, seeds=seeds, side_by_side=side_by_side)
    assert changed.rounds == rounds


def test_links_are_bad_at_the_times_of_the_seed() -> None:
    """Another seed has other times, the same seed the same."""
    scenario = read_scenario("transient-congestion")
    impairment = scenario.impairments[0]
    one, again, other = (scenario.changes_of(impairment, seed) for seed in (1, 1, 2))
    assert one == again != other
    assert isinstance(one, OnOff)
    assert one.good.name == "good"


def test_one_client_has_the_name_and_several_have_numbers() -> None:
    """As in tables and in the broker's log."""
    assert client_ids("sub", 1) == ["sub"]
    assert client_ids("sub", 3) == ["sub-1", "sub-2", "sub-3"]


def test_a_scenario_names_the_congestion_controls_that_it_needs() -> None:
    """Its own and those of hosts, so that a kernel without one is told before anything starts."""
    scenario = replace(read_scenario("transient-congestion"), congestion_control="bbr")
    assert scenario.congestion_controls == {"bbr"}
    topology = Topology({"cloud": HostPlan("reno"), "edge": HostPlan()}, [])
    assert replace(scenario, topology=topology).congestion_controls == {"bbr", "reno"}
    assert read_scenario("transient-congestion").congestion_controls == set()


def test_links_of_transient_congestion_have_enough_independent_units() -> None:
    """Thirty and more: each link of each seed, under every broker in the same round."""
    scenario = read_scenario("transient-congestion")
    assert len(set(units(scenario).values())) * len(scenario.seeds) >= 30
    assert scenario.groups() == [list(scenario.brokers)]
