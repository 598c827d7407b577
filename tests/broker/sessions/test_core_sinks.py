"""Sinks that come and go while the broker runs."""

from __future__ import annotations

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.packets import PubAck
from penstock.broker.sessions.broker_state import CoreSinks
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker


def test_a_sink_gets_messages_from_its_addition_to_its_removal() -> None:
    """Also of topics that have been published to before."""
    broker = VirtualBroker()
    routes = CoreSinks()
    routes.attach(broker.core)
    publisher = broker.connect("p")
    sink = HoldingSink("a/+")
    for number in range(3):
        if number == 1:
            routes.add(sink)
        if number == 2:
            routes.remove(sink)
        publisher.publish("a/b", b"%d" % number, qos=1)
    sink.settle()
    broker.settle()
    assert [message.payload for message in sink.messages] == [b"1"]
    assert len(publisher.take_all(PubAck)) == 3
    routes.remove(sink)


def test_a_sink_of_a_name_that_is_taken_is_refused() -> None:
    """Figures are told apart by the name."""
    broker = VirtualBroker(sinks=[HoldingSink(name="queue.a")])
    routes = CoreSinks()
    routes.attach(broker.core)
    with pytest.raises(PenstockError, match=r"sink queue\.a: there is one"):
        routes.add(HoldingSink(name="queue.a"))
    with pytest.raises(PenstockError, match=r"sink queue\.b: .*#"):
        routes.add(HoldingSink("a/#/b", name="queue.b"))
    assert len(broker.core.sinks) == 1
