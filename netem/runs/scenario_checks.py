"""Checks of a scenario beyond types: names must exist and times must fit together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, Final

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.topics import matches, validate_topic, validate_topic_filter
from penstock.netem.checked_yaml import Mistake, MistakesError, Place
from penstock.netem.links.link_variation import Changes
from penstock.netem.runs.scenario import (
    Broker,
    Edges,
    Publisher,
    Scenario,
    Stream,
    Subscriber,
    client_ids,
)

MAX_MESSAGES: Final = 1_000_000
"""The most messages of one stream of a publisher, each of which is a row of a table."""

OWN_CLIENTS: Final = "netem-"
"""The prefix of the client ids of the runner's own clients."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BELONGS_TO: Final = {
    "settings": ("penstock", "amqtt", "oracle"),
    "lines": ("mosquitto",),
    "command": ("command",),
}
"""The kinds of brokers that have each key."""


def find_mistakes(scenario: Scenario) -> Iterator[Mistake]:
    """Yield what is wrong with a scenario, by place."""
    yield from _check_name(("name",), scenario.name, "; it is the file's name")
    yield from _check_topology(scenario)
    yield from _check_brokers(scenario)
    yield from _check_traffic(scenario)
    yield from _check_publishers(scenario)
    yield from _check_subscribers(scenario)
    yield from _check_lanes(scenario)
    yield from _check_client_ids(scenario)
    yield from _check_impairments(scenario)
    yield from check_chance(scenario)
    yield from _check_measurements(scenario)
    yield from _check_targets(scenario)
    yield from check_rounds(scenario)
    yield from _check_several(("seeds",), scenario.seeds)


def check_rounds(scenario: Scenario) -> Iterator[Mistake]:
    """Check that a timing is compared with one of the same round.

    Another round meets the same links at another time, when the machine may be busier.
    """
    if scenario.side_by_side is None:
        return
    groups = scenario.groups()
    for number, target in enumerate(scenario.targets):
        names = {target.broker, target.over}
        is_timing = target.is_timing or target.figure.endswith(" share_as_fast")
        is_known = names <= scenario.brokers.keys()
        if is_timing and is_known and not any(names <= set(group) for group in groups):
            rounds = "; ".join(", ".join(group) for group in groups)
            allowed = f"a broker of the same round as {target.broker} (side_by_side makes {rounds})"
            yield _wrong(("targets", number, "over"), target.over, allowed)


def check_chance(scenario: Scenario) -> Iterator[Mistake]:
    """Check that what chance decides happens with one of the seeds at least.

    A link that is never bad would leave nothing to measure.
    What is wrong in itself, such as a mean of 0, is left to other checks.
    """
    seconds, seeds = scenario.duration_seconds, scenario.seeds
    if not seeds:
        return
    allowed = f"means with which that happens, or other seeds than {', '.join(map(str, seeds))}"
    of_kinds = {f"{scenario.broker_host}-{cell.name}": cell.kind for cell in scenario.cells()}
    never_bad: dict[Place, bool] = {}
    for number, impairment in enumerate(scenario.impairments):
        try:
            changes = [scenario.changes_of(impairment, seed) for seed in seeds]
        except MistakesError:
            continue
        if impairment.on_off is None:
            continue
        place: Place = ("impairments", number, "on_off")
        if impairment.link in of_kinds:  # of the links of a kind, one is enough
            place = ("kinds", of_kinds[impairment.link], "on_off")
        is_never = not any(_is_ever_bad(each, seconds) for each in changes)
        never_bad[place] = never_bad.get(place, True) and is_never
    for place, is_never in never_bad.items():
        if is_never:
            yield Mistake(place, f"read no bad phase in {seconds:g} s; allowed: {allowed}")


def _is_ever_bad(changes: Changes, seconds: float) -> bool:
    """Say whether a link under random changes, which is good first, is bad before so many s."""
    return any(at < seconds for at, _ in islice(changes.steps(), 1, 2))


def _wrong(place: Place, read: Any, allowed: str) -> Mistake:
    return Mistake(place, f"read {read!r}; allowed: {allowed}")


def _check_known(place: Place, name: str, known: Collection[str]) -> Iterator[Mistake]:
    if name not in known:
        yield _wrong(place, name, ", ".join(known) or "none, there is none")


def _check_name(place: Place, name: str, more: str = "") -> Iterator[Mistake]:
    if not _NAME.fullmatch(name):
        yield _wrong(place, name, f"letters, digits and dashes{more}")


