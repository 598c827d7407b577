"""The clients of a broker in a run, and the messages that each should receive. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker.mqtt.topics import matches
from penstock.lanes.client import SUFFIX as LARGE_LANE
from penstock.netem.clients.client_plan import (
    Awaited,
    CrewPlan,
    LanePlan,
    PublisherPlan,
    StreamPlan,
    SubscriberPlan,
)
from penstock.netem.clients.connection import BALANCER_PORT, PORT
from penstock.netem.clients.payloads import Times
from penstock.netem.figures.table_rows import ExpectedRow
from penstock.netem.runs.scenario import Publisher, Scenario, Subscriber, client_ids
from penstock.netem.runs.statistical_units import units

WITNESS: Final = "netem-witness"
"""The Client Identifier of the subscriber on the broker's host that records when messages
arrive."""

WITNESS_KEEP_ALIVE_SECONDS: Final = 60


class PublisherMember(NamedTuple):
    """A publisher.

    Attributes:
        number: the number in the run, from 0.
        topic_number: the value of ``{n}`` in a topic, from 1.
    """

    client_id: str
    number: int
    topic_number: int
    publisher: Publisher


class SubscriberMember(NamedTuple):
    """A subscriber.

    Attributes:
        client_id: the name in the results; the Client Identifier where it has one connection.
    """

    client_id: str
    group: str
    is_focus: bool
    subscriber: Subscriber


class Roster:
    """The clients of one broker in the run with one seed.

    Attributes:
        units: the independent unit of each subscriber, by the subscriber's name in the scenario.
    """

    def __init__(self, scenario: Scenario, broker: str, seed: int) -> None:
        self.scenario = scenario
        self.broker = broker
        self.seed = seed
        self.streams = list(scenario.traffic)
        self.publishers = [
            PublisherMember(client_id, number, topic_number, publisher)
            for number, (client_id, topic_number, publisher) in enumerate(self._publishers())
        ]
        focus = focus_of(scenario)
        self.units = units(scenario)
        self.subscribers = [
            SubscriberMember(client_id, name, name in focus, subscriber)
            for name, subscriber in scenario.subscribers.items()
            if subscriber.brokers is None or broker in subscriber.brokers
            for client_id in client_ids(name, subscriber.count)
        ]

    def _publishers(self) -> Iterator[tuple[str, int, Publisher]]:
        for name, publisher in self.scenario.publishers.items():
            if publisher.brokers is None or self.broker in publisher.brokers:
                for n, client_id in enumerate(client_ids(name, publisher.count), start=1):
                    yield client_id, n, publisher

    def topic(self, member: PublisherMember, stream: str) -> str:
        """Return the Topic Name of a stream of a publisher."""
        return member.publisher.topic_of(self.scenario.traffic[stream], member.topic_number)

    def times(self, member: PublisherMember, stream: str) -> Times:
        """Return when the messages of a publisher's stream are due: equal for each broker."""
        plan = self.scenario.traffic[stream]
        return Times(
            plan.first_seconds,
            plan.period_seconds,
            plan.arrivals,
            self.scenario.duration_seconds,
            f"{self.seed} {member.client_id} {stream}",
        )

    def expected(self) -> list[ExpectedRow]:
        """Return the streams that each subscriber should receive."""
        return [
            ExpectedRow(
                self.broker,
                self.seed,
                subscriber.client_id,
                subscriber.group,
                subscriber.is_focus,
                publisher.client_id,
                stream,
                qos,
                self.units[subscriber.group],
            )
            for subscriber in self.subscribers
            for publisher, stream, qos in self.expected_by(subscriber)
        ]

    def expected_by(
        self, subscriber: SubscriberMember
    ) -> Iterator[tuple[PublisherMember, str, int]]:
        """Yield the streams that a subscriber should receive, with the publisher and the QoS."""
        for publisher in self.publishers:
            for stream in publisher.publisher.streams:
                topic = self.topic(publisher, stream)
                if any(matches(each, topic) for each in subscriber.subscriber.filters):
                    qos = min(subscriber.subscriber.qos, self.scenario.traffic[stream].qos)
                    yield publisher, stream, qos

    def lanes(self, member: SubscriberMember) -> list[LanePlan]:
        """Return the connections that a subscriber has to this broker."""
        client_id, filters = member.client_id, member.subscriber.filters
        match self.scenario.brokers[self.broker].lanes:
            case "filters" if len(filters) > 1:
                return [LanePlan(f"{client_id}.{n}", [each]) for n, each in enumerate(filters, 1)]
            case "sizes":
                return [
                    LanePlan(f"{client_id}.{sizes}", filters, sizes) for sizes in ("small", "large")
                ]
            case "client":
                return [LanePlan(client_id, filters, has_lanes=True)]
            case _:
                return [LanePlan(client_id, filters)]

    def known_as(self, member: SubscriberMember) -> list[str]:
        """Return the Client Identifiers of a subscriber's connections to the broker.

        They are those of its edge broker, where it has one.
        """
        host = self.scenario.serving_host(self.broker, member.subscriber.host)
        edges = self.scenario.brokers[self.broker].edges
        if edges is None or host == self.scenario.broker_host:
            lanes = self.lanes(member)
            own = [f"{lane.client_id}{LARGE_LANE}" for lane in lanes if lane.has_lanes]
            return [*(lane.client_id for lane in lanes), *own]
        return edges.client_ids(host)

    def subscribers_of(self) -> dict[str, list[str]]:
        """Return the names of the subscribers by the Client Identifier of each connection."""
        found: dict[str, list[str]] = {}
        for member in self.subscribers:
            for client_id in self.known_as(member):
                found.setdefault(client_id, []).append(member.client_id)
        return found

    def crews(self, address: Callable[[str, str], str], directory: Path) -> dict[str, CrewPlan]:
        """Return the clients of each host."""

        def address_from(host: str) -> str:
            return address(host, self.scenario.serving_host(self.broker, host))

        hosts = [
            *(each.publisher.host for each in self.publishers),
            *(each.subscriber.host for each in self.subscribers),
        ]
        if self.scenario.measurements.arrivals:
            hosts.append(self.scenario.broker_host)
        crews = {host: CrewPlan([], []) for host in hosts}
        for publisher in self.publishers:
            host = publisher.publisher.host
            crews[host].publishers.append(
                self._publisher_plan(publisher, address_from(host), directory)
            )
        for number, subscriber in enumerate(self.subscribers):
            host = subscriber.subscriber.host
            files = subscriber_files(directory, number)
            crews[host].subscribers.append(
                self._subscriber_plan(subscriber, address_from(host), *files)
            )
        if self.scenario.measurements.arrivals:
            host = self.scenario.broker_host
            crews[host].subscribers.append(_witness(address_from(host), directory))
        return crews

    def _publisher_plan(
        self, member: PublisherMember, address: str, directory: Path
    ) -> PublisherPlan:
        streams = member.publisher.streams
        plans = []
        for name in streams:
            stream = self.scenario.traffic[name]
            client_id = member.client_id if len(streams) == 1 else f"{member.client_id}.{name}"
            plans.append(
                StreamPlan(
                    self.streams.index(name),
                    client_id,
                    self.topic(member, name),
                    stream.payload_bytes,
                    stream.qos,
                    self.times(member, name),
                )
            )
        file, log = publisher_files(directory, member.number)
        return PublisherPlan(
            member.client_id,
            member.number,
            address,
            member.publisher.protocol,
            plans,
            str(file),
            str(log),
            sounds=self.scenario.brokers[self.broker].edges is not None,
        )

    def _subscriber_plan(
        self, member: SubscriberMember, address: str, file: Path, log: Path
    ) -> SubscriberPlan:
        plan = member.subscriber
        lanes = self.lanes(member)
        awaited = [
            Awaited(
                publisher.number,
                self.streams.index(stream),
                len(self.times(publisher, stream).due_seconds()),
                qos > 0,
            )
            for publisher, stream, qos in self.expected_by(member)
        ]
        return SubscriberPlan(
            member.client_id,
            address,
            PORT if plan.through is None else BALANCER_PORT,
            "5" if any(lane.sizes or lane.has_lanes for lane in lanes) else plan.protocol,
            lanes,
            plan.qos,
            plan.keep_alive_seconds,
            plan.user_properties,
            awaited,
            str(file),
            str(log),
        )


