"""A subscriber whose transport has room for half of a large message, and a gate to break it off."""

from __future__ import annotations

from typing import Any

from penstock.broker.extensions import DeliveryGate, Transfer, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import PubRel
from penstock.broker.sessions.breaking_off import LOOK_SECONDS
from tests.helpers.held_machine import FOR_EVER, LARGE, MANY_PIECES, large
from tests.helpers.virtual import VirtualBroker, VirtualClient

AFTER = 3.0


class Gate(DeliveryGate):
    """Lets large messages go while the path is good, and breaks them off when it is told to.

    Attributes:
        is_good: the path is.
        breaks: what it is asked about is broken off.
        fails: it raises instead.
        asked: every question that was answered by no.
    """

    break_off_after = AFTER

    def __init__(self, *, keeps_topics: bool = True, first: str = "") -> None:
        self.keeps_topics = keeps_topics
        if first:
            self.is_first = first.__eq__  # type: ignore[method-assign, assignment]
        self.is_good = True
        self.breaks = self.fails = False
        self.asked: list[Transfer] = []

    def threshold_s(self, topic: str) -> int | None:
        """Return the same for every topic."""
        del topic
        return LARGE

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer by the path."""
        del message, link, sojourn
        return Verdict(self.is_good, now + 1000.0, "the path is bad")

    def breaks_off(self, transfer: Transfer, link: Link, now: float) -> str:
        """Answer as the test has set."""
        del link, now
        if self.fails:
            raise ValueError("a fault")
        if self.breaks:
            self.is_good = False
            return "it takes too long"
        self.asked.append(transfer)
        return ""


class Path:
    """A broker, a subscriber whose transport has room for half of a large message, a publisher."""

    def __init__(
        self,
        gate: Gate | None = None,
        *,
        version: int = 5,
        qos: int = 1,
        broker: type[VirtualBroker] = VirtualBroker,
        extensions: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.gate = gate or Gate()
        self.broker = broker(gate=self.gate, **(extensions or {}))
        self.publisher = self.broker.connect("p")
        options.setdefault("clean_start", False)
        if version == 5:
            options.setdefault("properties", FOR_EVER)
        self.options = options
        self.version = version
        self.client = self.connect()
        self.client.subscribe("#", qos=qos)
        self.client.room_bytes = MANY_PIECES // 2

    def connect(self) -> VirtualClient:
        """Come back, over a transport that has room for all."""
        self.client = self.broker.connect("s", self.version, **self.options)
        return self.client

    def publish(self, topic: str, name: str, *, qos: int = 1, n_bytes: int = 0) -> None:
        """Publish a message of that name, of at least so many bytes."""
        self.publisher.publish(topic, large(name, n_bytes), qos=qos)
        if qos == 2:
            self.publisher.send(PubRel(1))

    def publish_large(self, topic: str, name: str, *, qos: int = 1) -> None:
        """Publish one that leaves in pieces."""
        self.publish(topic, name, qos=qos, n_bytes=MANY_PIECES)

    def break_off(self) -> bool:
        """Let the gate want it for some looks; return whether the connection was closed."""
        self.broker.advance(LOOK_SECONDS)
        self.gate.breaks = True
        self.broker.advance(2 * LOOK_SECONDS)
        self.gate.breaks = False
        return self.client.is_lost

    def turn_good(self) -> None:
        """Let the path become good."""
        self.gate.is_good = True
        self.broker.session("s").link_changed()
        self.broker.settle()

    def names(self) -> list[str]:
        """Take what has come, answer what is of QoS 1, and return the names."""
        return [payload.rstrip(b".").decode() for payload in self.client.acknowledge()]
