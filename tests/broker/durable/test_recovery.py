"""What a restart brings back, and what has run on meanwhile, on a virtual disk."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits, QueueFull
from penstock.broker.extensions import DeliveryGate
from penstock.broker.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.durable import DurableBroker, keep, subscribed
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import will


def test_an_inflight_message_comes_again_with_its_packet_id_and_dup() -> None:
    """[MQTT-4.4.0-1] holds over the end of the process."""
    broker = DurableBroker()
    client = subscribed(broker, qos=1)
    broker.connect("p").publish("t/1", b"x", qos=1)
    first = client.take(Publish)
    broker = broker.crash()
    client = broker.connect("s", **keep())
    again = client.take(Publish)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)
    client.send(PubAck(again.packet_id))
    assert not broker.disk.deliveries
    assert not broker.disk.messages
    client.session.check_invariants()


@pytest.mark.mqtt5("3.3.1-1")
@pytest.mark.mqtt311("3.3.1-1")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("n_ends", [1, 2])
def test_what_was_sent_after_the_last_commit_has_dup_when_it_is_sent_again(
    version: int, n_ends: int
) -> None:
    """The disk says that it waits; its packet identifier is lost, and it may have been received.

    A broker that ends again before the client is back knows it, too.
    """
    broker = DurableBroker(limits=Limits(inflight_messages=1))
    options = keep() if version == 5 else {"clean_start": False}
    client = broker.connect("s", version, **options)
    client.subscribe("t/#", 1)
    publisher = broker.connect("p")
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t/1", payload, qos=1)
    broker.commits_at_once = False
    assert client.acknowledge() == [b"1"]
    sent = client.take(Publish)
    assert (sent.payload, sent.dup) == (b"2", False)
    for _ in range(n_ends):
        broker = broker.crash()
        broker.commit()
    client = broker.connect("s", version, **options)
    publisher = broker.connect("p")
    publisher.publish("t/1", b"4", qos=1)
    again = []
    while client.inbox:
        packet = client.take(Publish)
        again.append((packet.payload, packet.dup))
        client.send(PubAck(packet.packet_id))
    assert again == [(b"1", True), (b"2", True), (b"3", True), (b"4", False)]
    assert not broker.disk.deliveries


def test_what_cannot_have_been_sent_has_no_dup_after_a_restart() -> None:
    """QoS 2, which leaves after its commit, and what waits for a client that is away."""
    broker = DurableBroker(limits=Limits(inflight_messages=1))
    client = subscribed(broker)
    broker.connect("a", **keep()).subscribe("t/#", 1)
    broker.connect("a", **keep()).lose()
    publisher = broker.connect("p")
    publisher.publish("t/1", b"1", qos=2, packet_id=1)
    publisher.publish("t/1", b"2", qos=2, packet_id=2)
    broker.commits_at_once = False
    first = client.take(Publish)
    client.send(PubRec(first.packet_id))
    broker.commit()
    client.send(PubComp(first.packet_id))
    assert client.take_all(Publish) == []
    broker = broker.crash()
    again = broker.connect("s", **keep())
    again.send(PubComp(again.take(PubRel).packet_id))
    packet = again.take(Publish)
    assert (packet.payload, packet.dup) == (b"2", False)
    away = broker.connect("a", **keep())
    packet = away.take(Publish)
    assert (packet.payload, packet.dup) == (b"1", False)


def test_what_came_later_has_no_dup_though_rows_before_it_had() -> None:
    """Those rows are gone, and their numbers are not given again."""
    broker = DurableBroker(limits=Limits(inflight_messages=1))
    client = subscribed(broker, qos=1)
    publisher = broker.connect("p")
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t/1", payload, qos=1)
    broker = broker.crash()
    client = broker.connect("s", **keep())
    while client.inbox:
        client.send(PubAck(client.take(Publish).packet_id))
    client.lose()
    broker = broker.crash()
    broker.connect("p").publish("t/1", b"4", qos=1)
    packet = broker.crash().connect("s", **keep()).take(Publish)
    assert (packet.payload, packet.dup) == (b"4", False)


def test_a_broker_that_was_stopped_repeats_nothing_that_waited() -> None:
    """Connections end before the last commit: what was sent is known."""
    broker = DurableBroker(limits=Limits(inflight_messages=1))
    client = subscribed(broker, qos=1)
    publisher = broker.connect("p")
    for payload in (b"1", b"2"):
        publisher.publish("t/1", payload, qos=1)
    client.lose()
    broker.commit()
    client = broker.crash().connect("s", **keep())
    for dup in (True, False):
        packet = client.take(Publish)
        assert packet.dup == dup
        client.send(PubAck(packet.packet_id))


def test_a_session_keeps_the_names_that_its_rights_hang_on() -> None:
    """User and listener, for what arrives while the client is away; gates go by them, too."""
    broker = DurableBroker()
    broker.connect("s", username="ann", **keep()).lose()
    broker.connect("w", username="bob", will=will("t"))
    (stored,) = broker.disk.wills.values()
    assert (stored.username, stored.listener) == ("bob", "default")
    session = broker.crash().session("s")
    assert (session.username, session.listener) == ("ann", "default")
    assert (session.link.username, session.link.listener) == ("ann", "default")


def test_expiry_of_messages_alone_runs_while_the_broker_is_down() -> None:
    """No client could come back to its session; of what was connected it runs from the restart."""
    broker = DurableBroker()
    subscribed(broker).lose()
    connected = broker.connect("there", **keep(60))
    connected.subscribe("t/#", 1)
    publisher = broker.connect("p")
    publisher.publish("t/1", b"short", qos=1, properties={"message_expiry_interval": 50})
    publisher.publish("t/1", b"long", qos=1, properties={"message_expiry_interval": 5000})
    broker = broker.crash(down_seconds=100)
    assert broker.core.sessions.get("there") is not None
    broker.advance(60)
    assert broker.core.sessions.get("there") is None
    client = broker.connect("s", **keep())
    (message,) = client.take_all(Publish)
    assert (message.payload, message.properties) == (b"long", {"message_expiry_interval": 4840})
    assert client.session.ledger.expired == 1
    client.send(Disconnect())
    for _ in range(2):
        broker.advance(1000)
        broker = broker.crash(down_seconds=3600)
        assert broker.core.sessions.get("s") is not None
    broker.advance(1599)
    assert broker.core.sessions.get("s") is not None
    broker.advance(1)
    assert broker.core.sessions.get("s") is None


def test_retained_messages_are_kept() -> None:
    """Set, replaced and removed, with their properties; a payload is stored once."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    properties = {"user_property": [("a", "b")], "correlation_data": b"\xff\0"}
    publisher.publish("t/1", b"old", qos=1, retain=True)
    publisher.publish("t/1", b"new", qos=1, retain=True, properties=properties)
    publisher.publish("t/2", b"gone", retain=True)
    publisher.publish("t/2", b"", retain=True)
    publisher.publish("$SYS/x", b"ours", retain=True)
    assert len(broker.disk.messages) == 2  # the old one is queued still
    reader = broker.crash().connect("r")
    reader.subscribe("#", 1)
    (message,) = reader.take_all(Publish)
    assert (message.topic, message.payload, message.retain) == ("t/1", b"new", True)
    assert message.properties == properties


