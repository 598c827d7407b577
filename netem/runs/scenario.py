"""A scenario: a network, brokers in turn or side by side, traffic, and impairments of links.

A scenario describes an experiment; `penstock.netem.runs.scenario_file` reads one from YAML and
`penstock.netem.runs.runner` runs it. Each broker gets a copy of the topology, of the clients and of
the impairments, with the same seed: links are bad at the same times for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from penstock.broker.config.checked_yaml import NOT_IN_FILE
from penstock.broker.config.key_types import STRICT, Positive, Seconds, Size
from penstock.netem.links.link_variation import Changes
from penstock.netem.links.profiles import Profile
from penstock.netem.runs.impairments import Impairment, draw_profiles
from penstock.netem.runs.kinds import Cell, EachKind, LinkKind, cells
from penstock.netem.runs.profile_plan import ProfilePlan

UPLINK: Final = "cloud"
"""The name of the uplink, or of the connection, of an edge broker."""

LEAST_PAYLOAD_BYTES: Final = 24
"""The least payload length, bytes: that of the head, which identifies the message."""

MAX_PAYLOAD_BYTES: Final = 268_000_000
"""The largest payload that fits into a packet, of which the protocol allows 268,435,455 bytes after
its first ones."""

MAX_CLIENTS: Final = 10_000
"""The most clients of one name, each of which is a process or a share of one."""

MAX_SEED: Final = (1 << 53) - 1
"""The greatest whole number that JSON, in which the seed is written down, holds exactly
everywhere."""

FromZero = Annotated[float, Field(ge=0)]
Qos = Annotated[int, Field(ge=0, le=2)]
NumberOfClients = Annotated[int, Field(ge=1, le=MAX_CLIENTS)]

STREAM_FIGURES: Final = ("p50", "p90", "p99", "mean", "max", "share_as_fast")
"""The figures of a stream's latencies at the subscribers in focus, such as ``small p90``."""

COMMON_FIGURES: Final = (
    "lost",
    "not_delivered",
    "reordered",
    "duplicated",
    "repeated",
    "memory",
    "memory_left",
    "withheld_outside",
    "withheld_share",
    "wan_bytes",
)
"""The figures of all messages together, which `penstock.netem.figures.measures` explains."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A host of the topology.

    Attributes:
        congestion_control: the congestion control of its TCP connections; None for cubic.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    congestion_control: str | None = None


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """A link of the topology; hosts further away are reached over hosts in between.

    Attributes:
        between: its two hosts; ``upstream`` is the direction towards the first.
        profile: its profile without an impairment; a name in `Scenario.profiles`.
        congestion_control: the congestion control of the TCP connections whose packets leave either
            host by it; None for that of the host.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    between: tuple[str, str]
    profile: str
    congestion_control: str | None = None

    @property
    def name(self) -> str:
        """Return the name in impairments and results, such as ``cloud-edge``."""
        return "-".join(self.between)


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts and links."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    hosts: dict[str, HostPlan]
    links: list[LinkPlan]

    def way(self, begin: str, end: str) -> list[LinkPlan] | None:
        """Return the links from one host to another, the fewest; None where there is no way.

        Of several ways with as few, it is the one over links that stand first.
        """
        ways: dict[str, list[LinkPlan]] = {begin: []}
        reached = [begin]
        for host in reached:  # grows as it is read: breadth first
            for link in self.links:
                if host in link.between:
                    first, second = link.between
                    peer = second if host == first else first
                    if peer not in ways:
                        ways[peer] = [*ways[host], link]
                        reached.append(peer)
        return ways.get(end)

    def hosts_on(self, way: Iterable[LinkPlan], begin: str) -> list[str]:
        """Return the hosts on a way that begins at a host, both ends included."""
        hosts = [begin]
        for link in way:
            first, second = link.between
            hosts.append(second if hosts[-1] == first else first)
        return hosts


