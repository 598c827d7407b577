"""A chunk of one packet does what the same packet does among others.

That nobody can tell the two apart is shown by `test_runs`, whose chunks are of one packet too;
here is what makes a packet go its own way.
"""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.fast_connection import FastConnection
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.fast_paths.single_packet import TAKE_SINGLE
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient


def pair(broker: VirtualBroker, version: int = 4) -> tuple[VirtualClient, VirtualClient]:
    """Return a publisher whose topic is known, and its subscriber."""
    subscriber = broker.connect("s", version)
    subscriber.subscribe("t", 1)
    publisher = broker.connect("p", version)
    publisher.publish("t", b"first")
    assert subscriber.payloads() == [b"first"]
    return publisher, subscriber


def is_taken(client: VirtualClient, packet: bytes) -> bool:
    """Hand a client's packet over, and say whether it was taken."""
    assert isinstance(client.connection, FastConnection)
    take = TAKE_SINGLE.get(packet[0])
    taken = take is not None and take(client.connection.client, packet, client.broker.now)
    client.broker.settle()
    return taken


def a_publish(payload: bytes, version: int = 4, packet_id: int = 7, qos: int = 1) -> bytes:
    """Return a PUBLISH to the topic that is known."""
    return write_packet(Publish("t", payload, qos=qos, packet_id=packet_id if qos else 0), version)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("n_bytes", [0, 1, 64, *range(115, 130), 255, 256, 257, 4000])
def test_a_packet_of_any_small_size_is_taken(version: int, qos: int, n_bytes: int) -> None:
    """One or two bytes say its Remaining Length (MQTT 5.0, 1.5.5); every byte arrives."""
    publisher, subscriber = pair(VirtualBroker(core_class=FastCore), version)
    payload = bytes(number & 0xFF for number in range(n_bytes))
    assert is_taken(publisher, a_publish(payload, version, qos=qos))
    assert subscriber.payloads() == [payload]
    assert [ack.packet_id for ack in publisher.take_all(PubAck)] == ([7] if qos else [])


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_first_message_of_a_topic_is_taken_too(version: int, qos: int) -> None:
    """Many clients with topics of their own begin with as many such messages."""
    broker = VirtualBroker(core_class=FastCore)
    subscriber = broker.connect("s", version)
    subscriber.subscribe("t", 1)
    publisher = broker.connect("p", version)
    assert is_taken(publisher, a_publish(b"x", version, qos=qos))
    assert subscriber.payloads() == [b"x"]


@pytest.mark.parametrize("topic", [b"", b"+", b"a/#", b"\xff", b"$SYS/x", b"12345678901"])
def test_the_first_message_of_a_topic_that_is_refused_goes_the_long_way(topic: bytes) -> None:
    """There it is found out what to answer; nothing is kept for such a topic here."""
    broker = VirtualBroker(Limits(topic_bytes=10), core_class=FastCore)
    publisher, subscriber = pair(broker)
    plans = set(broker.core.tree.plans)
    packet = bytes([0x30, len(topic) + 2, 0, len(topic)]) + topic
    assert not is_taken(publisher, packet)
    assert set(broker.core.tree.plans) == plans
    assert not subscriber.inbox


def test_an_acknowledgement_ends_what_went_alone() -> None:
    """A PUBACK makes room for the next message; one that stands for nothing goes the long way."""
    broker = VirtualBroker(Limits(inflight_messages=1), core_class=FastCore)
    publisher, subscriber = pair(broker)
    for number in range(3):
        publisher.publish("t", b"%d" % number, qos=1, packet_id=number + 1)
    (first,) = subscriber.take_all(Publish)
    assert not is_taken(subscriber, write_packet(PubAck(first.packet_id + 1), 4))
    assert is_taken(subscriber, write_packet(PubAck(first.packet_id), 4))
    assert subscriber.payloads() == [b"1"]
    assert subscriber.session.settle_direct().delivered == 2
    subscriber.session.check_invariants()