def test_wills_of_who_was_connected_are_due_at_the_restart() -> None:
    """[MQTT-3.1.2-8]: the process' end is the connection's; a Will Delay runs from there."""
    broker = DurableBroker()
    subscribed(broker, "will/#").lose()
    broker.connect("clean", will=will("will/clean", qos=1))
    broker.connect("kept", will=will("will/kept", qos=1, retain=True), **keep())
    delayed = will("will/delayed", qos=1, properties={"will_delay_interval": 30})
    broker.connect("delayed", will=delayed, **keep())
    broker.connect("returns", will=delayed, **keep())
    broker.connect("said goodbye", will=will("will/no", qos=1)).send(Disconnect())
    broker.connect("told", will=will("will/told", qos=1)).lose()
    broker = broker.crash()
    client = broker.connect("s", **keep())
    assert {p.topic for p in client.take_all(Publish)} == {"will/told", "will/clean", "will/kept"}
    broker.connect("returns", **keep())
    broker.advance(29)
    assert not client.inbox
    broker.advance(1)
    assert client.take(Publish).topic == "will/delayed"
    assert not client.inbox
    assert not broker.disk.wills
    assert broker.core.sessions.get("clean") is None
    assert "will/kept" in broker.core.retained.by_topic


def test_a_delayed_will_counts_from_the_loss() -> None:
    """Time while the broker was down is none in which its client could have come back."""
    broker = DurableBroker()
    subscribed(broker, "will/#").lose()
    delayed = will("will/delayed", qos=1, properties={"will_delay_interval": 30})
    broker.connect("delayed", will=delayed, **keep()).lose()
    broker.advance(10)
    broker = broker.crash(down_seconds=1000)
    client = broker.connect("s", **keep())
    broker.advance(19)
    assert not client.inbox
    broker.advance(1)
    assert client.acknowledge() == [b"gone"]


