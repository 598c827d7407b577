"""One of the brokers that the demo compares, with its clients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTProtocolVersion

from penstock.lanes import paho as lanes
from script.demo_program.books import (
    Ledger,
    Percentiles,
    SinkLedger,
    compare,
    percentiles,
    read_ledger,
    read_sink_ledger,
)
from script.demo_program.clients import PICTURES, TELEMETRY, FiguresReader, Publisher, Subscriber
from script.demo_program.policy import Places

SETTLE_SECONDS: Final = 60.0
"""The time that the broker's counts may take to show that all is done: they are published once a
second."""

QUEUES: Final = (TELEMETRY, PICTURES)
"""The queues, which are named after the topics' first levels."""


@dataclass(slots=True)
class Side:
    """A broker with a publisher and two subscribers.

    Attributes:
        places: the places of the broker's files and ports.
        direct: a subscriber (MQTT 3.1.1) on this machine's own loopback.
        slow: a subscriber (MQTT 5) behind the slow link.
        reader: the reader of the broker's own figures.
        digests: the SHA-256 of the payload of each published picture, by topic.
    """

    name: str
    places: Places
    publisher: Publisher
    direct: Subscriber
    slow: Subscriber
    reader: FiguresReader
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def connect(cls, name: str, places: Places, slow_port: int, *, has_lanes: bool) -> Side:
        """Connect all clients."""
        return cls(
            name=name,
            places=places,
            publisher=Publisher("demo-publisher", places.mqtt_port),
            direct=Subscriber(
                "demo-direct", places.mqtt_port, version=MQTTProtocolVersion.MQTTv311
            ),
            slow=Subscriber(
                "demo-slow",
                slow_port,
                version=MQTTProtocolVersion.MQTTv5,
                make=lanes.Client if has_lanes else mqtt.Client,
            ),
            reader=FiguresReader("demo-figures", places.mqtt_port),
        )

    @property
    def subscribers(self) -> dict[str, Subscriber]:
        """The subscribers that get everything, by the name of their link."""
        return {"direct": self.direct, "slow link": self.slow}

    @property
    def n_published(self) -> int:
        """The number of messages that were published."""
        return len(self.publisher.small_at) + len(self.publisher.pictures_at)

    def is_complete(self) -> bool:
        """Say whether every message was acknowledged and came to every subscriber."""
        numbers = [one.n_received for one in self.subscribers.values()]
        return min(self.publisher.n_acknowledged, *numbers) >= self.n_published

    def progress(self) -> int:
        """Return a number that grows while anything still moves."""
        numbers = [one.n_received for one in self.subscribers.values()]
        return self.publisher.n_acknowledged + sum(numbers)

    def latencies(self) -> list[tuple[float, float]]:
        """Return (monotonic seconds of publication, latency) of small messages on the slow link."""
        at = self.publisher.small_at
        return [(at[number], came - at[number]) for number, came in self.slow.small if number in at]

    def percentiles(self, begin: float, end: float) -> Percentiles | None:
        """Return the latency of what was published between two times of the monotonic clock."""
        return percentiles([latency for at, latency in self.latencies() if begin <= at < end])

    def picture_percentiles(self) -> Percentiles | None:
        """Return the latency of all pictures on the slow link."""
        at = self.publisher.pictures_at
        came = self.slow.pictures
        return percentiles([when - at[topic] for topic, _, when in came if topic in at])

    def acknowledged(self) -> tuple[set[int], set[str]]:
        """Return the small messages and the pictures that the broker has taken over."""
        keys = self.publisher.acknowledged()
        small = {key for key in keys if isinstance(key, int)}
        return small, {key for key in keys if isinstance(key, str)}

    def problems(self) -> list[str]:
        """Return what is missing, harmed or out of order at publisher and subscribers."""
        small, pictures = self.acknowledged()
        found = []
        unacknowledged = self.n_published - len(small) - len(pictures)
        if unacknowledged:
            found.append(f"{self.name}: {unacknowledged} messages without PUBACK")
        for link, subscriber in self.subscribers.items():
            where = f"{self.name}, {link}"
            came = compare(small, (number for number, _ in subscriber.small))
            found += came.problems(where, TELEMETRY, once=True)
            seen = compare(pictures, (topic for topic, _, _ in subscriber.pictures))
            found += seen.problems(where, PICTURES, once=True)
            harmed = [t for t, digest, _ in subscriber.pictures if self.digests.get(t) != digest]
            if harmed:
                found.append(f"{where}: {len(harmed)} pictures are not what was sent: {harmed[0]}")
            if subscriber.out_of_order:
                found.append(f"{where}: {subscriber.out_of_order} messages out of order")
            if subscriber.strange:
                found.append(f"{where}: messages that were never sent: {subscriber.strange[0]}")
        for client in (self.publisher, *self.subscribers.values()):
            if client.lost:
                found.append(f"{self.name}: {client.name} was disconnected: {client.lost}")
        return found

    def settled_books(self) -> tuple[Ledger, dict[str, SinkLedger]]:
        """Return the broker's account of its subscribers and of each queue.

        They are asked for until they show that nothing is on its way, and at the longest for
        `SETTLE_SECONDS`.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            figures = self.reader.figures()
            ledger = read_ledger(figures)
            sinks = {name: read_sink_ledger(figures, f"queue.{name}") for name in QUEUES}
            delivered, stored = ledger.delivered, sum(sink.stored for sink in sinks.values())
            is_all = delivered >= 2 * self.n_published and stored >= self.n_published
            if (ledger.is_settled and is_all) or time.monotonic() > deadline:
                return ledger, sinks
            time.sleep(0.1)

    def close(self) -> None:
        """Disconnect everything."""
        for client in (self.publisher, *self.subscribers.values(), self.reader):
            client.close()
