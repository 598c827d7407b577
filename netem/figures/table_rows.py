"""The rows of the tables that a run writes, in Parquet or CSV.

Times are seconds since the beginning of the traffic of that seed; None stands for an event that did
not happen or a value that is unknown. ``broker`` is the name in the scenario, ``seed`` the seed of
the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple


class MessageRow(NamedTuple):
    """A message from the view of its publisher and the broker.

    Attributes:
        number: its number in the stream of this publisher, from 0.
        due_s: the time at which it was due; latencies count from here.
        published_s: the time at which it was given to the connection.
        acknowledged_s: the time of its PUBACK or PUBCOMP; None at QoS 0.
        arrived_s: the time at which a subscriber beside the broker received it.
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
        delivered_s: the time at which its last byte was read.
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
    """A stream of a publisher that a subscriber should receive completely.

    Attributes:
        group: the name of the subscriber's entry in the scenario.
        qos: the QoS of its delivery: the lesser of both sides' (nothing is promised at 0).
        unit: the name of the subscriber's independent unit: a link, with all links that share its
            random values. Units are paired over brokers by this name and the seed.
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
        at_s: the time of the look.
        rss_bytes: the resident set of its process and those it has started.
    """

    broker: str
    seed: int
    at_s: float
    rss_bytes: int


class WithheldRow(NamedTuple):
    """A time for which Penstock withheld messages from a subscriber.

    Attributes:
        end_s: the end, exact to the time between two looks.
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
        link: its name, such as ``cloud-edge``.
        is_impaired: whether this is another profile than the topology's.
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
        delivered: the packets that arrived, duplicates included.
        lost: the packets lost by chance, as its profile says.
        dropped: the packets dropped at a full queue, as its profile says.
        harness_dropped: the packets that the harness dropped without a profile's order: in queues
            of the hosts' devices, or because too much was under way for the forwarder.
        carried_bytes: the bytes of packets that used the link since the beginning of the traffic,
            IP headers included: also of packets lost on it, but not of those dropped before it.
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
        seed: the seed of the run.
        round: the number of the round, from 1; brokers of the same round ran at the same time.
        harness_dropped: the packets that were dropped on all its links without a profile's order.
        deliveries: the number of times at which its forwarder had packets to deliver during the
            traffic.
        late_deliveries: the number of times at which packets were late by more than 10 ms.
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
        busy_share: the share of all processors that was in use.
        steal_share: the share of all processors that the hypervisor gave to others.
        others_share: the share of all processors that programs outside the run used.
        wait_share: the share of the time for which one thread of the run waited for a processor, of
            the thread that waited longest; None if the kernel does not report it.
        runnable: the number of processes that ran or waited for a processor at the end.
        most_late_s: the greatest lateness of a forwarder of the round.
        is_doubtful: whether latencies of this time may be caused by the machine.
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
