"""An authorized PUBLISH is routed as a whole, or not at all."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.enums import MQTT_5
from tests.helpers.access import Access, finish
from tests.helpers.full import FULL, SMALL, acknowledged, away, check, drain, kept, send
from tests.helpers.virtual import VirtualBroker


@pytest.mark.parametrize("version", [4, 5])
def test_a_retained_message_that_is_refused_is_not_retained(version: int) -> None:
    """It goes to nobody, those who subscribe later among them."""
    broker = VirtualBroker(Limits(**SMALL))
    away(broker)
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
    away(broker)
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
    away(broker)
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
    away(broker)
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
