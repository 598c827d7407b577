"""Slowing publishers down, on a virtual clock."""

from __future__ import annotations

from broker.limits import Limits
from broker.message import Message
from broker.mqtt.packets import Subscribe, Subscription
from broker.throttle import MAX_WAIT_SECONDS, THROTTLE_SECONDS
from tests.helpers.virtual import VirtualBroker, VirtualClient


def congested() -> tuple[VirtualBroker, VirtualClient, VirtualClient]:
    """Return a broker, a publisher, and a subscriber to "t" without room."""
    broker = VirtualBroker()
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    publisher = broker.connect("p")
    subscriber.connection.pause_sending(subscriber.broker.now)
    return broker, publisher, subscriber


def test_a_publisher_waits_until_its_subscriber_has_room() -> None:
    """It is not read from; others are."""
    broker, publisher, subscriber = congested()
    other = broker.connect("other")
    publisher.publish("t", b"x")
    other.publish("u", b"x")
    assert not publisher.is_reading
    assert other.is_reading
    subscriber.connection.resume_sending(subscriber.broker.now)
    broker.settle()
    assert publisher.is_reading
    assert subscriber.payloads() == [b"x"]


def test_nobody_waits_long_nor_twice_for_a_subscriber_on_a_bad_link() -> None:
    """After one wait in vain it is slow, until it has caught up."""
    broker, publisher, subscriber = congested()
    publisher.publish("t", b"1")
    assert not publisher.is_reading
    broker.advance(THROTTLE_SECONDS)
    assert publisher.is_reading
    publisher.publish("t", b"2")
    assert publisher.is_reading
    subscriber.connection.resume_sending(subscriber.broker.now)
    broker.settle()
    assert subscriber.payloads() == [b"1", b"2"]
    subscriber.connection.pause_sending(subscriber.broker.now)
    publisher.publish("t", b"3")
    assert not publisher.is_reading


def test_a_publisher_waits_on_for_a_subscriber_that_drains() -> None:
    """A healthy subscriber with a long backlog is waited for, but not for ever."""
    broker, publisher, subscriber = congested()
    publisher.publish("t", b"x")
    waited = 0.0
    while not publisher.is_reading:
        broker.advance(THROTTLE_SECONDS / 2)
        waited += THROTTLE_SECONDS / 2
        subscriber.connection.resume_sending(broker.now)
        subscriber.connection.pause_sending(broker.now)
    assert MAX_WAIT_SECONDS <= waited < MAX_WAIT_SECONDS + 2 * THROTTLE_SECONDS
    assert not subscriber.connection.throttle.is_slow


def test_a_slow_subscriber_that_drains_quickly_again_is_waited_for() -> None:
    """One that was short of processor time for a moment is not slow for good."""
    broker, publisher, subscriber = congested()
    publisher.publish("t", b"1")
    broker.advance(THROTTLE_SECONDS)
    throttle = subscriber.connection.throttle
    assert throttle.is_slow
    for seconds, is_slow in ((THROTTLE_SECONDS * 2, True), (THROTTLE_SECONDS / 2, False)):
        subscriber.connection.pause_sending(broker.now)
        broker.advance(seconds)
        subscriber.connection.resume_sending(broker.now)
        assert throttle.is_slow == is_slow


def test_a_subscriber_that_leaves_lets_its_publishers_go_on() -> None:
    """And a publisher that leaves is not woken any more."""
    broker, publisher, subscriber = congested()
    gone = broker.connect("gone")
    gone.publish("t", b"x")
    publisher.publish("t", b"x")
    gone.lose()
    subscriber.lose()
    broker.settle()
    assert publisher.is_reading
    broker.advance(1)


def test_a_full_inflight_window_throttles_too() -> None:
    """A flood of QoS 1 is held back before the outbox is full."""
    broker = VirtualBroker(Limits(inflight_messages=2))
    subscriber = broker.connect("s")
    subscriber.subscribe("t", 1)
    publisher = broker.connect("p")
    for number in range(4):
        publisher.publish("t", b"%d" % number, qos=1)
    assert publisher.is_reading
    publisher.publish("t", b"4", qos=1)
    assert not publisher.is_reading
    assert subscriber.acknowledge() == [b"0", b"1"]
    assert publisher.is_reading


def test_a_client_does_not_wait_for_itself() -> None:
    """One that subscribes to what it publishes must be read from, to acknowledge."""
    broker = VirtualBroker()
    client = broker.connect("c")
    client.subscribe("t")
    client.connection.pause_sending(client.broker.now)
    client.publish("t", b"x")
    assert client.is_reading


def test_nobody_waits_for_a_subscriber_whom_another_message_found_without_room() -> None:
    """Wills, $SYS and retained messages have no publisher; the next one is not to blame."""
    broker, publisher, subscriber = congested()
    publisher.publish("r", b"retained", retain=True)
    broker.core.publish(Message("t", b"the broker's own"), broker.now)
    subscriber.send(Subscribe(1, (Subscription("r"),)))
    broker.settle()
    publisher.publish("nobody", b"x")
    assert publisher.is_reading
    assert broker.core.congested == []
