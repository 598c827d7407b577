"""What a run of a scenario writes down: rows of tables, in Parquet or CSV.

Times are seconds since the beginning of the traffic of that seed; None stands for what did not
happen or is not known. ``broker`` is the name in the scenario, ``seed`` that of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class MessageRow(NamedTuple):
    """A message, as its publisher and the broker have it.

    Attributes:
        broker: name.
        seed: of the run.
        publisher: Client Identifier.
        stream: name in the scenario.
        topic: Topic Name.
        number: in the stream of this publisher, from 0.
        payload_bytes: length.
        qos: at which it was published.
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
        seed: of the run.
        subscriber: Client Identifier.
        publisher: of the message.
        stream: of the message.
        number: of the message.
        qos: of the PUBLISH.
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
        seed: of the run.
        subscriber: Client Identifier.
        group: name of the subscriber in the scenario.
        is_focus: whether its latencies are reported and compared.
        publisher: Client Identifier.
        stream: name.
        qos: at which it is delivered: the lesser of both sides' (at 0 nothing is promised).
    """

    broker: str
    seed: int
    subscriber: str
    group: str
    is_focus: bool
    publisher: str
    stream: str
    qos: int


class MemoryRow(NamedTuple):
    """A look at a broker's memory; those before the beginning have negative times.

    Attributes:
        broker: name.
        seed: of the run.
        at_s: when.
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
        seed: of the run.
        subscriber: Client Identifier.
        begin_s: when.
        end_s: until when, give or take the time between two looks.
        most_messages: withheld at a time.
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
        seed: of the run.
        link: name, such as ``cloud-edge``.
        profile: name.
        is_impaired: whether it was another than the topology's.
        begin_s: when.
        end_s: until when.
    """

    broker: str
    seed: int
    link: str
    profile: str
    is_impaired: bool
    begin_s: float
    end_s: float


@dataclass(slots=True)
class Tables:
    """All rows of a run, or of a part of it; each attribute is the name of its table."""

    messages: list[MessageRow] = field(default_factory=list)
    deliveries: list[DeliveryRow] = field(default_factory=list)
    expected: list[ExpectedRow] = field(default_factory=list)
    memory: list[MemoryRow] = field(default_factory=list)
    withheld: list[WithheldRow] = field(default_factory=list)
    links: list[LinkRow] = field(default_factory=list)

    def add(self, other: Tables) -> None:
        """Take over the rows of another part."""
        self.messages += other.messages
        self.deliveries += other.deliveries
        self.expected += other.expected
        self.memory += other.memory
        self.withheld += other.withheld
        self.links += other.links
