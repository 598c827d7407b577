"""What becomes of withheld messages when a client, a session or the broker comes to an end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.extensions import OrderingGate, Verdict
from broker.link import Link
from broker.message import Message
from broker.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from broker.outbox import OpenGate
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = 1000
MAX_WITHHOLD = 20.0
FOR_EVER = {"session_expiry_interval": 0xFFFF_FFFF}


class Gate(OpenGate, OrderingGate):
    """Withholds what is larger than `LARGE` while the path is bad, for 20 s at the most."""

    def __init__(self, *, keeps_topics: bool = True) -> None:
        self.keeps_topics = keeps_topics
        self.is_good = False

    def threshold_s(self, topic: str) -> int | None:
        """Return the same for every topic."""
        del topic
        return LARGE

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer by the path and the wait."""
        del message, link
        if self.is_good or sojourn > MAX_WITHHOLD:
            return Verdict(deliver=True)
        return Verdict(deliver=False, look_again_at=now + MAX_WITHHOLD - sojourn + 0.001)


def large(name: str) -> bytes:
    """Return the payload of a large message."""
    return name.encode().ljust(LARGE + 1, b".")


def names(client: VirtualClient) -> list[str]:
    """Take all PUBLISH packets off the inbox, answer those of QoS 1, and return their names."""
    return [payload.rstrip(b".").decode() for payload in client.acknowledge()]


def turn_good(broker: VirtualBroker, gate: Gate, *client_ids: str) -> None:
    """Let a path become good, and tell the sessions."""
    gate.is_good = True
    for client_id in client_ids:
        broker.session(client_id).link_changed()
    broker.settle()


def withholding(
    *, qos: int = 1, broker: type[VirtualBroker] = VirtualBroker, **options: Any
) -> tuple[Gate, Any, VirtualClient, VirtualClient]:
    """Return a gate, a broker, a subscriber of all topics and a publisher."""
    gate = Gate()
    made = broker(gate=gate)
    options.setdefault("properties", FOR_EVER)
    subscriber = made.connect("s", **options)
    subscriber.subscribe("#", qos=qos)
    return gate, made, subscriber, made.connect("p")


def test_withheld_message_expires_at_its_time() -> None:
    """[MQTT-3.3.2-5]: nobody gets it, what waited behind it on its topic goes on at once."""
    _, broker, subscriber, publisher = withholding()
    expiry = {"message_expiry_interval": 5}
    publisher.publish("cam", large("L"), qos=1, properties=expiry)
    publisher.publish("cam", b"small", qos=1)
    assert names(subscriber) == []
    broker.advance(5.0)
    assert names(subscriber) == ["small"]
    assert broker.session("s").ledger.expired == 1
    broker.session("s").check_invariants()


def test_withheld_message_leaves_with_what_is_left_of_its_interval() -> None:
    """[MQTT-3.3.2-6]: the wait counts."""
    gate, broker, subscriber, publisher = withholding()
    publisher.publish("cam", large("L"), qos=1, properties={"message_expiry_interval": 60})
    broker.advance(15.0)
    turn_good(broker, gate, "s")
    (packet,) = subscriber.take_all(Publish)
    assert packet.properties["message_expiry_interval"] == 45


def test_session_that_is_taken_over_keeps_what_is_withheld_and_its_wait() -> None:
    """[MQTT-3.1.4-3]: the new connection gets it, once, at the time that the old one would have."""
    _, broker, first, publisher = withholding()
    publisher.publish("cam", large("L"), qos=1)
    broker.advance(15.0)
    second = broker.connect("s", clean_start=False, properties=FOR_EVER)
    assert first.is_lost
    publisher.publish("other", b"small", qos=1)
    assert names(second) == ["small"]
    broker.advance(4.9)
    assert names(second) == []
    broker.advance(0.2)
    assert names(second) == ["L"]
    assert names(first) == []
    ledger = broker.session("s").ledger
    assert (ledger.withheld_total, ledger.released_total, ledger.delivered) == (1, 1, 2)


def test_clean_start_ends_what_is_withheld() -> None:
    """[MQTT-3.1.2-4]: it belonged to the session that is gone; the account says so."""
    gate, broker, _, publisher = withholding()
    publisher.publish("cam", large("L"), qos=1)
    again = broker.connect("s", clean_start=True)
    again.subscribe("#", qos=1)
    turn_good(broker, gate, "s")
    broker.advance(60.0)
    assert names(again) == []
    assert broker.core.ledger().dropped == {"session_ended": 1}


@pytest.mark.parametrize(
    ("properties", "qos", "dropped"),
    [
        (FOR_EVER, 1, {}),
        (FOR_EVER, 0, {"connection_lost": 1}),
        ({}, 1, {"session_ended": 1}),
    ],
)
def test_disconnected_client_finds_what_its_session_promises(
    properties: dict[str, Any], qos: int, dropped: dict[str, int]
) -> None:
    """QoS 1 of a session that lasts; nothing else, and what is dropped is counted."""
    gate, broker, subscriber, publisher = withholding(properties=properties)
    publisher.publish("cam", large("L"), qos=qos)
    subscriber.send(Disconnect())
    broker.advance(3600.0)
    assert broker.core.ledger().dropped == dropped
    gate.is_good = True
    again = broker.connect("s", clean_start=False, properties=properties)
    assert names(again) == ([] if dropped else ["L"])


