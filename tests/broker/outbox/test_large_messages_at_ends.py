"""What becomes of withheld messages when a client, a session or the broker comes to an end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Disconnect, PubComp, Publish, PubRec, PubRel
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.held_machine import FOR_EVER, LARGE, HeldMachine, large
from tests.helpers.virtual import VirtualBroker, VirtualClient

MAX_WITHHOLD = 20.0


class Gate(DeliveryGate):
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
    [(FOR_EVER, 1, {}), (FOR_EVER, 0, {"connection_lost": 1}), ({}, 1, {"session_ended": 1})],
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
    subscriber.connection.client.shut_down(broker.now)
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


class WithheldMachine(HeldMachine):
    """Whatever happens to a subscriber and its broker: nothing is lost, nothing comes twice."""

    @initialize(keeps_topics=st.booleans(), version=st.sampled_from([4, 5]))
    def make(self, *, keeps_topics: bool, version: int) -> None:
        """On a path that is good at first."""
        gate = Gate(keeps_topics=keeps_topics)
        gate.is_good = True
        self.begin(gate, version)

    def turn(self, *, is_good: bool) -> None:
        """Tell the gate."""
        self.gate.is_good = is_good
        self.broker.session("s").link_changed()
        self.broker.settle()


TestWithheldMachine = WithheldMachine.TestCase
TestWithheldMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
