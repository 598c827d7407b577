"""The plan of the clients of some hosts, which the runner writes into one JSON file.

Plain dataclasses without pydantic keep a client's process small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.netem.clients.payloads import Times

Protocol = Literal["3.1.1", "5"]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream of a publisher."""

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
        streams: its streams, each of which has a connection of its own.
        file: the path of the file for the messages that it published.
        sounds: whether it sends test messages to its subscribers until the traffic begins.
    """

    client_id: str
    number: int
    address: str
    protocol: Protocol
    streams: list[StreamPlan]
    file: str
    log: str
    sounds: bool = False


@dataclass(frozen=True, slots=True)
class Awaited:
    """A stream of a publisher that a subscriber should receive.

    Attributes:
        is_promised: whether every message must arrive: at QoS 1 and 2.
    """

    publisher: int
    stream: int
    messages: int
    is_promised: bool


@dataclass(frozen=True, slots=True)
class LanePlan:
    """A connection of a subscriber.

    Attributes:
        sizes: the size class of its subscriptions, ``small`` or ``large``; None for both.
        has_lanes: whether it opens a second connection by itself, as `penstock.lanes` does.
    """

    client_id: str
    filters: list[str]
    sizes: str | None = None
    has_lanes: bool = False


@dataclass(frozen=True, slots=True)
class SubscriberPlan:
    """A subscriber.

    Attributes:
        port: the TCP port of the broker, or of a load balancer before it.
        protocol: the version of MQTT.
        lanes: its connections; a message on any of them counts as received.
        awaited: the streams that it should receive completely.
        file: the path of the file for the messages that it received.
    """

    client_id: str
    address: str
    port: int
    protocol: Protocol
    lanes: list[LanePlan]
    qos: int
    keep_alive_seconds: int
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


def write_crews(file: Path, crews: Mapping[str, CrewPlan]) -> None:
    """Write the clients of some hosts, by the namespaces of these."""
    file.write_text(json.dumps({namespace: asdict(crew) for namespace, crew in crews.items()}))


def read_crews(file: Path) -> dict[str, CrewPlan]:
    """Return what `write_crews` wrote."""
    return {namespace: _crew(plan) for namespace, plan in json.loads(file.read_text()).items()}


def _crew(plan: dict[str, list[dict[str, Any]]]) -> CrewPlan:
    for publisher in plan["publishers"]:
        for stream in publisher["streams"]:
            stream["times"] = Times(**stream["times"])
        publisher["streams"] = [StreamPlan(**each) for each in publisher["streams"]]
    for subscriber in plan["subscribers"]:
        subscriber["lanes"] = [LanePlan(**each) for each in subscriber["lanes"]]
        subscriber["awaited"] = [Awaited(**each) for each in subscriber["awaited"]]
    return CrewPlan(
        [PublisherPlan(**each) for each in plan["publishers"]],
        [SubscriberPlan(**each) for each in plan["subscribers"]],
    )