def test_time_away_is_not_taken_for_a_wait() -> None:
    """A client that comes back over a path that is still bad gets its small messages first."""
    _, broker, subscriber, publisher = withholding()
    for n in range(3):
        publisher.publish(f"cam{n}", large(f"L{n}"), qos=1)
    broker.advance(5.0)
    subscriber.lose()
    publisher.publish("other", b"small", qos=1)
    broker.advance(3600.0)
    again = broker.connect("s", clean_start=False, properties=FOR_EVER)
    assert names(again) == ["small"]
    broker.advance(14.9)
    assert names(again) == []
    broker.advance(0.2)
    assert names(again) == ["L0", "L1", "L2"]


def test_withheld_message_of_qos2_is_delivered_once() -> None:
    """It has no Packet Identifier before it leaves; from then on it is as any other."""
    gate, broker, subscriber, publisher = withholding(qos=2)
    publisher.publish("cam", large("L"), qos=2, packet_id=7)
    publisher.take_all(PubRec)
    publisher.send(PubRel(7))
    assert not broker.session("s").inflight
    subscriber.lose()
    again = broker.connect("s", clean_start=False, properties=FOR_EVER)
    turn_good(broker, gate, "s")
    (sent,) = again.take_all(Publish)
    assert not sent.dup
    again.send(PubRec(sent.packet_id))
    again.take_all(PubRel)
    last = broker.connect("s", clean_start=False, properties=FOR_EVER)
    assert last.take_all(Publish) == []
    (released,) = last.take_all(PubRel)
    last.send(PubComp(released.packet_id))
    assert broker.session("s").ledger.delivered == 1
    broker.session("s").check_invariants()


def test_stopping_broker_waits_for_no_withheld_message_and_loses_none() -> None:
    """Clients are told at once; those of durable sessions find it all after the next start."""
    gate, broker, subscriber, publisher = withholding(broker=DurableBroker)
    for name, qos in (("L0", 1), ("L1", 0), ("L2", 1)):
        publisher.publish("cam", large(name), qos=qos)
    publisher.publish("cam", b"small", qos=1)
    assert names(subscriber) == []
    subscriber.connection.shut_down(broker.now)
    broker.settle()
    assert [type(packet) for packet in subscriber.inbox] == [Disconnect]
    assert subscriber.is_lost
    again = broker.crash(down_seconds=60.0)
    gate.is_good = True
    late = again.connect("s", clean_start=False, properties=FOR_EVER)
    assert names(late) == ["L0", "L2", "small"]
    again.session("s").check_invariants()


def test_restart_begins_the_wait_anew() -> None:
    """How long it was withheld is not stored: what the path is like now, nobody knows either."""
    gate, broker, _, publisher = withholding(broker=DurableBroker)
    publisher.publish("cam", large("L"), qos=1)
    broker.advance(15.0)
    again = broker.crash()
    client = again.connect("s", clean_start=False, properties=FOR_EVER)
    assert not gate.is_good
    again.advance(19.9)
    assert names(client) == []
    again.advance(0.2)
    assert names(client) == ["L"]


class WithheldMachine(RuleBasedStateMachine):
    """Whatever happens to a subscriber and its broker: nothing is lost, nothing comes twice."""

    @initialize(keeps_topics=st.booleans(), version=st.sampled_from([4, 5]))
    def make(self, *, keeps_topics: bool, version: int) -> None:
        """A durable subscriber and a publisher."""
        self.gate = Gate(keeps_topics=keeps_topics)
        self.gate.is_good = True
        self.version = version
        self.broker = DurableBroker(gate=self.gate)
        self.publisher = self.broker.connect("p")
        self.published: dict[str, tuple[str, int]] = {}
        self.got: list[str] = []
        self.unreleased: set[int] = set()
        self.number = 0
        self.client: VirtualClient | None = None
        self.connect()
        assert self.client is not None
        self.client.subscribe("#", qos=2)

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
        payload = large(name) if is_large else name.encode()
        self.publisher.publish(topic, payload, qos=qos, packet_id=self.number)
        if qos == 2:
            self.publisher.send(PubRel(self.number))

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
        self.gate.is_good = is_good
        self.broker.session("s").link_changed()
        self.broker.settle()

    @rule(has_room=st.booleans())
    def room(self, *, has_room: bool) -> None:
        """The transport has no room, or has again."""
        if self.client is not None:
            if has_room:
                self.client.connection.resume_sending(self.broker.now)
            else:
                self.client.connection.pause_sending(self.broker.now)
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
        """Books balance after every step."""
        session = self.broker.core.sessions.get("s")
        if session is not None:
            session.check_invariants()

    def teardown(self) -> None:
        """In the end all of it has come: QoS 2 once, and each topic in its order [MQTT-4.6.0]."""
        self.gate.is_good = True
        if self.client is None:
            self.connect()
        client = self.client
        assert client is not None
        client.connection.resume_sending(self.broker.now)
        self.broker.session("s").link_changed()
        self.broker.settle()
        while client.inbox:
            self.answer(5)
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


TestWithheldMachine = WithheldMachine.TestCase
TestWithheldMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