@dataclass(frozen=True, slots=True)
class Stream:
    """Messages of one kind.

    Attributes:
        topic: the Topic Name, in which ``{n}`` stands for the publisher's number, from 1,
            ``{host}`` for the name of its host, and ``{to}`` for `Publisher.to`.
        payload_bytes: the payload length of each message, at least 24 (its head).
        period_seconds: the time between two messages; with ``poisson``, its mean.
        qos: the QoS of their PUBLISH packets: 0, 1 or 2.
        first_seconds: the time of the first message after the beginning; ``random`` for a phase
            that each publisher draws from the seed, equal for each broker.
        arrivals: ``periodic``, or ``poisson``: exponential times between two.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    topic: str
    payload_bytes: Annotated[Size, Field(ge=LEAST_PAYLOAD_BYTES, le=MAX_PAYLOAD_BYTES)]
    period_seconds: Seconds
    qos: Qos = 1
    first_seconds: FromZero | Literal["random"] = 0.0
    arrivals: Literal["periodic", "poisson"] = "periodic"


@dataclass(frozen=True, slots=True)
class Publisher:
    """A publisher: a process of its own with one connection for each stream.

    Attributes:
        streams: the names of its streams in `Scenario.traffic`.
        count: the number of such clients; with more than one, their client ids end in a number.
        brokers: the names of the brokers that have it; None for all.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    host: str
    streams: list[str]
    count: NumberOfClients = 1
    protocol: Literal["3.1.1", "5"] = "3.1.1"
    brokers: list[str] | None = None
    to: str = ""

    def topic_of(self, stream: Stream, number: int) -> str:
        """Return the Topic Name of a stream of one of these."""
        topic = stream.topic.replace("{n}", str(number)).replace("{host}", self.host)
        return topic.replace("{to}", self.to)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber: a process of its own.

    Attributes:
        qos: the greatest QoS that it requests.
        count: the number of such clients; with more than one, their client ids end in a number.
        keep_alive_seconds: the time after which it gives up a silent connection; it reconnects to
            its session.
        user_properties: the User Properties of its CONNECT, such as ``threshold_l``; MQTT 5 alone.
        brokers: the names of the brokers that have it; None for all.
        through: the load balancer on the broker's host to which it connects: ``haproxy``; None for
            the broker itself.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    host: str
    filters: list[str]
    qos: Qos = 1
    count: NumberOfClients = 1
    protocol: Literal["3.1.1", "5"] = "3.1.1"
    keep_alive_seconds: Annotated[int, Field(ge=1, le=65_535)] = 60
    user_properties: dict[str, str] = field(default_factory=dict)
    brokers: list[str] | None = None
    through: Literal["haproxy"] | None = None


