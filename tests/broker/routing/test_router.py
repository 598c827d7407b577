"""From a message to those who get it, on a virtual clock."""

from __future__ import annotations

from penstock.broker.message import Message
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker


def test_the_brokers_own_messages_reach_subscribers_and_are_retained() -> None:
    """As $SYS does; nobody waits for an acknowledgement of them."""
    broker = VirtualBroker()
    client = broker.connect()
    client.subscribe("$SYS/#", 1)
    broker.core.router.publish(Message("$SYS/x", b"1", qos=1, retain=True), broker.now)
    broker.settle()
    assert client.acknowledge() == [b"1"]
    late = broker.connect("late")
    late.subscribe("$SYS/x")
    assert late.payloads() == [b"1"]


def test_messages_of_the_broker_wait_for_access_control_in_a_task() -> None:
    """What has to wait is handed to the driver, and then delivered."""
    access = Access()
    broker = VirtualBroker(access=access)
    client = broker.connect()
    client.subscribe("t")
    access.waits = True
    broker.core.router.publish(Message("t", b"x"), broker.now)
    (rest,) = broker.waiting
    assert client.inbox == []
    try:
        while True:
            rest.send(None)
    except StopIteration:
        broker.settle()
    assert client.payloads() == [b"x"]
