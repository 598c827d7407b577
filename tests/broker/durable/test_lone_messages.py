"""Messages that are on their way to a durable session, and that the journal has not noted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock.broker.durable.lone_messages import NOTED_MESSAGES
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.durable import DurableBroker, keep, subscribed
from tests.helpers.virtual import VirtualClient


def broker_of_lone(**keys: Any) -> tuple[DurableBroker, VirtualClient, VirtualClient]:
    """Return a broker that only a look makes note lone messages, a subscriber and a publisher."""
    broker = DurableBroker(core_class=FastCore, notes_lone=False, **keys)
    subscriber, publisher = subscribed(broker), broker.connect("p")
    broker.commits_at_once = False
    return broker, subscriber, publisher


def publish(publisher: VirtualClient, number: int) -> None:
    """Publish a message by itself."""
    publisher.send(Publish("t/1", b"%d" % number, qos=1, packet_id=number))


def payloads(client: VirtualClient) -> list[bytes]:
    """Return what has come to a client."""
    taken = [packet for packet in client.inbox if isinstance(packet, Publish)]
    client.inbox.clear()
    return [packet.payload for packet in taken]


def test_a_message_that_is_acknowledged_is_never_noted() -> None:
    """Its publisher is answered then, and no commit begins."""
    broker, subscriber, publisher = broker_of_lone()
    n_changes = broker.journal.n_changes
    publish(publisher, 1)
    packet = subscriber.take(Publish)
    assert len(broker.journal.lone) == 1
    assert not publisher.inbox
    subscriber.send(PubAck(packet.packet_id))
    assert publisher.take(PubAck) == PubAck(1)
    assert not len(broker.journal.lone)
    assert broker.journal.n_changes == n_changes
    assert broker.seal() is None


def test_publishers_are_answered_in_their_order() -> None:
    """A PUBACK waits for those of messages before it [MQTT-4.6.0-2]."""
    broker, subscriber, publisher = broker_of_lone()
    broker.commits_at_once = True
    other = broker.connect("o", **keep())
    other.subscribe("u", 1)
    broker.commits_at_once = False
    publish(publisher, 1)
    publisher.send(Publish("u", b"", qos=1, packet_id=2))
    other.send(PubAck(other.take(Publish).packet_id))
    assert not publisher.inbox
    subscriber.send(PubAck(subscriber.take(Publish).packet_id))
    assert [publisher.take(PubAck).packet_id for _ in range(2)] == [1, 2]


def test_a_message_is_late_at_the_second_look() -> None:
    """It is stored with those behind it, and then its publisher is answered."""
    broker, subscriber, publisher = broker_of_lone()
    publish(publisher, 1)
    broker.look()
    assert broker.seal() is None
    publish(publisher, 2)
    broker.look()
    assert not broker.is_look_due
    assert not publisher.inbox
    broker.commit()
    assert [publisher.take(PubAck).packet_id for _ in range(2)] == [1, 2]
    assert payloads(subscriber) == [b"1", b"2"]
    again = broker.crash().connect("s", **keep())
    assert payloads(again) == [b"1", b"2"]


def test_messages_behind_a_late_one_are_noted_at_once() -> None:
    """Their publishers wait for a short commit, not for a subscriber that is far away."""
    broker, subscriber, publisher = broker_of_lone()
    publish(publisher, 1)
    broker.look()
    broker.look()
    broker.commit()
    for number in range(2, NOTED_MESSAGES + 2):
        publish(publisher, number)
        assert not len(broker.journal.lone)
    broker.commit()
    subscriber.inbox.clear()
    publish(publisher, NOTED_MESSAGES + 2)
    assert len(broker.journal.lone) == 1


def test_a_client_that_is_always_late_makes_publishers_wait_ever_less_often() -> None:
    """Twice as many messages are noted at once after each late one, until it connects again."""
    broker, _, publisher = broker_of_lone()
    number = 0
    for n_noted in (NOTED_MESSAGES, 2 * NOTED_MESSAGES):
        number += 1
        publish(publisher, number)
        assert len(broker.journal.lone) == 1
        broker.look()
        broker.look()
        for _ in range(n_noted):
            number += 1
            publish(publisher, number)
            assert not len(broker.journal.lone)
        broker.commit()


def test_a_publisher_does_not_wait_for_a_client_far_away() -> None:
    """Its messages are noted at once: a commit is shorter than the RTT."""
    broker, subscriber, publisher = broker_of_lone()
    broker.is_near = False
    publish(publisher, 1)
    broker.commit()
    assert publisher.take(PubAck).packet_id == 1
    assert payloads(subscriber) == [b"1"]


@pytest.mark.parametrize("is_busy", [True, False])
def test_only_a_busy_broker_waits_for_subscribers(*, is_busy: bool) -> None:
    """Otherwise a publisher that sends one message at a time would wait for nothing in return."""
    broker, _, publisher = broker_of_lone()
    broker.journal.lone.is_busy = is_busy
    publish(publisher, 1)
    assert len(broker.journal.lone) == is_busy


def test_what_comes_behind_a_lone_message_is_stored_behind_it() -> None:
    """A message that waits in the outbox, and a run of several."""
    broker, subscriber, publisher = broker_of_lone()
    publish(publisher, 1)
    packets = [Publish("t/1", b"%d" % number, qos=1, packet_id=number) for number in (2, 3)]
    publisher.send(*packets)
    assert not len(broker.journal.lone)
    broker.commit()
    assert payloads(subscriber) == [b"1", b"2", b"3"]
    assert payloads(broker.crash().connect("s", **keep())) == [b"1", b"2", b"3"]


def test_a_lone_message_behind_one_that_is_stored_is_stored_with_it() -> None:
    """A session that is asked what becomes of one message has all of them noted."""
    broker, subscriber, publisher = broker_of_lone()
    publisher.send(Publish("t/1", b"1", qos=1, retain=True, packet_id=1))  # it goes the plain way
    publish(publisher, 2)
    assert len(broker.journal.lone) == 1
    broker.commit()
    assert payloads(subscriber) == [b"1", b"2"]
    assert [publisher.take(PubAck).packet_id for _ in range(2)] == [1, 2]
    assert payloads(broker.crash().connect("s", **keep())) == [b"1", b"2"]


def test_a_client_that_leaves_has_its_messages_noted() -> None:
    """They come again on its next connection."""
    broker, subscriber, publisher = broker_of_lone()
    publish(publisher, 1)
    subscriber.lose()
    assert not len(broker.journal.lone)
    broker.commit()
    assert publisher.take(PubAck) == PubAck(1)
    assert payloads(broker.crash().connect("s", **keep())) == [b"1"]


def test_no_more_messages_are_left_out_than_may_wait_for_a_commit() -> None:
    """Half of them: the others are noted, and slow their publishers down."""
    broker, _, publisher = broker_of_lone(max_pending_messages=10)
    for number in range(1, 11):
        publish(publisher, number)
    assert len(broker.journal.lone) <= 5


def test_all_are_noted_as_the_broker_stops() -> None:
    """Nothing of them is lost then, though no publisher has an answer."""
    broker, _, publisher = broker_of_lone()
    publish(publisher, 1)
    broker.journal.lone.note_all()
    broker.commit()
    assert publisher.take(PubAck) == PubAck(1)
    assert payloads(broker.crash().connect("s", **keep())) == [b"1"]


def test_all_are_noted_as_the_disk_refuses() -> None:
    """Who waits for the disk is known before any receipt is settled without it."""
    broker, _, publisher = broker_of_lone()
    publish(publisher, 1)
    publisher.send(Publish("u", b"x", qos=1, packet_id=2, retain=True))
    broker.is_disk_full = True
    broker.commit()
    assert not len(broker.journal.lone)
    broker.is_disk_full = False
    broker.commit()
    assert publisher.take(PubAck).packet_id == 1


def test_a_publisher_that_comes_again_is_owed_the_same_answers() -> None:
    """A repeat is not sent again, and is answered when its message is acknowledged or stored."""
    broker = DurableBroker(core_class=FastCore, notes_lone=False)
    subscribers = [broker.connect(name, **keep()) for name in ("s", "u")]
    for subscriber, topic in zip(subscribers, "su", strict=True):
        subscriber.subscribe(topic, 1)
    publisher = broker.connect("p", **keep())
    packets = [Publish(topic, b"", qos=1, packet_id=ord(topic)) for topic in "su"]
    for packet in packets:
        publisher.send(packet)
    publisher.lose()
    again = broker.connect("p", **keep())
    for packet in packets:
        again.send(dataclasses.replace(packet, dup=True))
    assert len(broker.journal.lone) == 2
    assert not again.inbox
    subscribers[0].send(PubAck(subscribers[0].take(Publish).packet_id))
    assert again.take(PubAck) == PubAck(ord("s"))
    broker.look()
    broker.look()
    broker.commit()
    assert again.take(PubAck) == PubAck(ord("u"))
    assert payloads(broker.crash().connect("u", **keep())) == [b""]
