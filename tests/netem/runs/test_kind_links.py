from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.runs.impairments import RedrawnPlan
from penstock.netem.runs.kind_links import only_kinds, parts
from penstock.netem.runs.kinds import Cell, EachKind, LinkKind, cells
from penstock.netem.runs.scenario import Broker
from penstock.netem.runs.scenario_file import read_scenario
from penstock.netem.runs.statistical_units import units
from tests.helpers.experiments import write_scenario

FILE = """
title: A
about: B
profiles:
  good: {downstream: {delay: 0.02}}
  bad: {downstream: {delay: 0.5}, drawn: {downstream.delay: [0.1, 0.5]}}
kinds:
  far: {on_off: {good: good, bad: bad, mean_good_seconds: 5, mean_bad_seconds: 5}}
  two: {redrawn: {profile: bad, mean_seconds: 3}, receivers: 2}
  rare: {trace: {at_seconds: [1, 5], profiles: [bad, good]}, streams: [second]}
each_kind:
  profile: good
  streams: [first, second]
  congestion_controls: [cubic, bbr]
  ways: [direct, haproxy]
  links_at_once: 20
  few: [other]
topology: {hosts: {cloud: {}}, links: []}
broker_host: cloud
brokers: {ours: {kind: penstock}, other: {kind: mosquitto}}
traffic:
  first: {topic: "a/{to}", payload_bytes: 100, period_seconds: 1}
  second: {topic: "b/{to}", payload_bytes: 100, period_seconds: 1, qos: 2}
duration_seconds: 60
"""


def test_a_kind_stands_for_hosts_links_and_clients(tmp_path: Path) -> None:
    """For each congestion control and way one of each; its link has the congestion control."""
    scenario = read_scenario(str(write_scenario(tmp_path, FILE)))
    assert list(scenario.topology.hosts)[:3] == ["cloud", "far-cubic-direct", "far-bbr-direct"]
    links = {link.name: link for link in scenario.topology.links}
    assert links["cloud-far-bbr-direct"].congestion_control == "bbr"
    impaired = {each.link: each for each in scenario.impairments}
    assert impaired["cloud-far-bbr-direct"].on_off is not None
    subscriber = scenario.subscribers["far-bbr-haproxy"]
    assert subscriber.host == "far-bbr-haproxy"
    assert subscriber.filters == ["a/far-bbr-haproxy", "b/far-bbr-haproxy"]
    assert subscriber.qos == 2
    assert subscriber.through == "haproxy"
    publisher = scenario.publishers["to-far-bbr-haproxy"]
    assert publisher.host == "cloud"
    assert scenario.topics_of(publisher) == set(subscriber.filters)


def test_brokers_that_few_cells_are_measured_with_have_the_first_way_alone(tmp_path: Path) -> None:
    """Their clients are left out on the others."""
    scenario = read_scenario(str(write_scenario(tmp_path, FILE)))
    assert scenario.subscribers["far-bbr-direct"].brokers is None
    assert scenario.subscribers["far-bbr-haproxy"].brokers == ["ours"]
    assert scenario.publishers["to-far-bbr-haproxy"].brokers == ["ours"]


def test_receivers_share_the_link_that_is_impaired(tmp_path: Path) -> None:
    """So they are one unit; each has a publisher of its own."""
    scenario = read_scenario(str(write_scenario(tmp_path, FILE)))
    impaired = {each.link for each in scenario.impairments}
    for number in (1, 2):
        host = scenario.subscribers[f"two-cubic-direct-{number}"].host
        way = scenario.topology.way("cloud", host) or []
        assert [link.name for link in way] == [
            "cloud-two-cubic-direct",
            f"two-cubic-direct-two-cubic-direct-{number}",
        ]
        assert way[0].name in impaired
        assert way[1].name not in impaired
    found = units(scenario)
    assert found["two-cubic-direct-1"] == found["two-cubic-direct-2"]
    assert len(set(found.values())) == 12


def test_a_kind_may_have_streams_of_its_own(tmp_path: Path) -> None:
    """In place of those of each kind."""
    scenario = read_scenario(str(write_scenario(tmp_path, FILE)))
    assert scenario.publishers["to-rare-cubic-direct"].streams == ["second"]
    assert scenario.subscribers["rare-cubic-direct"].filters == ["b/rare-cubic-direct"]