def _check_client(place: Place, name: str) -> Iterator[Mistake]:
    yield from _check_name(place, name)
    if name.startswith(OWN_CLIENTS):
        yield _wrong(
            place, name, f"a name without {OWN_CLIENTS}, which the runner's own clients have"
        )


def _check_text(place: Place, text: str, validate: Callable[[str], None]) -> Iterator[Mistake]:
    """Check a Topic Name or a Topic Filter."""
    try:
        validate(text)
    except MalformedPacketError as error:
        yield Mistake(place, error.args[0])


def _check_several(place: Place, values: Collection[Any]) -> Iterator[Mistake]:
    """Check that there is at least one, and none twice."""
    if not values:
        yield Mistake(place, "read none; allowed: at least one")
    for value, times in Counter(list(values)).items():
        if times > 1:
            yield _wrong(place, value, "each once")


def _check_topology(scenario: Scenario) -> Iterator[Mistake]:
    hosts, links = scenario.topology.hosts, scenario.topology.links
    for host in hosts:
        if not _HOST_NAME.fullmatch(host):
            yield _wrong(("topology", "hosts", host), host, "letters, digits, '.', '-' and '_'")
    yield from _check_known(("broker_host",), scenario.broker_host, hosts)
    joined: dict[frozenset[str], int] = {}
    named: set[str] = set()
    for number, link in enumerate(links):
        place: Place = ("topology", "links", number)
        for end, host in enumerate(link.between):
            yield from _check_known((*place, "between", end), host, hosts)
        yield from _check_known((*place, "profile"), link.profile, scenario.profiles)
        pair = frozenset(link.between)
        if len(pair) == 1:
            yield _wrong((*place, "between"), list(link.between), "two hosts")
        elif pair in joined:
            first = f"topology.links.{joined[pair]} joins these two"
            yield _wrong((*place, "between"), list(link.between), f"two others; {first}")
        elif link.name in named:
            yield _wrong((*place, "between"), link.name, "a name that no other link has")
        joined.setdefault(pair, number)
        named.add(link.name)
    touched = {host for link in links for host in link.between}
    for host in hosts:
        if host not in touched and len(hosts) > 1:
            yield Mistake(("topology", "hosts", host), "read no link to it; allowed: at least one")


def _check_host(scenario: Scenario, place: Place, host: str) -> Iterator[Mistake]:
    """Check that a client's host is there, and has a way to the broker's."""
    yield from _check_known(place, host, scenario.topology.hosts)
    ends = {host, scenario.broker_host}
    if ends <= scenario.topology.hosts.keys() and (
        scenario.topology.way(host, scenario.broker_host) is None
    ):
        yield _wrong(place, host, f"a host with a way to {scenario.broker_host}")


def _check_brokers(scenario: Scenario) -> Iterator[Mistake]:
    yield from _check_several(("brokers",), scenario.brokers)
    for name, broker in scenario.brokers.items():
        place: Place = ("brokers", name)
        yield from _check_name(place, name)
        yield from _check_keys(place, broker)
        if broker.lanes == "sizes" and not broker.is_penstock:
            yield _wrong((*place, "lanes"), "sizes", "filters; sizes needs kind penstock")
        if broker.kind == "command" and not broker.command:
            yield Mistake((*place, "command"), "read nothing; allowed: a program and its arguments")
        if broker.kind == "command" and broker.sidecar is not None:
            words = (
                "read with kind command, which takes the clients' port; allowed: with other kinds"
            )
            yield Mistake((*place, "sidecar"), words)
        if broker.edges is not None:
            yield from _check_edges(scenario, name, broker.edges)


def _check_keys(place: Place, plan: Broker | Edges) -> Iterator[Mistake]:
    """Check that each key is one of the broker's kind."""
    for key, kinds in _BELONGS_TO.items():
        if getattr(plan, key, None) and plan.kind not in kinds:
            words = f"no key of kind {plan.kind}; allowed: beside {' or '.join(kinds)}"
            yield Mistake((*place, key), words)