@dataclass(frozen=True, slots=True)
class Edges:
    """Brokers at sites, each with a link to the broker on `Scenario.broker_host`.

    A client connects to the first edge broker on its way to that host, its own host included.

    Attributes:
        kind: ``penstock``, with the plugin `uplink`; or ``mosquitto``, with a bridge.
        settings: Penstock's keys of the policy file, laid over the runner's own, which has one
            uplink ``cloud`` for all topics in both directions, on one connection.
        lines: the lines of mosquitto's configuration file that follow the runner's own. These begin
            one connection, ``cloud``, whose topics are for the scenario's lines to give.

    In `settings` and `lines`, ``{host}`` stands for the name of the edge broker's host and
    ``{broker}`` for the address of the broker behind it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    hosts: list[str]
    kind: Literal["penstock", "mosquitto"] = "penstock"
    settings: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def client_ids(self, host: str) -> list[str]:
        """Return the Client Identifiers of the one on a host, unless the scenario sets others.

        An uplink with two lanes has the second one.
        """
        if self.kind == "mosquitto":
            return [host]
        return [f"{host}-{UPLINK}", f"{host}-{UPLINK}-large"]


@dataclass(frozen=True, slots=True)
class Broker:
    """One of the brokers that are compared.

    Attributes:
        kind: ``penstock``, ``mosquitto``, ``amqtt``, or ``command`` for any other; ``oracle`` for
            Penstock with a gate that is told what links carry (`penstock.netem.oracle`).
        settings: Penstock's and aMQTT's keys of the policy file, laid over the runner's own, which
            lift the limits of queues and load `probing` and `withholding`.
        lines: lines of mosquitto's configuration file, behind the runner's own.
        command: the program of kind ``command`` and its arguments; it listens on port 1883 of every
            address. ``{directory}`` in it stands for an empty directory.
        lanes: the connections of each subscriber: ``filters`` for one for each topic filter;
            ``sizes`` for one for small and one for large messages, by Penstock's size-classified
            subscriptions in MQTT 5; ``client`` for those that `penstock.lanes` opens where the
            broker has lanes; None for one.
        sidecar: keys of the edge proxy's file, laid over the runner's own, which loads `probing`,
            `withholding` and `console`: all clients connect to a sidecar before the broker. None
            for no sidecar.
        edges: brokers at sites between this one and its clients; None for none.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    kind: Literal["penstock", "mosquitto", "amqtt", "command", "oracle"]
    settings: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    lanes: Literal["filters", "sizes", "client"] | None = None
    sidecar: dict[str, Any] | None = None
    edges: Edges | None = None

    @property
    def withholds(self) -> bool:
        """Return whether large messages may be withheld from its own clients."""
        return self.is_penstock or self.sidecar is not None

    @property
    def is_penstock(self) -> bool:
        """Return whether the broker is Penstock."""
        return self.kind in ("penstock", "oracle")


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements beside what clients write down.

    Attributes:
        arrivals: whether a subscriber with QoS 0 beside the broker records when messages arrive.
        memory_period_seconds: the time between two readings of the broker's resident set.
        withheld_period_seconds: the time between two readings of the messages that Penstock
            withholds from `focus`.
        focus: the names of the subscribers whose latencies are reported and compared; None for
            those with an impaired link on their way, or for all where there is none.
        unit: the independent unit: ``link``, for links that share nothing with each other, as
            `penstock.netem.runs.statistical_units` finds them; or ``seed``, for a whole run, where
            the figures depend on a part that links share, such as the broker.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    arrivals: bool = True
    memory_period_seconds: Seconds = 0.5
    withheld_period_seconds: Seconds = 0.2
    focus: list[str] | None = None
    unit: Literal["link", "seed"] = "link"


