"""Subscriptions that a source feeds, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.mqtt.packets import (
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.access import Access
from tests.helpers.durable import DurableBroker
from tests.helpers.sources import ListSource
from tests.helpers.virtual import VirtualBroker, VirtualClient

KEEP: dict[str, Any] = {
    "clean_start": False,
    "properties": {"session_expiry_interval": 10_000, "receive_maximum": 2},
}


def take(client: VirtualClient) -> list[tuple[int, bytes]]:
    """Return packet identifiers and payloads of what has come."""
    return [(packet.packet_id, packet.payload) for packet in client.take_all(Publish)]


@pytest.mark.parametrize("version", [4, 5])
def test_a_consumer_acknowledges_by_puback(version: int) -> None:
    """Each message is one of QoS 1 with its own topic; PUBACK makes room for the next."""
    source = ListSource(b"1", b"2", b"3", topic="plant/1")
    broker = VirtualBroker(Limits(inflight_messages=2), sources=[source])
    client = broker.connect("c", version)
    assert client.subscribe("$queue/q", 2) == 1
    broker.settle()
    packets = client.take_all(Publish)
    assert [(p.topic, p.payload, p.qos, p.dup, p.retain) for p in packets] == [
        ("plant/1", b"1", 1, False, False),
        ("plant/1", b"2", 1, False, False),
    ]
    assert not source.outcomes
    client.send(PubAck(packets[0].packet_id))
    assert source.outcomes == [(b"1", "acknowledged")]
    assert client.acknowledge() == [b"3"]
    client.send(PubAck(packets[1].packet_id))
    assert [outcome for _, outcome in source.outcomes] == ["acknowledged"] * 3
    client.session.check_invariants()
    assert client.session.settle_direct().delivered == 3


def test_a_negative_puback_refuses_the_message() -> None:
    """It is the source's to say who gets it then."""
    source = ListSource(b"1")
    broker = VirtualBroker(sources=[source])
    client = broker.connect("c", properties={"receive_maximum": 1})
    client.subscribe("$queue/q", 1)
    broker.settle()
    ((packet_id, _),) = take(client)
    client.send(PubAck(packet_id, ReasonCode.UNSPECIFIED_ERROR))
    assert source.outcomes == [(b"1", "refused")]
    assert client.acknowledge() == [b"1"]
    client.session.check_invariants()


@pytest.mark.parametrize("version", [4, 5])
def test_what_a_consumer_has_is_given_back_when_its_connection_ends(version: int) -> None:
    """What was sent and what was not; its session gets nothing of that again."""
    source = ListSource(b"1", b"2", b"3")
    broker = VirtualBroker(sources=[source])
    options = KEEP if version == 5 else {"clean_start": False}
    client = broker.connect("c", version, **options)
    client.connection.pause_sending(broker.now)
    client.subscribe("$queue/q", 1)
    assert not source.feeds[0].consumer.room()
    client.connection.resume_sending(broker.now)
    broker.settle()
    source.fill()
    broker.settle()
    n_sent = len(take(client))
    client.lose()
    assert source.outcomes == [(b"%d" % (n + 1), "returned") for n in range(n_sent)]
    assert len(source.waiting) == 3
    assert source.feeds[0].is_stopped
    session = broker.session("c")
    assert not session.inflight.n_messages
    session.check_invariants()
    client = broker.connect("c", version, **options)
    broker.settle()
    assert client.connack.session_present
    assert not any(packet.dup for packet in client.inbox if isinstance(packet, Publish))
    while client.acknowledge():
        pass
    assert not source.waiting
    client.session.check_invariants()


def test_what_waits_in_the_outbox_was_not_sent() -> None:
    """A large message that the gate holds back: the source may give it to others at once."""

    class Closed(DeliveryGate):
        """Lets no large message go."""

        def threshold_s(self, topic: str) -> int | None:
            """Return 10 bytes."""
            del topic
            return 10

        def decide(self, *_: Any) -> Verdict:
            """Hold it back."""
            return Verdict(deliver=False, reason="closed")

    source = ListSource(bytes(100), b"small")
    source.waiting[1].topic, source.waiting[1].topic_bytes = "other", b"other"
    broker = VirtualBroker(gate=Closed(), sources=[source])
    client = broker.connect("c")
    client.subscribe("$queue/q", 1)
    broker.settle()
    assert client.acknowledge() == [b"small"]
    assert client.session.outbox.n_withheld == 1
    client.session.check_invariants()
    client.lose()
    assert source.outcomes == [(b"small", "acknowledged"), (bytes(100), "unsent")]


def test_at_qos_0_a_message_is_done_when_it_is_given() -> None:
    """It may be lost, as QoS 0 has it."""
    source = ListSource(b"1", b"2")
    broker = VirtualBroker(sources=[source])
    client = broker.connect("c")
    assert client.subscribe("$queue/q", 0) == 0
    broker.settle()
    assert [(p.payload, p.qos) for p in client.take_all(Publish)] == [(b"1", 0), (b"2", 0)]
    assert source.outcomes == [(b"1", "acknowledged"), (b"2", "acknowledged")]


