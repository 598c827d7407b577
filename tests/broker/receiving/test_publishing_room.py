"""An authorized PUBLISH is routed as a whole, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.enums import MQTT_5
from tests.helpers.access import Access, finish
from tests.helpers.full import FULL, SMALL, acknowledged, check, drain, kept, send, stalled
from tests.helpers.sinks import LimitedSink
from tests.helpers.virtual import VirtualBroker, will


@pytest.mark.parametrize("version", [4, 5])
def test_a_retained_message_that_is_refused_is_not_retained(version: int) -> None:
    """It goes to nobody, those who subscribe later among them."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    publisher = broker.connect("p", version)
    send(publisher, 1, 2)
    send(publisher, 3, retain=True)
    assert not broker.core.retained.by_topic
    drain(kept(broker))
    broker.advance(1)
    if version == MQTT_5:
        send(publisher, 3, retain=True)
    assert broker.core.retained.by_topic["t"].payload == b"3"


@pytest.mark.parametrize("version", [4, 5])
def test_room_is_asked_for_where_access_control_takes_its_time(version: int) -> None:
    """Each answer comes later, and the rules are the same."""
    access = Access()
    broker = VirtualBroker(Limits(**SMALL), access=access)
    stalled(broker)
    publisher = broker.connect("p", version)
    access.waits = True
    for number in (1, 2, 3, 4):
        send(publisher, number)
        finish(publisher)
    answers = acknowledged(publisher)
    assert answers == ({1: 0, 2: 0} if version == 4 else {1: 0, 2: 0, 3: FULL, 4: FULL})
    assert broker.session("s").outbox.n_messages == 2
    access.waits = False
    subscriber = kept(broker)
    access.waits = True
    assert drain(subscriber) == [b"1", b"2"]
    for _ in range(3):
        broker.advance(1)
        broker.finish_waiting()
    assert list(acknowledged(publisher)) == ([3, 4] if version == 4 else [])
    check(broker)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_held_when_the_connection_is_lost_comes_by_its_repeat(qos: int) -> None:
    """Once: it was not acknowledged, so the client sends it again."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    publisher = broker.connect("p", 4, clean_start=False)
    send(publisher, 1, 2, 3, qos=qos)
    acknowledged(publisher)
    publisher.lose()
    assert not broker.core.room.waiting
    assert broker.core.counters.publish_refused == {"publisher gone": 1}
    subscriber = kept(broker)
    assert drain(subscriber) == [b"1", b"2"]
    broker.advance(5)
    assert drain(subscriber) == []
    publisher = broker.connect("p", 4, clean_start=False)
    send(publisher, 3, qos=qos, dup=True)
    assert acknowledged(publisher) == {3: 0}
    assert drain(subscriber) == [b"3"]
    check(broker)


def test_what_is_just_tried_when_the_connection_is_lost_comes_once() -> None:
    """Access control takes its time, and the client comes back before it has answered."""
    access = Access()
    broker = VirtualBroker(Limits(**SMALL), access=access)
    stalled(broker)
    other = kept(broker, "other")
    publisher = broker.connect("p", 4, clean_start=False)
    send(publisher, 1, 2, 3, qos=2)
    acknowledged(publisher)
    assert drain(other) == [b"1", b"2"]
    assert drain(kept(broker)) == [b"1", b"2"]
    access.waits = True
    broker.advance(1)
    assert broker.waiting
    access.waits = False
    publisher.lose()
    publisher = broker.connect("p", 4, clean_start=False)
    send(publisher, 3, qos=2, dup=True)
    broker.finish_waiting()
    assert acknowledged(publisher) == {3: 0}
    assert drain(other) == [b"3"]
    check(broker)


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_a_sink_refuses_reaches_nobody(
    qos: int,
    is_asked: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """Live subscribers would get it again each time it is repeated; it is not retained either."""
    sink, other = LimitedSink("t", name="full"), LimitedSink("t", name="other", room=5)
    broker = VirtualBroker(sinks=[other, sink], access=Access() if is_asked else None)
    subscriber = kept(broker)
    publisher = broker.connect("p")
    send(publisher, 1, 2, qos=qos, retain=True)
    assert acknowledged(publisher) == {1: FULL, 2: FULL}
    assert drain(subscriber) == []
    assert not broker.core.retained.by_topic
    assert broker.core.counters.publish_refused == {"queue_full": 2}
    assert (sink.counts.matched, sink.counts.dropped) == (2, {"queue_full": 2})
    assert (other.room, other.counts.matched) == (5, 0)
    sink.make_room()
    send(publisher, 1, qos=qos, retain=True)
    assert drain(subscriber) == [b"1"]
    for each in (other, sink):
        each.settle()
    broker.settle()
    assert acknowledged(publisher) == {1: 0}
    check(broker)


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_1_1_messages_wait_for_room_in_a_sink(
    qos: int,
    is_asked: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """In their order, and the sink's call lets them go without a look at the clock."""
    sink = LimitedSink("t", room=1)
    broker = VirtualBroker(sinks=[sink], access=Access() if is_asked else None)
    subscriber = kept(broker)
    publisher = broker.connect("p", 4)
    send(publisher, 1, 2, 3, qos=qos)
    sink.settle()
    broker.settle()
    assert acknowledged(publisher) == {1: 0}
    assert drain(subscriber) == [b"1"]
    assert broker.core.room.n_held == 2
    sink.make_room(2)
    broker.settle()
    broker.advance(0)
    assert drain(subscriber) == [b"2", b"3"]
    sink.settle()
    sink.settle()
    broker.settle()
    assert acknowledged(publisher) == {2: 0, 3: 0}
    assert not sink.counts.dropped
    check(broker)


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_a_message_that_a_sink_never_has_room_for_is_not_waited_for(
    version: int,
    is_behind: bool,  # noqa: FBT001 (a parameter of the test)
    is_asked: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """It would hold up what is behind it for good; also where it has waited behind another one."""
    sink = LimitedSink("t", room=0 if is_behind else 3)
    broker = VirtualBroker(sinks=[sink], access=Access() if is_asked else None)
    waits = {"user_property": [("penstock-waits", "yes")]} if version == MQTT_5 else None
    publisher = broker.connect("p", version, properties=waits)
    send(publisher, 1)
    publisher.publish("t", bytes(sink.max_bytes + 1), qos=1, packet_id=2)
    send(publisher, 3)
    if is_behind:
        assert broker.core.room.n_held == 3
        sink.make_room(3)
        broker.settle()
        broker.advance(0)
    assert not broker.core.room.n_held
    assert [message.payload for message in sink.messages] == [b"1", b"3"]
    sink.settle()
    sink.settle()
    broker.settle()
    assert acknowledged(publisher) == {1: 0, 2: 0 if version == 4 else FULL, 3: 0}
    assert broker.core.counters.publish_refused == {"too_large": 1}
    assert sink.counts.dropped == {"too_large": 1}


def test_a_message_that_expires_while_it_is_held_holds_up_nothing() -> None:
    """It is acknowledged, and counted."""
    sink = LimitedSink("t")
    broker = VirtualBroker(sinks=[sink])
    subscriber = kept(broker, topic_filter="u")
    publisher = broker.connect("p", properties={"user_property": [("penstock-waits", "yes")]})
    send(publisher, 1, properties={"message_expiry_interval": 10})
    publisher.publish("u", b"2", qos=1, packet_id=2)
    broker.advance(9)
    assert broker.core.room.n_held == 2
    broker.advance(2)
    assert acknowledged(publisher) == {1: 0, 2: 0}
    assert drain(subscriber) == [b"2"]
    assert broker.core.counters.publish_refused == {"expired": 1}


def test_qos_0_reaches_subscribers_where_a_sink_has_no_room() -> None:
    """Nobody repeats it: the sink counts that it did not get it. So it is with wills."""
    sink = LimitedSink("t")
    broker = VirtualBroker(sinks=[sink])
    subscriber = kept(broker)
    broker.connect("p").publish("t", b"0")
    broker.connect("w", will=will("t", b"gone", qos=1)).lose()
    assert drain(subscriber) == [b"0", b"gone"]
    assert (sink.counts.matched, sink.counts.dropped) == (2, {"queue_full": 2})
    sink.room = 2
    broker.connect("p").publish("t", b"0")
    broker.connect("w", will=will("t", b"gone", qos=1)).lose()
    assert [message.payload for message in sink.messages] == [b"0", b"gone"]


def test_a_sink_that_fails_when_it_is_asked_for_room_refuses() -> None:
    """Its fault is counted as an extension's."""
    sink = LimitedSink("t", room=1)
    sink.error = RuntimeError("no")
    broker = VirtualBroker(sinks=[sink])
    subscriber = kept(broker)
    publisher = broker.connect("p")
    send(publisher, 1)
    assert acknowledged(publisher) == {1: FULL}
    assert drain(subscriber) == []
    assert broker.core.counters.extension_errors == {"sink": 1}


def test_room_in_a_sink_is_given_back_where_the_wait_for_access_control_is_cancelled() -> None:
    """Room for a retained message is found before its receivers are asked about."""
    access = Access(publish=False)
    sink = LimitedSink("t", room=1)
    broker = VirtualBroker(sinks=[sink], access=access)
    kept(broker)
    publisher = broker.connect("p")
    access.waits = True
    send(publisher, 1, retain=True)
    assert sink.room == 0
    suspended = publisher.connection.client.suspended
    assert suspended is not None
    with pytest.raises(asyncio.CancelledError):
        suspended.throw(asyncio.CancelledError())
    assert sink.room == 1