@dataclass(frozen=True, slots=True)
class Target:
    """A target: a bound for a figure, as `penstock.netem.figures.measures` names it.

    Attributes:
        figure: the figure's name, such as ``small p90``, ``large mean``, ``lost``, ``memory``.
        over: the broker whose figure is the divisor; None for the figure itself.
        at_most: the greatest allowed value; or None.
        at_least: the least allowed value; or None. One of the two is given.
        is_timing: whether it depends on the speed of the machine, so that a short run does not
            judge it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    figure: str
    broker: str
    over: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    is_timing: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario.

    Attributes:
        topology: the hosts and links, equal for each broker.
        kinds: kinds of bad links by name, which stand for all links and clients
            (`penstock.netem.runs.kinds`).
        each_kind: the settings that the kinds have in common; None where there are none.
        targets: the bounds that figures should keep.
        drain_seconds: the time in which the messages may arrive after that; the rest is lost.
        seeds: the seeds of the runs, one after the other. A seed decides the times at which links
            are bad, which packets are lost, and random traffic.
        side_by_side: the number of brokers that run at a time; None for all.
        congestion_control: the congestion control of the TCP connections of hosts that name none,
            on both sides; None for cubic.
        calm_seconds: the time between the last subscription and the beginning, in which brokers
            measure the unimpaired links.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str = field(metadata=NOT_IN_FILE)
    title: str
    about: str
    topology: Topology
    broker_host: str
    brokers: dict[str, Broker]
    traffic: dict[str, Stream]
    duration_seconds: Seconds
    publishers: dict[str, Publisher] = field(default_factory=dict)
    subscribers: dict[str, Subscriber] = field(default_factory=dict)
    profiles: dict[str, ProfilePlan] = field(default_factory=dict)
    impairments: list[Impairment] = field(default_factory=list)
    kinds: dict[str, LinkKind] = field(default_factory=dict)
    each_kind: EachKind | None = None
    measurements: Measurements = field(default_factory=Measurements)
    targets: list[Target] = field(default_factory=list)
    drain_seconds: FromZero = 120.0
    seeds: list[Annotated[int, Field(ge=0, le=MAX_SEED)]] = field(default_factory=lambda: [1])
    side_by_side: Positive | None = None
    congestion_control: str | None = None
    calm_seconds: FromZero = 5.0

    def profiles_of(self, link: str, seed: int) -> dict[str, Profile]:
        """Return a link's states in the run with a seed, by name; equal for each broker."""
        return draw_profiles(self.profiles, seed, link)

    def cells(self) -> list[Cell]:
        """Return what its kinds stand for; nothing where there are none."""
        return cells(self.kinds, self.each_kind)

    def changes_of(self, impairment: Impairment, seed: int) -> Changes:
        """Return the changes of a link in the run with a seed; equal for each broker.

        Raises:
            MistakesError: it says what cannot be.
        """
        return impairment.changes(self.profiles, seed, self.duration_seconds)

    def serving_host(self, broker: str, host: str) -> str:
        """Return where the broker runs to which clients on a host connect."""
        edges = self.brokers[broker].edges
        if edges is None:
            return self.broker_host
        way = self.topology.way(host, self.broker_host) or []
        hosts = self.topology.hosts_on(way, host)
        return next((each for each in hosts if each in edges.hosts), self.broker_host)

    def wan_links(self) -> list[str]:
        """Return the links whose bytes are counted: the impaired ones, all where there is none."""
        impaired = {each.link for each in self.impairments}
        names = [link.name for link in self.topology.links]
        return [name for name in names if name in impaired] or names

    def topics_of(self, publisher: Publisher) -> set[str]:
        """Return the Topic Names that the publishers of an entry have in all."""
        return {
            publisher.topic_of(self.traffic[stream], number)
            for stream in publisher.streams
            for number in range(1, publisher.count + 1)
        }

    @property
    def congestion_controls(self) -> set[str]:
        """The congestion controls that it names."""
        every = (
            self.congestion_control,
            *(host.congestion_control for host in self.topology.hosts.values()),
            *(link.congestion_control for link in self.topology.links),
        )
        return {name for name in every if name is not None}

    def figures(self) -> list[str]:
        """Return what a target may name."""
        of_streams = [f"{name} {figure}" for name in self.traffic for figure in STREAM_FIGURES]
        return [*of_streams, *COMMON_FIGURES]

    @property
    def rounds(self) -> int:
        """Return the number of rounds: for each seed as many as all brokers take."""
        return len(self.seeds) * len(self.kinds_at_once()) * len(self.groups())

    def kinds_at_once(self) -> list[list[str]]:
        """Return the kinds that run at the same time, in the order of the groups."""
        most = math.inf
        if self.each_kind is not None and self.each_kind.links_at_once is not None:
            most = self.each_kind.links_at_once
        groups: list[list[str]] = [[]]
        room = most
        for kind in self.kinds:
            n_links = self._count_links(kind)
            if groups[-1] and n_links > room:
                groups.append([])
                room = most
            groups[-1].append(kind)
            room -= n_links
        return groups

    def _count_links(self, kind: str) -> int:
        """Return how many links to subscribers a kind has in a round, of its brokers together."""
        most_brokers = max(map(len, self.groups()))
        receivers = [each for cell in self.cells() if cell.kind == kind for each in cell.receivers]
        brokers = [self.subscribers[each].brokers for each in receivers]
        return sum(
            min(most_brokers, len(self.brokers if each is None else each)) for each in brokers
        )

    def groups(self) -> list[list[str]]:
        """Return the brokers that run at the same time, in the order of the groups."""
        names = list(self.brokers)
        size = self.side_by_side or max(1, len(names))
        return [names[begin : begin + size] for begin in range(0, len(names), size)]


def client_ids(name: str, count: int) -> list[str]:
    """Return the Client Identifiers of so many clients of one name."""
    return [name] if count == 1 else [f"{name}-{n}" for n in range(1, count + 1)]