def focus_of(scenario: Scenario) -> set[str]:
    """Return the names of the subscribers whose latencies are reported and compared."""
    if scenario.measurements.focus is not None:
        return set(scenario.measurements.focus)
    impaired = {impairment.link for impairment in scenario.impairments}
    ways = {
        name: scenario.topology.way(scenario.broker_host, subscriber.host) or []
        for name, subscriber in scenario.subscribers.items()
    }
    behind = {name for name, way in ways.items() if any(link.name in impaired for link in way)}
    return behind or set(scenario.subscribers)


def publisher_files(directory: Path, number: int) -> tuple[Path, Path]:
    """Return the paths of a publisher's file and log."""
    return directory / f"publisher{number}", directory / f"publisher{number}.log"


def subscriber_files(directory: Path, number: int) -> tuple[Path, Path]:
    """Return the paths of a subscriber's file and log."""
    return directory / f"subscriber{number}", directory / f"subscriber{number}.log"


def witness_files(directory: Path) -> tuple[Path, Path]:
    """Return the paths of the witness's file and log."""
    return directory / "witness", directory / "witness.log"


def _witness(address: str, directory: Path) -> SubscriberPlan:
    file, log = map(str, witness_files(directory))
    return SubscriberPlan(
        WITNESS,
        address,
        PORT,
        "3.1.1",
        [LanePlan(WITNESS, ["#"])],
        0,
        WITNESS_KEEP_ALIVE_SECONDS,
        {},
        [],
        file,
        log,
    )
