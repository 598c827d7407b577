"""Sinks that come and go while the broker runs."""

from __future__ import annotations

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.packets import PubAck, Will
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


def test_filters_of_a_sink_change_while_the_broker_runs() -> None:
    """What matches several of them is offered once; a filter that is not valid is refused."""
    broker = VirtualBroker()
    routes = CoreSinks()
    routes.attach(broker.core)
    publisher = broker.connect("p")
    sink = HoldingSink("a")
    with pytest.raises(PenstockError, match="sink sink: not added"):
        routes.add_filter(sink, "b")
    routes.add(sink)
    for topic in ("a", "b"):
        publisher.publish(topic, b"before")
    routes.add_filter(sink, "b")
    routes.add_filter(sink, "+")
    routes.add_filter(sink, "+")
    publisher.publish("b", b"between")
    routes.remove_filter(sink, "b")
    routes.remove_filter(sink, "+")
    routes.remove_filter(sink, "never")
    for topic in ("a", "b"):
        publisher.publish(topic, b"after")
    broker.settle()
    told = [(message.topic, message.payload) for message in sink.messages]
    assert told == [("a", b"before"), ("b", b"between"), ("a", b"after")]
    with pytest.raises(PenstockError, match=r"sink sink: .*#"):
        routes.add_filter(sink, "a/#/b")


class Retaining(HoldingSink):
    """A sink that is offered all that is to be retained."""

    takes_retained = True


def test_a_sink_is_offered_all_that_is_retained() -> None:
    """With a receipt at QoS 1; also a clear, a will and what finds no subscriber."""
    sink = Retaining("elsewhere")
    broker = VirtualBroker(sinks=[sink])
    will = Will("a/will", b"gone", retain=True)
    publisher, lost = broker.connect("p"), broker.connect("w", will=will)
    publisher.publish("a/b", b"1", qos=1, retain=True)
    publisher.publish("a/b", b"2", qos=1)
    publisher.publish("a/b", b"3", retain=True)
    publisher.publish("a/b", b"", qos=1, retain=True)
    lost.lose()
    broker.settle()
    told = [(message.topic, message.payload, message.retain) for message in sink.messages]
    assert told == [
        ("a/b", b"1", True),
        ("a/b", b"3", True),
        ("a/b", b"", True),
        ("a/will", b"gone", True),
    ]
    assert len(publisher.take_all(PubAck)) == 0
    sink.settle()
    broker.settle()
    assert len(publisher.take_all(PubAck)) == 2  # of the first, and of the second behind it