def _check_edges(scenario: Scenario, name: str, edges: Edges) -> Iterator[Mistake]:
    """Check that each edge broker stands between the broker and clients."""
    place: Place = ("brokers", name, "edges")
    yield from _check_keys(place, edges)
    if scenario.brokers[name].lanes == "sizes" and edges.kind != "penstock":
        yield _wrong((*place, "kind"), edges.kind, "penstock, beside lanes: sizes")
    yield from _check_several((*place, "hosts"), edges.hosts)
    clients: list[Publisher | Subscriber] = [*scenario.publishers.values()]
    clients += scenario.subscribers.values()
    hosts = {each.host for each in clients if each.brokers is None or name in each.brokers}
    known = {*hosts, *edges.hosts, scenario.broker_host} <= scenario.topology.hosts.keys()
    serving = {scenario.serving_host(name, host) for host in hosts} if known else set()
    for number, host in enumerate(edges.hosts):
        at: Place = (*place, "hosts", number)
        faults = list(_check_host(scenario, at, host))
        yield from faults
        if host == scenario.broker_host:
            yield _wrong(at, host, "another host than broker_host")
        elif known and not faults:
            way = scenario.topology.way(host, scenario.broker_host) or []
            others = {*scenario.topology.hosts_on(way, host)[1:]} & {*edges.hosts}
            if others:
                yield _wrong(at, host, f"a host that is not behind another one, {min(others)}")
            if host not in serving:
                yield _wrong(at, host, "a host with clients on it or behind it")


def _check_traffic(scenario: Scenario) -> Iterator[Mistake]:
    published = {name for each in scenario.publishers.values() for name in each.streams}
    for name, stream in scenario.traffic.items():
        place: Place = ("traffic", name)
        yield from _check_name(place, name)
        yield from _check_text((*place, "topic"), stream.topic, validate_topic)
        yield from _check_first(place, stream, scenario.duration_seconds)
        least = scenario.duration_seconds / MAX_MESSAGES
        if stream.period_seconds < least:
            allowed = f"at least {least:g}, which makes {MAX_MESSAGES} messages"
            yield _wrong((*place, "period_seconds"), stream.period_seconds, allowed)
        if name not in published:
            yield Mistake(place, "read no publisher of it; allowed: at least one")


def _check_first(place: Place, stream: Stream, duration_seconds: float) -> Iterator[Mistake]:
    """Check that a stream has a first message."""
    allowed = f"below duration_seconds, {duration_seconds:g}"
    if stream.first_seconds == "random":
        if stream.period_seconds > duration_seconds:
            allowed = f"at most duration_seconds, {duration_seconds:g}, beside a random phase"
            yield _wrong((*place, "period_seconds"), stream.period_seconds, allowed)
        return
    if stream.first_seconds >= duration_seconds:
        yield _wrong((*place, "first_seconds"), stream.first_seconds, allowed)


def _check_publishers(scenario: Scenario) -> Iterator[Mistake]:
    for name, publisher in scenario.publishers.items():
        place: Place = ("publishers", name)
        yield from _check_client(place, name)
        yield from _check_host(scenario, (*place, "host"), publisher.host)
        yield from _check_several((*place, "streams"), publisher.streams)
        for number, stream in enumerate(publisher.streams):
            yield from _check_known((*place, "streams", number), stream, scenario.traffic)
        yield from _check_its_brokers(scenario, place, publisher.brokers)


def _check_its_brokers(
    scenario: Scenario, place: Place, brokers: list[str] | None
) -> Iterator[Mistake]:
    """Check the brokers that a client is there for."""
    if brokers is not None:
        yield from _check_several((*place, "brokers"), brokers)
        for number, broker in enumerate(brokers):
            yield from _check_known((*place, "brokers", number), broker, scenario.brokers)


def _topics(scenario: Scenario) -> set[str]:
    return {
        publisher.topic_of(stream, number)
        for publisher in scenario.publishers.values()
        for stream in (scenario.traffic.get(each) for each in publisher.streams)
        if stream is not None and stream.topic
        for number in range(1, publisher.count + 1)
    }


def _check_subscribers(scenario: Scenario) -> Iterator[Mistake]:
    topics = _topics(scenario)
    for name, subscriber in scenario.subscribers.items():
        place: Place = ("subscribers", name)
        yield from _check_client(place, name)
        yield from _check_host(scenario, (*place, "host"), subscriber.host)
        yield from _check_several((*place, "filters"), subscriber.filters)
        for number, topic_filter in enumerate(subscriber.filters):
            at = (*place, "filters", number)
            faults = list(_check_text(at, topic_filter, validate_topic_filter))
            yield from faults
            if not faults and not any(matches(topic_filter, topic) for topic in topics):
                yield _wrong(at, topic_filter, "a filter that a published topic matches")
        if subscriber.user_properties and subscriber.protocol != "5":
            words = f"no key of protocol {subscriber.protocol}; allowed: beside protocol 5"
            yield Mistake((*place, "user_properties"), words)
        yield from _check_its_brokers(scenario, place, subscriber.brokers)
        if subscriber.through is not None:
            for broker in scenario.brokers if subscriber.brokers is None else subscriber.brokers:
                at_site = broker in scenario.brokers and (
                    scenario.serving_host(broker, subscriber.host) != scenario.broker_host
                )
                if at_site:
                    words = f"read beside {broker}, whose edge broker serves this host"
                    yield Mistake((*place, "through"), f"{words}; allowed: for others")