def test_as_many_kinds_run_at_a_time_as_links_may(tmp_path: Path) -> None:
    """Each part holds what its kinds stand for, and all that is not of kinds.

    A kind has two links of each broker directly and two of one behind the load balancer: six, and
    twelve with two receivers.
    """
    scenario = read_scenario(str(write_scenario(tmp_path, FILE)))
    for most, groups in (
        (24, [["far", "two", "rare"]]),
        (23, [["far", "two"], ["rare"]]),
        (17, [["far"], ["two"], ["rare"]]),
        (1, [["far"], ["two"], ["rare"]]),
    ):
        assert scenario.each_kind is not None
        each_kind = replace(scenario.each_kind, links_at_once=most)
        assert replace(scenario, each_kind=each_kind).kinds_at_once() == groups
    few = replace(scenario, brokers={"ours": Broker("penstock")})
    assert few.kinds_at_once() == [["far", "two", "rare"]]
    first, second = parts(scenario)
    assert (list(first.kinds), list(second.kinds)) == (["far", "two"], ["rare"])
    assert scenario.rounds == 2
    assert {**first.subscribers, **second.subscribers} == scenario.subscribers
    assert [*first.topology.links, *second.topology.links] == scenario.topology.links
    assert next(iter(second.topology.hosts)) == "cloud"
    assert len(second.publishers) == len(second.impairments) == 4
    assert second.brokers == scenario.brokers


def test_a_choice_of_kinds_leaves_out_what_the_others_stand_for(tmp_path: Path) -> None:
    """As `--kinds` asks for it."""
    scenario = only_kinds(read_scenario(str(write_scenario(tmp_path, FILE))), ["rare"])
    assert {cell.kind for cell in scenario.cells()} == {"rare"}
    assert len(scenario.subscribers) == len(scenario.topology.links) == 4


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("each_kind:", "no_kind:", "no_kind: read an unknown key; allowed: one of about, "),
        (FILE[FILE.index("kinds:") : FILE.index("each_kind:")], "", "kinds: read none; allowed: "),
        (
            "duration_seconds: 60",
            "duration_seconds: 60\nsubscribers: {sub: {host: cloud, filters: [a/#]}}",
            "subscribers: read beside kinds, which make all links and clients; allowed: none",
        ),
        (
            "hosts: {cloud: {}}",
            "hosts: {cloud: {}, edge: {}}",
            "topology: read more than the host cloud; allowed beside kinds: that host",
        ),
        ("ways: [direct, haproxy]", "ways: []", "each_kind.ways: read none; allowed: at least one"),
        ("[direct, haproxy]", "[nginx]", "each_kind.ways.0: read 'nginx'; allowed: 'direct' or "),
        (
            "links_at_once: 20",
            "links_at_once: 0",
            "each_kind.links_at_once: read 0; allowed: greater than or equal to 1",
        ),
        ("few: [other]", "few: [others]", "each_kind.few: read 'others'; allowed: ours, other"),
        ("profile: good", "profile: fine", "each_kind.profile: read 'fine'; allowed: good, bad"),
        ("[first, second]", "[third]", "each_kind.streams: read 'third'; allowed: first, second"),
        ("[second]", "[]", "kinds.rare.streams: read none; allowed: at least one"),
        ('"a/{to}"', "a/b", "traffic.first.topic: read 'a/b'; allowed beside kinds: a topic with"),
        (
            "receivers: 2",
            "receivers: 0",
            "kinds.two.receivers: read 0; allowed: greater than or equal to 1",
        ),
        (
            "mean_good_seconds: 5",
            "mean_good_seconds: 5000000",
            "kinds.far.on_off: read no bad phase in 60 s; allowed: means with which that happens",
        ),
        ("kind: penstock}", "kind: penstock, edges: {hosts: [x]}}", "brokers.ours.edges.hosts.0: "),
    ],
)
def test_kinds_that_cannot_be_are_named(tmp_path: Path, before: str, after: str, line: str) -> None:
    """By their own place in the file, and before anything starts."""
    assert FILE.count(before) == 1
    file = write_scenario(tmp_path, FILE.replace(before, after))
    with pytest.raises(NetemError) as raised:
        read_scenario(str(file))
    assert any(each.startswith(f"{file}: {line}") for each in str(raised.value).splitlines()), (
        raised.value
    )


EACH = EachKind("good", ["small"], ["cubic", "bbr"], ["direct", "haproxy"])
KIND = LinkKind(redrawn=RedrawnPlan("x", 3.0))


def test_each_kind_has_a_cell_for_each_way_and_congestion_control() -> None:
    """In the order of the file, and of its ways."""
    found = cells({"loss": KIND, "cliff": KIND}, EACH)
    assert [cell.name for cell in found[:4]] == [
        "loss-cubic-direct",
        "loss-bbr-direct",
        "loss-cubic-haproxy",
        "loss-bbr-haproxy",
    ]
    assert [cell.kind for cell in found] == ["loss"] * 4 + ["cliff"] * 4
    assert all(cell.receivers == (cell.name,) for cell in found)


def test_receivers_that_share_a_link_have_numbers() -> None:
    """Behind the name of the host that they share it with."""
    (cell,) = cells({"two": LinkKind(receivers=2)}, EachKind("good", ["small"]))
    assert cell == Cell("two", "cubic", "direct", ("two-cubic-direct-1", "two-cubic-direct-2"))


def test_a_scenario_without_kinds_has_no_cells() -> None:
    """As most have none."""
    assert cells({}, None) == []
