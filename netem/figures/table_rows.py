"""The rows of the tables that a run writes, in Parquet or CSV.

Times are seconds since the beginning of the traffic of that seed; None stands for what did not
happen or is not known. ``broker`` is the name in the scenario, ``seed`` that of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple


class MessageRow(NamedTuple):
    """A message, as its publisher and the broker have it.

    Attributes:
        broker: name.
        seed: the seed of the run.
        publisher: Client Identifier.
        stream: name in the scenario.
        topic: Topic Name.
        number: the number in the stream of this publisher, from 0.
        payload_bytes: length.
        qos: the QoS at which it was published.
        due_s: when it was to be published; latencies count from here.
        published_s: when it was given to the connection.
        acknowledged_s: when PUBACK or PUBCOMP came; None at QoS 0.
        arrived_s: when a subscriber beside the broker had it.
    """

    broker: str
    seed: int
    publisher: str
    stream: str
    topic: str
    number: int
    payload_bytes: int
    qos: int
    due_s: float
    published_s: float
    acknowledged_s: float | None
    arrived_s: float | None


class DeliveryRow(NamedTuple):
    """A PUBLISH at a subscriber; a message that comes twice has two, in the order of arrival.

    Attributes:
        broker: name.
        seed: the seed of the run.
        subscriber: Client Identifier.
        publisher: the publisher of the message.
        stream: the stream of the message.
        number: the number of the message.
        qos: the QoS of the PUBLISH.
        is_duplicate: whether its DUP flag was set.
        delivered_s: when its last byte was read.
    """

    broker: str
    seed: int
    subscriber: str
    publisher: str
    stream: str
    number: int
    qos: int
    is_duplicate: bool
    delivered_s: float


class ExpectedRow(NamedTuple):
    """A stream of a publisher that a subscriber is to get, all of it.

    Attributes:
        broker: name.
        seed: the seed of the run.
        subscriber: Client Identifier.
        group: name of the subscriber in the scenario.
        is_focus: whether its latencies are reported and compared.
        publisher: Client Identifier.
        stream: name.
        qos: the QoS at which it is delivered: the lesser of both sides' (at 0 nothing is promised).
        unit: name of the independent unit to which the subscriber belongs: a link, with all links
            that share its chance. Units are paired over brokers by this name and the seed.
    """

    broker: str
    seed: int
    subscriber: str
    group: str
    is_focus: bool
    publisher: str
    stream: str
    qos: int
    unit: str


class MemoryRow(NamedTuple):
    """A look at a broker's memory; those before the beginning have negative times.

    Attributes:
        broker: name.
        seed: the seed of the run.
        at_s: the time of the look.
        rss_bytes: resident set of its process and those it has started.
    """

    broker: str
    seed: int
    at_s: float
    rss_bytes: int


class WithheldRow(NamedTuple):
    """A time for which Penstock withheld messages from a subscriber.

    Attributes:
        broker: name.
        seed: the seed of the run.
        subscriber: Client Identifier.
        begin_s: the begin.
        end_s: the end, give or take the time between two looks.
        most_messages: the most messages that were withheld at a time.
    """

    broker: str
    seed: int
    subscriber: str
    begin_s: float
    end_s: float
    most_messages: int


class LinkRow(NamedTuple):
    """A time for which a link had one profile.

    Attributes:
        broker: name.
        seed: the seed of the run.
        link: name, such as ``cloud-edge``.
        profile: name.
        is_impaired: whether it was another than the topology's.
        begin_s: the begin.
        end_s: the end.
    """

    broker: str
    seed: int
    link: str
    profile: str
    is_impaired: bool
    begin_s: float
    end_s: float


class PacketsRow(NamedTuple):
    """The fates of the packets of one direction of a link, from its making to the end of the run.

    Attributes:
        broker: name.
        seed: the seed of the run.
        link: the name of the link.
        direction: ``upstream`` or ``downstream``.
        taken: packets that entered it.
        delivered: packets that arrived, duplicates included.
        lost: the packets lost by chance, as its profile says.
        dropped: the packets dropped at a full queue, as its profile says.
        harness_dropped: the packets dropped that no profile says: in queues of the hosts' devices,
            or because too much was under way for the forwarder.
        carried_bytes: the bytes of packets that used the link since the beginning of the traffic,
            IP headers included; also of those that were lost on it, but not of those dropped before
            it.
    """

    broker: str
    seed: int
    link: str
    direction: str
    taken: int
    delivered: int
    lost: int
    dropped: int
    harness_dropped: int
    carried_bytes: int


class RunRow(NamedTuple):
    """A broker in a run.

    Attributes:
        broker: name.
        seed: the seed of the run.
        round: number of the round, from 1; brokers of the same round ran at the same time.
        harness_dropped: packets that no profile drops, on all its links.
        deliveries: times at which its forwarder had packets to deliver during the traffic.
        late_deliveries: how often packets were late by more than 10 ms.
        most_late_s: greatest lateness.
    """

    broker: str
    seed: int
    round: int
    harness_dropped: int
    deliveries: int
    late_deliveries: int
    most_late_s: float


class MachineRow(NamedTuple):
    """The load of the machine in one second of the traffic.

    Attributes:
        seed: the seed of the run.
        round: the number of the round, as in `RunRow`.
        begin_s: the begin.
        end_s: the end.
        busy_share: the share of all processors that was in use.
        steal_share: the share of all processors that the hypervisor gave to others.
        others_share: the share of all processors that programs used which the run did not start.
        wait_share: the share of the time for which the thread of the run that waited longest waited
            for a processor; None if the kernel does not tell.
        runnable: processes that ran or waited for a processor at the end.
        most_late_s: greatest lateness of a forwarder of the round.
        is_doubtful: whether latencies of this time may be those of the machine.
    """

    seed: int
    round: int
    begin_s: float
    end_s: float
    busy_share: float
    steal_share: float
    others_share: float
    wait_share: float | None
    runnable: int
    most_late_s: float
    is_doubtful: bool


@dataclass(slots=True)
class Tables:
    """All rows of a run, or of a part of it; each attribute is the name of its table."""

    messages: list[MessageRow] = field(default_factory=list)
    deliveries: list[DeliveryRow] = field(default_factory=list)
    expected: list[ExpectedRow] = field(default_factory=list)
    memory: list[MemoryRow] = field(default_factory=list)
    withheld: list[WithheldRow] = field(default_factory=list)
    links: list[LinkRow] = field(default_factory=list)
    packets: list[PacketsRow] = field(default_factory=list)
    runs: list[RunRow] = field(default_factory=list)
    machine: list[MachineRow] = field(default_factory=list)

    def add(self, other: Tables) -> None:
        """Take over the rows of another part."""
        for each in fields(self):
            getattr(self, each.name).extend(getattr(other, each.name))
