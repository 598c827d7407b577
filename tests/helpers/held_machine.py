"""A state machine: a durable subscriber with a path that turns bad, and its restarting broker."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualClient

LARGE = 1000
"""The payload length above which a gate of these tests takes a message for large."""

FOR_EVER = {"session_expiry_interval": 0xFFFF_FFFF}


def large(name: str, n_bytes: int = LARGE + 1) -> bytes:
    """Return the payload of a large message."""
    return name.encode().ljust(n_bytes, b".")


class HeldMachine(RuleBasedStateMachine):
    """Whatever happens to a subscriber and its broker, no message is lost and none comes twice.

    Attributes:
        large_bytes: the payload length of a large message.
    """

    large_bytes = LARGE + 1

    def begin(self, gate: Any, version: int) -> None:
        """Make a broker, a durable subscriber of all topics and a publisher.

        Args:
            gate: the gate, with `keeps_topics`.
            version: the version of the subscriber's protocol.
        """
        self.gate = gate
        self.version = version
        self.broker = DurableBroker(gate=gate)
        self.publisher = self.broker.connect("p")
        self.published: dict[str, tuple[str, int]] = {}
        self.got: list[str] = []
        self.unreleased: set[int] = set()
        self.number = 0
        self.client: VirtualClient | None = None
        self.connect()
        assert self.client is not None
        self.client.subscribe("#", qos=2)

    def turn(self, *, is_good: bool) -> None:
        """Let the path be good or bad from now on; the gate and the session know it at once."""
        raise NotImplementedError

    def connect(self) -> None:
        """Come back to the session."""
        options: dict[str, Any] = {"properties": FOR_EVER} if self.version == 5 else {}
        self.client = self.broker.connect("s", self.version, clean_start=False, **options)

    @rule(topic=st.sampled_from("abc"), qos=st.sampled_from([1, 2]), is_large=st.booleans())
    def publish(self, topic: str, qos: int, *, is_large: bool) -> None:
        """A message comes, and is acknowledged."""
        self.number += 1
        name = f"{self.number}"
        self.published[name] = (topic, qos)
        payload = large(name, self.large_bytes) if is_large else name.encode()
        self.publisher.publish(topic, payload, qos=qos, packet_id=self.number)
        self.publisher.finish_sending()
        if qos == 2:
            self.publisher.send(PubRel(self.number))
            self.publisher.finish_sending()

    @rule(n_packets=st.integers(1, 5))
    def answer(self, n_packets: int) -> None:
        """The subscriber reads some packets and answers each [MQTT-4.3.3]."""
        client = self.client
        if client is None:
            return
        for packet in [client.inbox.pop(0) for _ in range(min(n_packets, len(client.inbox)))]:
            if isinstance(packet, Publish):
                if packet.qos == 1 or packet.packet_id not in self.unreleased:
                    self.got.append(packet.payload.rstrip(b".").decode())
                if packet.qos == 1:
                    client.send(PubAck(packet.packet_id))
                else:
                    self.unreleased.add(packet.packet_id)
                    client.send(PubRec(packet.packet_id))
            elif isinstance(packet, PubRel):
                self.unreleased.discard(packet.packet_id)
                client.send(PubComp(packet.packet_id))

    @rule(is_good=st.booleans(), seconds=st.floats(0, 12))
    def news(self, *, is_good: bool, seconds: float) -> None:
        """Time passes, then the path turns good or bad."""
        self.broker.advance(seconds)
        self.turn(is_good=is_good)

    @rule(has_room=st.booleans())
    def room(self, *, has_room: bool) -> None:
        """The transport has no room, or has again."""
        if self.client is not None:
            if has_room:
                self.client.room_bytes = None
                self.client.connection.resume_sending(self.broker.now)
            else:
                self.client.connection.pause_sending(self.broker.now)
            self.broker.settle()

    @rule(n_bytes=st.integers(1, 120_000))
    def clog(self, n_bytes: int) -> None:
        """The transport has room again, and none after so many bytes."""
        if self.client is not None:
            self.client.room_bytes = n_bytes
            self.client.connection.resume_sending(self.broker.now)
            self.broker.settle()

    @rule(comes_back=st.booleans())
    def lose(self, *, comes_back: bool) -> None:
        """The connection is lost, with what was on it, or another one takes its place."""
        if self.client is not None and not comes_back:
            self.client.lose()
            self.client = None
        elif comes_back:
            self.connect()

    @rule()
    def crash(self) -> None:
        """The broker's process ends and another one starts; all clients come again."""
        self.broker = self.broker.crash(down_seconds=1.0)
        self.publisher = self.broker.connect("p")
        self.client = None
        self.connect()

    @invariant()
    def is_sound(self) -> None:
        """Books balance after every step; a client whose connection was closed is away."""
        if self.client is not None and self.client.is_lost:
            self.client = None
        session = self.broker.core.sessions.get("s")
        if session is not None:
            session.check_invariants()

    def teardown(self) -> None:
        """In the end all of it has come: QoS 2 once, and each topic in its order [MQTT-4.6.0]."""
        self.broker.advance(0.1)
        if self.client is None or self.client.is_lost:
            self.connect()
        self.broker.advance(0.1)
        self.turn(is_good=True)
        client = self.client
        assert client is not None
        client.room_bytes = None
        client.connection.resume_sending(self.broker.now)
        self.broker.settle()
        for _ in range(200):  # a gate may want to see one acknowledged before the next
            while client.inbox:
                self.answer(5)
            if not self.broker.session("s").outbox.n_messages:
                break
            self.broker.advance(1.0)
        times = Counter(self.got)
        assert set(times) == set(self.published)
        assert all(times[name] == 1 for name, (_, qos) in self.published.items() if qos == 2)
        if self.gate.keeps_topics:
            for topic in "abc":
                for qos in (1, 2):
                    wanted = [n for n, place in self.published.items() if place == (topic, qos)]
                    firsts = list(dict.fromkeys(n for n in self.got if n in wanted))
                    assert firsts == wanted
        assert self.broker.session("s").outbox.n_messages == 0