def _check_lanes(scenario: Scenario) -> Iterator[Mistake]:
    """Check that no message comes over two connections of a subscriber."""
    names = [name for name, broker in scenario.brokers.items() if broker.lanes == "filters"]
    topics = _topics(scenario)
    for name, subscriber in scenario.subscribers.items() if names else ():
        filters = [
            each
            for each in subscriber.filters
            if not list(_check_text((), each, validate_topic_filter))
        ]
        for topic in topics:
            both = [each for each in filters if matches(each, topic)]
            if len(both) > 1:
                words = f"filters of which one matches {topic!r}, beside lanes of {names[0]}"
                yield _wrong(("subscribers", name, "filters"), both, words)
                break


def _check_client_ids(scenario: Scenario) -> Iterator[Mistake]:
    """Check that no two clients of a broker have one id: one would end the other [MQTT-3.1.4-3]."""
    taken: dict[str, str] = {}
    counts = {("publishers", name): each.count for name, each in scenario.publishers.items()}
    counts |= {("subscribers", name): each.count for name, each in scenario.subscribers.items()}
    for (kind, name), count in counts.items():
        for client_id in client_ids(name, count):
            if client_id in taken:
                other = f"{taken[client_id]} has {client_id!r}"
                yield _wrong((kind, name), client_id, f"an id that no other client has; {other}")
                break
            taken[client_id] = f"{kind}.{name}"


def _check_impairments(scenario: Scenario) -> Iterator[Mistake]:
    links = [link.name for link in scenario.topology.links]
    seen: set[str] = set()
    used = _used_links(scenario)
    for number, impairment in enumerate(scenario.impairments):
        place: Place = ("impairments", number)
        yield from _check_known((*place, "link"), impairment.link, links)
        if impairment.link in seen:
            yield _wrong((*place, "link"), impairment.link, "each link once")
        elif used is not None and impairment.link in links and impairment.link not in used:
            yield _wrong(
                (*place, "link"), impairment.link, "a link on a client's way to the broker"
            )
        seen.add(impairment.link)
        try:
            scenario.changes_of(impairment, 0)
        except MistakesError as error:
            yield from (Mistake((*place, *each.place), each.words) for each in error.mistakes)
            continue
        trace, seconds = impairment.trace, scenario.duration_seconds
        if trace is not None and trace.at_seconds[-1] >= seconds:
            allowed = f"seconds below duration_seconds, {seconds:g}"
            yield _wrong((*place, "trace", "at_seconds"), list(trace.at_seconds), allowed)


def _used_links(scenario: Scenario) -> set[str] | None:
    """Return the links on clients' ways to the broker; None where a host is not known."""
    hosts = {client.host for client in scenario.publishers.values()}
    hosts |= {client.host for client in scenario.subscribers.values()}
    if not hosts | {scenario.broker_host} <= scenario.topology.hosts.keys():
        return None
    ways = (scenario.topology.way(host, scenario.broker_host) or [] for host in hosts)
    return {link.name for way in ways for link in way}


def _check_measurements(scenario: Scenario) -> Iterator[Mistake]:
    measurements = scenario.measurements
    if measurements.focus is not None:
        place: Place = ("measurements", "focus")
        yield from _check_several(place, measurements.focus)
        for number, name in enumerate(measurements.focus):
            yield from _check_known((*place, number), name, scenario.subscribers)


def _check_targets(scenario: Scenario) -> Iterator[Mistake]:
    figures = scenario.figures()
    for number, target in enumerate(scenario.targets):
        place: Place = ("targets", number)
        yield from _check_known((*place, "figure"), target.figure, figures)
        yield from _check_known((*place, "broker"), target.broker, scenario.brokers)
        if target.over is not None:
            yield from _check_known((*place, "over"), target.over, scenario.brokers)
            if target.over == target.broker:
                yield _wrong((*place, "over"), target.over, "another broker")
        elif target.figure.endswith(" share_as_fast"):
            yield Mistake((*place, "over"), "read nothing; allowed: the broker to be as fast as")
        if (target.at_most is None) == (target.at_least is None):
            which = "neither" if target.at_most is None else "both"
            yield Mistake(place, f"read {which} of at_most and at_least; allowed: one of them")
