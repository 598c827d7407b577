"""What the runner tells the clients of a host: one file of JSON.

Plain dataclasses: a client is to be a light process.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.netem.clients.payloads import Times

Protocol = Literal["3.1.1", "5"]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream of a publisher.

    Attributes:
        number: of the stream in the scenario.
        client_id: of its connection.
        topic: Topic Name.
        payload_bytes: length of each message.
        qos: of each.
        times: when they are due.
    """

    number: int
    client_id: str
    topic: str
    payload_bytes: int
    qos: int
    times: Times


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """A publisher.

    Attributes:
        client_id: its name in the results.
        number: of the publisher in the run.
        address: of the broker.
        protocol: of MQTT.
        streams: each has a connection of its own.
        file: for what it has published.
        log: for its words.
    """

    client_id: str
    number: int
    address: str
    protocol: Protocol
    streams: list[StreamPlan]
    file: str
    log: str


@dataclass(frozen=True, slots=True)
class Awaited:
    """A stream of a publisher that a subscriber is to get.

    Attributes:
        publisher: its number.
        stream: its number.
        messages: how many there are.
        is_promised: whether each has to come: at QoS 1 and 2.
    """

    publisher: int
    stream: int
    messages: int
    is_promised: bool


@dataclass(frozen=True, slots=True)
class SubscriberPlan:
    """A subscriber.

    Attributes:
        client_id: its Client Identifier.
        address: of the broker.
        protocol: of MQTT.
        filters: topic filters.
        qos: greatest QoS that it asks for.
        keep_alive_seconds: Keep Alive of its CONNECT.
        reads_from_seconds: after the beginning, when it starts to read; None for at once.
        user_properties: of its CONNECT.
        awaited: what is to come.
        file: for what it gets.
        log: for its words.
    """

    client_id: str
    address: str
    protocol: Protocol
    filters: list[str]
    qos: int
    keep_alive_seconds: int
    reads_from_seconds: float | None
    user_properties: dict[str, str]
    awaited: list[Awaited]
    file: str
    log: str


@dataclass(frozen=True, slots=True)
class CrewPlan:
    """The clients of one host."""

    publishers: list[PublisherPlan]
    subscribers: list[SubscriberPlan]

    def clients(self) -> list[PublisherPlan | SubscriberPlan]:
        """Return all of them, subscribers first."""
        return [*self.subscribers, *self.publishers]

    def write(self, file: Path) -> None:
        """Write the plan."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> CrewPlan:
        """Return what `write` has written."""
        plan: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
        for publisher in plan["publishers"]:
            for stream in publisher["streams"]:
                stream["times"] = Times(**stream["times"])
            publisher["streams"] = [StreamPlan(**each) for each in publisher["streams"]]
        for subscriber in plan["subscribers"]:
            subscriber["awaited"] = [Awaited(**each) for each in subscriber["awaited"]]
        return cls(
            [PublisherPlan(**each) for each in plan["publishers"]],
            [SubscriberPlan(**each) for each in plan["subscribers"]],
        )