def test_consumers_share_the_messages() -> None:
    """Each message goes to one of them, whatever group or subscription of a share it looks like."""
    source = ListSource(*(b"%d" % n for n in range(6)))
    broker = VirtualBroker(sources=[source])
    clients = [broker.connect(name, properties={"receive_maximum": 1}) for name in "ab"]
    for client in clients:
        client.subscribe("$queue/q", 1)
    found = [client.acknowledge() for _ in range(3) for client in clients]
    assert [len(one) for one in found] == [1] * 6
    assert sorted(b"".join(one) for one in found) == [b"%d" % n for n in range(6)]


def test_unsubscribing_completes_what_was_sent() -> None:
    """[MQTT-3.10.4-3]; nothing else comes, and the subscription is gone."""
    source = ListSource(b"1", b"2")
    broker = VirtualBroker(sources=[source])
    client = broker.connect("c", properties={"receive_maximum": 1})
    client.subscribe("$queue/q", 1)
    broker.settle()
    ((packet_id, _),) = take(client)
    client.send(Unsubscribe(2, ("$queue/q",)))
    assert source.feeds[0].is_stopped
    client.send(PubAck(packet_id))
    assert source.outcomes == [(b"1", "acknowledged")]
    assert take(client) == []
    assert not client.session.subscriptions
    client.session.check_invariants()


def test_subscriptions_that_cannot_be_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """With the reason, for the client and in the log; a share of a queue is none."""
    caplog.set_level("INFO")
    broker = VirtualBroker(sources=[ListSource()])
    client = broker.connect("c")
    wanted = ("$queue/x", "$share/a/$queue/q", "t", "$queue/q")
    requests = tuple(SubscriptionRequest(topic_filter, 1) for topic_filter in wanted)
    client.send(Subscribe(1, requests))
    (suback,) = client.take_all(SubAck)
    code = ReasonCode.TOPIC_FILTER_INVALID
    assert suback.reason_codes == (code, code, 1, 1)
    reason = suback.properties["reason_string"]
    assert "$queue/x: queue: read x; allowed: q" in reason
    assert "$share/a/$queue/q: its messages are shared by all who subscribe" in reason
    assert broker.connect("d", 4).subscribe("$queue/x", 1) == 0x80
    for client_id in "cd":
        told = f"client {client_id}: subscription to $queue/x refused: queue: read x; allowed: q; 1"
        assert f"{told} so far" in caplog.messages


@pytest.mark.parametrize("action", ["subscribe", "receive"])
def test_access_control_is_asked_for_the_queue_whatever_the_group(action: str) -> None:
    """Who may read a queue may read it in any group."""
    access = Access()
    broker = VirtualBroker(sources=[ListSource()], access=access)
    client = broker.connect("c")
    assert client.subscribe("$queue/q/group", 1) == 1
    access.refused.add((action, "$queue/q"))
    assert client.subscribe("$queue/q/other", 1) == ReasonCode.NOT_AUTHORIZED


def test_nothing_is_published_or_retained_for_a_consumer() -> None:
    """A message on the topic of that name is no message of the queue."""
    source = ListSource()
    broker = VirtualBroker(sources=[source])
    broker.connect("p").publish("$queue/q", b"r", qos=1, retain=True)
    client = broker.connect("c")
    client.subscribe("$queue/q", 1)
    broker.connect("p").publish("$queue/q", b"x", qos=1)
    broker.settle()
    assert take(client) == []


def test_a_message_that_is_dropped_is_found() -> None:
    """It is too large for the client: its PUBACK never comes."""
    source = ListSource(bytes(200))
    broker = VirtualBroker(sources=[source])
    client = broker.connect("c", properties={"maximum_packet_size": 100})
    client.subscribe("$queue/q", 1)
    broker.settle()
    feed = source.feeds[0]
    feed.is_stopped = True
    feed.consumer.find_lost()
    assert source.outcomes == [(bytes(200), "refused")]
    client.session.check_invariants()


def test_a_restart_keeps_the_subscription_and_nothing_that_was_leased() -> None:
    """The queue is the one that stores its messages."""
    source = ListSource(b"1")
    broker = DurableBroker(sources=[source])
    client = broker.connect("c", **KEEP)
    client.subscribe("$queue/q", 1)
    broker.settle()
    assert len(take(client)) == 1
    assert not broker.disk.deliveries
    source.waiting.append(source.waiting.pop() if source.waiting else ListSource(b"1").waiting[0])
    broker = broker.crash()
    client = broker.connect("c", **KEEP)
    broker.settle()
    assert client.acknowledge() == [b"1"]
    assert not broker.core.tree.n_subscriptions


def test_a_subscription_identifier_comes_with_each_message() -> None:
    """As with any other subscription; one that replaces it changes it."""
    source = ListSource(b"1")
    broker = VirtualBroker(sources=[source])
    client = broker.connect("c")
    client.subscribe("$queue/q", 1, properties={"subscription_identifier": [7]})
    broker.settle()
    (packet,) = client.take_all(Publish)
    assert packet.properties["subscription_identifier"] == [7]
    client.subscribe("$queue/q", 1)
    assert len(source.feeds) == 1