def test_the_order_of_messages_is_kept() -> None:
    """[MQTT-4.6.0-1]: what was inflight comes first, then what waited, each as it came."""
    broker = DurableBroker(limits=Limits(inflight_messages=2))
    client = subscribed(broker)
    publisher = broker.connect("p")
    for number in range(6):
        publisher.publish("t/1", b"%d" % number, qos=1 + number % 2, packet_id=1 + number)
    assert client.payloads() == [b"0", b"1"]
    broker = broker.crash()
    client = broker.connect("s", **keep())
    got = []
    while packets := client.take_all(Publish):
        for packet in packets:
            got.append((packet.payload, packet.dup))
            client.send(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
        for release in client.take_all(PubRel):
            client.send(PubComp(release.packet_id))
    may_have_left = (True, True, True, False, True, False)  # QoS 2 leaves after its commit
    assert got == [(b"%d" % number, may_have_left[number]) for number in range(6)]
    client.session.check_invariants()
    assert not broker.disk.messages


class FirstGate(SwitchGate):
    """Lets messages of one topic leave before all others."""

    def is_first(self, topic: str) -> bool:
        """Say whether it is that topic."""
        return topic == "t/1"


@pytest.mark.parametrize(
    "limits",
    [{"queued_messages": 2}, {"queued_bytes": 2}, {"total_queued_bytes": 1000}],
    ids=lambda limits: next(iter(limits)),
)
@pytest.mark.parametrize("queue_full", ["reject", "drop_newest", "drop_oldest", "disconnect"])
@pytest.mark.parametrize("gate", [None, SwitchGate(3), FirstGate(3)], ids=["open", "held", "first"])
def test_what_was_acknowledged_comes_back_beyond_the_limits(
    limits: dict[str, Any], queue_full: QueueFull, gate: DeliveryGate | None
) -> None:
    """A restart with smaller limits, or on a smaller machine, drops nothing."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    for number in range(4):
        publisher.publish("t/1", b"large%d" % number, qos=1)
    smaller = Limits(queue_full=queue_full, **limits)
    broker = DurableBroker(broker.disk, limits=smaller, gate=gate)
    session = broker.session("s")
    assert session.ledger.dropped == {}
    session.check_invariants()
    assert session.outbox.n_messages == len(broker.disk.messages) == 4


def test_a_session_gets_no_more_until_it_has_room_after_a_restart() -> None:
    """What came back counts: a further message is dropped for it, and not once it has caught up."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    for number in range(4):
        publisher.publish("t/1", b"%d" % number, qos=1)
    broker = DurableBroker(broker.disk, limits=Limits(queued_messages=2))
    publisher = broker.connect("p")
    publisher.publish("t/1", b"dropped", qos=1)
    assert publisher.take(PubAck).reason_code == 0
    client = broker.connect("s", **keep())
    assert client.session.ledger.dropped == {"queue_full": 1}
    assert client.acknowledge() == [b"0", b"1", b"2", b"3"]
    publisher.publish("t/1", b"taken", qos=1)
    assert publisher.take(PubAck).reason_code == 0
    assert client.acknowledge() == [b"taken"]


@pytest.mark.parametrize("limits", [Limits(retained_messages=1), Limits(retained_bytes=600)])
def test_retained_messages_come_back_beyond_the_limits(limits: Limits) -> None:
    """They stay until they are removed; a new topic is refused meanwhile."""
    broker = DurableBroker()
    publisher = broker.connect("p")
    for name in "abc":
        publisher.publish(name, b"state", qos=1, retain=True)
    broker = DurableBroker(broker.disk, limits=limits)
    assert sorted(broker.core.retained.by_topic) == ["a", "b", "c"]
    assert len(broker.disk.retained) == 3
    publisher = broker.connect("p")

    def answer(topic: str, payload: bytes) -> int:
        publisher.publish(topic, payload, qos=1, retain=True)
        return publisher.take(PubAck).reason_code

    assert answer("d", b"state") == ReasonCode.QUOTA_EXCEEDED
    for name in "abc":
        assert answer(name, b"") == ReasonCode.NO_MATCHING_SUBSCRIBERS
    assert answer("d", b"state") == ReasonCode.NO_MATCHING_SUBSCRIBERS


def test_withheld_messages_wait_again() -> None:
    """What was withheld is so after the restart, by the thresholds that hold then."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    publisher.publish("t/1", b"large", qos=1)
    publisher.publish("t/2", b"s", qos=1)
    broker = DurableBroker(broker.disk, gate=SwitchGate(3))
    client = broker.connect("s", **keep())
    assert client.acknowledge() == [b"s"]
    assert client.session.outbox.n_withheld == 1


def test_a_payload_that_is_lost_is_dropped_and_counted() -> None:
    """Where its store could not read it back when it was written, there is nothing to restore."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    publisher.publish("t/1", b"x", qos=1)
    publisher.publish("t/2", b"y", qos=1, retain=True)
    for key, row in broker.disk.messages.items():
        broker.disk.messages[key] = row._replace(payload=None)
    broker = broker.crash()
    session = broker.session("s")
    assert session.ledger.dropped == {"payload_lost": 2}
    assert not broker.core.retained.by_topic
    assert not broker.disk.messages
    session.check_invariants()


def test_retained_messages_that_were_due_still_are() -> None:
    """[MQTT-3.3.1-9]: who was told SUBACK gets them, though the broker ended in between."""
    broker = DurableBroker(limits=Limits(inflight_messages=1))
    publisher = broker.connect("p")
    for number in range(3):
        publisher.publish(f"t/{number}", b"%d" % number, qos=1, retain=True)
    client = broker.connect("s", **keep())
    broker.commits_at_once = False
    client.send(Subscribe(1, (SubscriptionRequest("t/#", 1), SubscriptionRequest("none", 1))))
    broker.seal()
    broker.write()
    client.take(SubAck)
    broker = broker.crash()
    client = broker.connect("s", **keep())
    got = []
    while payloads := client.acknowledge():
        got += payloads
    assert sorted(got) == [b"0", b"1", b"2"]
    broker = broker.crash()
    client = broker.connect("s", **keep())
    assert not client.inbox
