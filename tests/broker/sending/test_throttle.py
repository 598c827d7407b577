"""Slowing publishers down, on a virtual clock."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Packet, PubAck, Publish, Subscribe, SubscriptionRequest
from penstock.broker.sending.throttle import (
    LITTLE_BYTES_PER_SECOND,
    LITTLE_MESSAGES_PER_SECOND,
    LITTLE_SECONDS,
    MAX_WAIT_SECONDS,
    THROTTLE_SECONDS,
    WAITING_SHARE,
    ManyThrottle,
)
from tests.helpers.virtual import VirtualBroker, VirtualClient


def much(mark: bytes) -> bytes:
    """Return a payload by which its publisher is none that publishes little."""
    return mark.ljust(int(LITTLE_BYTES_PER_SECOND * LITTLE_SECONDS) + 1, b".")


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
    publisher.publish("t", much(b"x"))
    other.publish("u", b"x")
    assert not publisher.is_reading
    assert other.is_reading
    subscriber.connection.resume_sending(subscriber.broker.now)
    broker.settle()
    assert publisher.is_reading
    assert subscriber.payloads() == [much(b"x")]


def test_who_publishes_little_does_not_wait_for_what_another_has_sent() -> None:
    """A subscriber to all topics that a flood keeps full slows the flood down, and nobody else."""
    broker = VirtualBroker()
    subscriber = broker.connect("s")
    subscriber.subscribe("#")
    flood, little = broker.connect("flood"), broker.connect("little")
    subscriber.connection.pause_sending(broker.now)
    flood.publish("f", much(b"x"))
    for number in range(int(LITTLE_MESSAGES_PER_SECOND)):
        little.publish("t", b"%d" % number)
        assert little.is_reading
        broker.advance(1 / LITTLE_MESSAGES_PER_SECOND)
        subscriber.connection.resume_sending(broker.now)  # it has taken something, not all
        subscriber.connection.pause_sending(broker.now)
    assert not flood.is_reading


def test_who_publishes_little_may_do_so_in_bunches_and_not_for_long() -> None:
    """What came while the broker did not look is no flood; more than that is."""
    _, publisher, _ = congested()
    n_messages = int(LITTLE_SECONDS * LITTLE_MESSAGES_PER_SECOND)
    for _ in range(n_messages):
        publisher.publish("t", b"x")
    assert publisher.is_reading
    publisher.publish("t", b"x")
    assert not publisher.is_reading


def test_very_many_who_publish_little_wait_for_a_subscriber_with_a_backlog() -> None:
    """Together they are a flood, and what waits for one subscriber stays within its limit."""
    n_publishers = 80
    broker = VirtualBroker(Limits(queued_messages=n_publishers))
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    subscriber.connection.pause_sending(broker.now)
    publishers = [broker.connect(f"p{number}") for number in range(n_publishers)]
    for publisher in publishers:
        publisher.publish("t", b"x")
    n_free = sum(publisher.is_reading for publisher in publishers)
    assert n_free == int(n_publishers * WAITING_SHARE) - 1


def test_publishers_of_another_broker_do_not_wait_because_of_each_other() -> None:
    """However much they send together, before a subscriber has a backlog."""
    broker = VirtualBroker(Limits(queued_messages=80))
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    broker.connect("u").subscribe("u")
    forwarder = broker.connect("$uplink/x", is_forwarded=True)
    client = forwarder.connection.client
    client.throttle = ManyThrottle(client.core, client.outgoing)
    subscriber.connection.pause_sending(broker.now)
    for _ in range(int(80 * WAITING_SHARE) - 1):
        forwarder.publish("t", much(b"x"))
        assert forwarder.is_reading
    forwarder.publish("t", b"x")
    assert not forwarder.is_reading
    subscriber.connection.resume_sending(broker.now)
    broker.settle()
    assert forwarder.is_reading


def test_publishers_do_not_wait_for_all_retained_messages_of_a_subscriber() -> None:
    """As soon as what they have sent is on its way, between two of these, they go on."""
    n_retained = 1_000
    broker = VirtualBroker()
    publisher = broker.connect("p")
    for number in range(n_retained):
        publisher.publish(f"r/{number}", b"x", retain=True)
    subscriber = broker.connect("s")
    subscriber.room_bytes = 0
    subscriber.send(Subscribe(1, (SubscriptionRequest("#"),)))
    publisher.publish("live", much(b"x"))
    assert not publisher.is_reading
    subscriber.room_bytes = 1_000
    subscriber.connection.resume_sending(broker.now)
    broker.settle()
    assert subscriber.session.retained_due
    assert publisher.is_reading
    assert much(b"x") in subscriber.payloads()


def test_nobody_waits_long_nor_twice_for_a_subscriber_on_a_bad_link() -> None:
    """After one wait in vain it is slow, until it has caught up."""
    broker, publisher, subscriber = congested()
    publisher.publish("t", much(b"1"))
    assert not publisher.is_reading
    broker.advance(THROTTLE_SECONDS)
    assert publisher.is_reading
    publisher.publish("t", much(b"2"))
    assert publisher.is_reading
    subscriber.connection.resume_sending(subscriber.broker.now)
    broker.settle()
    assert subscriber.payloads() == [much(b"1"), much(b"2")]
    subscriber.connection.pause_sending(subscriber.broker.now)
    publisher.publish("t", much(b"3"))
    assert not publisher.is_reading


def test_a_publisher_waits_on_for_a_subscriber_that_drains() -> None:
    """A healthy subscriber with a long backlog is waited for, but not for ever."""
    broker, publisher, subscriber = congested()
    publisher.publish("t", much(b"x"))
    waited = 0.0
    while not publisher.is_reading:
        broker.advance(THROTTLE_SECONDS / 2)
        waited += THROTTLE_SECONDS / 2
        subscriber.connection.resume_sending(broker.now)
        subscriber.connection.pause_sending(broker.now)
    assert MAX_WAIT_SECONDS <= waited < MAX_WAIT_SECONDS + 2 * THROTTLE_SECONDS
    assert not subscriber.connection.client.throttle.is_slow


def test_a_slow_subscriber_that_drains_quickly_again_is_waited_for() -> None:
    """One that was short of processor time for a moment is not slow for good."""
    broker, publisher, subscriber = congested()
    publisher.publish("t", much(b"1"))
    broker.advance(THROTTLE_SECONDS)
    throttle = subscriber.connection.client.throttle
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
    gone.publish("t", much(b"x"))
    publisher.publish("t", much(b"x"))
    gone.lose()
    subscriber.lose()
    broker.settle()
    assert publisher.is_reading
    broker.advance(1)


def test_a_full_inflight_window_throttles_too() -> None:
    """A flood of QoS 1 is held back before the outbox is full."""
    broker = VirtualBroker(Limits(inflight_messages=2, queued_messages=16))
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
    client.publish("t", much(b"x"))
    assert client.is_reading


def test_nobody_waits_for_a_subscriber_whom_another_message_found_without_room() -> None:
    """Wills, $SYS and retained messages have no publisher; the next one is not to blame."""
    broker, publisher, subscriber = congested()
    publisher.publish("r", b"retained", retain=True)
    broker.core.router.publish(Message("t", b"the broker's own"), broker.now)
    subscriber.send(Subscribe(1, (SubscriptionRequest("r"),)))
    broker.settle()
    publisher.publish("nobody", b"x")
    assert publisher.is_reading
    assert broker.core.turn.congested == []


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_clients_that_flood_each_other_are_not_all_held(names: str) -> None:
    """Though their acknowledgements stand behind what they publish, all arrives, in no time."""
    n_messages = 100
    broker = VirtualBroker(Limits(inflight_messages=2, queued_messages=2 * n_messages))
    clients = [broker.connect(name) for name in names]
    written: list[deque[Packet]] = []
    for client, topic, other in zip(clients, names, names[1:] + names[0], strict=True):
        client.subscribe(topic, 1)
        flood = [Publish(other, b"%d" % n, qos=1, packet_id=n + 1) for n in range(n_messages)]
        written.append(deque(flood))
    received: dict[VirtualClient, list[int]] = {client: [] for client in clients}
    while any(written):
        readable = [
            client.is_reading and bool(rest) for client, rest in zip(clients, written, strict=True)
        ]
        assert any(readable), "all are held"
        for client, rest, is_readable in zip(clients, written, readable, strict=True):
            if is_readable:
                client.send(rest.popleft())
        for client, rest in zip(clients, written, strict=True):
            for packet in client.take_all(Publish):
                received[client].append(int(packet.payload))
                rest.append(PubAck(packet.packet_id))
    assert all(numbers == list(range(n_messages)) for numbers in received.values())
    assert broker.core.ledger().dropped == {}


def test_a_source_waits_for_the_sink_behind_a_worker() -> None:
    """The worker is held, and not slow for it; when the sink has room, both go on."""
    broker, worker, sink = congested()
    worker.subscribe("work")
    worker.publish("t", much(b"1"))
    worker.connection.pause_sending(broker.now)  # it cannot write, and so it does not read
    source = broker.connect("source")
    source.publish("work", much(b"2"))
    for _ in range(3):
        broker.advance(THROTTLE_SECONDS / 2)
        sink.connection.resume_sending(broker.now)  # it drains, and is full again
        sink.connection.pause_sending(broker.now)
        assert not worker.is_reading
        assert not source.is_reading
    assert not worker.connection.client.throttle.is_slow
    sink.connection.resume_sending(broker.now)
    broker.settle()
    assert worker.is_reading
    worker.connection.resume_sending(broker.now)
    broker.settle()
    assert source.is_reading


@settings(deadline=None)
@given(st.data())
def test_whoever_is_held_waits_in_the_end_for_a_client_that_is_read(data: st.DataObject) -> None:
    """Among any clients that publish to each other, with room or without."""
    n_clients = 4
    broker = VirtualBroker()
    clients = [broker.connect(str(number)) for number in range(n_clients)]
    for number, client in enumerate(clients):
        client.subscribe(str(number))
    who = st.integers(0, n_clients - 1)
    for _ in range(data.draw(st.integers(1, 25))):
        number, to = data.draw(who), data.draw(who)
        if data.draw(st.booleans()):
            clients[number].publish(str(to), much(b"x"))
        elif clients[number].connection.outgoing.is_paused:
            clients[number].connection.resume_sending(broker.now)
            broker.settle()
        else:
            clients[number].connection.pause_sending(broker.now)
        held = [client for client in clients if not client.is_reading]
        assert len(held) < n_clients
        for client in held:
            ends(client, set())


def ends(client: VirtualClient, passed: set[VirtualClient]) -> None:
    """Follow every chain of waits to its end; a circle has none."""
    assert client not in passed
    for blocker in client.connection.client.throttle.blockers:
        assert blocker.outgoing is not None
        ends(blocker.outgoing.served, passed | {client})
