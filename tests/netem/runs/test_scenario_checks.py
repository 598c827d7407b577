"""What a user may get wrong in a scenario: a line for each mistake, before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.runs.scenario import Edges, Publisher, Subscriber
from penstock.netem.runs.scenario_checks import find_mistakes
from penstock.netem.runs.scenario_file import read_scenario
from tests.helpers.experiments import SMALL_FILE, site_scenario, write_scenario

CHANGES: list[tuple[str, str, list[str]]] = [
    (
        "{kind: penstock}",
        "{kind: penstok}",
        ["brokers.ours.kind: read 'penstok'; allowed: 'penstock', 'mosquitto', 'amqtt', 'command'"],
    ),
    (
        "title: A",
        "titel: A",
        [
            "title: read nothing; allowed: a value; ",
            "titel: read an unknown key; allowed: one of about, broker_host, ",
        ],
    ),
    ("title: A", "name: x\ntitle: A", ["name: read a key; allowed: no name; "]),
    (
        "delay: 0.5",
        "delay: -1",
        ["profiles.bad.downstream.delay: read -1.0; allowed: seconds from 0"],
    ),
    # Topology.
    (
        "cloud: {}, ",
        "'clo ud': {}, cloud: {}, ",
        [
            "topology.hosts.clo ud: read 'clo ud'; allowed: letters",
            "topology.hosts.clo ud: read no link to it; ",
        ],
    ),
    (
        "[cloud, edge]",
        "[cloud, far]",
        [
            "topology.links.0.between.1: read 'far'; allowed: cloud, edge",
            "topology.hosts.edge: read no link to it; allowed: at least one",
            "subscribers.sub.host: read 'edge'; allowed: a host with a way to cloud",
            "impairments.0.link: read 'cloud-edge'; allowed: cloud-far",
        ],
    ),
    (
        "[cloud, edge]",
        "[edge, edge]",
        [
            "topology.links.0.between: read ['edge', 'edge']; allowed: two hosts",
            "topology.hosts.cloud: read no link to it; allowed: at least one",
            "subscribers.sub.host: read 'edge'; allowed: a host with a way to cloud",
            "impairments.0.link: read 'cloud-edge'; allowed: edge-edge",
        ],
    ),
    (
        "profile: good}]",
        "profile: good}, {between: [edge, cloud], profile: good}]",
        [
            (
                "topology.links.1.between: read ['edge', 'cloud']; allowed: two others; "
                "topology.links.0 joins these two"
            )
        ],
    ),
    (
        "profile: good}]",
        "profile: fine}]",
        ["topology.links.0.profile: read 'fine'; allowed: good, bad"],
    ),
    (
        "edge: {}}",
        "edge: {}, far: {}}",
        ["topology.hosts.far: read no link to it; allowed: at least one"],
    ),
    ("broker_host: cloud", "broker_host: sky", ["broker_host: read 'sky'; allowed: cloud, edge"]),
    # Brokers.
    (
        "{ours: {kind: penstock}, other: {kind: mosquitto}}",
        "{}",
        [
            "brokers: read none; allowed: at least one",
            "targets.0.broker: read 'ours'; allowed: none, there is none",
            "targets.0.over: read 'other'; allowed: none, there is none",
        ],
    ),
    (
        "{kind: mosquitto}",
        "{kind: mosquitto, settings: {a: 1}}",
        ["brokers.other.settings: no key of kind mosquitto; allowed: beside penstock or amqtt"],
    ),
    (
        "{kind: mosquitto}",
        "{kind: mosquitto, command: [x]}",
        ["brokers.other.command: no key of kind mosquitto; allowed: beside command"],
    ),
    (
        "{kind: penstock}",
        "{kind: penstock, lines: [x]}",
        ["brokers.ours.lines: no key of kind penstock; allowed: beside mosquitto"],
    ),
    (
        "{kind: mosquitto}",
        "{kind: command}",
        ["brokers.other.command: read nothing; allowed: a program and its arguments"],
    ),
    (
        "{kind: mosquitto}",
        "{kind: mosquitto, lanes: sizes}",
        ["brokers.other.lanes: read 'sizes'; allowed: filters; sizes needs kind penstock"],
    ),
    (
        "{kind: mosquitto}",
        "{kind: mosquitto, lanes: topics}",
        ["brokers.other.lanes: read 'topics'; allowed: 'filters', 'sizes' or 'client'"],
    ),
    ("over: other", "over: ours", ["targets.0.over: read 'ours'; allowed: another broker"]),
    # Sidecars and edge brokers.
    (
        "{kind: mosquitto}",
        "{kind: command, command: [x], sidecar: {}}",
        ["brokers.other.sidecar: read with kind command, which takes the clients' port; "],
    ),
    (
        "{kind: mosquitto}",
        "{kind: mosquitto, edges: {hosts: []}}",
        ["brokers.other.edges.hosts: read none; allowed: at least one"],
    ),
    (
        "{kind: mosquitto}",
        "{kind: mosquitto, edges: {hosts: [edge, far, edge, cloud]}}",
        [
            "brokers.other.edges.hosts: read 'edge'; allowed: each once",
            "brokers.other.edges.hosts.1: read 'far'; allowed: cloud, edge",
            "brokers.other.edges.hosts.3: read 'cloud'; allowed: another host than broker_host",
        ],
    ),
    (
        "{kind: mosquitto}",
        "{kind: mosquitto, edges: {hosts: [edge], lines: [x]}}",
        ["brokers.other.edges.lines: no key of kind penstock; allowed: beside mosquitto"],
    ),
    (
        "{kind: penstock}",
        "{kind: penstock, lanes: sizes, edges: {hosts: [edge], kind: mosquitto}}",
        ["brokers.ours.edges.kind: read 'mosquitto'; allowed: penstock, beside lanes: sizes"],
    ),
    (
        "filters: [a/#]",
        "filters: [a/#], brokers: [their]",
        ["subscribers.sub.brokers.0: read 'their'; allowed: ours, other"],
    ),
    # Traffic.
    (
        "topic: a/b",
        "topic: a/+",
        ["traffic.small.topic: topic name 'a/+' holds a wildcard; allowed: no + and no #"],
    ),
    (
        "payload_bytes: 100",
        "payload_bytes: 23",
        ["traffic.small.payload_bytes: read 23; allowed: greater than or equal to 24"],
    ),
    (
        "period_seconds: 1}",
        "period_seconds: 0}",
        ["traffic.small.period_seconds: read 0; allowed: greater than 0"],
    ),
    (
        "period_seconds: 1}",
        "period_seconds: 0.00003}",
        ["traffic.small.period_seconds: read 3e-05; allowed: at least 6e-05, which makes 1000000 "],
    ),
    (
        "period_seconds: 1}",
        "period_seconds: 1, qos: 3}",
        ["traffic.small.qos: read 3; allowed: less than or equal to 2"],
    ),
    (
        "period_seconds: 1}",
        "period_seconds: 1, first_seconds: 60}",
        ["traffic.small.first_seconds: read 60.0; allowed: below duration_seconds, 60"],
    ),
    (
        "period_seconds: 1}",
        "period_seconds: 61, first_seconds: random}",
        ["traffic.small.period_seconds: read 61.0; allowed: at most duration_seconds, 60, beside"],
    ),
    (
        "period_seconds: 1}",
        "period_seconds: 1, first_seconds: sometime}",
        ["traffic.small.first_seconds: read 'sometime'; allowed: "],
    ),
    (
        "{small: {topic: a/b, payload_bytes: 100, period_seconds: 1}}",
        (
            "{small: {topic: a/b, payload_bytes: 100, period_seconds: 1}, "
            "more: {topic: m, payload_bytes: 24, period_seconds: 1}}"
        ),
        ["traffic.more: read no publisher of it; allowed: at least one"],
    ),
    # Clients.
    (
        "streams: [small]",
        "streams: [smal]",
        [
            "traffic.small: read no publisher of it; ",
            "publishers.pub.streams.0: read 'smal'; allowed: small",
            "subscribers.sub.filters.0: read 'a/#'; allowed: a filter that a published ",
        ],
    ),
    (
        "streams: [small]",
        "streams: [small, small]",
        ["publishers.pub.streams: read 'small'; allowed: each once"],
    ),
    (
        "streams: [small]",
        "streams: [small], count: 0",
        ["publishers.pub.count: read 0; allowed: greater than or equal to 1"],
    ),
    (
        "streams: [small]",
        "streams: [small], brokers: [their]",
        ["publishers.pub.brokers.0: read 'their'; allowed: ours, other"],
    ),
    (
        "streams: [small]",
        "streams: [small], brokers: []",
        ["publishers.pub.brokers: read none; allowed: at least one"],
    ),
    (
        "{host: cloud, streams",
        "{host: sky, streams",
        ["publishers.pub.host: read 'sky'; allowed: cloud, edge"],
    ),
    (
        "filters: [a/#]",
        "filters: [a#]",
        ["subscribers.sub.filters.0: topic filter 'a#': # stands in 'a#'; allowed: # alone, as"],
    ),
    (
        "filters: [a/#]",
        "filters: [b]",
        ["subscribers.sub.filters.0: read 'b'; allowed: a filter that a published topic matches"],
    ),
    (
        "filters: [a/#]",
        "filters: []",
        ["subscribers.sub.filters: read none; allowed: at least one"],
    ),
    (
        "filters: [a/#]",
        "filters: [a/#], keep_alive_seconds: 0",
        ["subscribers.sub.keep_alive_seconds: read 0; allowed: greater than or equal to 1"],
    ),
    (
        "filters: [a/#]",
        "filters: [a/#], user_properties: {a: b}",
        ["subscribers.sub.user_properties: no key of protocol 3.1.1; allowed: beside protocol 5"],
    ),
    (
        "{sub: {",
        "{pub: {",
        [
            (
                "subscribers.pub: read 'pub'; allowed: an id that no other client has; "
                "publishers.pub has 'pub'"
            )
        ],
    ),
    (
        "{sub: {",
        "{s-2: {host: edge, filters: [a/b]}, s: {count: 3, ",
        [
            (
                "subscribers.s: read 's-2'; allowed: an id that no other client has; "
                "subscribers.s-2 has 's-2'"
            )
        ],
    ),
    ("{sub: {", "{s.1: {", ["subscribers.s.1: read 's.1'; allowed: letters, digits and dashes"]),
    (
        "{pub: {",
        "{netem-1: {",
        ["publishers.netem-1: read 'netem-1'; allowed: a name without netem-, which"],
    ),
    # Impairments.
    (
        "trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "trace: {at_seconds: [5, 0], profiles: [good, bad]}",
        ["impairments.0.trace.at_seconds: read [5.0, 0.0]; allowed: rising seconds from 0"],
    ),
    (
        "trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "trace: {at_seconds: [0, 60], profiles: [good, bad]}",
        ["impairments.0.trace.at_seconds: read [0.0, 60.0]; allowed: seconds below duration"],
    ),
    (
        "trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "on_off: {good: bad, bad: bad, mean_good_seconds: 1, mean_bad_seconds: 1}",
        ["impairments.0.on_off.bad: read 'bad'; allowed: another profile than good"],
    ),
    (
        "trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "trace: {at_seconds: [0, 5], profiles: [good, worse]}",
        ["impairments.0.trace.profiles.1: read 'worse'; allowed: good, bad"],
    ),
    (
        "trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "on_off: {good: x, bad: y, mean_good_seconds: 0, mean_bad_seconds: 1}",
        [
            "impairments.0.on_off.good: read 'x'; allowed: good, bad",
            "impairments.0.on_off.bad: read 'y'; allowed: good, bad",
        ],
    ),
    (
        "trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "on_off: {good: good, bad: bad, mean_good_seconds: 0, mean_bad_seconds: 1}",
        ["impairments.0.on_off.mean_good_seconds: read 0.0; allowed: from 0.001"],
    ),
    (
        "trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "on_off: {good: good, bad: bad, mean_good_seconds: 1.0e+9, mean_bad_seconds: 1}",
        ["impairments.0.on_off: read no bad phase in 60 s; allowed: means with which that happens"],
    ),
    (
        ", trace: {at_seconds: [0, 5], profiles: [good, bad]}",
        "",
        ["impairments.0: read none of on_off, trace, redrawn; allowed: one of them"],
    ),
    (
        "{sub: {host: edge",
        "{sub: {host: cloud",
        ["impairments.0.link: read 'cloud-edge'; allowed: a link on a client's way to the broker"],
    ),
    (
        "[{link: cloud-edge",
        "[{link: cloud-edge, trace: {at_seconds: [0], profiles: [bad]}}, {link: cloud-edge",
        ["impairments.1.link: read 'cloud-edge'; allowed: each link once"],
    ),
    # The rest.
    (
        "figure: small p50",
        "figure: small p51",
        ["targets.0.figure: read 'small p51'; allowed: small p50, small p90, "],
    ),
    (
        "figure: small p50",
        "figure: tiny p50",
        ["targets.0.figure: read 'tiny p50'; allowed: small p50, "],
    ),
    (
        "small p50, broker: ours, over: other",
        "small share_as_fast, broker: ours",
        ["targets.0.over: read nothing; allowed: the broker to be as fast as"],
    ),
    (
        "at_most: 0.5",
        "at_most: 0.5, at_least: 1",
        ["targets.0: read both of at_most and at_least; allowed: one of them"],
    ),
    (
        ", at_most: 0.5",
        "",
        ["targets.0: read neither of at_most and at_least; allowed: one of them"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 0",
        ["duration_seconds: read 0; allowed: greater than 0"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: .inf",
        ["duration_seconds: read inf; allowed: a finite number"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\nseeds: [1, 1]",
        ["seeds: read 1; allowed: each once"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\nseeds: []",
        ["seeds: read none; allowed: at least one"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\nseeds: [-1, 9223372036854775808]",
        [
            "seeds.0: read -1; allowed: greater than or equal to 0",
            "seeds.1: read 9223372036854775808; allowed: less than or equal to 9007199254740991",
        ],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\ndrain_seconds: -1",
        ["drain_seconds: read -1; allowed: greater than or equal to 0"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\ncalm_seconds: -1",
        ["calm_seconds: read -1; allowed: greater than or equal to 0"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\nside_by_side: 0",
        ["side_by_side: read 0; allowed: greater than or equal to 1"],
    ),
    (
        "small p50, broker: ours, over: other, at_most: 0.5}]",
        "small p50, broker: ours, over: other, at_most: 0.5, is_timing: true}]\nside_by_side: 1",
        [
            (
                "targets.0.over: read 'other'; allowed: a broker of the same round as ours "
                "(side_by_side makes ours; other)"
            )
        ],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\nmeasurements: {memory_period_seconds: 0}",
        ["measurements.memory_period_seconds: read 0; allowed: greater than 0"],
    ),
    (
        "duration_seconds: 60",
        "duration_seconds: 60\nmeasurements: {focus: [pub]}",
        ["measurements.focus.0: read 'pub'; allowed: sub"],
    ),
]
"""What stands in `SMALL_FILE`, what in its place, and the lines told, or how they begin."""


@pytest.mark.parametrize(("old", "new", "lines"), CHANGES)
def test_a_mistake_is_told_with_file_place_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, lines: list[str]
) -> None:
    """Each in a line of its own, each once, and nothing else."""
    assert old in SMALL_FILE
    file = write_scenario(tmp_path, SMALL_FILE.replace(old, new))
    with pytest.raises(NetemError) as told:
        read_scenario(str(file))
    found = str(told.value).splitlines()
    assert len(found) == len(lines), found
    for line, expected in zip(found, lines, strict=True):
        assert line.startswith(f"{file}: {expected}")


def test_filters_of_lanes_do_not_match_one_topic(tmp_path: Path) -> None:
    """A message would come twice: once over each connection."""
    text = SMALL_FILE.replace("filters: [a/#]", "filters: [a/#, '#']")
    read_scenario(str(write_scenario(tmp_path, text)))
    file = write_scenario(
        tmp_path, text.replace("{kind: mosquitto}", "{kind: mosquitto, lanes: filters}")
    )
    words = (
        "subscribers.sub.filters: read ['a/#', '#']; allowed: filters of which one matches 'a/b'"
    )
    with pytest.raises(NetemError, match=re.escape(words)):
        read_scenario(str(file))


def test_an_edge_broker_has_clients_and_none_behind_it() -> None:
    """It stands between the broker and clients, alone on the way."""
    edges = Edges(["site", "floor"])
    place = "brokers.edge.edges.hosts"
    assert [str(each) for each in find_mistakes(site_scenario(edges))] == [
        f"{place}.0: read 'site'; allowed: a host with clients on it or behind it",
        f"{place}.1: read 'floor'; allowed: a host that is not behind another one, site",
    ]
    subscribers = {
        "display": Subscriber("floor", ["alarms/#"], brokers=["direct"]),
        "archive": Subscriber("cloud", ["#"]),
    }
    publishers = {"office": Publisher("cloud", ["small", "large"])}
    plan = site_scenario(Edges(["site"]), subscribers=subscribers, publishers=publishers)
    assert [str(each) for each in find_mistakes(plan)] == [
        f"{place}.0: read 'site'; allowed: a host with clients on it or behind it"
    ]
