"""The hosts, links, impairments and clients that a scenario's kinds of links stand for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from penstock.netem.checked_yaml import Mistake, Place
from penstock.netem.runs.impairments import Impairment
from penstock.netem.runs.kinds import Cell, EachKind
from penstock.netem.runs.scenario import (
    HostPlan,
    LinkPlan,
    Publisher,
    Scenario,
    Subscriber,
    Topology,
)


def find_kind_mistakes(scenario: Scenario) -> Iterator[Mistake]:
    """Yield what keeps the kinds of a scenario from standing for links, by place."""
    each = scenario.each_kind
    if not scenario.kinds and each is None:
        return
    if not scenario.kinds or each is None:
        key = "kinds" if not scenario.kinds else "each_kind"
        yield Mistake((key,), "read none; allowed: kinds and each_kind, or neither")
        return
    for key in ("publishers", "subscribers", "impairments"):
        if getattr(scenario, key):
            yield Mistake(
                (key,), "read beside kinds, which make all links and clients; allowed: none"
            )
    if list(scenario.topology.hosts) != [scenario.broker_host] or scenario.topology.links:
        words = f"read more than the host {scenario.broker_host}; allowed beside kinds: that host"
        yield Mistake(("topology",), words)
    place: Place = ("each_kind",)
    for key in ("streams", "congestion_controls", "ways"):
        if not getattr(each, key):
            yield Mistake((*place, key), "read none; allowed: at least one")
    yield from _check_known((*place, "few"), each.few, scenario.brokers)
    yield from _check_known((*place, "profile"), [each.profile], scenario.profiles)
    yield from _check_streams(scenario, (*place, "streams"), each.streams)
    for name, kind in scenario.kinds.items():
        place = ("kinds", name)
        if kind.streams is not None:
            if not kind.streams:
                yield Mistake((*place, "streams"), "read none; allowed: at least one")
            yield from _check_streams(scenario, (*place, "streams"), kind.streams)


def _check_streams(scenario: Scenario, place: Place, names: list[str]) -> Iterator[Mistake]:
    yield from _check_known(place, names, scenario.traffic)
    for name in names:
        if name in scenario.traffic and "{to}" not in scenario.traffic[name].topic:
            topic = scenario.traffic[name].topic
            words = f"read {topic!r}; allowed beside kinds: a topic with {{to}} in it"
            yield Mistake(("traffic", name, "topic"), words)


def _check_known(place: Place, names: list[str], known: Collection[str]) -> Iterator[Mistake]:
    for name in names:
        if name not in known:
            yield Mistake(place, f"read {name!r}; allowed: {', '.join(known)}")


def with_kinds(scenario: Scenario) -> Scenario:
    """Return a scenario with the hosts, links and clients of its kinds, if it has any."""
    each = scenario.each_kind
    if each is None:
        return scenario
    hosts, links = dict(scenario.topology.hosts), list(scenario.topology.links)
    impairments: list[Impairment] = []
    publishers: dict[str, Publisher] = {}
    subscribers: dict[str, Subscriber] = {}
    for cell in scenario.cells():
        made = _links(scenario.broker_host, cell, each)
        links += made
        hosts |= {link.between[1]: HostPlan(cell.congestion_control) for link in made}
        kind = scenario.kinds[cell.kind]
        impairments.append(Impairment(made[0].name, kind.on_off, kind.trace, kind.redrawn))
        is_first = cell.way == each.ways[0]
        brokers = [name for name in scenario.brokers if is_first or name not in each.few]
        its_brokers = None if len(brokers) == len(scenario.brokers) else brokers
        streams = kind.streams or each.streams
        for receiver in cell.receivers:
            publisher = Publisher(scenario.broker_host, streams, brokers=its_brokers, to=receiver)
            publishers[f"to-{receiver}"] = publisher
            qos = max(scenario.traffic[stream].qos for stream in streams)
            topics = [publisher.topic_of(scenario.traffic[stream], 1) for stream in streams]
            through = None if cell.way == "direct" else cell.way
            subscribers[receiver] = Subscriber(
                receiver, topics, qos=qos, brokers=its_brokers, through=through
            )
    return replace(
        scenario,
        topology=Topology(hosts, links),
        impairments=impairments,
        publishers=publishers,
        subscribers=subscribers,
    )


def _links(broker_host: str, cell: Cell, each: EachKind) -> list[LinkPlan]:
    """Return the links of a cell, the one that is impaired first."""
    congestion_control = cell.congestion_control
    links = [LinkPlan((broker_host, cell.name), each.profile, congestion_control)]
    links += [
        LinkPlan((cell.name, receiver), each.profile, congestion_control)
        for receiver in cell.receivers
        if receiver != cell.name
    ]
    return links


def only_kinds(scenario: Scenario, kinds: Collection[str]) -> Scenario:
    """Return a scenario with some of its kinds and what they stand for."""
    chosen = [cell for cell in scenario.cells() if cell.kind in kinds]
    receivers = {receiver for cell in chosen for receiver in cell.receivers}
    hosts = {scenario.broker_host, *receivers, *(cell.name for cell in chosen)}
    links = [link for link in scenario.topology.links if hosts.issuperset(link.between)]
    named = {link.name for link in links}
    return replace(
        scenario,
        kinds={name: kind for name, kind in scenario.kinds.items() if name in kinds},
        topology=Topology(
            {name: host for name, host in scenario.topology.hosts.items() if name in hosts}, links
        ),
        impairments=[each for each in scenario.impairments if each.link in named],
        publishers={
            name: each for name, each in scenario.publishers.items() if each.to in receivers
        },
        subscribers={
            name: each for name, each in scenario.subscribers.items() if name in receivers
        },
    )


def parts(scenario: Scenario) -> list[Scenario]:
    """Return what runs at a time of a scenario: some of its kinds; itself, if it has none."""
    groups = scenario.kinds_at_once()
    return [only_kinds(scenario, group) for group in groups] if len(groups) > 1 else [scenario]