def test_an_acknowledgement_with_more_to_say_is_heard_out() -> None:
    """[MQTT-3.4.2-1]: one that refuses the message does not count as a delivery."""
    publisher, subscriber = pair(VirtualBroker(core_class=FastCore), 5)
    publisher.publish("t", b"x", qos=1)
    (message,) = subscriber.take_all(Publish)
    refusal = write_packet(PubAck(message.packet_id, 0x97), 5)
    assert not is_taken(subscriber, refusal)
    subscriber.send_bytes(refusal)
    ledger = subscriber.session.settle_direct()
    assert ledger.dropped == {"refused": 1}
    assert ledger.delivered == 1  # the first


@pytest.mark.parametrize(
    "packet",
    [
        a_publish(b"x")[:-1],
        a_publish(b"x") + b"\xc0",
        a_publish(b"x", packet_id=1).replace(b"\0\1t\0\1", b"\0\1t\0\0"),
        b"\x32\x04\0\x01t\0",
        b"\x32\x02\0\x01",
        b"\x30\x02\xff\xff",
        b"\x32\x86\x00\0\1t\0\7x",
        b"\x32\xff\x00" + a_publish(b"x" * 122)[2:],
        b"\x32\xff\xff" + bytes(200),
        b"\x30\x04\0\5t\0",
    ],
)
def test_what_is_not_one_whole_small_packet_is_left_as_it_was(packet: bytes) -> None:
    """Nothing is counted, sent or acknowledged for it here."""
    broker = VirtualBroker(core_class=FastCore)
    publisher, subscriber = pair(broker)
    n_packets = broker.core.counters.packets_received
    assert not is_taken(publisher, packet)
    assert n_packets == broker.core.counters.packets_received
    assert not subscriber.inbox
    assert not publisher.inbox


def test_a_packet_behind_half_of_another_is_not_taken_for_its_own() -> None:
    """The end of a packet may look like a packet."""
    publisher, subscriber = pair(VirtualBroker(core_class=FastCore))
    inner = a_publish(b"x", qos=0)
    outer = a_publish(b"begin" + inner, qos=0)
    publisher.send_bytes(outer[: -len(inner)])
    publisher.send_bytes(inner)
    assert subscriber.payloads() == [b"begin" + inner]


def test_what_a_durable_session_gets_is_acknowledged_after_its_commit() -> None:
    """A publisher learns that its message is taken when it is on the disk."""
    broker = DurableBroker(core_class=FastCore)
    subscriber = broker.connect("s", properties={"session_expiry_interval": 600})
    subscriber.subscribe("t", 1)
    publisher = broker.connect("p")
    publisher.publish("t", b"first")
    broker.commits_at_once = False
    assert is_taken(publisher, a_publish(b"x", 5))
    assert not publisher.take_all(PubAck)
    broker.commit()
    assert len(publisher.take_all(PubAck)) == 1


def test_a_client_with_a_publish_rate_is_counted_packet_by_packet() -> None:
    """The limit holds for chunks of one packet."""
    broker = VirtualBroker(Limits(publish_messages_per_second=1.0), core_class=FastCore)
    publisher, subscriber = pair(broker)
    for _ in range(5):
        publisher.send_bytes(a_publish(b"x"))
    assert len(subscriber.payloads()) < 5
    assert not publisher.is_reading


@pytest.mark.parametrize("version", [4, 5])
def test_each_message_reaches_a_share_whose_member_is_chosen_for_it(version: int) -> None:
    """However many come one by one, and whatever was done since the last chunk of several."""
    broker = VirtualBroker(core_class=FastCore)
    member = broker.connect("m", 9 - version)
    member.subscribe("$share/g/t", 0)
    publisher = broker.connect("p", version)
    sent = [b"%d" % number for number in range(2 * broker.core.turn.most_steps)]
    for payload in sent:
        publisher.publish("t", payload)
    assert member.payloads() == sent
    assert broker.core.counters.publish_received == len(sent)
